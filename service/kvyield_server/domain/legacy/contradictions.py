"""Sanity before belief: points that no single line can explain are reported as confounded and not fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from kvyield_server.domain.facts.observation import FRACTION_FLAG, NO_MEMORY_FLAGS, EngineName, Scalar
from kvyield_server.domain.legacy.evidence import Evidence
from kvyield_server.domain.legacy.regression import LinePosterior, SlopePrior
from kvyield_server.domain.legacy.straight_line import Points

SAME_FRACTION = 1e-6
DISCRETE_REPEAT = 0.005
SHARED_REPEAT = 0.35
COMPILE_CACHE_REPEAT = 0.25
STEEPEST = 1.2
LEAST_DISAGREEMENT = 0.005
FEW = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """One usable point: its abscissa, ordinate, noise, and where it came from."""

    x: float
    y: float
    sd: float
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Readings:
    """All usable points of a deployment, with the evidence that each came from."""

    points: Points
    evidence: tuple[Evidence, ...]

    def at(self, index: int) -> Reading:
        x, y, sd = (float(column[index]) for column in (self.points.x, self.points.y, self.points.sd))
        return Reading(x, y, sd, self.evidence[index])

    def kept(self, chosen: NDArray[np.bool_]) -> Readings:
        """Return the chosen points only."""
        points = Points(self.points.x[chosen], self.points.y[chosen], self.points.sd[chosen])
        return Readings(points, tuple(item for item, is_kept in zip(self.evidence, chosen, strict=True) if is_kept))


def find_contradiction(readings: Readings, *, is_shared: bool, steepest: float | None) -> str | None:
    """Return why these points cannot share a line, naming the flags that differ, or None when they can.

    ``steepest`` is the largest slope that the card allows. Points that a robust fit has put aside must be left out.
    """
    for first, second in _suspects(readings.points, steepest):
        left, right = readings.at(first), readings.at(second)
        reason = _pair_contradiction(left, right, is_shared=is_shared, steepest=steepest)
        if reason is not None:
            return f"{reason}; {differing_flags([left.evidence, right.evidence])}"
    return None


def _suspects(points: Points, steepest: float | None) -> list[tuple[int, int]]:
    """Return neighbouring pairs (all pairs of few points) that rise too little or too much to pass unexamined."""
    order = np.lexsort((points.y, points.x))
    if order.size <= FEW:
        pairs = np.array(list(combinations(order, 2)), dtype=np.int64).reshape(-1, 2)
    else:
        pairs = np.column_stack((order[:-1], order[1:]))
    first, second = pairs[:, 0], pairs[:, 1]
    run, rise = points.x[second] - points.x[first], points.y[second] - points.y[first]
    suspect = (run <= SAME_FRACTION) & (rise > 6.0 * np.maximum(points.sd[first], points.sd[second]))
    suspect |= (run > SAME_FRACTION) & (rise < 0.0)
    if steepest is not None:
        suspect |= (run > SAME_FRACTION) & (rise > STEEPEST * steepest * run)
    return [(int(one), int(other)) for one, other in pairs[suspect]]


def _pair_contradiction(left: Reading, right: Reading, *, is_shared: bool, steepest: float | None) -> str | None:
    run, rise = right.x - left.x, right.y - left.y
    largest = max(abs(left.y), abs(right.y))
    slack = _slack(left, right, is_shared=is_shared)
    if run <= SAME_FRACTION:
        unequal = abs(rise) > max(slack * largest, 6.0 * max(left.sd, right.sd))
        return f"equal fractions gave pools {100 * abs(rise) / max(largest, 1e-9):.1f} % apart" if unequal else None
    scatter = slack * largest if is_shared else 6.0 * (left.sd + right.sd)
    is_exact = not is_shared and left.sd + right.sd < DISCRETE_REPEAT * largest
    if rise < -scatter or (rise < 0.0 and run >= 0.004 and is_exact):
        return "the pool fell while the fraction rose"
    if steepest is not None and (rise - scatter) / run > STEEPEST * steepest:
        return f"the pool rose {rise / run / steepest:.1f} times as fast as the card's memory allows"
    return None


def _slack(left: Reading, right: Reading, *, is_shared: bool) -> float:
    """Return how far apart equal starts may be: a cold compile cache moves vLLM's pool when no flag differs."""
    if is_shared:
        return SHARED_REPEAT
    engine = left.evidence.start.engine.name
    if engine is EngineName.VLLM and not _differences([left.evidence, right.evidence]):
        return COMPILE_CACHE_REPEAT
    return DISCRETE_REPEAT


def slope_disagreement(posterior: LinePosterior, own_slope: float, own_sd: float, prior: SlopePrior) -> str | None:
    """Return what to say when the points' slope and the physics differ beyond 0.5 % and three standard deviations."""
    if prior.mean <= 0.0 or not posterior.has_slope:
        return None
    miss = own_slope - prior.mean
    if abs(miss) <= max(LEAST_DISAGREEMENT * prior.mean, 3.0 * (prior.sd**2 + own_sd**2) ** 0.5):
        return None
    return (
        f"the starts give a slope {100 * miss / prior.mean:+.1f} % off what memory and bytes per token say: "
        "something else changed between them, or the model's facts are not those of the running model"
    )


def _differences(found: Sequence[Evidence]) -> dict[str, list[Scalar]]:
    """Return flags of memory, other than the fraction, whose recorded values differ."""
    ignored = {*FRACTION_FLAG.values(), *NO_MEMORY_FLAGS}
    names = sorted({name for item in found for name in item.start.flags} - ignored)
    values = {name: [item.start.flags.get(name) for item in found] for name in names}
    return {name: given for name, given in values.items() if len({repr(value) for value in given}) > 1}


def differing_flag_names(found: Sequence[Evidence]) -> list[str]:
    """Return the flags, other than the fraction, whose recorded values differ."""
    return list(_differences(found))


def differing_flags(found: Sequence[Evidence]) -> str:
    """Return a phrase that names the flags which differ between starts."""
    names = differing_flag_names(found)
    if not names:
        return "no recorded flag differs"
    return "flags that differ: " + ", ".join(names[:8])
