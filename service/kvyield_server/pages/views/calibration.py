"""What was advised, what happened, and whether intervals hold what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from kvyield_server.domain.answers import Status
from kvyield_server.domain.facts.observation import Outcome
from kvyield_server.pages.views.advice import STATUS_WORDS
from kvyield_server.pages.views.starts import free_at_ready_text
from kvyield_server.pages.views.words import UNKNOWN, figure, outcome_word, percent, span_gib, span_tokens, tokens
from kvyield_server.schemas.observations import ObservationOut
from kvyield_server.schemas.recommendations import RecommendationOut

if TYPE_CHECKING:
    from kvyield_server.domain.calibration import Calibration, Coverage

WIDTH, HEIGHT, MARGIN = 320.0, 240.0, 44.0
_LOWEST = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One answer, what it was about, and the start that followed it. ``verdict`` is empty while nothing can be said."""

    id: UUID
    made_at: datetime
    pair_id: UUID | None
    model: str
    hardware: str
    status_word: str
    headline: str
    target: str
    command_line: str
    predicted_pool: str
    predicted_free: str
    probability: str
    observation_id: UUID | None
    outcome: Outcome | None
    outcome_word: str
    pool: str
    free: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveragePoint:
    """One interval level: what was promised, what held, and where that lies in the plot."""

    level: str
    held: str
    share: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveragePlot:
    """One quantity's coverage; ``points`` is empty while nothing is settled."""

    name: str
    settled: int
    points: tuple[CoveragePoint, ...]

    @property
    def line(self) -> str:
        """The points as an SVG polyline takes them."""
        return " ".join(f"{point.x},{point.y}" for point in self.points)


def log_row(answer: RecommendationOut, start: ObservationOut | None, *, model: str, hardware: str) -> LogRow:
    """Return one line of the log; ``model`` and ``hardware`` name what the question was about."""
    predicted, odds = answer.prediction, answer.probability
    measured = start.measurements if start else None
    return LogRow(
        id=answer.id,
        made_at=answer.made_at,
        pair_id=answer.pair_id,
        model=model,
        hardware=hardware,
        headline=answer.headline.text if answer.headline else "",
        status_word=STATUS_WORDS[Status(answer.status)],
        target=tokens(answer.question.target_tokens),
        command_line=answer.command_line,
        predicted_pool=span_tokens(predicted.pool_tokens),
        predicted_free=span_gib(predicted.free_at_ready_gib),
        probability=percent(odds.joint if odds else None),
        observation_id=answer.observation_id,
        outcome=start.outcome if start else None,
        outcome_word=outcome_word(start.outcome) if start else "",
        pool=tokens(measured.pool_tokens if measured else None),
        free=free_at_ready_text(measured) if measured else UNKNOWN,
        verdict=_verdict(answer, start),
    )


def coverage_plots(calibration: Calibration) -> tuple[CoveragePlot, ...]:
    """Return the coverage of the pool's and of free memory's intervals."""
    return (
        _plot("Pool tokens", calibration.pool),
        _plot("Free memory at ready", calibration.free_at_ready),
    )


def restarts_text(calibration: Calibration) -> str:
    """Return how many restarts a target took."""
    plan = calibration.restarts
    if plan.mean is None:
        return "No target has been reached yet."
    still = f"; {plan.open} not reached yet" if plan.open else ""
    return f"Restarts per target: {figure(plan.mean, 2)} on average, over {plan.reached} reached{still}."


def _verdict(answer: RecommendationOut, start: ObservationOut | None) -> str:
    if start is None:
        return "no start followed it yet"
    if answer.settlement is not None:
        return answer.settlement
    pool, predicted = start.measurements.pool_tokens, answer.prediction.pool_tokens
    if pool is None or predicted is None:
        return ""
    if predicted.low <= pool <= predicted.high:
        return "pool within its interval"
    beyond = pool - predicted.high if pool > predicted.high else predicted.low - pool
    return f"pool {'above' if pool > predicted.high else 'below'} its interval by {tokens(beyond)} tokens"


def _plot(name: str, coverage: Sequence[Coverage]) -> CoveragePlot:
    settled = max((item.settled for item in coverage), default=0)
    points = tuple(_point(item) for item in coverage if item.share is not None)
    return CoveragePlot(name=name, settled=settled, points=points)


def _point(item: Coverage) -> CoveragePoint:
    share = item.share or 0.0
    return CoveragePoint(
        level=percent(item.level),
        held=f"{item.held} of {item.settled}",
        share=f"{figure(share * 100, 0)} %",
        x=round(across(item.level), 1),
        y=round(up(share), 1),
    )


def across(level: float) -> float:
    """Return where a promised level lies in the plot, from the left."""
    return MARGIN + (max(level, _LOWEST) - _LOWEST) / (1 - _LOWEST) * (WIDTH - MARGIN - 10)


def up(share: float) -> float:
    """Return where a share that held lies in the plot, from the top."""
    return 10 + (1 - share) * (HEIGHT - MARGIN - 10)
