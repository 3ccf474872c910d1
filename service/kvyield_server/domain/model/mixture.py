"""Mixtures of normals: what every prediction of the yield model is made of.

A component is one hypothesis of the fit (a noise scale, a source of a prior that is right or wrong), so tails are as
heavy as the hypotheses differ, and two hypotheses that disagree give two modes and never a compromise in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import erf, inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from kvyield_server.domain.answers import Estimate

Floats = NDArray[np.float64]

LEAST_SD = 1e-9
_STEPS = 26
_ROOT_TWO = sqrt(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A quantity at n fractions as k weighted normals: arrays of shape (k, n).

    ``ceiling`` is a cap that acts in the engine (min of line and cap); ``page`` rounds estimates down to whole pages
    and keeps them from being negative (0: neither).
    """

    mean: Floats
    sd: Floats
    weight: Floats
    ceiling: float = inf
    page: int = 0

    def above(self, threshold: float) -> Floats:
        """Return P(quantity >= threshold) at each fraction."""
        if threshold > self.ceiling:
            return np.zeros(self.mean.shape[1])
        tails: Floats = ndtr((self.mean - threshold) / self.sd)
        chance: Floats = np.minimum((self.weight * tails).sum(axis=0), 1.0)
        return chance

    def at(self, index: int) -> Mixture:
        """Return the quantity at one of the fractions."""
        one = slice(index, index + 1)
        return replace(self, mean=self.mean[:, one], sd=self.sd[:, one], weight=self.weight[:, one])

    def quantile(self, probability: float) -> Floats:
        """Return the value that the quantity stays below with this probability, at each fraction.

        A mixture's quantile lies between the smallest and the largest of its components'.
        """
        each = self.mean + float(ndtri(probability)) * self.sd
        low, high = each.min(axis=0), each.max(axis=0)
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            below = (self.weight * ndtr((middle - self.mean) / self.sd)).sum(axis=0) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        value: Floats = np.minimum(0.5 * (low + high), self.ceiling)
        return value

    def quantiles(self, index: int, probabilities: tuple[float, ...]) -> tuple[float, ...]:
        """Return several quantiles at one of the fractions."""
        parts = list(
            zip(self.weight[:, index].tolist(), self.mean[:, index].tolist(), self.sd[:, index].tolist(), strict=True)
        )
        return tuple(min(_quantile(parts, probability), self.ceiling) for probability in probabilities)

    def median(self, index: int = 0) -> float:
        """Return the median of ``estimate`` alone."""
        return self._rounded(self.quantiles(index, (0.5,))[0])

    def estimate(self, index: int = 0, level: float = 0.9) -> Estimate:
        """Return median and central interval at one of the fractions."""
        tail = 0.5 * (1.0 - level)
        low, median, high = (self._rounded(value) for value in self.quantiles(index, (tail, 0.5, 1.0 - tail)))
        return Estimate(median=median, low=low, high=high, level=level)

    def shifted(self, offset: float | Floats) -> Mixture:
        """Return the distribution of the quantity plus an offset."""
        return replace(self, mean=self.mean + offset, ceiling=inf)

    def moments(self) -> tuple[Floats, Floats]:
        """Return mean and standard deviation at each fraction."""
        mean = (self.weight * self.mean).sum(axis=0)
        variance = (self.weight * (self.sd**2 + (self.mean - mean) ** 2)).sum(axis=0)
        return mean, np.sqrt(variance)

    @property
    def is_finite(self) -> bool:
        """Whether every figure is a number that memory can have."""
        return bool(np.isfinite(self.mean).all() and np.isfinite(self.sd).all() and np.abs(self.mean).max() < 1e15)

    def _rounded(self, value: float) -> float:
        if not self.page or not isfinite(value):
            return value
        return float(max(0, int((value + 1e-6) // self.page) * self.page))


def fixed(value: float, count: int, *, page: int = 0) -> Mixture:
    """Return a quantity that is known: the same at every fraction."""
    shape = (1, count)
    return Mixture(mean=np.full(shape, value), sd=np.full(shape, LEAST_SD), weight=np.ones(shape), page=page)


def _quantile(parts: list[tuple[float, float, float]], probability: float) -> float:
    """Return a quantile of one mixture by bisection, in plain floats, which for a few components is quickest."""
    z = _normal_quantile(probability)
    each = [mean + z * sd for _, mean, sd in parts]
    low, high = min(each), max(each)
    for _ in range(_STEPS):
        middle, below = 0.5 * (low + high), 0.0
        for weight, mean, sd in parts:
            below += weight * (0.5 + 0.5 * erf((middle - mean) / (sd * _ROOT_TWO)))
        if below < probability:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@lru_cache(maxsize=256)
def _normal_quantile(probability: float) -> float:
    return float(ndtri(probability))
