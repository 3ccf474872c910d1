"""A belief about a few coefficients: normal, with noise that is learned, updated by points and by one-sided bounds.

What is known of the coefficients beforehand is not scaled by the noise that points show: equal starts that agree to a
hair say nothing of how far the engine's own arithmetic may be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from kvyield_server.domain.legacy.student import StudentT, joined

Vector = NDArray[np.float64]
Matrix = NDArray[np.floating]
Row = tuple[float, ...]

_ROBUST_FROM = 4
_ROBUST_DF = 4.0
_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Belief:
    """Coefficients b of row·b + noise: their mean and covariance, and the noise with its degrees of freedom.

    ``learned`` is the part of the covariance that comes from points, and so is only as sure as their noise is known.
    """

    mean: Vector
    covariance: Matrix
    learned: Matrix
    noise_variance: float
    df: float

    @classmethod
    def prior(cls, mean: Sequence[float], sd: Sequence[float], *, noise_sd: float, df: float) -> Belief:
        """Return independent coefficients with the given means and standard deviations."""
        known = np.diag(np.array(sd) ** 2)
        return cls(
            mean=np.array(mean), covariance=known, learned=np.zeros_like(known), noise_variance=noise_sd**2, df=df
        )

    @cached_property
    def _plain(self) -> tuple[list[float], list[list[float]], list[list[float]]]:
        return self.mean.tolist(), self.covariance.tolist(), self.learned.tolist()

    def at(self, row: Row, extra_variance: float = 0.0) -> StudentT:
        """Return the prediction of a new point, GiB, with further variance that nothing here accounts for."""
        mean, covariance, learned = self._plain
        live = [(i, x) for i, x in enumerate(row) if x]
        value, variance, unsure = 0.0, 0.0, self.noise_variance
        for i, x in live:
            value += x * mean[i]
            line, of_points = covariance[i], learned[i]
            for j, y in live:
                variance += x * y * line[j]
                unsure += x * y * of_points[j]
        total = max(unsure, variance + self.noise_variance + extra_variance)
        return joined(value, unsure, total - unsure, self.df)

    def with_points(self, rows: Matrix, values: Vector, weights: Vector) -> Belief:
        """Update with all points; from four on, a Student-t weighs down those far out.

        Noise and coefficients are found in turn, a few fixed times: the noise is the mean square of what the points are
        off the line, the line's own doubt at them included.
        """
        if not len(values):
            return self
        precision = np.linalg.inv(self.covariance)
        pull, noise, robust = precision @ self.mean, self.noise_variance, np.ones_like(weights)
        for _ in range(_STEPS):
            scaled = weights * robust
            covariance = np.linalg.inv(precision + rows.T @ ((scaled / noise)[:, None] * rows))
            mean = covariance @ (pull + rows.T @ (scaled / noise * values))
            squares = weights * ((values - rows @ mean) ** 2 + np.add.reduce((rows @ covariance) * rows, axis=1))
            if len(values) >= _ROBUST_FROM:
                robust = (_ROBUST_DF + 1.0) / (_ROBUST_DF + squares / self.noise_variance)
            noise = (self.df * self.noise_variance + float(robust @ squares)) / (self.df + len(values))
        told = rows.T @ ((scaled / noise)[:, None] * rows)
        learned = covariance @ told @ covariance
        df = self.df + len(values) - float(np.trace(covariance @ told))
        return Belief(mean=mean, covariance=covariance, learned=learned, noise_variance=noise, df=max(self.df, df))

    def below(self, row: Row, bound: float) -> Belief:
        """Return the belief matched to the truncation row·b + noise <= bound."""
        direction = np.array(row)
        along = self.covariance @ direction
        spread = sqrt(float(direction @ along) + self.noise_variance)
        mills, shrink = truncation((bound - float(direction @ self.mean)) / spread)
        return Belief(
            mean=self.mean - along * (mills / spread),
            covariance=self.covariance - np.outer(along, along) * (shrink / spread**2),
            learned=self.learned,
            noise_variance=self.noise_variance,
            df=self.df,
        )


def truncation(z: float) -> tuple[float, float]:
    """Return what a bound ``z`` standard deviations above the mean does to a normal.

    The first figure is how many standard deviations its mean moves away from the bound, the second the share of its
    variance that goes.
    """
    mills = exp(-0.5 * z * z) / (2.5066282746310002 * float(ndtr(z))) if z > -8.0 else -z - 1.0 / z
    return mills, min(0.98, max(0.0, mills * (mills + z)))
