"""How past advice is compared with the starts that settled it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import numpy as np
import pytest
from scipy.special import stdtrit

from domain.advice_fits import worked
from domain.worked_starts import BIRTH, kimi_flags, start
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question
from kvyield_server.domain.calibration import PROBABILITIES, Settled, calibrate, quantiles
from kvyield_server.domain.facts.observation import Outcome

QUESTION = Question(target_tokens=200_000)


def settled(number: int, pool_tokens: int | None, *, outcome: Outcome = Outcome.READY, free: float = 5.5) -> Settled:
    advice = recommend(worked(), QUESTION)
    flags = kimi_flags(0.926, 8, context_length=200007)
    observation = start(number, flags, pool_tokens=pool_tokens, free_at_ready_gib=free, outcome=outcome)
    return Settled(question=QUESTION, advice=advice, observation=observation)


def test_coverage_counts_intervals_of_every_level() -> None:
    """A pool at the median is in every interval; one at the edge of the 90 % interval only in the wide ones."""
    report = calibrate([settled(10, 200225), settled(11, 200285), settled(12, 201000)])
    assert {each.level: each.held for each in report.overall.pool} == {0.5: 1, 0.8: 1, 0.9: 2, 0.95: 2}
    assert [each.share for each in report.overall.free_at_ready] == [1.0, 1.0, 1.0, 1.0]


def test_hits_are_counted_by_decile() -> None:
    """Advice that promised 0.999 is in the last decile, with the share of pools that were large enough."""
    report = calibrate([settled(10, 200225), settled(11, 150000), settled(12, None, outcome=Outcome.REFUSED)])
    last = report.overall.pool_hits[-1]
    assert (last.low, last.high, last.hits, last.settled) == (0.9, 1.0, 1, 3)
    assert last.expected == pytest.approx(1.0, abs=0.002)
    assert all(decile.settled == 0 for decile in report.overall.pool_hits[:-1])


def test_restarts_are_counted_until_the_target_is_held() -> None:
    """Two misses and a hit are three restarts for one target; a later miss opens the target again."""
    report = calibrate([settled(10, 150000), settled(11, 199000), settled(12, 200225), settled(13, 1000)])
    assert (report.overall.restarts.reached, report.overall.restarts.open, report.overall.restarts.mean) == (1, 1, 3)


def test_groups_by_engine_and_basis() -> None:
    """Each engine and basis is calibrated by itself, and both together."""
    report = calibrate([settled(10, 200225)])
    assert set(report.by_engine) == {"sglang"}
    assert set(report.by_basis) == {"several_starts"}
    assert report.by_engine_and_basis["sglang", "several_starts"].settled == 1


def test_a_start_with_other_flags_does_not_judge_the_prediction() -> None:
    """A start that names an advice but took another fraction is tied to it without counting for coverage."""
    item = settled(10, 240000)
    other = replace(item.observation, flags=kimi_flags(0.96, 8, context_length=200007))
    report = calibrate([replace(item, observation=other)])
    assert (report.overall.settled, report.overall.pool[0].settled) == (1, 0)


def test_nothing_settled_is_no_error() -> None:
    """Without settled advice all counts are zero and shares are unknown."""
    report = calibrate([])
    assert report.overall.settled == 0
    assert report.overall.pool[0].share is None
    assert report.overall.restarts.mean is None


def test_order_of_arrival_does_not_matter() -> None:
    """Restarts follow the times of the starts, not the order in which they are listed."""
    items = [settled(12, 200225), settled(10, 150000)]
    moved = replace(items[0].observation, observed_at=BIRTH + timedelta(days=1), id=UUID(int=1))
    assert calibrate([replace(items[0], observation=moved), items[1]]).overall.restarts.mean == 2


def test_quantiles_of_an_advice_ascend_and_hold_its_interval() -> None:
    """Each predicted quantity has the ends of every level's interval; the 90 % ones are those of the answer."""
    advice = recommend(worked(), QUESTION)
    rows = quantiles(worked(), advice.flags)
    assert set(rows) == {"pool_tokens", "free_at_ready_gib"}
    for name, told in rows.items():
        assert tuple(share for share, _ in told) == PROBABILITIES
        values = [value for _, value in told]
        assert values == sorted(values)
        estimate = getattr(advice.prediction, name)
        assert (dict(told)[0.05], dict(told)[0.95]) == pytest.approx((estimate.low, estimate.high), rel=2e-3)
    assert quantiles(worked(), {"context_length": 5}) != {}


def test_a_perfect_predictor_with_heavy_tails_reads_as_it_promises() -> None:
    """Over 10,000 settled answers whose truth is a Student t(4), coverage is within 1.5 points of every level."""
    drawn = np.random.default_rng(5).standard_t(4, 10_000)
    told = tuple((share, round(1e6 + 1e4 * float(stdtrit(4, share)))) for share in PROBABILITIES)
    item = settled(10, 200_225)
    prediction = replace(item.advice.prediction, quantiles={"pool_tokens": told})
    advice = replace(item.advice, prediction=prediction)
    start_of = item.observation
    items = [
        replace(
            item,
            advice=advice,
            observation=replace(
                start_of,
                id=UUID(int=number),
                measurements=replace(start_of.measurements, pool_tokens=round(1e6 + 1e4 * float(value))),
            ),
        )
        for number, value in enumerate(drawn, 1)
    ]
    for each in calibrate(items).overall.pool:
        assert each.share == pytest.approx(each.level, abs=0.015)


def test_advice_stored_before_quantiles_scales_its_interval_as_a_normal() -> None:
    """Old rows have one interval: narrower and wider ones are made from it."""
    report = calibrate([settled(10, 200_290)])
    assert {each.level: each.held for each in report.overall.pool}[0.95] == 1
