"""Which starts of a deployment agree on one line, before anything is fitted: mistyped ones, and lasting changes.

Lines through pairs of points, and through single points with the slope that physics expects, are scored by how many
points lie near them, each far point counting little more than a near one. The best line's near points agree. Three or
more that agree overrule the rest: newest starts that agree on another line are a lasting change, anything else is set
aside. Fewer overrule nothing: the noise scale of the fit widens the answer instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_HYPOTHESES = 10
NEAR = 5.0
LARGEST_SCALE = 5.0
LEAST_AGREEING = 3
SAME_ABSCISSA = 1e-9
DRIFT_Z = 6.0
"""Five to six standard deviations are the 99.9 % interval of a Student-t with the few degrees that such groups have."""


@dataclass(frozen=True, slots=True)
class Consensus:
    """Which points (in order of time) are fitted, lie far off, or come before a lasting change.

    ``drifted`` says that the newest point contradicts three or more that agree; ``slope`` is that of the line which
    most agree on. ``is_torn`` says that no line explains most points.
    """

    fitted: Mask
    outlying: Mask
    before: Mask
    drifted: bool = False
    slope: float | None = None
    is_torn: bool = False


def find_consensus(
    x: Floats, y: Floats, tolerance: Floats, expected: float | None, steepest: float | None
) -> Consensus:
    """Return which points agree; ``tolerance`` is what equal starts usually scatter by, tokens at each point."""
    count = x.size
    nothing = np.zeros(count, dtype=np.bool_)
    if count < LEAST_AGREEING:
        return Consensus(~nothing, nothing, nothing)
    level, slope = _best_line(x, y, tolerance, expected, steepest)
    off = np.abs(y - level - slope * x) / tolerance
    scale = min(LARGEST_SCALE, max(1.0, 1.4826 * float(np.median(off)) / 0.6745))
    near = off <= NEAR * scale
    if near.all():
        return _with_newest(x, y, tolerance, level, slope)
    if near.sum() < LEAST_AGREEING:
        return Consensus(~nothing, nothing, nothing, is_torn=True)
    trailing = _trailing(~near)
    if trailing > 1 and _is_lasting(x[-trailing:], y[-trailing:], scale * tolerance[-trailing:], slope, steepest):
        since = nothing.copy()
        since[-trailing:] = True
        return Consensus(since, nothing, ~since, slope=slope)
    return _apart(near, slope, drifted=trailing == 1)


def _with_newest(x: Floats, y: Floats, tolerance: Floats, level: float, slope: float) -> Consensus:
    """Return the consensus of points that all lie near a line: the newest may still be farther off than the others."""
    everything = np.ones(x.size, dtype=np.bool_)
    is_off = _newest_is_off(x, y, tolerance, level, slope)
    fitted = everything.copy()
    fitted[-1] = not is_off or x.size <= LEAST_AGREEING
    return Consensus(fitted, ~fitted, ~everything, drifted=is_off, slope=slope)


def _is_lasting(x: Floats, y: Floats, tolerance: Floats, slope: float, steepest: float | None) -> bool:
    """Tell whether the newest points share a line of their own: the old slope shifted, or three on another."""
    if np.ptp(y - slope * x) <= 2.0 * NEAR * tolerance.max():
        return True
    return x.size >= LEAST_AGREEING and _share_line(x, y, tolerance, steepest)


def _apart(near: Mask, slope: float, *, drifted: bool) -> Consensus:
    """Return the consensus where some points lie off the line of the others: before a change, or simply off."""
    far, nothing = ~near, np.zeros_like(near)
    if drifted:
        return Consensus(near, far, nothing, drifted=True, slope=slope)
    before = nothing.copy()
    leading = _trailing(far[::-1])
    if leading > 1 and leading == int(far.sum()):
        before[:leading] = True
    if near.sum() < 0.5 * near.size and not before.any():
        return Consensus(~nothing, nothing, nothing, is_torn=True, slope=slope)
    return Consensus(near, far & ~before, before, slope=slope)


def _best_line(
    x: Floats, y: Floats, tolerance: Floats, expected: float | None, steepest: float | None
) -> tuple[float, float]:
    """Return level at x = 0 and slope of the line that most points lie near; later points decide between equals."""
    chosen = _chosen(x)
    first, second = (np.array(side) for side in zip(*combinations(chosen, 2), strict=True))
    run = x[second] - x[first]
    is_apart = np.abs(run) > SAME_ABSCISSA
    slopes = np.where(is_apart, (y[second] - y[first]) / np.where(is_apart, run, 1.0), 0.0)
    limit = 1.3 * steepest if steepest is not None else np.inf
    is_possible = is_apart & (slopes >= 0.0) & (slopes <= limit)
    slopes, through = slopes[is_possible], first[is_possible]
    usual = expected if expected is not None else (float(np.median(slopes)) if slopes.size else 0.0)
    slopes = np.concatenate((slopes, np.full(len(chosen), usual)))
    through = np.concatenate((through, np.array(chosen)))
    levels = y[through] - slopes * x[through]
    off = (y - levels[:, None] - slopes[:, None] * x) / tolerance
    recency = 1.0 + 1e-3 * np.arange(x.size) / x.size
    cost = (np.log1p(off * off) * recency).sum(axis=1)
    best = int(np.argmin(cost))
    return float(levels[best]), float(slopes[best])


def _chosen(x: Floats) -> list[int]:
    """Return the points through which lines are tried: all of few, else the newest and some spread over the range."""
    if x.size <= MOST_HYPOTHESES:
        return list(range(x.size))
    half = MOST_HYPOTHESES // 2
    spread = np.argsort(x, kind="stable")[np.linspace(0, x.size - 1, half).astype(np.int64)]
    return sorted({*range(x.size - half, x.size), *spread.tolist()})


def _newest_is_off(x: Floats, y: Floats, tolerance: Floats, level: float, slope: float) -> bool:
    """Tell whether the newest of points that all lie near a line lies farther off than the others' scatter allows."""
    off = y - level - slope * x
    others = off[:-1]
    if np.ptp(x[:-1]) <= SAME_ABSCISSA and abs(x[-1] - x[0]) > SAME_ABSCISSA:
        return False
    usual = max(0.4 * float(tolerance[-1]), 1.4826 * float(np.median(np.abs(others - np.median(others)))))
    return abs(float(off[-1] - np.median(others))) > DRIFT_Z * usual


def _share_line(x: Floats, y: Floats, tolerance: Floats, steepest: float | None) -> bool:
    level, slope = _best_line(x, y, tolerance, None, steepest)
    return bool((np.abs(y - level - slope * x) <= NEAR * tolerance).all()) and slope > 0.0


def _trailing(flags: Mask) -> int:
    """Return how many flags at the end are set without a gap."""
    cleared = np.flatnonzero(~flags)
    return int(flags.size - 1 - cleared[-1]) if cleared.size else int(flags.size)
