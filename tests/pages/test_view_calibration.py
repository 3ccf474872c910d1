"""The advice log and its coverage: promised against held."""

from __future__ import annotations

from uuid import UUID

from kvyield_server.domain.answers import Question
from kvyield_server.domain.calibration import Settled, calibrate
from kvyield_server.domain.records import StoredRecommendation
from kvyield_server.pages.views.calibration import across, coverage_plots, log_row, restarts_text, up
from kvyield_server.schemas.recommendations import RecommendationOut, recommendation_out
from pages.values import NOON, advice, kept, observation

QUESTION = Question(target_tokens=200_000)
NAMED = {"model": "org/model", "hardware": "8 × NVIDIA H200"}


def answer() -> RecommendationOut:
    return recommendation_out(
        StoredRecommendation(id=UUID(int=7), made_at=NOON, pair_id=UUID(int=9), question=QUESTION, advice=advice())
    )


def test_unsettled_advice_waits_for_its_start() -> None:
    """Advice that no start followed yet says so, names model and GPUs, and shows no outcome."""
    row = log_row(answer(), None, **NAMED)
    assert (row.target, row.predicted_pool, row.probability) == ("200,000", "200,144 to 200,306", "84 %")
    assert (row.outcome, row.verdict) == (None, "no start followed it yet")
    assert (row.model, row.hardware) == ("org/model", "8 × NVIDIA H200")


def test_a_settled_advice_is_judged() -> None:
    """A pool within its interval is said to be; one outside is said by how many tokens."""
    assert log_row(answer(), kept(observation(1, 0.926, 200_220)), **NAMED).verdict == "pool within its interval"
    assert (
        log_row(answer(), kept(observation(1, 0.926, 200_316)), **NAMED).verdict
        == "pool above its interval by 10 tokens"
    )
    assert log_row(answer(), kept(observation(1, 0.926, None)), **NAMED).verdict == ""


def test_coverage_lies_where_it_belongs() -> None:
    """Points are higher for larger shares and further right for larger levels; nothing settled draws nothing."""
    start = observation(1, 0.926, 200_225, flags={"mem_fraction_static": 0.926, "context_length": 200_007})
    report = calibrate([Settled(question=QUESTION, advice=advice(), observation=start)])
    pool, _ = coverage_plots(report.overall)
    assert [point.level for point in pool.points] == ["50 %", "80 %", "90 %", "95 %"]
    assert next((point.held, point.share) for point in pool.points) == ("1 of 1", "100 %")
    assert [point.x for point in pool.points] == sorted(point.x for point in pool.points)
    assert (up(1.0) < up(0.5) < up(0.0), across(0.5) < across(0.95)) == (True, True)
    assert coverage_plots(calibrate([]).overall)[0].points == ()


def test_restarts_are_counted_per_target() -> None:
    """How many restarts a target took is said, or that none was reached."""
    assert restarts_text(calibrate([]).overall) == "No target has been reached yet."
    settled = Settled(question=QUESTION, advice=advice(), observation=observation(1, 0.926, 200_225))
    assert restarts_text(calibrate([settled]).overall) == "Restarts per target: 1 on average, over 1 reached."
