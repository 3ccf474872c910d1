"""Straight lines through weighted points, and weights that points far off a resistant line lose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

ROBUST_STEPS = 6
INLIER_Z = 3.0
OUTLIER_Z = 6.0
SAME_ABSCISSA = 1e-9
_MANY = 48


@dataclass(frozen=True, slots=True)
class Points:
    """Measured points: abscissae, ordinates and the standard deviation of each ordinate."""

    x: Vector
    y: Vector
    sd: Vector

    @property
    def span(self) -> float:
        return float(self.x.max() - self.x.min()) if self.x.size else 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line by its level at a centre."""

    center: float
    level: float
    slope: float

    def at(self, x: float) -> float:
        return self.level + self.slope * (x - self.center)


def robust_weights(points: Points) -> Vector:
    """Return 1 for points within three standard deviations of a robust line, less and less for those farther out.

    A far point is measured against what the others can tell of the line there.
    """
    line = _resistant_line(points)
    weights = np.ones_like(points.x)
    for _ in range(ROBUST_STEPS):
        sd = np.sqrt(points.sd**2 + _line_variance(points, weights / points.sd**2))
        z = np.abs(points.y - line.level - line.slope * (points.x - line.center)) / sd
        z /= max(1.0, 1.4826 * float(np.median(z)))
        before, weights = weights, np.minimum(1.0, (4.0 + INLIER_Z**2) / (4.0 + z * z))
        weights[z > OUTLIER_Z] = 1e-6
        line = weighted_line(points, weights / points.sd**2)
        if np.array_equal(before, weights):
            break
    return weights


def _line_variance(points: Points, precision: Vector) -> Vector:
    """Return the variance of the weighted line at each point."""
    total = float(precision.sum())
    off = points.x - float(precision @ points.x) / total
    spread = float(precision @ (off * off))
    return 1.0 / total + (off * off / spread if spread > 0.0 else np.zeros_like(off))


def weighted_line(points: Points, weights: Vector) -> Line:
    total = float(weights.sum())
    center = float(weights @ points.x) / total
    level = float(weights @ points.y) / total
    off = points.x - center
    spread = float(weights @ (off * off)) if points.span > SAME_ABSCISSA else 0.0
    slope = float(weights @ (off * (points.y - level))) / spread if spread > 0.0 else 0.0
    return Line(center, level, slope)


def _resistant_line(points: Points) -> Line:
    """Return the line of median pairwise slope and median level (all pairs of few points, distant pairs of many)."""
    order = np.argsort(points.x, kind="stable")
    x, y = points.x[order], points.y[order]
    if x.size <= _MANY:
        first, second = np.triu_indices(x.size, 1)
    else:
        first = np.arange(x.size - x.size // 2)
        second = first + x.size // 2
    run = x[second] - x[first]
    apart = run > 1e-9
    slope = float(np.median((y[second][apart] - y[first][apart]) / run[apart])) if apart.any() else 0.0
    center = float(np.median(x))
    return Line(center, float(np.median(y - slope * (x - center))), slope)
