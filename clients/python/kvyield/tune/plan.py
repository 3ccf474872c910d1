"""What ``tune`` is asked for, what it is going to do and what it did, in words and as records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import msgspec

from kvyield import _wire
from kvyield.tune.launchers import Launcher, Snapshot

End = Literal["verified", "not_verified", "infeasible", "not_restored", "ended"]


@dataclass(frozen=True)
class Goal:
    """What is asked for. ``question`` holds what else the advice is asked with."""

    tokens: int
    concurrent: int = 1
    question: Mapping[str, Any] = field(default_factory=dict)
    max_restarts: int = 3
    restarts_busy: bool = False
    idle_seconds: float = 60.0
    is_dry: bool = False


@dataclass(frozen=True)
class Desk:
    """The person: ``ask`` gets the plan and returns None for yes, else why not; ``record`` gets each round."""

    say: Callable[[str], None]
    ask: Callable[[Sequence[str]], str | None]
    record: Callable[[Round], None]


@dataclass(frozen=True)
class Result:
    """How it ended, and why, in one sentence."""

    end: End
    reason: str


class Round(msgspec.Struct, kw_only=True):
    """One round as ``--json`` prints it: what ran, what was advised, what came of it.

    ``result``: ``verified``, ``continue``, ``not_verified``, ``infeasible``, ``not_restored`` or ``ended``.
    ``overhead_seconds`` is all time but that of the engine: its starts, its prompts, the release of its memory, and the
    wait for a person's answer.
    """

    round: int
    flags: dict[str, Any] = msgspec.field(default_factory=dict)
    observation_id: UUID | None = None
    outcome: str | None = None
    pool_tokens: int | None = None
    free_at_ready_gib: float | None = None
    verification: dict[str, Any] | None = None
    advice: dict[str, Any] | None = None
    result: str = "continue"
    reason: str | None = None
    restarts: int = 0
    good_flags: dict[str, Any] = msgspec.field(default_factory=dict)
    seconds: float = 0.0
    overhead_seconds: float = 0.0


@dataclass
class Rounds:
    """The rounds of one run: a round is one start and what was decided on it."""

    record: Callable[[Round], None]
    present: Round = field(default_factory=lambda: Round(round=0), init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _engine_seconds: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """Begins the next round."""
        self.present = Round(round=self.present.round + 1)

    def note(self, **known: Any) -> None:
        """Adds what is known of the present round, by the fields of `Round`."""
        self.present = msgspec.structs.replace(self.present, **known)

    def end(self, result: str, reason: str | None, *, restarts: int, good_flags: Mapping[str, Any]) -> None:
        """Records the present round with its times."""
        now = time.monotonic()
        seconds = now - self._began
        whole = msgspec.structs.replace(
            self.present,
            result=result,
            reason=reason,
            restarts=restarts,
            good_flags=dict(good_flags),
            seconds=round(seconds, 3),
            overhead_seconds=round(max(seconds - self._engine_seconds, 0.0), 3),
        )
        self._began, self._engine_seconds = now, 0.0
        self.record(whole)

    @contextmanager
    def on_the_engine(self) -> Iterator[None]:
        """Time that is the engine's, or a person's: no overhead."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._engine_seconds += time.monotonic() - began


def advised(advice: _wire.Recommendation) -> dict[str, Any]:
    """The part of an answer that a record holds."""
    chance = advice.probability
    return {
        "id": str(advice.id) if advice.id else None,
        "status": advice.status,
        "flags": advice.flags,
        "changes": {one.flag: one.to_value for one in advice.changes},
        "headline": advice.headline.text if advice.headline else None,
        "probability": msgspec.to_builtins(chance) if chance else None,
    }


def lines(
    advice: _wire.Recommendation,
    launcher: Launcher,
    good: Snapshot,
    running: Mapping[str, Any],
    *,
    tokens: int,
    restart: int,
    at_most: int,
) -> Iterator[str]:
    """The plan of one restart: flags now and then, why, how long, what is sent, and what happens on failure.

    ``running`` are the flags of what runs.
    """
    prompt = f"a prompt of {tokens:,} tokens{_length(advice)}"
    yield f"plan: restart {restart} of at most {at_most}{_minutes(advice, running)}, then {prompt}"
    for change in advice.changes:
        yield f"  {change.flag}: {shown(change.from_value)} -> {shown(change.to_value)}: {change.reason}"
    chance = advice.probability
    if chance is not None and chance.joint is not None:
        yield f"  chance that pool and memory suffice: {chance.joint:.2f} ({advice.status.replace('_', ' ')})"
    for line in launcher.describe({one.flag: one.to_value for one in advice.changes}):  # type: ignore[misc]  # scalars
        yield f"  {line}"
    yield f"  on failure these are put back and started: {'; '.join(launcher.restore_commands(good))}"


def flags_text(flags: Mapping[str, Any]) -> str:
    """Flags in one line."""
    return ", ".join(f"{name}={shown(value)}" for name, value in flags.items()) or "none"


def shown(value: object) -> str:
    """A value, and a word for none."""
    return "not set" if value is None else str(value)


def ignored(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Sequence[str]:
    """Flags that were given and that the engine runs with another value of, by its own log; a sentence each."""
    return [
        f"{name} was given as {shown(value)}, and the engine's log says {shown(found[name])}"
        for name, value in wanted.items()
        if name in found and value is not None and not _same(value, found[name])
    ]


def _same(given: object, found: object) -> bool:
    if isinstance(given, int | float) and isinstance(found, int | float):
        return abs(float(given) - float(found)) <= 5e-4 * max(1.0, abs(float(given)))
    return str(given).lower() == str(found).lower()


def _minutes(advice: _wire.Recommendation, running: Mapping[str, Any]) -> str:
    each = advice.restarts.minutes_each if advice.restarts else None
    is_cold = running.get("compile_cache") == "cold"
    note = " or less, since what runs compiled its graphs and the next start loads them" if is_cold else ""
    return f", about {each:.3g} minutes{note}" if each else ""


def _length(advice: _wire.Recommendation) -> str:
    return f" of about {advice.verification_seconds:.0f} s" if advice.verification_seconds else ""
