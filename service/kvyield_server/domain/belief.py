"""A belief about a few coefficients: normal-inverse-gamma, updated by points and by one-sided bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Vector = NDArray[np.float64]
Matrix = NDArray[np.floating]
Row = tuple[float, ...]

_ROBUST_FROM = 4
_ROBUST_DF = 4.0


@dataclass(frozen=True, kw_only=True)
class Belief:
    """Coefficients b of row·b + noise: their mean, covariance in units of the noise variance, and the noise."""

    mean: Vector
    unit_covariance: Matrix
    noise_variance: float
    df: float

    @classmethod
    def prior(cls, mean: Sequence[float], sd: Sequence[float], *, noise_sd: float, df: float) -> Belief:
        """Return independent coefficients with the given means and standard deviations."""
        unit = np.diag((np.array(sd) / noise_sd) ** 2)
        return cls(mean=np.array(mean), unit_covariance=unit, noise_variance=noise_sd**2, df=df)

    @cached_property
    def _plain(self) -> tuple[list[float], list[list[float]]]:
        return self.mean.tolist(), self.unit_covariance.tolist()

    def at(self, row: Row) -> tuple[float, float]:
        """Return the mean of row·b and its variance, GiB squared, without the noise of a new point."""
        mean, covariance = self._plain
        live = [(i, x) for i, x in enumerate(row) if x]
        value = unit = 0.0
        for i, x in live:
            value += x * mean[i]
            line = covariance[i]
            for j, y in live:
                unit += x * y * line[j]
        return value, max(0.0, unit) * self.noise_variance

    def with_points(self, rows: Matrix, values: Vector, weights: Vector) -> Belief:
        """Update with all points; from four on, a Student-t weighs down those far out."""
        if not len(values):
            return self
        belief = self._updated(rows, values, weights)
        for _ in range(3 if len(values) >= _ROBUST_FROM else 0):
            misfit = (values - rows @ belief.mean) ** 2 * weights / self.noise_variance
            belief = self._updated(rows, values, weights * (_ROBUST_DF + 1.0) / (_ROBUST_DF + misfit))
        return belief

    def below(self, row: Row, bound: float) -> Belief:
        """Return the belief matched to the truncation row·b + noise <= bound."""
        direction = np.array(row)
        along = self.unit_covariance @ direction
        spread = sqrt((float(direction @ along) + 1.0) * self.noise_variance)
        mills, shrink = truncation((bound - float(direction @ self.mean)) / spread)
        step = self.noise_variance / spread
        return Belief(
            mean=self.mean - along * (step * mills),
            unit_covariance=self.unit_covariance - np.outer(along, along) * (shrink * step / spread),
            noise_variance=self.noise_variance,
            df=self.df,
        )

    def _updated(self, rows: Matrix, values: Vector, weights: Vector) -> Belief:
        precision = np.linalg.inv(self.unit_covariance)
        covariance = np.linalg.inv(precision + rows.T @ (weights[:, None] * rows))
        mean = covariance @ (precision @ self.mean + rows.T @ (weights * values))
        misfit = float(values @ (weights * (values - rows @ mean)) + self.mean @ precision @ (self.mean - mean))
        df = self.df + len(values)
        variance = (self.df * self.noise_variance + max(0.0, misfit)) / df
        return Belief(mean=mean, unit_covariance=covariance, noise_variance=variance, df=df)


def truncation(z: float) -> tuple[float, float]:
    """Return what a bound ``z`` standard deviations above the mean does to a normal.

    The first figure is how many standard deviations its mean moves away from the bound, the second the share of its
    variance that goes.
    """
    mills = exp(-0.5 * z * z) / (2.5066282746310002 * float(ndtr(z))) if z > -8.0 else -z - 1.0 / z
    return mills, min(0.98, max(0.0, mills * (mills + z)))
