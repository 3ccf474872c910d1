"""Whether two accounts are of one start of one engine: what both tell must not contradict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kvyield import _wire
from kvyield._names import same_name
from kvyield.assemble import FRACTION_FLAG
from kvyield.engines import Start
from kvyield.processes import Listener

IMPORTS = timedelta(minutes=15)
"""Longest time from a process's start to its first log line: Python imports, from a slow disk perhaps."""
CLOCK = timedelta(seconds=5)
SAME_FRACTION = 5e-4
SAME_POOL = 0.005
"""Engines print a pool rounded to pages in one place and to blocks of several groups of layers in another."""
_MODELS = ("model_name", "served_model_name", "model_path")


@dataclass(frozen=True)
class Identity:
    """What tells one start from another; None or empty where an account says nothing of it.

    ``began_at`` is the first line of a log, ``process_at`` the start of the process.
    """

    name: str
    engine: str | None = None
    models: frozenset[str] = frozenset()
    port: int | None = None
    pool_tokens: int | None = None
    fraction: float | None = None
    version: str | None = None
    began_at: datetime | None = None
    process_at: datetime | None = None
    ended_as: str | None = None


def of_start(start: Start, name: str, listener: Listener | None = None) -> Identity:
    """A start as a log or the endpoints told it; ``listener`` is the process behind the endpoints."""
    told = {key: sourced.value for key, sourced in {**start.facts, **start.flags}.items()}
    moment = start.observed_at if start.observed_at is not None and start.observed_at.tzinfo is not None else None
    process_at = listener.started_at if listener else moment if start.process else None
    return Identity(
        name=name,
        engine=start.engine,
        models=frozenset(str(told[key]) for key in _MODELS if told.get(key)),
        port=_whole(told.get("port")),
        pool_tokens=_whole(start.measurements["pool_tokens"].value) if "pool_tokens" in start.measurements else None,
        fraction=_number(told.get(FRACTION_FLAG[start.engine])),
        version=_text(told.get("engine_version")),
        began_at=moment if process_at is None else None,
        process_at=process_at,
        ended_as=start.outcome if start.outcome not in ("ready", "unfinished") else None,
    )


def of_stored(stored: _wire.StoredObservation) -> Identity:
    """A start as the ledger has it."""
    return Identity(
        name=f"the observation {stored.id}",
        engine=stored.engine.name,
        models=frozenset({stored.model.name}),
        port=_whole(stored.flags.get("port")),
        pool_tokens=stored.measurements.pool_tokens,
        fraction=_number(stored.flags.get(FRACTION_FLAG[stored.engine.name])),
        version=stored.engine.version,
        began_at=stored.observed_at if stored.observed_at != stored.received_at else None,  # nobody said when
        ended_as=stored.outcome if stored.outcome != "ready" else None,
    )


def contradictions(told: Identity, running: Identity) -> list[str]:
    """What keeps ``told`` from being the start that runs, a sentence each; empty when nothing does."""
    return list(_differences(told, running))


def _differences(told: Identity, running: Identity) -> Iterator[str]:
    if told.ended_as:
        yield f"{told.name} ended as {told.ended_as}, and {running.name} answers"
    for what in ("engine", "port", "version", "fraction", "pool_tokens"):
        one, other = getattr(told, what), getattr(running, what)
        if one is not None and other is not None and not _agree(what, one, other):
            yield f"{what}: {one} ({told.name}) against {other} ({running.name})"
    if told.models and running.models and not any(same_name(a, b) for a in told.models for b in running.models):
        yield f"model: {_listed(told.models)} ({told.name}) against {_listed(running.models)} ({running.name})"
    if told.began_at and running.process_at:
        after = told.began_at - running.process_at
        if not -CLOCK <= after <= IMPORTS:
            times = f"{told.began_at:%Y-%m-%d %H:%M:%S%z} ({told.name})", f"{running.process_at:%Y-%m-%d %H:%M:%S%z}"
            yield f"start: {times[0]} against {times[1]} (the process of {running.name})"


def _agree(what: str, one: Any, other: Any) -> bool:
    """Builds of one version differ after the plus sign, fractions and pools by their rounding."""
    if what == "version":
        return str(one.partition("+")[0]) == str(other.partition("+")[0])
    if what in ("fraction", "pool_tokens"):
        return bool(abs(one - other) <= (SAME_FRACTION if what == "fraction" else SAME_POOL * max(one, other)))
    return bool(one == other)


def _listed(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
