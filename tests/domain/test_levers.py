"""Levers: what each change of flags gains in its own restart, and in which order they are offered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.advice_fits import CARD, PLAIN, SGLANG_FLAGS, fraction, plain, worked
from domain.straight_line import (
    StraightLine,
    hand_fit,
    start,
)
from kvyield_server.domain.answers import Question, Status
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
)
from kvyield_server.domain.legacy.advice import recommend


def test_levers_gain_what_their_own_restart_gains() -> None:
    """Each lever's gains are those of its own flags: an 8-bit cache needs a lower fraction, which frees memory."""
    advice = recommend(worked(), Question(target_tokens=200_000))
    levers = {next(iter(lever.flags)): lever for lever in advice.alternatives}
    fewer, half = levers["max_running_requests"], levers["kv_cache_dtype"]
    assert fewer.gain_tokens == 0
    assert fewer.gain_gib > 0
    assert half.flags == {"kv_cache_dtype": "fp8_e4m3", "mem_fraction_static": 0.85}
    assert 0 <= half.gain_tokens < 2 * 2 * 1_304
    assert half.gain_gib == pytest.approx(0.076 * 0.95 * 93.73, abs=0.1)
    assert half.joint > 0.95


@pytest.mark.parametrize("target", [200_000, 215_000, 290_000])
def test_a_lever_is_what_asking_for_its_flags_answers(target: int) -> None:
    """Held as flags of the question, a lever's flags give the joint probability and the gains that it states."""
    advice = recommend(worked(), Question(target_tokens=target))
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.headroom_gib is not None
    for lever in advice.alternatives:
        asked = recommend(worked(), Question(target_tokens=lever.target_tokens or target, flags=lever.flags))
        assert asked.prediction.pool_tokens is not None
        assert asked.prediction.free_at_ready_gib is not None
        gained = asked.prediction.pool_tokens.median - advice.prediction.pool_tokens.median
        assert lever.gain_tokens == pytest.approx(gained, abs=2)
        assert asked.probability is not None
        assert lever.joint == pytest.approx(asked.probability.joint, abs=0.06 if lever.target_tokens else 0.002)


@pytest.mark.parametrize("target", [200_000, 215_000, 290_000])
def test_risky_and_infeasible_answers_rank_levers_and_end_with_a_lower_target(target: int) -> None:
    """Whatever stands in the way, there are levers, those that make success likelier first, and a target that holds."""
    advice = recommend(worked(), Question(target_tokens=target))
    assert advice.status in (Status.AT_RISK, Status.INFEASIBLE)
    *levers, lower = advice.alternatives
    assert levers
    assert lower.target_tokens is not None
    assert f"{lower.target_tokens:,}" in lower.cost
    assert recommend(worked(), Question(target_tokens=lower.target_tokens)).status is not Status.INFEASIBLE
    assert lower.gain_tokens < 0
    assert lower.joint > 0.9


def test_a_raised_fraction_is_a_lever_where_the_pool_is_in_doubt() -> None:
    """One start leaves the pool uncertain: more fraction than the confidence asks for makes success likelier."""
    engine = Engine(name=EngineName.SGLANG, version="1.0")
    line = StraightLine(model=PLAIN, engine=engine, base=100.0, zero=0.2, token_bytes=131072, relative_noise=0.02)
    served = start(
        1, SGLANG_FLAGS, pool_tokens=400_000, free_at_ready_gib=30.0, model=PLAIN, hardware=CARD, engine=engine
    )
    advice = recommend(hand_fit(line, [served]), Question(target_tokens=400_000))
    raised = next(lever for lever in advice.alternatives if "raised fraction" in lever.cost)
    assert set(raised.flags) == {"mem_fraction_static"}
    assert advice.probability is not None
    assert raised.joint > advice.probability.joint
    assert raised.gain_tokens > 0 > raised.gain_gib


def test_a_context_length_that_is_held_too_short_has_its_own_lever() -> None:
    """The way out of a held context length is named first, with a prompt that it does admit as the last resort."""
    advice = recommend(worked(), Question(target_tokens=200_000, flags={"context_length": 100_000}))
    assert advice.alternatives[0].flags["context_length"] == 200_007
    assert advice.alternatives[-1].target_tokens is not None
    assert advice.alternatives[-1].target_tokens <= 99_993


def test_a_smaller_chunk_is_a_lever_for_plain_attention() -> None:
    """Halving the chunk halves a dense model's prompt need."""
    fit = plain(EngineName.SGLANG, {**SGLANG_FLAGS, "chunked_prefill_size": 16384}, free=30.0)
    advice = recommend(fit, Question(target_tokens=640_000))
    chunk = next(lever for lever in advice.alternatives if "chunked_prefill_size" in lever.flags)
    assert chunk.flags["chunked_prefill_size"] == 8192
    assert chunk.gain_gib > 0.3


def test_half_the_weights_is_a_lever_where_they_are_known_to_be_wide() -> None:
    """Where a log gives 16-bit weights, 8-bit ones are offered: the same pool, and half of them free."""
    model = replace(PLAIN, facts={**PLAIN.facts, "torch_dtype": "bfloat16"})
    fit = plain(EngineName.SGLANG, SGLANG_FLAGS)
    served = fit.starts[0]
    logged = replace(served, model=model, measurements=replace(served.measurements, weights_gib=20.0))
    wide = replace(hand_fit(replace(fit.capacity, model=model), [logged]), running=logged)
    advice = recommend(wide, Question(target_tokens=640_000))
    lever = next(each for each in advice.alternatives if "quantization" in each.flags)
    assert abs(lever.gain_tokens) < 820
    assert lever.gain_gib == pytest.approx(10.0, abs=0.2)
    assert lever.flags["mem_fraction_static"] == pytest.approx(fraction(advice) - 0.1)
