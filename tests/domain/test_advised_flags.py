"""Which flags an advice states, holds, leaves to the engine and takes out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.advice_fits import SGLANG_FLAGS, VLLM_FLAGS, codes, fraction, plain, worked
from domain.given_model import with_starts
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Prefer, Question, Status
from kvyield_server.domain.facts.observation import (
    EngineName,
)


def test_reply_and_concurrent_requests_need_their_tokens_too() -> None:
    """The pool holds concurrent times prompt and reply, and there are as many running requests as are asked for."""
    fit = plain(EngineName.SGLANG, {**SGLANG_FLAGS, "max_running_requests": 2})
    advice = recommend(fit, Question(target_tokens=90_000, reply_tokens=10_000, concurrent=4))
    same_pool = recommend(fit, Question(target_tokens=400_000))
    assert advice.flags["max_running_requests"] == 4
    assert advice.flags["context_length"] == 131072
    assert fraction(advice) == fraction(same_pool)


def test_each_data_parallel_rank_holds_its_requests_whole() -> None:
    """Two ranks share four requests, two each: the pool of a rank holds two whole ones."""
    one = plain(EngineName.SGLANG, SGLANG_FLAGS)
    two = plain(EngineName.SGLANG, {**SGLANG_FLAGS, "dp_size": 2, "tp_size": 2})
    question = Question(target_tokens=100_000, concurrent=4)
    assert fraction(recommend(two, question)) == fraction(recommend(one, replace(question, concurrent=2)))
    three = recommend(two, replace(question, concurrent=3))
    assert fraction(three) == fraction(recommend(one, replace(question, concurrent=2)))


def test_the_context_length_is_never_lowered() -> None:
    """A short target keeps SGLang's longer context length, and the pool still holds a prompt and seven tokens."""
    fit = plain(EngineName.SGLANG, SGLANG_FLAGS)
    assert recommend(fit, Question(target_tokens=1_000)).flags["context_length"] == 131072
    exact = recommend(plain(EngineName.SGLANG, SGLANG_FLAGS), Question(target_tokens=200_000))
    assert exact.flags["context_length"] == 200_007
    assert exact.prediction.pool_tokens is not None
    assert exact.prediction.pool_tokens.low >= 200_007


def test_vllm_keeps_its_longest_request_when_the_pool_holds_it() -> None:
    """max_model_len stays at the running value while the advised pool holds it."""
    advice = recommend(plain(EngineName.VLLM, VLLM_FLAGS, page=16), Question(target_tokens=100_000, concurrent=4))
    assert advice.flags["max_model_len"] == 131072
    assert "max_model_len" not in {change.flag for change in advice.changes}


def test_vllm_lowers_its_longest_request_when_the_pool_would_not_hold_it() -> None:
    """Where the advised pool is smaller than max_model_len, vLLM would refuse: it is lowered and listed as a change."""
    fit = plain(EngineName.VLLM, VLLM_FLAGS, page=16)
    advice = recommend(fit, Question(target_tokens=50_000, reply_tokens=500, prefer=Prefer.HEADROOM))
    assert advice.flags["max_model_len"] == 50_500
    assert {change.flag: change.to_value for change in advice.changes}["max_model_len"] == 50_500
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.pool_tokens.low >= 50_500


def test_vllm_raises_its_longest_request_to_the_target() -> None:
    """A target above max_model_len raises it to prompt and reply."""
    advice = recommend(plain(EngineName.VLLM, VLLM_FLAGS, page=16), Question(target_tokens=200_000))
    assert advice.flags["max_model_len"] == 200_001
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.pool_tokens.low >= 200_016
    (change,) = advice.changes
    assert change.reason.startswith("admits a prompt of 200,000 tokens")


def test_vllm_wants_a_token_of_reply_beside_the_prompt() -> None:
    """vLLM refuses a prompt as long as max_model_len: one that equals the target is raised or, held, too small."""
    fit = plain(EngineName.VLLM, {**VLLM_FLAGS, "max_model_len": 100_000}, page=16)
    assert recommend(fit, Question(target_tokens=100_000)).flags["max_model_len"] == 100_001
    assert recommend(fit, Question(target_tokens=99_990, reply_tokens=10)).flags["max_model_len"] == 100_000
    held = recommend(fit, Question(target_tokens=100_000, flags={"max_model_len": 100_000}))
    assert held.binding_constraint == "context_length"


@pytest.mark.parametrize(
    ("engine", "flag", "context"),
    [
        (EngineName.TENSORRT_LLM, "free_gpu_memory_fraction", "max_seq_len"),
        (EngineName.LMDEPLOY, "cache_max_entry_count", "session_len"),
    ],
)
def test_engines_with_a_line_through_the_origin(engine: EngineName, flag: str, context: str) -> None:
    """TensorRT-LLM and LMDeploy are advised in their own fraction flag, on a line through the origin."""
    fit = plain(engine, {flag: 0.5}, zero=0.0, page=64, free=50.0)
    advice = recommend(fit, Question(target_tokens=400_000, prefer=Prefer.HEADROOM))
    assert advice.flags[flag] == pytest.approx(0.489, abs=0.0011)
    assert advice.flags[context] == 400_000
    assert "from zero" in advice.explanation


def test_a_context_length_that_nothing_tells_is_kept_with_a_warning() -> None:
    """What runs holds the target; whether its unstated context length admits it is said to be unknown."""
    fit = plain(EngineName.LMDEPLOY, {"cache_max_entry_count": 0.5}, zero=0.0, page=64, free=50.0)
    advice = recommend(fit, Question(target_tokens=400_000))
    assert advice.changes == ()
    assert "context_length_unknown" in codes(advice)


def test_flags_that_the_asker_holds_are_held() -> None:
    """Held flags appear in the answer under the engine's own names, are not changed, and are changes from running."""
    fit = plain(EngineName.VLLM, VLLM_FLAGS, page=16)
    advice = recommend(fit, Question(target_tokens=100_000, flags={"max_running_requests": 7}))
    assert advice.flags["max_num_seqs"] == 7
    assert {change.flag: change.reason for change in advice.changes}["max_num_seqs"] == "as the question asks"


def test_a_cap_below_the_target_is_taken_out() -> None:
    """A cap on the pool's tokens that is below the target is removed in the same restart, and says why."""
    flags = {**SGLANG_FLAGS, "max_total_tokens": 100_000}
    advice = recommend(plain(EngineName.SGLANG, flags), Question(target_tokens=300_000))
    change = {each.flag: each for each in advice.changes}["max_total_tokens"]
    assert (change.from_value, change.to_value) == (100_000, None)
    assert "--max-total-tokens" not in advice.command_line


def test_beyond_the_models_own_context_is_said() -> None:
    """A target above the model's own context length is named."""
    advice = recommend(worked(), Question(target_tokens=300_000))
    assert "beyond_model_context" in codes(advice)


def test_giving_the_running_flags_is_said_to_change_nothing() -> None:
    """Held flags that are the running ones are named as such."""
    advice = recommend(worked(), Question(target_tokens=200_000, flags={"max_running_requests": 8}))
    assert "flags_equal_running" in codes(advice)


@pytest.mark.parametrize(
    ("engine", "flag", "length"),
    [(EngineName.SGLANG, "mem_fraction_static", None), (EngineName.VLLM, "gpu_memory_utilization", 50_001)],
)
def test_an_unset_context_length_is_the_models_own(engine: EngineName, flag: str, length: int | None) -> None:
    """Where the model's own length admits the request it stays unset, but for vLLM where the pool would not hold it."""
    fit = replace(plain(engine, {flag: 0.7}, page=16), context_tokens=131_072)
    advice = recommend(fit, Question(target_tokens=50_000, prefer=Prefer.HEADROOM))
    name = "context_length" if engine is EngineName.SGLANG else "max_model_len"
    assert advice.flags.get(name) == length
    assert (name in {change.flag for change in advice.changes}) == (engine is EngineName.VLLM)
    assert recommend(fit, Question(target_tokens=50_000)).changes == ()


def test_a_context_length_is_advised_where_the_models_own_admits_too_little() -> None:
    """Unset and shorter than the request, the context length is stated, with what the engine says to that."""
    fit = replace(plain(EngineName.SGLANG, {"mem_fraction_static": 0.7}), context_tokens=100_000)
    advice = recommend(fit, Question(target_tokens=200_000))
    assert advice.flags["context_length"] == 200_007
    (said,) = [each.detail for each in advice.warnings if each.code == "beyond_model_context"]
    assert "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" in said


def test_vllm_holds_the_models_own_length_when_it_is_set_nowhere() -> None:
    """Left unset, vLLM admits the model's own length, and a pool that holds it keeps it unset."""
    fit = replace(plain(EngineName.VLLM, {"gpu_memory_utilization": 0.7}, page=16), context_tokens=131_072)
    advice = recommend(fit, Question(target_tokens=50_000, concurrent=8, prefer=Prefer.HEADROOM))
    assert "max_model_len" not in advice.flags
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.pool_tokens.low >= 131_088


def test_a_context_length_is_lowered_where_its_own_table_stands_in_the_way() -> None:
    """SGLang's table of a long context that takes the memory of the target is cut to the request, and that is said."""
    flags = {**SGLANG_FLAGS, "context_length": 1_048_576}
    fit = replace(plain(EngineName.SGLANG, flags, free=6.0), table_gib_per_token=5.0 / 1_048_576)
    fit = with_starts(replace(fit, free_at_zero=100.0 * 0.7 + 0.03 * 32 + 5.0 + 6.0), *fit.starts)
    advice = recommend(fit, Question(target_tokens=450_000))
    assert advice.flags["context_length"] == 450_007
    reason = next(change.reason for change in advice.changes if change.flag == "context_length")
    assert "request table" in reason


def test_fixed_bytes_are_moved_and_the_fraction_is_kept() -> None:
    """Bytes that fix the pool are kept while it holds the target, else set to what the target needs and 2 % more."""
    flags = {**VLLM_FLAGS, "kv_cache_memory_bytes": 2 * 2**30, "max_model_len": 32_768}
    fit = plain(EngineName.VLLM, flags, page=16)
    measured = replace(fit.starts[0].measurements, pool_tokens=16_384)
    fit = with_starts(fit, replace(fit.starts[0], measurements=measured))
    kept = recommend(fit, Question(target_tokens=16_000))
    assert kept.changes == ()
    assert "--kv-cache-memory-bytes 2147483648" in kept.command_line
    more = recommend(fit, Question(target_tokens=16_000, concurrent=4))
    (change,) = more.changes
    assert change.flag == "kv_cache_memory_bytes"
    assert isinstance(change.to_value, int)
    assert 64_000 * 131_072 * 1.02 <= change.to_value <= 64_000 * 131_072 * 1.03
    assert fraction(more) == 0.7


def test_an_input_limit_that_the_engine_printed_binds() -> None:
    """A printed limit makes a longer prompt infeasible, but for one that is the pool's own size and grows with it."""
    fit = plain(EngineName.SGLANG, SGLANG_FLAGS)
    grows = replace(fit.starts[0].measurements, longest_prompt_tokens=409_600 - 7)
    assert recommend(
        with_starts(fit, replace(fit.starts[0], measurements=grows)), Question(target_tokens=420_000)
    ).changes
    for limit, swa, binding in ((50_000, None, "input_limit"), (18_425, 18_432, "input_limit")):
        figures = replace(fit.starts[0].measurements, longest_prompt_tokens=limit, swa_pool_tokens=swa)
        limited = with_starts(fit, replace(fit.starts[0], measurements=figures))
        advice = recommend(limited, Question(target_tokens=60_000))
        assert (advice.status, advice.binding_constraint) == (Status.INFEASIBLE, binding)
        assert f"{limit:,}" in advice.explanation
        assert recommend(limited, Question(target_tokens=18_000)).changes == ()


def test_a_context_length_that_vllm_fits_to_the_pool_is_left_to_it() -> None:
    """Where vLLM fits max_model_len itself, what runs is kept up to the fitted length, and no length is advised."""
    fit = plain(EngineName.VLLM, {**VLLM_FLAGS, "max_model_len": -1}, page=16)
    figures = replace(fit.starts[0].measurements, fitted_max_model_len=300_000)
    fit = replace(with_starts(fit, replace(fit.starts[0], measurements=figures)), context_tokens=1_048_576)
    assert recommend(fit, Question(target_tokens=200_000)).changes == ()
    more = recommend(fit, Question(target_tokens=500_000))
    assert {change.flag for change in more.changes} == {"gpu_memory_utilization"}
