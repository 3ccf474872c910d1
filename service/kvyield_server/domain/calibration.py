"""Calibration: how past advice compares with the starts that settled it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from types import MappingProxyType

import numpy as np

from kvyield_server.domain.advice.question import pool_needed, ranks_of
from kvyield_server.domain.answers import Advice, AdvicePrediction, Estimate, Question
from kvyield_server.domain.facts.observation import FRACTION_FLAG, EngineName, Flags, Observation, Outcome
from kvyield_server.domain.model.interface import Spread, YieldModel

LEVELS = (0.5, 0.8, 0.9, 0.95)
PROBABILITIES = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
"""The quantiles kept with each recommendation: the ends of the intervals of every level, and the median."""
Quantiles = Mapping[str, tuple[tuple[float, float], ...]]
_NORMAL_QUANTILES: Mapping[float, float] = MappingProxyType(
    {0.5: 0.6744897501960817, 0.8: 1.2815515655446004, 0.9: 1.6448536269514722, 0.95: 1.959963984540054}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """An advice that was given, its question, and the start that named it."""

    question: Question
    advice: Advice
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many settled intervals of nominal ``level`` held what was then measured."""

    level: float
    held: int
    settled: int

    @property
    def share(self) -> float | None:
        """The share that held, or None without any."""
        return self.held / self.settled if self.settled else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decile:
    """Advice whose probability of a large enough pool lay in [low, high), and how often the pool was large enough."""

    low: float
    high: float
    expected: float | None
    hits: int
    settled: int

    @property
    def hit_rate(self) -> float | None:
        """The share of pools that were large enough, or None without any."""
        return self.hits / self.settled if self.settled else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """Restarts until a start held its target: over ``reached`` targets; ``open`` ones have not been reached yet."""

    reached: int
    open: int
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How a set of settled advice fared."""

    settled: int
    pool: tuple[Coverage, ...]
    free_at_ready: tuple[Coverage, ...]
    pool_hits: tuple[Decile, ...]
    restarts: Restarts
    ran_out_of_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """Calibration of all settled advice, and of each engine and basis by itself."""

    overall: Calibration
    by_engine: Mapping[str, Calibration] = field(default_factory=dict)
    by_basis: Mapping[str, Calibration] = field(default_factory=dict)
    by_engine_and_basis: Mapping[tuple[str, str], Calibration] = field(default_factory=dict)


def quantiles(model: YieldModel, flags: Flags) -> Quantiles:
    """Return what these flags are predicted to give: by quantity, rows of (probability, value), ascending.

    ``pool_tokens`` in whole pages, as engines report it, and ``free_at_ready_gib``. A quantity that nothing tells is
    left out, and so is everything where the flags have no fraction.
    """
    asked = {**model.flags, **flags}
    fraction = asked.get(FRACTION_FLAG[model.engine.name])
    if not isinstance(fraction, int | float):
        return {}
    predicted = model.at(asked, np.array([float(fraction)]))
    page = max(1, model.page_tokens)
    found: dict[str, tuple[tuple[float, float], ...]] = {}
    if predicted.pool is not None:
        rows = _rows(predicted.pool)
        found["pool_tokens"] = tuple((share, float(max(0.0, tokens // page * page))) for share, tokens in rows)
    if predicted.free is not None:
        found["free_at_ready_gib"] = tuple((share, round(gib, 4)) for share, gib in _rows(predicted.free))
    return found


def _rows(spread: Spread) -> list[tuple[float, float]]:
    return [(share, float(spread.quantile(share)[0])) for share in PROBABILITIES]


def calibrate(settled: Iterable[Settled]) -> CalibrationReport:
    """Return coverage, hit rates and restarts of settled advice. Pools that were never measured count for neither."""
    items = sorted(settled, key=lambda item: (item.observation.observed_at, item.observation.id.int))
    engines: dict[str, list[Settled]] = defaultdict(list)
    bases: dict[str, list[Settled]] = defaultdict(list)
    both: dict[tuple[str, str], list[Settled]] = defaultdict(list)
    for item in items:
        engine, basis = item.advice.engine.value, item.advice.basis.kind.value
        engines[engine].append(item)
        bases[basis].append(item)
        both[engine, basis].append(item)
    return CalibrationReport(
        overall=_calibration(items),
        by_engine={name: _calibration(group) for name, group in sorted(engines.items())},
        by_basis={name: _calibration(group) for name, group in sorted(bases.items())},
        by_engine_and_basis={name: _calibration(group) for name, group in sorted(both.items())},
    )


def pool_held(item: Settled) -> bool | None:
    """Tell whether the start's pool held what the question needed; None where no pool was measured.

    The pool of a start that crashed later was large enough or not all the same; a refused start had none.
    """
    start, pool_tokens = item.observation, item.observation.measurements.pool_tokens
    if pool_tokens is None:
        return False if start.outcome is Outcome.REFUSED else None
    return pool_tokens >= pool_needed(EngineName(item.advice.engine), item.question, ranks_of(start.flags), 1)


def _calibration(items: Sequence[Settled]) -> Calibration:
    followed = [(item.advice.prediction, item.observation.measurements) for item in items if _followed(item)]
    pools = [(told, seen.pool_tokens) for told, seen in followed if seen.pool_tokens is not None]
    frees = [
        (told, measured.free_at_ready_gib) for told, measured in followed if measured.free_at_ready_gib is not None
    ]
    deaths = (Outcome.OOM_STARTUP, Outcome.OOM_RUNTIME)
    return Calibration(
        settled=len(items),
        pool=tuple(_coverage(level, "pool_tokens", pools) for level in LEVELS),
        free_at_ready=tuple(_coverage(level, "free_at_ready_gib", frees) for level in LEVELS),
        pool_hits=_deciles([item for item in items if _followed(item)]),
        restarts=_restarts(items),
        ran_out_of_memory=sum(item.observation.outcome in deaths for item in items),
    )


def _followed(item: Settled) -> bool:
    """Tell whether the start took the advised flags: one that did not says nothing about their prediction."""
    flags = item.observation.flags
    return all(key not in flags or flags[key] == value for key, value in item.advice.flags.items())


def _coverage(level: float, name: str, pairs: Sequence[tuple[AdvicePrediction, float]]) -> Coverage:
    intervals = [(_interval(told, name, level), value) for told, value in pairs]
    known = [(interval, value) for interval, value in intervals if interval is not None]
    held = sum(_holds(interval, value) for interval, value in known)
    return Coverage(level=level, held=held, settled=len(known))


def _holds(interval: tuple[float, float], value: float) -> bool:
    slack = 1e-9 * max(1.0, abs(value))
    return interval[0] - slack <= value <= interval[1] + slack


def _interval(told: AdvicePrediction, name: str, level: float) -> tuple[float, float] | None:
    """Return the central interval of a level from the quantiles stored, None where nothing was predicted.

    Advice stored before quantiles were: each side of its one interval is scaled as a normal's.
    """
    rows, tail = dict(told.quantiles.get(name, ())), round((1.0 - level) / 2.0, 4)
    if tail in rows and round(1.0 - tail, 4) in rows:
        return rows[tail], rows[round(1.0 - tail, 4)]
    estimate: Estimate | None = getattr(told, name)
    if estimate is None:
        return None
    stretch = _NORMAL_QUANTILES[level] / _NORMAL_QUANTILES.get(round(estimate.level, 4), _NORMAL_QUANTILES[0.9])
    low = estimate.median - stretch * (estimate.median - estimate.low)
    return low, estimate.median + stretch * (estimate.high - estimate.median)


def _deciles(items: Sequence[Settled]) -> tuple[Decile, ...]:
    groups: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for item in items:
        chance, hit = item.advice.probability, pool_held(item)
        if chance is not None and hit is not None:
            groups[min(9, int(chance.pool * 10))].append((chance.pool, hit))
    return tuple(
        Decile(
            low=number / 10,
            high=(number + 1) / 10,
            expected=mean(chance for chance, _ in groups[number]) if groups.get(number) else None,
            hits=sum(hit for _, hit in groups.get(number, ())),
            settled=len(groups.get(number, ())),
        )
        for number in range(10)
    )


def _restarts(items: Sequence[Settled]) -> Restarts:
    """Count starts per target, in the order of their times, up to the first that held it."""
    counts: dict[Hashable, int] = defaultdict(int)
    done: list[int] = []
    for item in items:
        start, question = item.observation, item.question
        target = (start.hardware.gpu, start.hardware.gpu_count, start.model.name, item.advice.engine)
        key = (*target, question.target_tokens, question.reply_tokens, question.concurrent)
        counts[key] += 1
        if start.outcome is Outcome.READY and pool_held(item):
            done.append(counts.pop(key))
    return Restarts(reached=len(done), open=len(counts), mean=mean(done) if done else None)
