"""The window of fractions that answers a question: high enough for the pool, low enough for the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, isfinite, isinf

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from kvyield_server.domain.answers import Estimate
from kvyield_server.domain.legacy.headroom import LogNormal
from kvyield_server.domain.legacy.student import StudentT

GRID = 1000
HIGHEST_STEP = GRID - 1

Need = LogNormal | float
"""A prompt need: a distribution, or the GiB that the asker gave."""

_NODES = (np.arange(41) + 0.5) / 41
_FINE_NODES: NDArray[np.float64] = np.asarray(ndtri((np.arange(160) + 0.5) / 160), dtype=np.float64)
_NORMAL_NODES: NDArray[np.float64] = np.asarray(ndtri(_NODES), dtype=np.float64)


def memory_probability(free: StudentT, need: Need) -> float:
    """Return P(free - need >= 0): integrated over the narrower of the two, so that a few nodes are enough."""
    if not isinstance(need, LogNormal):
        return 1.0 - free.cdf(need)
    if free.scale == 0.0:
        return need.cdf(free.loc)
    if need.median_gib * need.log_sd < free.scale:
        z = (free.loc - need.median_gib * np.exp(need.log_sd * _NORMAL_NODES)) / free.scale
        return _mean(ndtr(z) if isinf(free.df) else stdtr(free.df, z))
    free_gib = np.maximum(free.loc + free.scale * _student_nodes(free.df), 1e-9)
    return _mean(ndtr(np.log(free_gib / need.median_gib) / need.log_sd))


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.add.reduce(values)) / values.size


def headroom_estimate(free: StudentT, need: Need, level: float = 0.9) -> Estimate:
    """Return the median and central interval of free - need, GiB."""
    if not isinstance(need, LogNormal):
        return free.shifted(-need).estimate(level)
    left = free.loc + free.scale * _student_nodes(free.df)
    taken = need.median_gib * np.exp(need.log_sd * _FINE_NODES)
    tail = (1.0 - level) / 2.0
    spread = np.subtract.outer(left, taken).ravel()
    ranks = [round(share * (spread.size - 1)) for share in (tail, 0.5, 1.0 - tail)]
    low, median, high = np.partition(spread, ranks)[ranks]
    return Estimate(median=float(median), low=float(low), high=float(high), level=level)


@lru_cache(maxsize=256)
def _student_nodes(df: float) -> NDArray[np.float64]:
    return _NORMAL_NODES if isinf(df) else np.asarray(stdtrit(df, _NODES), dtype=np.float64)


@lru_cache(maxsize=1024)
def _student_quantile(df: float, probability: float) -> float:
    return float(ndtri(probability) if isinf(df) else stdtrit(df, probability))


def sure_tokens(pool: StudentT, confidence: float) -> float:
    """Return the tokens that the pool exceeds with ``confidence``."""
    return pool.loc + pool.scale * _student_quantile(pool.df, 1.0 - confidence)


@dataclass(frozen=True, slots=True)
class PoolAt:
    """The pool as a function of the step on the grid of fractions, with the tokens asked of it."""

    pool: Callable[[int], StudentT | None]
    needed_tokens: int

    def probability(self, step: int) -> float:
        """Return P(the pool holds what is needed)."""
        pool = self.pool(step)
        return 0.0 if pool is None else 1.0 - pool.cdf(self.needed_tokens)

    def margin(self, step: int, confidence: float) -> float:
        """Return tokens to spare at the quantile that the pool exceeds with ``confidence``."""
        pool = self.pool(step)
        if pool is None:
            return -1e30
        return sure_tokens(pool, confidence) - self.needed_tokens

    def lowest_step(self, confidence: float, hint: int | None = None) -> int | None:
        """Return the smallest step at which the pool holds what is needed with ``confidence``, or None.

        ``hint`` is a likely answer: it is tried first.
        """
        if hint is not None and self.margin(hint, confidence) >= 0.0 > self.margin(hint - 1, confidence):
            return hint
        return _first_step(lambda step: self.margin(step, confidence))


def _first_step(margin: Callable[[int], float]) -> int | None:
    """Return the smallest step at which a function that rises nearly in a straight line is not negative."""
    bracket = _Bracket(1, margin(1), HIGHEST_STEP, margin(HIGHEST_STEP))
    if bracket.at_high < 0.0:
        return None
    if bracket.at_low >= 0.0:
        return bracket.low
    while bracket.is_open:
        guess = bracket.secant()
        for step in (guess, guess - 1, None):
            trial = (bracket.low + bracket.high) // 2 if step is None else step
            if bracket.low < trial < bracket.high:
                bracket.narrow(trial, margin(trial))
    return bracket.high


@dataclass(slots=True)
class _Bracket:
    """Steps between which a rising function crosses zero."""

    low: int
    at_low: float
    high: int
    at_high: float

    @property
    def is_open(self) -> bool:
        return self.high - self.low > 1

    def secant(self) -> int:
        """Return the step at which a straight line through both ends is first not negative."""
        rise = self.at_high - self.at_low
        share = -self.at_low / rise if isfinite(rise) and rise > 0.0 else 0.5
        return min(self.high - 1, max(self.low + 1, ceil(self.low + (self.high - self.low) * share - 1e-9)))

    def narrow(self, step: int, value: float) -> None:
        if value >= 0.0:
            self.high, self.at_high = step, value
        else:
            self.low, self.at_low = step, value


def last_step(margin: Callable[[int], float], start: int) -> int | None:
    """Return the largest step from ``start`` on at which a nearly straight, falling function is not negative."""
    if margin(start) < 0.0:
        return None
    first_bad = _first_step(lambda step: -margin(step) - 1e-12 if step > start else -1.0)
    return HIGHEST_STEP if first_bad is None else first_bad - 1


def probit(probability: float) -> float:
    """Return the normal quantile, kept finite: a scale on which probabilities move in nearly straight lines."""
    return float(ndtri(min(1.0 - 1e-12, max(1e-12, probability))))


def fraction_of(step: float) -> float:
    """Return the fraction of a step on the 0.001 grid."""
    return step / GRID


def stated(probability: float, digits: int) -> str:
    """Return a probability in words; one that is not certain is never rounded to certainty."""
    least = 10.0**-digits
    if probability > 1.0 - 0.5 * least:
        return f"over {1.0 - least:.{digits}f}"
    return f"under {least:.{digits}f}" if probability < 0.5 * least else f"{probability:.{digits}f}"


def step_below(fraction: float) -> int:
    """Return the largest step whose fraction is below ``fraction``."""
    return ceil(fraction * GRID - 1e-6) - 1


def rounded(estimate: Estimate, digits: int) -> Estimate:
    """Return the estimate with its figures rounded."""
    return Estimate(
        median=round(estimate.median, digits),
        low=round(estimate.low, digits),
        high=round(estimate.high, digits),
        level=estimate.level,
    )


def pool_estimate(pool: StudentT, page_tokens: int, level: float = 0.9) -> Estimate:
    """Return the pool as engines report it: whole pages, never negative."""
    page = max(1, page_tokens)

    def whole(tokens: float) -> float:
        return float(max(0, floor(tokens / page + 1e-9) * page)) if isfinite(tokens) else 0.0

    raw = pool.estimate(level)
    return Estimate(median=whole(raw.median), low=whole(raw.low), high=whole(raw.high), level=level)
