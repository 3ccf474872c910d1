"""Student-t distributions: what every prediction of the yield model is made of."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf

from scipy.special import ndtr, ndtri, stdtr, stdtrit

from kvyield_server.domain.answers import Estimate


@dataclass(frozen=True, slots=True)
class StudentT:
    """A location-scale Student-t; ``df`` of infinity is a normal, ``scale`` of zero is a point."""

    loc: float
    scale: float
    df: float = inf

    def cdf(self, value: float) -> float:
        """Return P(X <= value)."""
        if self.scale == 0.0:
            return 1.0 if value >= self.loc else 0.0
        z = (value - self.loc) / self.scale
        return float(ndtr(z) if isinf(self.df) else stdtr(self.df, z))

    def quantile(self, probability: float) -> float:
        """Return the value that X stays under with ``probability`` (0 < probability < 1)."""
        if self.scale == 0.0:
            return self.loc
        z = ndtri(probability) if isinf(self.df) else stdtrit(self.df, probability)
        return self.loc + self.scale * float(z)

    def estimate(self, level: float = 0.9) -> Estimate:
        """Return the median and the central interval of probability ``level``."""
        tail = (1.0 - level) / 2.0
        return Estimate(median=self.loc, low=self.quantile(tail), high=self.quantile(1.0 - tail), level=level)

    def shifted(self, offset: float) -> StudentT:
        """Return the distribution of X + offset."""
        return StudentT(self.loc + offset, self.scale, self.df)

    def scaled(self, factor: float) -> StudentT:
        """Return the distribution of X * factor."""
        return StudentT(self.loc * factor, self.scale * abs(factor), self.df)
