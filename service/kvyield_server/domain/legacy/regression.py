"""Bayesian linear regression of one straight line: normal-inverse-gamma, with priors on slope and zero crossing.

The noise of a point is known up to one common factor tau^2, whose prior has four degrees of freedom around 1. Prior
knowledge of the line is not scaled by tau^2, so the part of a prediction's variance that comes from it keeps normal
tails, and both parts are joined. Each point keeps its own noise, so that a further point on
the fitted line can only narrow a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, exp, sqrt

import numpy as np
from scipy.special import stdtrit

from kvyield_server.domain.legacy.straight_line import (
    SAME_ABSCISSA,
    Line,
    Points,
    Vector,
    robust_weights,
    weighted_line,
)
from kvyield_server.domain.legacy.student import StudentT, joined

PRIOR_DF = 4.0
ROBUST_FROM = 4
DATA_SPAN = 0.0195
LEVEL = 0.9
NEGLIGIBLE_OFFSET = 0.15
LARGEST_FIGURE = 1e30
SMALLEST_SD, LARGEST_SD = 1e-50, 1e50
"""What a prior says in or beyond these figures nobody can know: it counts as nothing, and nothing overflows."""
_ROOT_TWO = sqrt(2.0)


@dataclass(frozen=True, slots=True)
class SlopePrior:
    """What is known of the slope before any point was seen."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class Anchor:
    """Knowledge of where the line crosses zero: abscissa and its standard deviation."""

    x: float
    sd: float


@dataclass(frozen=True, slots=True)
class Covariance:
    """Of the line's level at its centre and its slope."""

    level: float
    cross: float
    slope: float

    def at(self, distance: float) -> float:
        """Return the line's variance at a distance from the centre."""
        return max(0.0, self.level + distance * (2.0 * self.cross + distance * self.slope))


@dataclass(frozen=True, slots=True)
class LinePosterior:
    """What is believed of the line after the evidence.

    ``line`` gives medians: the points' own line where they pin it, else the same as ``believed``. ``has_slope`` is
    false when nothing tells the slope; then only the abscissa of the points themselves can be answered for. ``reach``
    is what the points span.
    """

    line: Line
    believed: Line
    from_points: Covariance
    from_prior: Covariance
    tau2: float
    df: float
    has_slope: bool
    weights: Vector
    residual_z: Vector
    reach: tuple[float, float] | None = None

    @property
    def is_finite(self) -> bool:
        """Whether every figure of the line is a number that a pool can have."""
        figures = (self.line.level, self.line.slope, self.believed.level, self.believed.slope, self.tau2)
        return all(abs(figure) < LARGEST_FIGURE for figure in figures)

    def beyond(self, x: float) -> float:
        """Return by how much the line rises or falls between the nearest point of the evidence and x."""
        if self.reach is None:
            return 0.0
        return abs(self.line.slope) * max(self.reach[0] - x, x - self.reach[1], 0.0)

    def at(self, x: float, noise_sd: float, extra_sd: float = 0.0) -> StudentT | None:
        """Return the prediction of a new point with the given noise; ``extra_sd`` widens it, None when out of reach."""
        distance = x - self.believed.center
        if not self.has_slope and abs(distance) > SAME_ABSCISSA:
            return None
        learned = self.tau2 * (self.from_points.at(distance) + noise_sd**2)
        fixed = self.from_prior.at(distance) + extra_sd**2
        return _joined(self.line.at(x), self.believed.at(x), learned, fixed, self.df)

    def median(self, x: float) -> float | None:
        """Return the median of a new point, None when out of reach."""
        is_out_of_reach = not self.has_slope and abs(x - self.believed.center) > SAME_ABSCISSA
        return None if is_out_of_reach else float(self.line.at(x))

    def slope_estimate(self) -> StudentT | None:
        """Return what is believed of the slope."""
        if not self.has_slope:
            return None
        learned, fixed = self.tau2 * self.from_points.slope, self.from_prior.slope
        return _joined(self.line.slope, self.believed.slope, learned, fixed, self.df)

    def zero_crossing(self) -> StudentT | None:
        """Return where the line crosses zero."""
        if not self.has_slope or self.line.slope <= 0.0:
            return None
        x = self.line.center - self.line.level / self.line.slope
        ahead = self.at(x, 0.0)
        return None if ahead is None else StudentT(x, ahead.scale / self.line.slope, ahead.df)


def _joined(median: float, mean: float, learned: float, fixed: float, df: float) -> StudentT:
    """Return a distribution around ``median`` whose 90 % interval holds 90 % of the belief around ``mean``."""
    belief = joined(float(median), float(learned), float(fixed), df)
    off = abs(median - mean) - NEGLIGIBLE_OFFSET * belief.scale
    if off <= 0.0 or belief.scale == 0.0:
        return belief
    return StudentT(belief.loc, belief.scale * _offset_factor(off / belief.scale), belief.df)


def _offset_factor(offset: float) -> float:
    """Return how much wider an interval must be that is centred ``offset`` standard deviations off the belief."""
    if offset < 1e-6:
        return 1.0
    quantile = 1.6448536269514722
    half = quantile + 0.6 * offset * offset if offset < 1.0 else offset + 1.2815515655446004
    for _ in range(4):
        miss = 0.5 * (erf((half - offset) / _ROOT_TWO) + erf((half + offset) / _ROOT_TWO)) - LEVEL
        density = _density(half - offset) + _density(half + offset)
        step = miss / max(density, 1e-9)
        half -= step
        if abs(step) < 1e-6:
            break
    return half / quantile


def _density(z: float) -> float:
    return exp(-0.5 * z * z) * 0.3989422804014327


def fit_line(
    points: Points, slope: SlopePrior | None, anchor: Anchor | None, *, prefers_points: bool = True
) -> LinePosterior | None:
    """Fit a line to points and prior knowledge; None without any point.

    With ``prefers_points``, medians come from the points alone once they span 0.02: engines repeat themselves far
    better than their noise class says, and then the points pin the slope. Intervals always use everything.
    """
    if not points.x.size:
        return None
    weights = np.ones_like(points.x)
    if points.x.size >= ROBUST_FROM and points.span > 0.0:
        weights = robust_weights(points)
    return _solve(points, weights, slope, anchor, prefers_points=prefers_points)


def points_alone(points: Points, weights: Vector) -> LinePosterior:
    """Return the line of the points without any prior knowledge, with weights that a fit has found already."""
    return _solve(points, weights, None, None, prefers_points=True)


def line_from_prior(slope: SlopePrior, anchor: Anchor) -> LinePosterior:
    """Return the line that prior knowledge alone gives."""
    line = Line(anchor.x, 0.0, slope.mean)
    known = Covariance((slope.mean * anchor.sd) ** 2, 0.0, slope.sd**2)
    nothing = Covariance(0.0, 0.0, 0.0)
    empty = np.zeros(0)
    return LinePosterior(line, line, nothing, known, 1.0, PRIOR_DF, True, empty, empty)


def _solve(
    points: Points, weights: Vector, slope: SlopePrior | None, anchor: Anchor | None, *, prefers_points: bool
) -> LinePosterior:
    precision = weights / points.sd**2
    own = weighted_line(points, precision)
    off = points.x - own.center
    spread = float(precision @ (off * off)) if points.span > SAME_ABSCISSA else 0.0
    data = Covariance(float(precision.sum()), 0.0, spread)
    prior, pull = _prior_terms(own, slope, anchor)
    inverse, has_slope = _inverse(data, prior)
    believed = _believed(own, inverse, data, pull)
    line = own if prefers_points and points.span >= DATA_SPAN else believed
    residual_z = (points.y - line.level - line.slope * off) / points.sd
    pieces = (slope is not None and slope.sd > 0.0) + (anchor is not None and anchor.sd > 0.0)
    tau2, df = _noise(residual_z, weights, estimated=2 if has_slope else 1, pieces=pieces)
    return LinePosterior(
        line=line,
        believed=believed,
        from_points=_sandwich(inverse, data),
        from_prior=_sandwich(inverse, prior),
        tau2=tau2,
        df=df,
        has_slope=has_slope,
        weights=weights,
        residual_z=residual_z,
        reach=(float(points.x.min()), float(points.x.max())),
    )


def _inverse(data: Covariance, prior: Covariance) -> tuple[Covariance, bool]:
    """Return the covariance of level and slope, and whether anything tells the slope."""
    level, cross, slope = data.level + prior.level, prior.cross, data.slope + prior.slope
    determinant = level * slope - cross**2
    if slope > 0.0 and determinant > 1e-12 * level * slope:
        return Covariance(slope / determinant, -cross / determinant, level / determinant), True
    return Covariance(1.0 / level, 0.0, 0.0), False


def _believed(own: Line, inverse: Covariance, data: Covariance, pull: tuple[float, float]) -> Line:
    """Return the line that data and prior give together."""
    level, slope = pull[0] + data.level * own.level, pull[1] + data.slope * own.slope
    return Line(
        own.center,
        inverse.level * level + inverse.cross * slope,
        inverse.cross * level + inverse.slope * slope,
    )


def _prior_terms(own: Line, slope: SlopePrior | None, anchor: Anchor | None) -> tuple[Covariance, tuple[float, float]]:
    """Return the prior's precision about the centre and its pull on level and slope."""
    level_p = cross_p = slope_p = pull = 0.0
    if slope is not None and SMALLEST_SD < slope.sd < LARGEST_SD and abs(slope.mean) < LARGEST_FIGURE:
        slope_p = slope.sd**-2
        pull = slope.mean * slope_p
    if anchor is not None:
        reach = own.center - anchor.x
        chord = own.level / reach if reach > SAME_ABSCISSA else 0.0
        steepness = slope.mean if slope is not None else chord
        is_usable = SMALLEST_SD < steepness * anchor.sd < LARGEST_SD and abs(anchor.x) < LARGEST_FIGURE
        if steepness > 0.0 and is_usable:
            weight = (steepness * anchor.sd) ** -2
            distance = anchor.x - own.center
            level_p, cross_p, slope_p = weight, weight * distance, slope_p + weight * distance**2
    return Covariance(level_p, cross_p, slope_p), (0.0, pull)


def _sandwich(inverse: Covariance, middle: Covariance) -> Covariance:
    """Return inverse * middle * inverse for symmetric two-by-two matrices."""
    top = inverse.level * middle.level + inverse.cross * middle.cross
    top_right = inverse.level * middle.cross + inverse.cross * middle.slope
    low = inverse.cross * middle.level + inverse.slope * middle.cross
    low_right = inverse.cross * middle.cross + inverse.slope * middle.slope
    return Covariance(
        top * inverse.level + top_right * inverse.cross,
        top * inverse.cross + top_right * inverse.slope,
        low * inverse.cross + low_right * inverse.slope,
    )


def _noise(residual_z: Vector, weights: Vector, *, estimated: int, pieces: int) -> tuple[float, float]:
    """Return the learned noise factor and its degrees of freedom.

    Each piece of prior knowledge counts as a datum that is off by as much as it says: it does not scale the noise, and
    what it frees of the points' own degrees tells of the noise.
    """
    count = float(weights.sum())
    freed = max(0.0, count + pieces - estimated)
    misfit = float(weights @ (residual_z * residual_z)) + freed - max(0.0, count - estimated)
    return (PRIOR_DF + misfit) / (PRIOR_DF + freed), PRIOR_DF + freed


def interval_half_width(prediction: StudentT, level: float = LEVEL) -> float:
    """Return half the central interval of a prediction."""
    return prediction.scale * float(stdtrit(min(prediction.df, 1e9), 0.5 + level / 2.0))
