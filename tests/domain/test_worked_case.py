"""The worked case: Kimi K2.6 with a DFlash draft on eight GPUs, a 200,000-token prompt wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.worked_starts import KIMI, RTX_PRO, kimi_flags, worked_starts
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Advice, BasisKind, Question, Status
from kvyield_server.domain.facts.observation import Engine, EngineName
from kvyield_server.domain.model.fit import PairEvidence, cold_fit, fit_pair

QUESTION = Question(target_tokens=200_000)


@pytest.fixture(scope="module")
def advice() -> Advice:
    return recommend(fit_pair(PairEvidence(tuple(worked_starts()))).deployments[0], QUESTION)


def test_the_smallest_fraction_is_advised(advice: Advice) -> None:
    """0.926 is advised, at risk because only 60,010 tokens were verified, with all flags that a restart needs."""
    assert advice.status is Status.AT_RISK
    assert advice.flags == {"mem_fraction_static": 0.926, "context_length": 200007, "max_running_requests": 8}
    assert advice.command_line == "--mem-fraction-static 0.926 --context-length 200007 --max-running-requests 8"
    assert advice.window is None


def test_only_differences_are_changes(advice: Advice) -> None:
    """Changes list what differs from the running start, and leave out the running requests that stay 8."""
    assert {change.flag: (change.from_value, change.to_value) for change in advice.changes} == {
        "mem_fraction_static": (0.94, 0.926),
        "context_length": (200000, 200007),
    }


def test_the_prediction_has_pool_memory_and_headroom(advice: Advice) -> None:
    """Pool, free memory at ready and headroom come with intervals that show how little is known of the prompt."""
    pool, free, headroom = (
        advice.prediction.pool_tokens,
        advice.prediction.free_at_ready_gib,
        advice.prediction.headroom_gib,
    )
    assert pool is not None
    assert free is not None
    assert headroom is not None
    assert pool.median == pytest.approx(200_229, abs=6)
    assert 200_144 <= pool.low <= pool.high <= 200_306
    assert (free.median, free.low, free.high) == pytest.approx((5.5, 5.2, 5.8), abs=0.2)
    assert (headroom.median, headroom.low, headroom.high) == pytest.approx((2.5, -2.6, 4.4), abs=0.15)


def test_probabilities_restarts_and_verification_time(advice: Advice) -> None:
    """Pool is near certain, memory is 0.84, so about 1.2 restarts of six minutes; a verification takes 153 s."""
    assert advice.probability is not None
    assert advice.probability.pool == pytest.approx(1.0, abs=0.002)
    assert advice.probability.memory == pytest.approx(0.84, abs=0.02)
    assert advice.restarts is not None
    assert (advice.restarts.expected, advice.restarts.minutes, advice.restarts.minutes_each) == (1.2, 7.2, 6.0)
    assert advice.verification_seconds == 153


def test_warnings_and_explanation_say_what_was_never_shown(advice: Advice) -> None:
    """The advice says that context length does not grow the pool and that 60,010 tokens are all that was verified."""
    codes = [warning.code for warning in advice.warnings]
    assert codes[:2] == ["context_length_does_not_grow_pool", "nothing_verified_at_this_length"]
    assert advice.basis.verified_prompt_tokens == 60010
    for words in ("13,039 tokens per 0.01", "200,229", "60,010", "verification prompt of 200,000 tokens"):
        assert words in advice.explanation


def test_two_starts_are_enough() -> None:
    """From starts 1 and 2 alone, free memory at 0.94 is within 0.6 GiB of what start 3 showed, and advice is 0.926."""
    fit = fit_pair(PairEvidence(tuple(worked_starts()[1:]))).deployments[0]
    free = fit.predict(kimi_flags(0.94, 8)).free_at_ready_gib
    assert free is not None
    assert free.median == pytest.approx(4.2, abs=0.6)
    assert recommend(fit, QUESTION).flags["mem_fraction_static"] == 0.926


@pytest.mark.parametrize("seen", [1, 2, 3])
def test_the_fitted_line_gives_advice_that_truly_holds(seen: int) -> None:
    """With the real fit, from start 1 alone or more, one restart truly reaches 200,007 tokens; with two, at 0.926."""
    starts = worked_starts()[-seen:]
    advice = recommend(fit_pair(PairEvidence(tuple(starts))).deployments[0], QUESTION)
    advised = advice.flags["mem_fraction_static"]
    assert isinstance(advised, float)
    assert 1_303_889 * (advised - 0.77244) >= 200_007
    assert advice.status is Status.AT_RISK
    if seen > 1:
        assert advised == 0.926
        assert advice.probability is not None
        assert advice.probability.memory == pytest.approx(0.84, abs=0.02)


def test_a_cold_start_is_advised_from_config_and_gpu() -> None:
    """Before any start, config, GPU and checkpoint size give advice that names the config as its only basis."""
    facts = {**KIMI.facts, "total_size": 554 * 2**30}
    flags = {"tp_size": 8, "speculative_algorithm": None, "max_running_requests": 8}
    fit = cold_fit(
        hardware=RTX_PRO, model=replace(KIMI, facts=facts), engine=Engine(name=EngineName.SGLANG), flags=flags
    )
    advice = recommend(fit, Question(target_tokens=50_000))
    assert advice.status in (Status.OK, Status.AT_RISK)
    assert advice.basis.kind is BasisKind.CONFIG_ONLY
    assert all(change.from_value is None for change in advice.changes)
    assert "no start of this deployment was posted" in advice.explanation
