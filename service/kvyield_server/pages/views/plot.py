"""What the two plots draw: fitted lines, starts thinned to what a screen can tell apart, and the advice over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvyield_server.domain.answers import Prediction, Status
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Observation, Outcome, Scalar
from kvyield_server.pages.views.starts import is_bound
from kvyield_server.pages.views.words import flag_value, gib, outcome_word, span_gib, span_tokens, tokens
from kvyield_server.schemas.common import EstimateOut, estimate_out, tokens_out
from kvyield_server.schemas.recommendations import AdviceOut

T = TypeVar("T")
MOST_STARTS = 400
TABLE_ROWS = 15
MARGIN = 0.05
LOWEST, HIGHEST = 0.01, 0.999
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
class LineView:
    """The fitted lines: ``data`` for the script, ``rows`` for people who read instead of look."""

    data: dict[str, Any]
    rows: tuple[NumberRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsView:
    """The starts to compare the lines with; ``outcomes`` are the shapes that a legend must explain."""

    data: tuple[dict[str, Any], ...]
    shown: int
    total: int
    outcomes: tuple[Outcome, ...]

    @property
    def has_bounds(self) -> bool:
        return any(start["bound"] for start in self.data)

    @property
    def is_thinned(self) -> bool:
        return self.shown < self.total


def fractions(starts: Iterable[Observation], others: Iterable[Scalar], points: int) -> list[float]:
    """Return the fractions to draw: evenly around all starts, and the ``others`` exactly, as far away as they are.

    LMDeploy takes a count of blocks for a fraction above 1: where the others are counts, so is all that is drawn.
    """
    known = [start.fraction for start in starts if start.fraction is not None]
    wanted = [float(other) for other in others if isinstance(other, int | float) and not isinstance(other, bool)]
    if any(other > 1.0 for other in wanted):
        return _counts([each for each in (*known, *wanted) if each > 1.0], points)
    known, wanted = [each for each in known if each <= 1.0], [each for each in wanted if each <= 1.0]
    low = max(LOWEST, min([*known, *wanted], default=0.5) - MARGIN)
    high = min(HIGHEST, max([*known, *wanted], default=0.9) + MARGIN)
    grid = {round(low + (high - low) * index / (points - 1), 6) for index in range(points)}
    return sorted(grid | {fraction for fraction in wanted if low <= fraction <= high})


def _counts(known: Sequence[float], points: int) -> list[float]:
    low, high = max(1, round(min(known) * 0.8)), round(max(known) * 1.1)
    grid = {float(round(low + (high - low) * index / (points - 1))) for index in range(points)}
    return sorted(grid | set(known))


def line_view(points: Sequence[tuple[float, Prediction]], told: Iterable[Scalar] = ()) -> LineView:
    """Return the fitted lines through predictions along the fraction; the table never leaves ``told`` fractions out.

    Figures are rounded as an advice rounds them, so that one fraction never has two figures on a page.
    """
    data = {
        "fraction": [fraction for fraction, _ in points],
        "pool": _band([tokens_out(prediction.pool_tokens) for _, prediction in points]),
        "free": _band([estimate_out(prediction.free_at_ready_gib, digits=2) for _, prediction in points]),
    }
    always = [point for point in points if point[0] in set(told)]
    rows = {point[0]: point for point in [*_sampled(points, TABLE_ROWS), *always]}
    return LineView(data=data, rows=tuple(_row(*rows[fraction]) for fraction in sorted(rows)))


def starts_view(starts: Sequence[Observation], most: int = MOST_STARTS) -> StartsView:
    """Return at most ``most`` starts for the plots."""
    kept = thinned(starts, most)
    present = {start.outcome for start in kept}
    return StartsView(
        data=tuple(_start(start) for start in kept),
        shown=len(kept),
        total=len(starts),
        outcomes=tuple(outcome for outcome in Outcome if outcome in present),
    )


def thinned(starts: Sequence[Observation], most: int) -> list[Observation]:
    """Return at most ``most`` starts, those first that look different: one of each outcome in each cell of a grid.

    ``starts`` may come in any order; of several in one cell the newest stays. The order of what is kept is kept.
    """
    if len(starts) <= most:
        return list(starts)
    newest_first = sorted(starts, key=lambda start: (start.observed_at, start.id.int), reverse=True)
    highest = max((start.measurements.pool_tokens or 0 for start in starts), default=1) or 1
    by_cell: dict[tuple[Outcome, int, int], Observation] = {}
    for start in newest_first:
        by_cell.setdefault(_cell(start, highest), start)
    distinct = sorted(by_cell.values(), key=lambda start: start.outcome is Outcome.READY)
    chosen = {start.id for start in _sampled(distinct, most)}
    return [start for start in starts if start.id in chosen]


def overlay(
    advice: AdviceOut, *, running: Scalar, target_tokens: int, need: EstimateOut | None, has_ended: bool = False
) -> dict[str, Any]:
    """Return what the plots draw over the lines: target, window, advised and running fraction, what prompts need.

    Where there is nothing to restart with, no fraction is advised. ``has_ended`` tells that what ran did not stay up.
    """
    is_advised = advice.status in (Status.OK, Status.AT_RISK)
    return {
        "target": target_tokens,
        "window": [advice.window.lowest, advice.window.highest] if advice.window else None,
        "advised": advice.flags.get(FRACTION_FLAG[advice.engine]) if is_advised else None,
        "running": running,
        "ended": has_ended,
        "need": [need.low, need.median, need.high] if need else None,
        "status": advice.status.value,
    }


def nothing_asked(running: Scalar, *, has_ended: bool = False) -> dict[str, Any]:
    """Return what the plots draw over the lines before a question: the running fraction alone."""
    nothing = dict.fromkeys(("target", "window", "advised", "need", "status"))
    return {**nothing, "running": running, "ended": has_ended}


def _band(estimates: Sequence[EstimateOut | None]) -> dict[str, list[float | None]] | None:
    if not any(estimates):
        return None
    return {side: [_side(estimate, side) for estimate in estimates] for side in ("median", "low", "high")}


def _side(estimate: EstimateOut | None, side: str) -> float | None:
    return None if estimate is None else float(getattr(estimate, side))


def _start(start: Observation) -> dict[str, Any]:
    return {
        "id": str(start.id),
        "at": start.observed_at.isoformat(),
        "outcome": start.outcome.value,
        "word": outcome_word(start.outcome),
        "fraction": start.fraction,
        "pool": start.measurements.pool_tokens,
        "free": start.measurements.free_at_ready_gib,
        "bound": is_bound(start.measurements),
    }


def _row(fraction: float, prediction: Prediction) -> NumberRow:
    pool, free = tokens_out(prediction.pool_tokens), estimate_out(prediction.free_at_ready_gib, digits=2)
    return NumberRow(
        fraction=flag_value(round(fraction, 4)),
        pool=tokens(pool.median if pool else None),
        pool_span=span_tokens(pool),
        free=gib(free.median, 1) if free else gib(None),
        free_span=span_gib(free),
    )


def _cell(start: Observation, highest: int) -> tuple[Outcome, int, int]:
    across = round((start.fraction or 0.0) * 1000)
    return start.outcome, across, round((start.measurements.pool_tokens or 0) / highest * _CELLS)


def _sampled(items: Sequence[T], most: int) -> Sequence[T]:
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]
