"""What the two plots draw: curves, starts thinned to what a screen can tell apart, and the advice laid over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvyield_server.domain.observation import FRACTION_FLAG, Outcome, Scalar
from kvyield_server.pages.views.words import figure, gib, outcome_word, span_gib, span_tokens, tokens
from kvyield_server.schemas.common import EstimateOut
from kvyield_server.schemas.pairs import CurveOut, CurvePointOut, CurveStartOut
from kvyield_server.schemas.recommendations import AdviceOut

T = TypeVar("T")
MOST_STARTS = 400
TABLE_ROWS = 15
_CELLS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRow:
    """One line of the table that says what the plots draw."""

    fraction: str
    pool: str
    pool_span: str
    free: str
    free_span: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotView:
    """``data`` goes to the script; the rest is for people who read instead of look."""

    data: dict[str, Any]
    rows: tuple[NumberRow, ...]
    shown_starts: int
    total_starts: int
    outcomes: tuple[Outcome, ...]

    @property
    def is_thinned(self) -> bool:
        return self.shown_starts < self.total_starts


def plot_view(curve: CurveOut, most: int = MOST_STARTS) -> PlotView:
    """Return the plots of a curve with at most ``most`` starts."""
    kept = thinned(curve.starts, most)
    data = {
        "flag": curve.fraction_flag,
        "fraction": [point.fraction for point in curve.points],
        "pool": _band([point.pool_tokens for point in curve.points]),
        "free": _band([point.free_at_ready_gib for point in curve.points]),
        "starts": [_start(start) for start in kept],
    }
    present = {start.outcome for start in kept}
    return PlotView(
        data=data,
        rows=tuple(_row(point) for point in _sampled(curve.points, TABLE_ROWS)),
        shown_starts=len(kept),
        total_starts=len(curve.starts),
        outcomes=tuple(outcome for outcome in Outcome if outcome in present),
    )


def thinned(starts: Sequence[CurveStartOut], most: int) -> list[CurveStartOut]:
    """Return at most ``most`` starts, those first that look different: one of each outcome in each cell of a grid.

    ``starts`` may come in any order; of several in one cell the newest stays. The order of what is kept is kept.
    """
    if len(starts) <= most:
        return list(starts)
    newest_first = sorted(starts, key=lambda start: (start.observed_at, start.observation_id.int), reverse=True)
    highest = max((start.pool_tokens or 0 for start in starts), default=1) or 1
    by_cell: dict[tuple[Outcome, int, int], CurveStartOut] = {}
    for start in newest_first:
        by_cell.setdefault(_cell(start, highest), start)
    distinct = sorted(by_cell.values(), key=lambda start: start.outcome is Outcome.READY)
    chosen = {start.observation_id for start in _sampled(distinct, most)}
    return [start for start in starts if start.observation_id in chosen]


def overlay(advice: AdviceOut, *, running: Scalar, target_tokens: int, need: EstimateOut | None) -> dict[str, Any]:
    """Return what the plots draw over the curves: target, window, advised and running fraction, what prompts need."""
    return {
        "target": target_tokens,
        "window": [advice.window.lowest, advice.window.highest] if advice.window else None,
        "advised": advice.flags.get(FRACTION_FLAG[advice.engine]),
        "running": running,
        "need": [need.low, need.median, need.high] if need else None,
        "status": advice.status.value,
    }


def _band(estimates: Sequence[EstimateOut | None]) -> dict[str, list[float | None]] | None:
    if not any(estimates):
        return None
    return {side: [_side(estimate, side) for estimate in estimates] for side in ("median", "low", "high")}


def _side(estimate: EstimateOut | None, side: str) -> float | None:
    return None if estimate is None else float(getattr(estimate, side))


def _start(start: CurveStartOut) -> dict[str, Any]:
    return {
        "id": str(start.observation_id),
        "at": start.observed_at.isoformat(),
        "outcome": start.outcome.value,
        "word": outcome_word(start.outcome),
        "fraction": start.fraction,
        "pool": start.pool_tokens,
        "free": start.free_at_ready_gib,
    }


def _row(point: CurvePointOut) -> NumberRow:
    pool, free = point.pool_tokens, point.free_at_ready_gib
    return NumberRow(
        fraction=figure(point.fraction, 4),
        pool=tokens(pool.median if pool else None),
        pool_span=span_tokens(pool),
        free=gib(free.median, 1) if free else gib(None),
        free_span=span_gib(free),
    )


def _cell(start: CurveStartOut, highest: int) -> tuple[Outcome, int, int]:
    across = round((start.fraction or 0.0) * 1000)
    return start.outcome, across, round((start.pool_tokens or 0) / highest * _CELLS)


def _sampled(items: Sequence[T], most: int) -> Sequence[T]:
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]
