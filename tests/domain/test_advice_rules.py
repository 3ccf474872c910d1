"""The rules of advice, one by one, on lines that are simply given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.straight_line import (
    DOG,
    KIMI,
    HandFit,
    StraightLine,
    hand_fit,
    kimi_flags,
    start,
    worked_line,
    worked_starts,
)
from kvyield_server.domain.advice import recommend
from kvyield_server.domain.answers import Advice, FitSummary, Question, Status
from kvyield_server.domain.observation import (
    Engine,
    EngineName,
    Failure,
    Hardware,
    Model,
    Observation,
    Outcome,
    Phase,
    Scalar,
    Verification,
)

PLAIN = Model(
    name="plain", facts={"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "head_dim": 128}
)
CARD = Hardware(gpu="NVIDIA H200", gpu_count=2, memory_gib=140.4)


def codes(advice: Advice) -> set[str]:
    return {warning.code for warning in advice.warnings}


def fraction(advice: Advice) -> float:
    value = advice.flags[next(iter(advice.flags))]
    assert isinstance(value, float)
    return value


def worked(*later: Observation) -> HandFit:
    """Return the worked case with later starts, newest first, the newest that served running."""
    starts = [*later, *worked_starts()]
    running = next(each for each in starts if each.outcome in (Outcome.READY, Outcome.OOM_RUNTIME))
    return replace(hand_fit(worked_line(), starts), running=running)


def plain(
    engine: EngineName, flags: dict[str, Scalar], *, zero: float = 0.2, page: int = 1, free: float = 30.0
) -> HandFit:
    """Return a dense model on one card: 100 GiB base, 128 KiB a token, one start with two chunks verified."""
    line = StraightLine(
        model=PLAIN,
        engine=Engine(name=engine, version="1.0"),
        base=100.0,
        zero=zero,
        token_bytes=131072,
        page_tokens=page,
        flags=flags,
    )
    check = Verification(prompt_tokens=30_000, passed=True, free_before_gib=free, lowest_free_gib=free - 1.0)
    served = start(
        1,
        flags,
        pool_tokens=400_000,
        free_at_ready_gib=free,
        verifications=(check,),
        model=PLAIN,
        hardware=CARD,
        engine=line.engine,
    )
    return hand_fit(line, [served])


SGLANG_FLAGS: dict[str, Scalar] = {
    "mem_fraction_static": 0.7,
    "context_length": 131072,
    "max_running_requests": 32,
    "chunked_prefill_size": 8192,
}
VLLM_FLAGS: dict[str, Scalar] = {
    "gpu_memory_utilization": 0.7,
    "max_model_len": 131072,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 8192,
}


def test_ok_has_a_window_and_takes_its_lower_end() -> None:
    """With memory to spare the answer is ok, its window is not empty and the fraction is the smallest in it."""
    advice = recommend(plain(EngineName.SGLANG, SGLANG_FLAGS), Question(target_tokens=400_000))
    assert advice.status is Status.OK
    assert advice.window is not None
    assert fraction(advice) == advice.window.lowest == pytest.approx(0.689, abs=0.0011)
    assert 0.9 < advice.window.highest < 1.0


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
    advice = recommend(plain(EngineName.VLLM, VLLM_FLAGS, page=16), Question(target_tokens=50_000, reply_tokens=500))
    assert advice.flags["max_model_len"] == 50_500
    assert {change.flag: change.to_value for change in advice.changes}["max_model_len"] == 50_500
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.pool_tokens.low >= 50_500


def test_vllm_raises_its_longest_request_to_the_target() -> None:
    """A target above max_model_len raises it to prompt and reply."""
    advice = recommend(plain(EngineName.VLLM, VLLM_FLAGS, page=16), Question(target_tokens=200_000))
    assert advice.flags["max_model_len"] == 200_000


@pytest.mark.parametrize(
    ("engine", "flag", "context"),
    [
        (EngineName.TENSORRT_LLM, "free_gpu_memory_fraction", "max_seq_len"),
        (EngineName.LMDEPLOY, "cache_max_entry_count", "session_len"),
    ],
)
def test_engines_with_a_line_through_the_origin(engine: EngineName, flag: str, context: str) -> None:
    """TensorRT-LLM and LMDeploy are advised in their own fraction flag, on a line through the origin."""
    advice = recommend(plain(engine, {flag: 0.5}, zero=0.0, page=64, free=50.0), Question(target_tokens=400_000))
    assert advice.flags[flag] == pytest.approx(0.489, abs=0.0011)
    assert advice.flags[context] == 400_000
    assert "from zero" in advice.explanation


def test_infeasible_when_the_fraction_leaves_no_memory() -> None:
    """A target whose fraction leaves no memory free is infeasible, says so, and renders nothing to restart with."""
    advice = recommend(worked(), Question(target_tokens=290_000))
    assert advice.status is Status.INFEASIBLE
    assert advice.binding_constraint == "free_memory"
    assert (advice.command_line, advice.restarts, advice.window) == ("", None, None)
    assert "Infeasible" in advice.explanation
    assert any("lower target" in lever.cost for lever in advice.alternatives)


def test_infeasible_when_even_the_largest_fraction_is_too_small() -> None:
    """A target beyond the largest possible pool is infeasible: the pool, or the memory that it leaves, binds."""
    advice = recommend(plain(EngineName.SGLANG, SGLANG_FLAGS), Question(target_tokens=5_000_000))
    assert advice.status is Status.INFEASIBLE
    assert advice.binding_constraint in ("pool", "free_memory")


def test_infeasible_when_measured_headroom_says_no() -> None:
    """A need measured at this chunk and length that exceeds what is left makes the target infeasible, not at risk."""
    taken = Verification(prompt_tokens=200_000, passed=True, free_before_gib=12.0, lowest_free_gib=3.0)
    later = start(4, kimi_flags(0.86, 8), pool_tokens=114_173, free_at_ready_gib=11.4, verifications=(taken,))
    advice = recommend(worked(later), Question(target_tokens=200_000))
    assert (advice.status, advice.binding_constraint) == (Status.INFEASIBLE, "headroom")


def test_a_lack_of_verification_is_at_risk_only() -> None:
    """Without any verification a doubtful prompt is at risk, never infeasible."""
    starts = [replace(each, verifications=()) for each in worked_starts()]
    advice = recommend(hand_fit(worked_line(), starts), Question(target_tokens=215_000))
    assert advice.status is Status.AT_RISK
    assert "nothing_verified_at_this_length" in codes(advice)


def test_a_given_prompt_need_is_used() -> None:
    """The asker's own prompt need replaces the model's: a small one makes the answer ok, a large one infeasible."""
    small = recommend(worked(), Question(target_tokens=200_000, prompt_need_gib=1.0))
    large = recommend(worked(), Question(target_tokens=200_000, prompt_need_gib=9.0))
    assert small.status is Status.OK
    assert (large.status, large.binding_constraint) == (Status.INFEASIBLE, "headroom")


def test_never_at_or_above_a_start_that_ran_out_of_memory() -> None:
    """After a start-up OOM at 0.93 a target that needs 0.94 is infeasible, and one that needs less is not."""
    died = start(5, kimi_flags(0.93, 8), outcome=Outcome.OOM_STARTUP, failure=Failure(phase=Phase.GRAPH_CAPTURE))
    fit = worked(died)
    out = recommend(fit, Question(target_tokens=215_000))
    assert (out.status, out.binding_constraint) == (Status.INFEASIBLE, "out_of_memory")
    assert fraction(out) < 0.93
    assert "ran_out_of_memory" in codes(out)
    assert fraction(recommend(fit, Question(target_tokens=200_000))) == 0.926


def test_lighter_flags_lift_the_ban() -> None:
    """A start that died with 64 requests does not ban its fraction for 8; one that died with 8 bans it for 64."""
    heavy = start(5, kimi_flags(0.92, 64), outcome=Outcome.OOM_STARTUP)
    assert fraction(recommend(worked(heavy), Question(target_tokens=200_000))) == 0.926
    light = start(5, kimi_flags(0.92, 8), outcome=Outcome.OOM_STARTUP)
    asked = Question(target_tokens=200_000, flags={"max_running_requests": 64})
    assert fraction(recommend(worked(light), asked)) < 0.92


def test_running_out_at_run_time_counts_for_prompts_no_shorter() -> None:
    """A server that died of a 150k prompt at 0.92 bans 0.92 for longer prompts, not for shorter ones."""
    died = start(
        5,
        kimi_flags(0.92, 8),
        pool_tokens=192_406,
        free_at_ready_gib=6.1,
        outcome=Outcome.OOM_RUNTIME,
        failure=Failure(phase=Phase.SERVING, prompt_tokens=150_000),
    )
    fit = worked(died)
    longer = recommend(fit, Question(target_tokens=200_000))
    shorter = recommend(fit, Question(target_tokens=100_000, concurrent=2, prompt_need_gib=1.0))
    assert fraction(longer) < 0.92
    assert longer.status is Status.INFEASIBLE
    assert fraction(shorter) == 0.926


def test_flags_that_the_asker_holds_are_held() -> None:
    """Held flags appear in the answer under the engine's own names, are not changed, and are changes from running."""
    fit = plain(EngineName.VLLM, VLLM_FLAGS, page=16)
    advice = recommend(fit, Question(target_tokens=100_000, flags={"max_running_requests": 7}))
    assert advice.flags["max_num_seqs"] == 7
    assert {change.flag: change.reason for change in advice.changes}["max_num_seqs"] == "as the question asks"


def test_a_held_fraction_is_judged_as_it_is() -> None:
    """A held fraction that is too small is at risk, with the fraction that would do as a lever."""
    advice = recommend(worked(), Question(target_tokens=200_000, flags={"mem_fraction_static": 0.9}))
    assert advice.flags["mem_fraction_static"] == 0.9
    assert advice.probability is not None
    assert advice.probability.pool < 0.01
    assert advice.status is Status.AT_RISK
    assert 0.926 in {lever.flags.get("mem_fraction_static") for lever in advice.alternatives}


def test_a_held_context_length_that_is_too_short_is_named() -> None:
    """A held context length below the request is the binding constraint."""
    advice = recommend(worked(), Question(target_tokens=200_000, flags={"context_length": 100_000}))
    assert (advice.status, advice.binding_constraint) == (Status.INFEASIBLE, "context_length")
    assert "held_flag_too_small" in codes(advice)


def test_a_cap_below_the_target_is_taken_out() -> None:
    """A cap on the pool's tokens that is below the target is removed in the same restart, and says why."""
    flags = {**SGLANG_FLAGS, "max_total_tokens": 100_000}
    advice = recommend(plain(EngineName.SGLANG, flags), Question(target_tokens=300_000))
    change = {each.flag: each for each in advice.changes}["max_total_tokens"]
    assert (change.from_value, change.to_value) == (100_000, None)
    assert "--max-total-tokens" not in advice.command_line


def test_without_a_line_nothing_is_advised() -> None:
    """When the pool cannot be predicted the answer says what to post next, and does not guess a fraction."""

    class NoLine(StraightLine):
        def along(self, flags: object) -> NoAlong:  # type: ignore[override]  # a line that knows nothing
            return NoAlong()

    class NoAlong:
        def pool(self, _fraction: float) -> None:
            return None

        def budget_gib(self, _fraction: float) -> None:
            return None

    fit = hand_fit(worked_line(), worked_starts())
    given = worked_line()
    line = NoLine(model=KIMI, engine=given.engine, base=given.base, zero=given.zero, token_bytes=given.token_bytes)
    unknown = replace(fit, capacity=line)
    for labels, words in (((), "second start"), (("confounded",), "alone"), (("capped",), "cap")):
        summary: FitSummary = replace(fit.summary, labels=labels)
        advice = recommend(replace(unknown, summary=summary), Question(target_tokens=200_000))
        assert advice.status is Status.NOT_ENOUGH_EVIDENCE
        assert advice.prediction.pool_tokens is None
        assert words in advice.explanation
        assert advice.warnings[0].code == "not_enough_evidence"


def test_nothing_to_restart_is_said() -> None:
    """When the running flags are the answer, no restart is planned and a warning says so."""
    running = start(
        4,
        kimi_flags(0.926, 8, context_length=200_007),
        pool_tokens=200_229,
        free_at_ready_gib=5.5,
        startup_seconds=360,
        verifications=(replace(DOG, prompt_tokens=200_000, free_before_gib=5.5, lowest_free_gib=3.5),),
    )
    advice = recommend(worked(running), Question(target_tokens=200_000))
    assert advice.changes == ()
    assert "flags_equal_running" in codes(advice)
    assert advice.restarts is not None
    assert advice.restarts.expected == 0


def test_a_full_length_verification_settles_the_prompt() -> None:
    """Once a 200,000-token prompt was measured to take 2 GiB, the answer is ok with a window."""
    taken = replace(DOG, prompt_tokens=200_000, free_before_gib=4.2, lowest_free_gib=2.2)
    later = start(4, kimi_flags(0.94, 8), pool_tokens=218_484, free_at_ready_gib=4.2, verifications=(taken,))
    advice = recommend(worked(later), Question(target_tokens=200_000))
    assert advice.status is Status.OK
    assert advice.window is not None
    assert "nothing_verified_at_this_length" not in codes(advice)


def test_levers_gain_what_their_flag_gains() -> None:
    """Fewer requests free memory and no tokens; an 8-bit cache doubles the tokens; a lower target is last."""
    advice = recommend(worked(), Question(target_tokens=200_000))
    levers = {next(iter(lever.flags)): lever for lever in advice.alternatives}
    fewer, half, lower = levers["max_running_requests"], levers["kv_cache_dtype"], advice.alternatives[-1]
    assert fewer.gain_tokens == 0
    assert fewer.gain_gib > 0
    assert half.gain_tokens == pytest.approx(200_225, abs=5)
    assert half.flags["mem_fraction_static"] == pytest.approx(0.85, abs=0.002)
    assert half.joint > 0.95
    assert lower.gain_tokens < 0
    assert lower.joint > 0.9


def test_a_smaller_chunk_is_a_lever_for_plain_attention() -> None:
    """Halving the chunk halves a dense model's prompt need."""
    fit = plain(EngineName.SGLANG, {**SGLANG_FLAGS, "chunked_prefill_size": 16384}, free=30.0)
    advice = recommend(fit, Question(target_tokens=400_000))
    chunk = next(lever for lever in advice.alternatives if "chunked_prefill_size" in lever.flags)
    assert chunk.flags["chunked_prefill_size"] == 8192
    assert chunk.gain_gib > 0.3


def test_evidence_of_another_version_and_chunk_is_said() -> None:
    """Verifications and starts of another version, and another chunk, are named in the warnings."""
    newer = replace(
        start(6, kimi_flags(0.94, 8, chunked_prefill_size=4096), pool_tokens=218_484, free_at_ready_gib=4.2),
        engine=Engine(name=EngineName.SGLANG, version="0.5.13"),
    )
    advice = recommend(worked(newer), Question(target_tokens=200_000))
    assert {"other_engine_version", "engine_version_never_verified", "chunk_never_verified"} <= codes(advice)


def test_what_the_history_shows_of_context_length_is_quoted() -> None:
    """Two starts that differ in context length and have one pool are quoted against the belief that it grows."""
    early = start(0, kimi_flags(0.85, 64, context_length=32_768), pool_tokens=101_134)
    fit = hand_fit(worked_line(), [*worked_starts(), early])
    advice = recommend(fit, Question(target_tokens=200_000))
    said = next(each.detail for each in advice.warnings if each.code == "context_length_does_not_grow_pool")
    assert "32,768 and 200,000" in said.replace("200,000 and 32,768", "32,768 and 200,000")


def test_beyond_the_models_own_context_is_said() -> None:
    """A target above the model's own context length is named."""
    advice = recommend(worked(), Question(target_tokens=300_000))
    assert "beyond_model_context" in codes(advice)


def test_half_the_weights_is_a_lever_where_they_are_known_to_be_wide() -> None:
    """Where a log gives 16-bit weights, 8-bit ones are offered: half their memory in tokens, at a lower fraction."""
    model = replace(PLAIN, facts={**PLAIN.facts, "torch_dtype": "bfloat16"})
    fit = plain(EngineName.SGLANG, SGLANG_FLAGS)
    served = fit.starts[0]
    logged = replace(served, model=model, measurements=replace(served.measurements, weights_gib=20.0))
    wide = replace(hand_fit(replace(fit.capacity, model=model), [logged]), running=logged)
    advice = recommend(wide, Question(target_tokens=400_000))
    lever = next(each for each in advice.alternatives if "quantization" in each.flags)
    assert lever.gain_tokens == pytest.approx(10 * 2**30 / 131072)
    assert lever.flags["mem_fraction_static"] == pytest.approx(fraction(advice) - 0.1)


def test_giving_the_running_flags_is_said_to_change_nothing() -> None:
    """Held flags that are the running ones are named as such."""
    advice = recommend(worked(), Question(target_tokens=200_000, flags={"max_running_requests": 8}))
    assert "flags_equal_running" in codes(advice)


def test_an_unset_context_length_is_the_models_own() -> None:
    """Where no context length is set, the model's own is stated, not lowered, and no change; vLLM's may be lowered."""
    model = replace(PLAIN, facts={**PLAIN.facts, "max_position_embeddings": 131072})
    for engine, flags, tokens in (
        (EngineName.SGLANG, {"mem_fraction_static": 0.7}, 131072),
        (EngineName.VLLM, {"gpu_memory_utilization": 0.7}, 50_000),
    ):
        fit = plain(engine, flags, page=16)
        served = replace(fit.starts[0], model=model)
        advice = recommend(hand_fit(replace(fit.capacity, model=model), [served]), Question(target_tokens=50_000))
        name = "context_length" if engine is EngineName.SGLANG else "max_model_len"
        assert advice.flags[name] == tokens
        assert (name in {change.flag for change in advice.changes}) == (engine is EngineName.VLLM)
