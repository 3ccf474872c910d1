"""A start posted twice: as ready, and once more when it died while serving. It is one start."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from kvyield_server.domain.facts.observation import Observation, Outcome
from kvyield_server.domain.legacy.evidence import Evidence, Use, fraction_of


def superseded(starts: Sequence[Observation]) -> frozenset[UUID]:
    """Return the ready rows of starts that were posted again as out of memory at run time.

    Host and time must be known and equal, and engine, fraction and pool as well.
    """
    died = {_same(start) for start in starts if start.outcome is Outcome.OOM_RUNTIME and start.host is not None}
    if not died:
        return frozenset()
    return frozenset(start.id for start in starts if start.outcome is Outcome.READY and _same(start) in died)


def _same(start: Observation) -> tuple[object, ...]:
    pool = start.measurements.pool_tokens
    return start.host, start.observed_at, start.engine, fraction_of(start), pool


def counted_once(found: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return the evidence with rows that a later report of the same start replaces set aside, without a label."""
    old = superseded([item.start for item in found])
    reason = "the same start, reported again later"
    return tuple(
        item._replace(use=Use.SET_ASIDE, reason=reason, labels=frozenset()) if item.start.id in old else item
        for item in found
    )


def measured_once(starts: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the starts without replaced rows whose figure of free memory the later report repeats."""
    old = superseded(starts)
    if not old:
        return tuple(starts)
    told = {_same(start) for start in starts if _tells_free(start) and start.id not in old}
    return tuple(start for start in starts if start.id not in old or _same(start) not in told)


def _tells_free(start: Observation) -> bool:
    return start.measurements.free_at_ready_gib is not None
