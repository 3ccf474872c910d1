"""Starts as a person reads them: a table, or every value with the line that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from kvyield.cli._run import safe
from kvyield.cli._tables import gib, moment, table, tokens

if TYPE_CHECKING:
    from kvyield.assemble import Assembled
    from kvyield.delivery import Delivery

_HEADINGS = (
    "started",
    "~model",
    "?hardware",
    "?engine",
    ">fraction",
    "outcome",
    ">pool tokens",
    ">free at ready, GiB",
    "result",
)


def show_starts(starts: Sequence[Assembled], deliveries: Sequence[Delivery]) -> None:
    """A row a start, with what became of it."""
    from kvyield.assemble import FRACTION_FLAG

    results = {str(one.observation.id): one.result for one in deliveries}
    rows = []
    for start in starts:
        draft = start.draft
        fraction = draft["flags"].get(FRACTION_FLAG[draft["engine"]["name"]])
        measured = draft["measurements"]
        result = "incomplete" if start.missing else results.get(str(start.observation().id), "not posted")
        rows.append(
            (
                moment(draft["observed_at"]),
                draft["model"]["name"] or "-",
                f"{draft['hardware']['gpu_count'] or '?'} x {draft['hardware']['gpu'] or '?'}",
                f"{draft['engine']['name']} {draft['engine']['version'] or ''}".strip(),
                "-" if fraction is None else fraction,
                draft["outcome"],
                tokens(measured["pool_tokens"]),
                gib(measured["free_at_ready_gib"]),
                result,
            )
        )
    if rows:
        table(_HEADINGS, rows)


def explain(starts: Sequence[Assembled], *, to_stderr: bool) -> None:
    """Every value of every start with its source; what nothing told is listed as unknown."""
    for number, start in enumerate(starts, 1):
        click.echo(f"start {number} of {len(starts)}", err=to_stderr)
        for path, value in _leaves(start.draft):
            source = start.sources.get(path)
            if value is None and not (path.startswith("flags.") and source):
                click.echo(f"  {path}: unknown", err=to_stderr)
            elif source:
                click.echo(safe(f"  {path} = {_shown(value)}\n      {source}"), err=to_stderr)
        for note in start.contradictions:
            click.echo(safe(f"  disagreement: {note}"), err=to_stderr)


def _shown(value: object) -> str:
    """A value as the wire has it: times in ISO form."""
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else repr(value)


def _leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            found += _leaves(inner, f"{prefix}{name}.")
        elif f"{prefix}{name}" not in ("id", "source", "verifications", "recommendation_id", "log_excerpt"):
            found.append((f"{prefix}{name}", inner))
    return found
