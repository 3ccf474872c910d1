"""What each start says of free memory at ready: a point, an upper bound, or nothing; and what neighbours held then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation, Outcome, Phase, Scalar
from kvyield_server.domain.legacy.evidence import fraction_of

LARGEST_GIB = 1e5
REBASE_GIB = 0.05

Reading = tuple[float, float, float, bool]
"""Fraction, GiB that a neighbour held, GiB free at ready, and whether that is a point or an upper bound."""


def alike(engine: EngineName, starts: Sequence[Observation]) -> Iterable[tuple[Flags, list[Reading]]]:
    """Return each set of flags, fraction apart, with the readings of the starts that had them."""
    name, running = NAMES[engine].fraction, _logged_base(engine, starts)
    found: dict[tuple[tuple[str, Scalar], ...], tuple[Flags, list[Reading]]] = {}
    for start in starts:
        reading, fraction = _reading(start), fraction_of(start)
        if reading is None or fraction is None:
            continue
        key = tuple({**start.flags, name: None}.items())
        found.setdefault(key, (start.flags, []))[1].append((fraction, _lent(start, running), *reading))
    return found.values()


def _logged_base(engine: EngineName, starts: Sequence[Observation]) -> float | None:
    """Return what was free before load at the newest start that logged it: others were short of what a neighbour took.

    Only SGLang sizes its pool from what was free: what its neighbours take they take of the rest alone.
    """
    if engine is not EngineName.SGLANG:
        return None
    logged = [start for start in starts if start.measurements.free_before_load_gib is not None]
    newest = max(logged, key=lambda start: (start.observed_at, start.id.int), default=None)
    return None if newest is None else newest.measurements.free_before_load_gib


def _lent(start: Observation, running_gib: float | None) -> float:
    """Return GiB that a neighbour held at a start and does not hold now."""
    own = start.measurements.free_before_load_gib
    if own is None or running_gib is None or not REBASE_GIB < abs(running_gib - own) < LARGEST_GIB:
        return 0.0
    return running_gib - own


def _reading(start: Observation) -> tuple[float, bool] | None:
    """Return GiB free at ready and whether it is a point (True) or an upper bound (False)."""
    ready, pool_end = _usable(start.measurements.free_at_ready_gib), _usable(start.measurements.free_at_pool_end_gib)
    phase = start.failure.phase if start.failure else Phase.UNKNOWN
    if start.outcome is Outcome.OOM_STARTUP:
        return (0.0, False) if phase is not Phase.LOAD else None
    if start.outcome not in (Outcome.READY, Outcome.OOM_RUNTIME):
        return None
    if ready is not None and ready != pool_end:
        return ready, True
    return (pool_end, False) if pool_end is not None else None


def _usable(gib: float | None) -> float | None:
    return gib if gib is not None and abs(gib) < LARGEST_GIB else None
