"""Levers: what each change of flags gains in its own restart, and in which order they are offered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.advice_fits import SGLANG_FLAGS, VLLM_FLAGS, fraction, plain, worked
from domain.given_model import GivenModel
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Advice, Lever, Question, Status
from kvyield_server.domain.facts.observation import EngineName


def lever(advice: Advice, flag: str) -> Lever:
    return next(each for each in advice.alternatives if flag in each.flags)


def test_levers_gain_what_their_own_restart_gains() -> None:
    """Each lever's gains are those of its own flags: an 8-bit cache needs a lower fraction, which frees memory."""
    advice = recommend(worked(), Question(target_tokens=200_000))
    half, draft = (
        lever(advice, "kv_cache_dtype"),
        [each for each in advice.alternatives if "--speculative" in each.cost],
    )
    assert half.flags["kv_cache_dtype"] == "fp8_e4m3"
    assert isinstance(half.flags["mem_fraction_static"], float)
    lowered = fraction(advice) - half.flags["mem_fraction_static"]
    assert lowered > 0.0
    assert half.gain_gib == pytest.approx(lowered * 93.73, abs=0.1)
    assert half.joint > 0.9
    assert not draft  # nothing is known of what the draft takes: removing it gains nothing that could be told


@pytest.mark.parametrize("target", [200_000, 215_000, 290_000])
def test_a_lever_is_what_asking_for_its_flags_answers(target: int) -> None:
    """Held as flags of the question, a lever's flags give the joint probability and the gains that it states."""
    advice = recommend(worked(), Question(target_tokens=target))
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.headroom_gib is not None
    assert advice.alternatives
    for lever in advice.alternatives:
        held = {"mem_fraction_static": fraction(advice), **lever.flags}
        asked = recommend(worked(), Question(target_tokens=lever.target_tokens or target, flags=held))
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
    """Held at a fraction whose pool is in doubt, another fraction makes success likelier."""
    fit = replace(plain(EngineName.SGLANG, SGLANG_FLAGS), pool_noise=0.02)
    advice = recommend(fit, Question(target_tokens=415_000, flags={"mem_fraction_static": 0.71}))
    assert advice.status is Status.AT_RISK
    raised = next(each for each in advice.alternatives if "another fraction" in each.cost)
    assert set(raised.flags) == {"mem_fraction_static"}
    assert advice.probability is not None
    assert advice.probability.joint is not None
    assert raised.joint > advice.probability.joint
    assert raised.gain_tokens > 0 > raised.gain_gib


def test_a_context_length_that_is_held_too_short_has_its_own_lever() -> None:
    """The way out of a held context length is named first, with a prompt that it does admit as the last resort."""
    advice = recommend(worked(), Question(target_tokens=200_000, flags={"context_length": 100_000}))
    assert advice.alternatives[0].flags["context_length"] == 200_007
    assert advice.alternatives[-1].target_tokens is not None
    assert advice.alternatives[-1].target_tokens <= 99_993


def test_a_smaller_chunk_is_a_lever_for_plain_attention() -> None:
    """A quarter of the chunk takes a quarter of a dense model's prompt need."""
    fit = without_checks(plain(EngineName.SGLANG, {**SGLANG_FLAGS, "chunked_prefill_size": 16384}, free=12.0))
    chunk = lever(recommend(fit, Question(target_tokens=488_000)), "chunked_prefill_size")
    assert chunk.flags["chunked_prefill_size"] == 4096
    assert chunk.gain_gib > 0.3


def without_checks(fit: GivenModel) -> GivenModel:
    return replace(fit, starts=tuple(replace(each, verifications=()) for each in fit.starts))


def test_removing_a_draft_names_its_option_and_what_it_frees() -> None:
    """A draft that takes 3 GiB is a lever with its flag taken out."""
    flags = {**SGLANG_FLAGS, "speculative_algorithm": "EAGLE"}
    fit = replace(plain(EngineName.SGLANG, flags, free=3.0), extra={"speculative_algorithm": 3.0})
    fit = replace(fit, free_at_zero=(fit.free_at_zero or 0.0) + 3.0)
    removed = lever(recommend(fit, Question(target_tokens=430_000)), "speculative_algorithm")
    assert removed.flags["speculative_algorithm"] is None
    assert "remove --speculative-algorithm" in removed.cost
    assert removed.gain_gib >= 2.5


def test_fewer_graph_batches_are_a_lever_where_graphs_take_memory() -> None:
    """The graph batch cap is offered where a smaller one frees memory, and not where graphs are off."""
    flags = {**VLLM_FLAGS, "max_num_seqs": 512, "max_cudagraph_capture_size": 512}
    fit = replace(plain(EngineName.VLLM, flags, page=16, free=6.0), graph_gib=10.0)
    fit = replace(fit, free_at_zero=(fit.free_at_zero or 0.0) + 10.0)
    asked = Question(target_tokens=100_000, concurrent=5)
    graphs = lever(recommend(fit, asked), "max_cudagraph_capture_size")
    assert graphs.flags["max_cudagraph_capture_size"] == 128
    eager = replace(fit, flags={**fit.flags, "enforce_eager": True})
    assert not any("max_cudagraph_capture_size" in each.flags for each in recommend(eager, asked).alternatives)


@pytest.mark.parametrize("free", [2.0, 4.0, 6.0, 12.0])
def test_levers_stand_in_the_order_of_what_they_achieve(free: float) -> None:
    """The likeliest to succeed comes first, and none is listed that leaves success next to impossible."""
    flags = {**VLLM_FLAGS, "max_num_seqs": 512, "max_cudagraph_capture_size": 512}
    fit = replace(plain(EngineName.VLLM, flags, page=16, free=free), graph_gib=10.0)
    fit = replace(fit, free_at_zero=(fit.free_at_zero or 0.0) + 10.0)
    *levers, _ = recommend(fit, Question(target_tokens=100_000, concurrent=5)).alternatives
    chances = [each.joint for each in levers]
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] >= 0.001


def test_what_gains_nothing_is_no_lever() -> None:
    """Beside an answer at risk every lever makes success likelier; a sure answer needs none."""
    advice = recommend(worked(), Question(target_tokens=200_000))
    assert advice.probability is not None
    assert advice.probability.joint is not None
    for each in advice.alternatives:
        assert each.joint > advice.probability.joint
    assert recommend(plain(EngineName.SGLANG, SGLANG_FLAGS), Question(target_tokens=400_000)).alternatives == ()
