"""Inputs that people really had, each as small as it gets, with the answer that is right.

Unless a test says otherwise: SGLang 0.5.12 on 8 x H100 79.65 GiB, tp 8, context 1,048,576, 64 requests, chunk 8192, and
the true line N = 1,300,000 (f - 0.5).
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from domain.door import advise, cold, fitted, predict, question, recommend
from domain.ledgers import (
    GROUPED,
    H100S,
    SGLANG,
    VLLM,
    advised_fraction,
    codes,
    is_kept,
    on_line,
    passed,
    pool_at,
    start,
    unserved,
    words,
)
from kvyield_server.domain.answers import Status
from kvyield_server.domain.facts.devices import has_unified_memory, usable_memory
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Phase,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
ANSWERED = (Status.OK, Status.AT_RISK)
MLA = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_shared_experts": 1,
    "max_position_embeddings": 163_840,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    **MLA,
    "num_attention_heads": 128,
    "n_routed_experts": 256,
    "first_k_dense_replace": 3,
    "vocab_size": 129_280,
    "num_nextn_predict_layers": 1,
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
KIMI_TEXT = {
    **MLA,
    "num_attention_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "vocab_size": 163_840,
}
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
}
UNKNOWN_GPU = Hardware(gpu="Some Accelerator", gpu_count=8)
H200S = Hardware(gpu="NVIDIA H200", gpu_count=8, memory_gib=139.8, unified_memory=False)
PRO_6000S = Hardware(
    gpu="NVIDIA RTX PRO 6000 Blackwell Workstation Edition", gpu_count=8, memory_gib=95.59, unified_memory=False
)
QWEN3_8B = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "vocab_size": 151_936,
    "max_position_embeddings": 131_072,
}


# input 1


def outlived_death() -> list[Observation]:
    """A start-up death at 0.80, of which later starts at higher fractions show that it no longer counts."""
    died = start(0, 0.80, outcome="oom_startup", failure=Failure(phase=Phase.GRAPH_CAPTURE), model=GROUPED)
    ready = [start(number, 0.90, 520_000, 7.0, model=GROUPED) for number in range(1, 6)]
    return [died, *ready, start(6, 0.92, 546_000, 5.4, model=GROUPED)]


def test_a_death_that_later_starts_outlived_does_not_count() -> None:
    """What runs holds the target and is kept; asked for headroom, the smallest fraction that holds it is 0.900."""
    kept = advise(outlived_death(), 519_993)
    assert is_kept(kept, 0.92), (kept.status, kept.flags, kept.explanation)
    assert kept.status is Status.OK
    smallest = advise(outlived_death(), 519_993, prefer="headroom")
    assert smallest.status is Status.OK
    assert 0.900 <= advised_fraction(smallest) <= 0.903


# input 2


@pytest.mark.parametrize(
    ("hardware", "facts", "crossing"),
    [
        pytest.param(H200S, {**DEEPSEEK_V3, "quantization_config": FP8}, (0.5, 0.7), id="DeepSeek-V3, fp8"),
        pytest.param(
            PRO_6000S,
            {"model_type": "kimi_k25", "text_config": {**KIMI_TEXT, "quantization_config": INT4}},
            (0.66, 0.85),
            id="Kimi, 4 bits, in the text_config",
        ),
        pytest.param(PRO_6000S, {**KIMI_TEXT, "compression_config": INT4}, (0.66, 0.85), id="Kimi, compression_config"),
        pytest.param(
            H200S,
            {**KIMI_TEXT, "hf_quant_config": {"quantization": {"quant_algo": "NVFP4"}}},
            (0.45, 0.62),
            id="Kimi, hf_quant_config",
        ),
    ],
)
def test_quantisation_is_read_where_configs_keep_it(
    hardware: Hardware, facts: dict[str, Any], crossing: tuple[float, float]
) -> None:
    """Before any start the weights are those of the bits that the config states, not of 16."""
    fit = cold(hardware, Model(name="cold", facts=facts), SGLANG, tp_size=8, context_length=131_072)
    low, high = crossing
    asked = {"mem_fraction_static": 0.93, "tp_size": 8, "context_length": 131_072}
    assert fit.predict(asked).pool_tokens is not None
    assert low < fit.summary.parameters["zero_fraction"].median < high
    assert recommend(fit, question(20_000)).status in ANSWERED


def test_bits_that_nothing_states_leave_the_prior_wide() -> None:
    """Assumed bits hold 4 to 16: no `infeasible` rests on them, and the interval of the crossing says so."""
    for hardware, stated in ((H200S, DEEPSEEK_V3), (PRO_6000S, KIMI_TEXT)):
        facts = {name: value for name, value in stated.items() if name != "torch_dtype"}
        fit = cold(hardware, Model(name="cold", facts=facts), SGLANG, tp_size=8, context_length=131_072)
        assert recommend(fit, question(20_000)).status is not Status.INFEASIBLE
        zero = fit.summary.parameters.get("zero_fraction")
        if zero is not None:
            assert zero.high > 2.5 * max(zero.low, 0.01)


# input 3


def test_a_cap_acts_in_predictions() -> None:
    starts = [on_line(1, 0.85), on_line(2, 0.90)]
    found = predict(starts, {"mem_fraction_static": 0.92, "max_total_tokens": 300_000}).pool_tokens
    assert found is not None
    assert found.median == 300_000
    below = predict(starts, {"mem_fraction_static": 0.60, "max_total_tokens": 300_000}).pool_tokens
    assert below is not None
    assert below.median == pytest.approx(130_000, rel=0.02)


@pytest.mark.parametrize(
    ("flag", "value"), [("kv_cache_memory_bytes", 4_000_000_000), ("num_gpu_blocks_override", 3_750)]
)
def test_a_fixed_pool_is_the_same_at_every_fraction(flag: str, value: int) -> None:
    fixed = start(1, 0.90, 60_000, engine=VLLM, flags={flag: value, "max_model_len": 32_768}, kv_cache_gib=3.72)
    for fraction in (0.5, 0.9, 0.95):
        asked = {"gpu_memory_utilization": fraction, flag: value}
        pool = predict([fixed], asked).pool_tokens
        assert pool is not None, fraction
        assert pool.median == pytest.approx(60_000, rel=0.001), fraction


# input 4


def hidden_fp8() -> Observation:
    """Qwen3-8B on one H100, an fp8 KV cache under `auto`: the pool is twice what its config says."""
    return start(
        1,
        0.85,
        740_000,
        10.0,
        hardware=replace(H100S, gpu_count=1),
        model=Model(name="Qwen/Qwen3-8B", facts=QWEN3_8B),
        flags={"tp_size": 1, "kv_cache_dtype": "auto", "context_length": 131_072},
    )


def test_a_start_that_contradicts_its_config_is_kept_where_it_holds_the_target() -> None:
    """By the config's price of a token its line crosses zero at -0.43, so no other fraction is advised."""
    for prefer in ("keep", "headroom", "pool"):
        advice = advise([hidden_fp8()], 110_000, concurrent=6, prefer=prefer)
        assert is_kept(advice, 0.85), (prefer, advice.status, advice.flags)


def test_a_line_that_crosses_zero_below_zero_is_no_evidence_for_other_fractions() -> None:
    advice = advise([hidden_fp8()], 110_000, concurrent=7)
    assert advice.status is Status.NOT_ENOUGH_EVIDENCE, (advice.status, advice.flags)
    assert "-0.4" in words(advice)


# input 5


def test_a_repeat_that_disagrees_a_little_widens_without_a_cliff() -> None:
    """As a repeat moves from 0.40 to 0.60 per cent off, intervals grow smoothly and the answer stays one."""
    widths, answers = [], []
    for off in (0.0040, 0.0045, 0.0049, 0.0051, 0.0055, 0.0060):
        starts = [on_line(1, 0.85), on_line(2, 0.90), start(3, 0.90, round(520_000 * (1 + off)), 7.0)]
        pool = predict(starts, {"mem_fraction_static": 0.87}).pool_tokens
        assert pool is not None
        widths.append(pool.high - pool.low)
        answers.append(advise(starts, 470_000, prefer="headroom"))
    assert all(later / earlier == pytest.approx(1.1, abs=0.3) for earlier, later in pairwise(widths))
    assert len({answer.status for answer in answers}) == 1
    assert answers[0].status in ANSWERED
    fractions = [advised_fraction(answer) for answer in answers]
    assert max(fractions) - min(fractions) <= 0.004
    assert all(0.861 <= fraction <= 0.90 for fraction in fractions)


# input 6


def unified_starts() -> list[Observation]:
    """Five starts of unified memory, 2 % apart from the true line N = 600,000 (f - 0.45)."""
    hardware = Hardware(gpu="NVIDIA GB10", gpu_count=1, memory_gib=121.69, unified_memory=True)
    rows = ((0.60, 1.02), (0.61, 0.98), (0.62, 1.01), (0.63, 0.985), (0.64, 1.0))
    return [
        start(
            number,
            fraction,
            round(600_000 * (fraction - 0.45) * factor),
            round(38.0 - 121.69 * (fraction - 0.60), 2),
            hardware=hardware,
            flags={"tp_size": 1, "context_length": 65_536},
        )
        for number, (fraction, factor) in enumerate(rows)
    ]


def test_on_unified_memory_a_high_confidence_asks_for_a_fraction_near_what_was_seen() -> None:
    advice = advise(unified_starts(), 40_000, confidence=0.999, prefer="headroom")
    assert advice.status is Status.OK
    assert 0.52 <= advised_fraction(advice) <= 0.60
    assert advice.probability is not None
    assert advice.probability.memory is not None
    assert advice.probability.memory >= 0.999
    assert is_kept(advise(unified_starts(), 40_000, confidence=0.999), 0.64)


# inputs 8, 9


def test_equal_starts_alone_are_kept_where_they_hold_the_target() -> None:
    """Nothing tells the free memory: `at_risk`, and its probability is null, not 0."""
    starts = [start(number, 0.90, 520_000, hardware=UNKNOWN_GPU) for number in range(3)]
    advice = advise(starts, 300_000)
    assert is_kept(advice, 0.90)
    assert advice.status is Status.AT_RISK
    assert advice.probability is None or advice.probability.memory is None


def test_a_chance_below_five_per_cent_is_no_advice() -> None:
    advice = advise([start(1, 0.85, 455_000, 9.0), start(2, 0.90, 520_000, 5.0)], 600_000)
    assert advice.status is Status.INFEASIBLE
    assert advice.binding_constraint in ("free_memory", "headroom")
    assert "memory" in words(advice)


# input 11

NOMINAL = {0.95: (152_775, 7.36), 0.98: (211_889, 10.21), 0.985: (221_745, 10.69)}
"""A real group: two RTX PRO 6000 sold as 96 GB, of which the framework sees about 95.1 GiB."""


@pytest.mark.parametrize("seen", sorted(NOMINAL))
def test_a_marketing_figure_is_not_exact(seen: float) -> None:
    """From any one start the interval of the others holds the truth."""
    hardware = Hardware(gpu="NVIDIA RTX PRO 6000 Blackwell", gpu_count=2, memory_gib=96.0, unified_memory=False)
    pool, kv_gib = NOMINAL[seen]
    known = start(1, seen, pool, hardware=hardware, engine=VLLM, flags={"tensor_parallel_size": 2}, kv_cache_gib=kv_gib)
    for fraction, (tokens, _) in NOMINAL.items():
        found = predict([known], {"gpu_memory_utilization": fraction}).pool_tokens
        assert found is not None
        assert found.low <= tokens <= found.high, (fraction, found)
        assert found.high - found.low < 0.25 * tokens


# input 12


def test_a_vllm_that_holds_more_than_is_asked_for_is_left_alone() -> None:
    flags = {"tensor_parallel_size": 1, "max_model_len": 40_960, "max_num_seqs": 128, "max_num_batched_tokens": 8192}
    runs = start(
        1,
        0.90,
        400_000,
        hardware=replace(H100S, gpu_count=1),
        model=Model(name="Qwen/Qwen3-8B", facts=QWEN3_8B),
        engine=VLLM,
        flags=flags,
        kv_cache_gib=54.93,
        device_memory_gib=79.1,
    )
    advice = advise([runs], 8_000)
    assert is_kept(advice, 0.90)
    assert advice.flags.get("max_model_len") == 40_960
    assert "--gpu-memory-utilization 0.9" in advice.command_line


# input 13


def test_what_a_dying_prompt_wanted_bounds_its_need() -> None:
    """Free at ready 6.0, wanted 4.12 with 3.91 free: the prompt takes 6.21 at least, so 0.949 is not safe either."""
    died = Failure(phase=Phase.SERVING, prompt_tokens=500_000, wanted_gib=4.12, free_gib=3.91)
    starts = [
        start(1, 0.90, 520_000, 10.0),
        start(2, 0.95, 585_000, 6.0, outcome="oom_runtime", failure=died),
    ]
    for prefer in ("keep", "headroom", "pool"):
        advice = advise(starts, 500_000, prefer=prefer)
        assert advised_fraction(advice) <= 0.947, prefer


# input 14


def refused_by_vllm() -> Observation:
    return start(
        1,
        0.80,
        outcome="refused",
        hardware=Hardware(gpu="NVIDIA GB10", gpu_count=2, memory_gib=121.69, unified_memory=True),
        engine=Engine(name=EngineName.VLLM, version="0.29.1"),
        flags={"max_model_len": 196_608, "tensor_parallel_size": 2},
        failure=Failure(
            phase=Phase.POOL,
            available_kv_cache_gib=22.5,
            needed_gib=23.25,
            longest_tokens=190_272,
            message="23.25 GiB KV cache is needed, which is larger than the available KV cache memory (22.5 GiB)",
        ),
        kv_cache_gib=22.5,
        device_memory_gib=121.69,
        weights_gib=60.02,
    )


def test_a_refusal_prices_a_token_and_gives_a_point_of_the_line() -> None:
    """The reporter then started at 0.85 with 28.74 GiB and 240,816 tokens; 0.807 is where 196,608 fit."""
    starts = [refused_by_vllm()]
    found = predict(starts, {"gpu_memory_utilization": 0.85})
    assert found.pool_tokens is not None
    assert found.pool_tokens.median == pytest.approx(240_816, rel=0.02)
    assert found.kv_cache_gib is not None
    assert found.kv_cache_gib.median == pytest.approx(28.74, abs=0.4)
    at = predict(starts, {"gpu_memory_utilization": 0.807}).pool_tokens
    assert at is not None
    assert at.median == pytest.approx(196_608, rel=0.01)
    advice = advise(starts, 196_000)
    assert advice.status in ANSWERED
    assert 0.803 <= advised_fraction(advice) <= 0.84
    assert "23.25" in words(advice) or "22.5" in words(advice)


def test_a_minimum_viable_fraction_is_the_zero_crossing() -> None:
    failure = Failure(phase=Phase.POOL, minimum_fraction=0.9113, message="minimum viable mem_fraction_static is 0.9113")
    starts = [start(1, 0.85, outcome="refused", failure=failure, free_before_load_gib=78.4, free_after_load_gib=7.0)]
    fit = fitted(starts)
    assert fit.summary.parameters["zero_fraction"].median == pytest.approx(0.9113, abs=0.002)
    advice = advise(starts, 4_000)
    assert "0.911" in words(advice)
    if advice.status in ANSWERED:
        assert advised_fraction(advice) > 0.911


# inputs 15, 20


def two_builds(newer: int = 2) -> list[Observation]:
    """The line before and after a build whose draft's weights take 2.57 GiB where they took 0.20."""
    old = [on_line(number, fraction, draft_weights_gib=0.20) for number, fraction in enumerate((0.85, 0.90, 0.92), 1)]
    lost = round((2.57 - 0.20) * SLOPE_PER_GIB)
    new = [
        start(
            10 + number,
            fraction,
            pool_at(fraction) - lost,
            round(7.0 - 80.0 * (fraction - 0.9), 2),
            draft_weights_gib=2.57,
        )
        for number, fraction in enumerate((0.92, 0.90)[:newer])
    ]
    return [*old, *new]


SLOPE_PER_GIB = 1_300_000 / 79.65


@pytest.mark.parametrize("newer", [1, 2])
def test_a_newer_build_with_another_pool_is_drift_by_name(newer: int) -> None:
    starts = two_builds(newer)
    fit = fitted(starts)
    assert "drift" in fit.summary.labels
    lost = round((2.57 - 0.20) * SLOPE_PER_GIB)
    pool = fit.predict({"mem_fraction_static": 0.92}).pool_tokens
    assert pool is not None
    assert pool.low <= pool_at(0.92) - lost <= pool.high
    asked = " ".join(warning.detail for warning in fit.summary.warnings)
    assert "2.57" in asked
    assert "0.2" in asked
    if newer == 2:
        assert pool.median == pytest.approx(pool_at(0.92) - lost, rel=0.005)


def test_after_a_drift_the_newest_measured_pool_answers_for_itself() -> None:
    """1,135,957 tokens measured at 0.92 hold 1,000,000: nothing is raised."""
    before = [
        start(number, fraction, round(3_000_000 * (fraction - 0.52)), 20.0 - 80.0 * (fraction - 0.9))
        for number, fraction in enumerate((0.88, 0.90, 0.92))
    ]
    starts = [*before, start(9, 0.92, 1_135_957, 18.0)]
    advice = advise(starts, 1_000_000)
    assert is_kept(advice, 0.92), (advice.status, advice.flags, advice.explanation)


# input 16


@pytest.mark.parametrize("stating", [0, 1])
@pytest.mark.parametrize(("second", "pool"), [(0.85, 2_396_160), (0.80, 2_121_344)])
def test_a_flag_that_one_start_states_joins_the_starts_that_do_not(stating: int, second: float, pool: int) -> None:
    """T and A give the line, whichever start states its attention backend: 250,000 tokens need about 0.46."""
    hardware = Hardware(gpu="AMD Instinct MI355X", gpu_count=8, memory_gib=287.98, unified_memory=False)
    logged = {"free_before_load_gib": 284.2, "free_after_load_gib": 165.9}
    rows = ((0.85, 2_396_160), (second, pool))
    starts = [
        start(
            number,
            fraction,
            tokens,
            round(284.2 * (1 - fraction) - 3.0, 2),
            hardware=hardware,
            flags={"attention_backend": "dsa"} if number == stating else {},
            **logged,
        )
        for number, (fraction, tokens) in enumerate(rows)
    ]
    fit = fitted(starts)
    assert len(fit.summary.basis.observation_ids) == 2
    assert fit.summary.parameters["zero_fraction"].median == pytest.approx(0.4163, abs=0.01)
    smallest = advise(starts, 250_000, prefer="headroom")
    assert smallest.status in ANSWERED
    assert 0.455 <= advised_fraction(smallest) <= (0.55 if second == 0.85 else 0.50)
    assert is_kept(advise(starts, 250_000), second)


# input 17


def test_a_prompt_that_was_not_served_forbids_ok_until_one_passes() -> None:
    starts = [on_line(1, 0.85), on_line(2, 0.88, checks=[unserved(250_000)])]
    advice = advise(starts, 250_000)
    assert advice.status is Status.AT_RISK
    assert "250,000" in words(advice)
    assert "no prompt was ever verified" not in words(advice)
    assert advise(starts, 300_000).status is Status.AT_RISK
    assert advise(starts, 200_000).status is Status.OK
    cured = [*starts[:1], replace(starts[1], verifications=(unserved(250_000), passed(250_000, 8.6, 7.9)))]
    assert advise(cured, 250_000).status is Status.OK


# input 18


@pytest.mark.parametrize("outcome", ["refused", "oom_startup"])
@pytest.mark.parametrize("is_newest", [True, False])
@pytest.mark.parametrize("logged", [True, False])
def test_memory_that_another_process_held_says_nothing_of_the_fraction(
    outcome: str, is_newest: bool, logged: bool
) -> None:
    """Free memory at start far below the GPU's, or the same flags that ran: an engine that has not ended."""
    held = {"free_before_load_gib": 20.0} if logged else {}
    before = {"free_before_load_gib": 78.4} if logged else {}
    runs = [on_line(number, 0.85, **before) for number in (1, 2)]
    blocked = start(5 if is_newest else 0, 0.85, outcome=outcome, **held)
    advice = advise([*runs, blocked], 400_000)
    assert is_kept(advice, 0.85), (advice.status, advice.flags, advice.explanation)
    assert "empty" not in words(advice)
    assert advise([*runs, blocked], 440_000, prefer="keep").flags.get("mem_fraction_static") == 0.85
    if is_newest:
        assert "else" in words(advice) or "another" in words(advice) or "not ended" in words(advice)


@pytest.mark.parametrize("since", [(), (0.85,), (0.85, 0.80)])
def test_a_death_beside_another_process_says_nothing_about_the_memory_either(since: tuple[float, ...]) -> None:
    """The good starts did not log what was free before load; the one beside another process logged 20 GiB."""
    hardware = Hardware(gpu="NVIDIA H200", gpu_count=1, memory_gib=139.8)
    model = Model(name="Qwen/Qwen3-8B", facts=json.loads((EXAMPLES / "h200" / "qwen3-8b.json").read_text()))
    flags = {"tp_size": 1, "context_length": 40_960}

    def ready(number: int, fraction: float) -> Observation:
        tokens, free = int(1_013_200 * (fraction - 0.1103)), 139.8 * (1.0 - fraction) - 2.0
        return start(number, fraction, tokens, free, hardware=hardware, model=model, flags=flags)

    runs = [ready(number, fraction) for number, fraction in enumerate((0.7, 0.8, 0.85), 1)]
    blocked = start(
        5, 0.85, outcome="oom_startup", hardware=hardware, model=model, flags=flags, free_before_load_gib=20.0
    )
    later = [ready(number, fraction) for number, fraction in enumerate(since, 6)]
    for target in (600_000, 700_000):
        advice = advise([*runs, blocked, *later], target)
        assert advice.status in ANSWERED, (advice.status, advice.explanation)
        assert 0.69 <= advised_fraction(advice) <= 0.85
    assert advise([*runs, blocked, *later], 100_000, prefer="headroom").status in ANSWERED


# input 19


QWEN3_32B = {
    **QWEN3_8B,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "hidden_size": 5120,
    "intermediate_size": 25_600,
}


def vllm_start(number: int, kv_gib: float, token_bytes: int = 262_144, **more: Any) -> Observation:
    """A vLLM start at 0.90 of one H200 with 61 GiB of weights."""
    flags = {
        "tensor_parallel_size": 1,
        "max_model_len": 131_072,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "compile_cache": "warm",
        **more.pop("flags", {}),
    }
    return start(
        number,
        0.90,
        int(kv_gib * 2**30 / token_bytes / 16) * 16,
        hardware=replace(H200S, gpu_count=1),
        model=Model(name="Qwen/Qwen3-32B", facts=more.pop("facts", QWEN3_32B)),
        engine=VLLM,
        flags=flags,
        kv_cache_gib=kv_gib,
        device_memory_gib=139.8,
        weights_gib=61.03,
        **more,
    )


def offered(advice: Any) -> set[str]:
    """Return the flags that the alternatives move."""
    return {flag for lever in advice.alternatives for flag in lever.flags}


def test_the_graph_batch_cap_is_a_lever_where_graphs_take_memory() -> None:
    """20.88 GiB of graphs were estimated with batches to 512, 9.56 GiB with batches to 128."""
    starts = [
        vllm_start(1, 40.90, flags={"max_cudagraph_capture_size": 512}, graph_gib=20.88),
        vllm_start(2, 52.22, flags={"max_cudagraph_capture_size": 128}, graph_gib=9.56),
        vllm_start(3, 40.90, flags={"max_cudagraph_capture_size": 512}, graph_gib=20.88),
    ]
    fit = fitted(starts)
    assert "confounded" not in fit.summary.labels
    advice = advise(starts, 120_000, concurrent=2)
    assert "max_cudagraph_capture_size" in offered(advice), (advice.status, advice.explanation)


def test_fewer_requests_are_a_lever_where_state_scales_with_them() -> None:
    """Recurrent layers keep a state for each request: 17.85 GiB lay between 512 and 64 requests."""
    facts = {
        **QWEN3_32B,
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "full_attention_interval": 4,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    starts = [
        vllm_start(number, kv_gib, 49_152, facts=facts, flags={"max_num_seqs": requests})
        for number, (kv_gib, requests) in enumerate(((40.0, 512), (57.85, 64), (40.0, 512)))
    ]
    advice = advise(starts, 130_000, concurrent=10)
    assert "max_num_seqs" in offered(advice), (advice.status, advice.explanation)


def test_where_bytes_rule_advice_moves_the_bytes() -> None:
    """2 GiB hold 139,264 tokens, so a token costs 15.4 kB: eight prompts of 30,000 need about 3.5 GiB."""
    fixed = start(
        1,
        0.35,
        139_264,
        hardware=Hardware(gpu="NVIDIA GB10", gpu_count=1, memory_gib=121.69, unified_memory=True),
        engine=VLLM,
        flags={"kv_cache_memory_bytes": 2_147_483_648, "max_model_len": 32_768, "max_num_seqs": 4},
        kv_cache_gib=2.0,
        free_before_load_gib=96.41,
        weights_gib=19.92,
    )
    assert is_kept(advise([fixed], 30_000, concurrent=4), 0.35)
    more = advise([fixed], 30_000, concurrent=8)
    given = more.flags.get("kv_cache_memory_bytes")
    assert isinstance(given, int | float), (more.status, more.flags, more.explanation)
    assert 3.4 <= given / 2**30 <= 3.8
    assert more.flags.get("gpu_memory_utilization") in (0.35, None)


def test_a_cap_below_the_target_is_taken_out() -> None:
    """The engine counted 5,491,200 tokens before it cut them to 2,999,808."""
    capped = start(
        1,
        0.95,
        2_999_808,
        7.68,
        hardware=Hardware(gpu="NVIDIA GB10", gpu_count=3, memory_gib=121.69, unified_memory=True),
        flags={"tp_size": 3, "max_total_tokens": 3_000_000, "max_running_requests": 4, "chunked_prefill_size": 1024},
        uncapped_pool_tokens=5_491_200,
        free_before_load_gib=111.47,
        free_after_load_gib=14.74,
    )
    assert is_kept(advise([capped], 1_000_000), 0.95)
    more = advise([capped], 1_000_000, concurrent=4)
    assert advised_fraction(more) == 0.95
    assert more.flags.get("max_total_tokens") is None
    assert any(change.flag == "max_total_tokens" and change.to_value is None for change in more.changes)
    assert more.status in ANSWERED


def test_the_context_length_is_a_lever_where_its_table_kills_the_start() -> None:
    """2,049 rows of 10,485,760 tokens take 80.04 GiB: a context of 60,007 leaves the pool its memory."""
    died = start(
        1,
        0.86,
        outcome="oom_startup",
        hardware=Hardware(gpu="NVIDIA H100 80GB HBM3", gpu_count=8, memory_gib=79.1, unified_memory=False),
        model=Model(
            name="meta-llama/Llama-4-Scout-17B-16E-Instruct",
            facts={
                "text_config": {
                    "num_hidden_layers": 48,
                    "num_attention_heads": 40,
                    "num_key_value_heads": 8,
                    "head_dim": 128,
                    "hidden_size": 5120,
                    "max_position_embeddings": 10_485_760,
                }
            },
        ),
        engine=Engine(name=EngineName.SGLANG, version="0.4.6"),
        flags={"context_length": None, "max_running_requests": None, "disable_cuda_graph": True},
        failure=Failure(phase=Phase.POOL, wanted_gib=80.04, free_gib=20.08),
        free_before_load_gib=78.41,
        free_after_load_gib=51.20,
    )
    for target in (60_000, 400_000):
        advice = advise([died], target)
        assert advice.status in ANSWERED, (advice.status, advice.explanation)
        assert target + 7 <= int(str(advice.flags["context_length"])) <= target + 4_096
        assert 0.355 < advised_fraction(advice) <= 0.90


# printed limits


def test_a_printed_input_limit_binds() -> None:
    """A prefill node takes prompts up to its smaller pool, 18,425 tokens, whatever its larger pool holds."""
    node = start(
        1,
        0.90,
        186_368,
        13.3,
        hardware=Hardware(gpu="NVIDIA H200", gpu_count=8, memory_gib=139.81, unified_memory=False),
        flags={"dp_size": 8, "enable_dp_attention": True, "disaggregation_mode": "prefill"},
        longest_prompt_tokens=18_425,
        swa_pool_tokens=18_432,
        free_before_load_gib=138.17,
        free_after_load_gib=17.94,
    )
    refused = advise([node], 60_000)
    assert (refused.status, refused.binding_constraint) == (Status.INFEASIBLE, "input_limit")
    assert "18,425" in words(refused)
    assert is_kept(advise([node], 18_000), 0.90)


def test_measurements_have_all_that_the_inputs_need() -> None:
    """The fields used here exist by these names."""
    assert {"uncapped_pool_tokens", "swa_pool_tokens", "longest_prompt_tokens", "draft_weights_gib"} <= {
        *Measurements.__dataclass_fields__
    }
    assert codes(advise([on_line(1, 0.9)], 1_000)) is not None


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [
        ("Orin (nvgpu)", None),  # sold with 4 to 64 GB under one name
        ("NVIDIA Jetson Orin NX 16GB", None),
        ("NVIDIA Jetson AGX Orin 64GB", 61.4),
        ("NVIDIA GeForce RTX 5080", 15.48),
        ("NVIDIA GB200", 184.0),
        ("NVIDIA B200", 178.36),
    ],
)
def test_a_name_of_several_sizes_tells_no_memory(gpu: str, gib: float | None) -> None:
    """An Orin of 16 GB was taken for one of 64; all of them use the host's memory."""
    found = usable_memory(Hardware(gpu=gpu, gpu_count=1))
    assert (None if found is None else found.gib) == gib
    assert has_unified_memory(Hardware(gpu=gpu, gpu_count=1)) is ("Orin" in gpu)
