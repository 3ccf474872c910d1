"""What advice changes in the running engine's flags, as a unified diff."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import TYPE_CHECKING

import click

from kvyield.cli._advice import headline_of
from kvyield.cli._run import safe, say

if TYPE_CHECKING:
    from kvyield import _wire

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_SPELLED: dict[tuple[str | None, str], str] = {
    ("tensorrt-llm", "free_gpu_memory_fraction"): "--kv_cache_free_gpu_memory_fraction"
}


def show_difference(advice: _wire.Recommendation, _target_tokens: int) -> None:
    """The running flags against the advised ones, a flag a line, coloured on a terminal; nothing when none changes."""
    say(f"kvyield: {headline_of(advice)}")
    for line in difference(advice):
        click.echo(click.style(safe(line), fg=_COLOURS.get(line[:1]), bold=line.startswith(("--- ", "+++ "))))


def difference(advice: _wire.Recommendation) -> Iterator[str]:
    """The lines of the diff; advice with nothing to restart with has none."""
    if advice.status not in ("ok", "at_risk"):
        return iter(())
    running = {**advice.flags, **{change.flag: change.from_value for change in advice.changes}}
    before, after = (list(_lines(advice.engine, flags)) for flags in (running, advice.flags))
    return unified_diff(before, after, "running", "advised", n=len(running), lineterm="")


def _lines(engine: str | None, flags: Mapping[str, object]) -> Iterator[str]:
    """Flags as the engine's own command line takes them; those that are off are left out."""
    for name, value in flags.items():
        if value is None or value is False:
            continue
        plain = name if engine == "tensorrt-llm" else name.replace("_", "-")
        words = [_SPELLED.get((engine, name), f"--{plain}")]
        if value is not True:
            words.append(f"{value:.10g}" if isinstance(value, float) else str(value))
        yield f"  {shlex.join(words)}"
