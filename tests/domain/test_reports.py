"""Starts from public reports, as a right reading posts them, and the advice that their reporters needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domain.door import advise, fitted, predict
from domain.ledgers import VLLM, advised_fraction, is_kept, passed, start
from kvyield_server.domain.answers import Status
from kvyield_server.domain.facts.observation import (
    Cause,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Model,
    Observation,
    Phase,
)

ANSWERED = (Status.OK, Status.AT_RISK)
GB10 = Hardware(gpu="NVIDIA GB10", gpu_count=2, memory_gib=121.69, unified_memory=True)
TENSORRT = Engine(name=EngineName.TENSORRT_LLM, version="1.2.0rc6")
TURBOMIND = Engine(name=EngineName.LMDEPLOY, version="0.10.0")


# GLM-5.3-Flash on four RTX PRO 6000, vLLM 0.30: a workspace that scales with the longest request


def sparse_start(number: int, length: int, kv_gib: float, pool: int, **measured: Any) -> Observation:
    return start(
        number,
        0.97,
        pool,
        hardware=Hardware(
            gpu="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            gpu_count=4,
            memory_gib=94.97,
            unified_memory=False,
        ),
        model=Model(name="zai-org/GLM-5.3-Flash", facts={"max_position_embeddings": 1_048_576}),
        engine=Engine(name=EngineName.VLLM, version="0.30.0"),
        flags={
            "max_model_len": length,
            "tensor_parallel_size": 4,
            "kv_cache_dtype": "fp8",
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 4,
            "enforce_eager": False,
            "speculative_config": None,
            "quantization": "modelopt_fp4",
        },
        kv_cache_gib=kv_gib,
        weights_gib=72.11,
        graph_gib=0.07,
        **measured,
    )


def autofit_starts() -> list[Observation]:
    """The same fraction with the length fitted from 1,048,576 down to 516,096, then with 262,144."""
    return [
        sparse_start(1, -1, 3.81, 518_311, fitted_max_model_len=516_096),
        sparse_start(2, 262_144, 7.77, 1_016_607),
    ]


def test_a_length_that_the_running_pool_holds_is_kept() -> None:
    advice = advise(autofit_starts(), 200_000)
    assert is_kept(advice, 0.97), (advice.status, advice.flags, advice.explanation)
    assert advice.flags.get("max_model_len") == 262_144


def test_a_longer_request_is_admitted_by_a_longer_length() -> None:
    advice = advise(autofit_starts(), 700_000)
    assert advice.status in ANSWERED, advice.explanation
    assert advised_fraction(advice) == 0.97
    assert advice.flags["max_model_len"] == 700_001
    pool = advice.prediction.pool_tokens
    assert pool is not None
    assert 720_000 <= pool.median <= 780_000  # the reporter's arithmetic: about 770,000
    assert pool.high - pool.low < 60_000


@pytest.mark.parametrize("running", [131_072, 262_144, 900_000])
@pytest.mark.parametrize("seen", [1_048_576, 524_288])
def test_a_workspace_that_grows_with_the_length_is_learned_from_two_lengths(running: int, seen: int) -> None:
    """5 kB of each GPU for each token of the longest request: a third length is predicted, whichever runs."""

    def kv_gib(length: int) -> float:
        return round(9.1 - 5_000 * length / 2**30, 2)

    tokens_per_gib = 131_000
    starts = [
        sparse_start(number, length, kv_gib(length), round(kv_gib(length) * tokens_per_gib) // 16 * 16)
        for number, length in enumerate((seen, running))
    ]
    for length in (262_144, 700_000, 1_000_000):
        pool = predict(starts, {"max_model_len": length}).pool_tokens
        assert pool is not None
        truth = kv_gib(length) * tokens_per_gib
        assert pool.low <= truth <= pool.high
        assert pool.median == pytest.approx(truth, rel=0.02)


def test_a_length_that_moves_nothing_is_no_workspace() -> None:
    """Two lengths whose pools differ by less than boots do."""
    starts = [sparse_start(1, 1_048_576, 7.70, 1_008_000), sparse_start(2, 262_144, 7.77, 1_016_607)]
    assert fitted(starts).pool.line.gib_per_length == 0.0


# MiniMax on two GB10, vLLM: a refusal with its arithmetic

MINIMAX = {
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 3072,
    "max_position_embeddings": 196_608,
    "vocab_size": 200_064,
    "num_local_experts": 256,
}


@pytest.mark.parametrize("facts", [{}, MINIMAX], ids=["no config", "config"])
def test_a_refusal_gives_the_line_with_and_without_a_config(facts: dict[str, Any]) -> None:
    """The engine says 190,272 at 0.80; the reporter then got 240,816 tokens at 0.85."""
    failure = Failure(phase=Phase.POOL, available_kv_cache_gib=22.5, needed_gib=23.25, longest_tokens=190_272)
    refused = start(
        1,
        0.80,
        outcome="refused",
        hardware=GB10,
        model=Model(name="QuantTrio/MiniMax-M2.7-AWQ", facts=facts),
        engine=Engine(name=EngineName.VLLM, version="0.29.1"),
        flags={"max_model_len": 196_608, "tensor_parallel_size": 2, "quantization": "awq_marlin"},
        failure=failure,
        kv_cache_gib=22.5,
        weights_gib=60.02,
    )
    for fraction, tokens in ((0.80, 190_272), (0.85, 240_816)):
        pool = predict([refused], {"gpu_memory_utilization": fraction}).pool_tokens
        assert pool is not None
        assert pool.median == pytest.approx(tokens, rel=0.02)
    advice = advise([refused], 196_000)
    assert advice.status in ANSWERED, advice.explanation
    assert 0.803 <= advised_fraction(advice) <= 0.84


# Qwen3-Coder over two uneven pipeline stages


def test_a_refusal_of_uneven_stages_prices_a_token_by_the_engine() -> None:
    """24.0 GiB for 262,144 tokens on the poorer stage: 32,000 tokens need 2.93 GiB, of which 0.846 leaves 1.5."""
    refused = start(
        1,
        0.90,
        outcome="refused",
        hardware=Hardware(gpu="NVIDIA GeForce RTX 5090 D", gpu_count=2, memory_gib=31.36, unified_memory=False),
        model=Model(
            name="Qwen3-Coder-30B-A3B-Instruct-FP8",
            facts={
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "hidden_size": 2048,
                "max_position_embeddings": 262_144,
                "torch_dtype": "bfloat16",
            },
        ),
        engine=Engine(name=EngineName.VLLM, version="0.15.2"),
        flags={"pipeline_parallel_size": 2, "tensor_parallel_size": 1, "max_model_len": 262_144, "quantization": "fp8"},
        failure=Failure(phase=Phase.POOL, available_kv_cache_gib=3.18, needed_gib=24.0, longest_tokens=34_736),
        kv_cache_gib=3.18,
    )
    fit = fitted([refused])
    assert fit.summary.parameters["bytes_per_token"].median == pytest.approx(98_304, rel=0.005)
    advice = advise([refused], 32_000)
    assert advice.status in ANSWERED, advice.explanation
    assert 0.9 <= advised_fraction(advice) <= 0.93
    assert int(str(advice.flags["max_model_len"])) < 34_736


@pytest.mark.parametrize("weights", [None, 10.09])
def test_a_printed_price_of_a_token_is_not_drawn_to_the_config_s(weights: float | None) -> None:
    """The config halves a token's bytes over two stages, the engine does not: what the engine prints is billed."""
    facts = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "hidden_size": 2048,
        "max_position_embeddings": 262_144,
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "vocab_size": 151_936,
        "torch_dtype": "bfloat16",
    }
    refused = start(
        1,
        0.90,
        outcome="refused",
        hardware=Hardware(gpu="NVIDIA GeForce RTX 5090 D", gpu_count=2, memory_gib=31.36),
        model=Model(name="Qwen3-Coder-30B-A3B-Instruct-FP8", facts=facts),
        engine=Engine(name=EngineName.VLLM, version="0.15.2"),
        flags={
            "pipeline_parallel_size": 2,
            "tensor_parallel_size": 1,
            "max_model_len": 262_144,
            "quantization": "fp8",
            "speculative_config": None,
            "enforce_eager": False,
        },
        failure=Failure(phase=Phase.POOL, available_kv_cache_gib=3.18, needed_gib=24.0, longest_tokens=34_736),
        kv_cache_gib=3.18,
        weights_gib=weights,
    )
    pool = predict([refused], {"gpu_memory_utilization": 0.9}).pool_tokens
    assert pool is not None
    assert pool.median == pytest.approx(34_736, rel=0.002)
    assert advised_fraction(advise([refused], 32_000)) == 0.9


# DeepSeek-V4-Pro on Ascend


def test_a_refusal_says_how_much_the_fraction_lacks() -> None:
    """0.71 GiB short of 1,048,576 on a device of 60.96 GiB: about 0.951, and the reporter's 0.965 started."""
    refused = start(
        1,
        0.94,
        outcome="refused",
        hardware=Hardware(gpu="Ascend 910B2", gpu_count=32, memory_gib=60.96, unified_memory=False),
        model=Model(name="dsv4-pro"),
        engine=Engine(name=EngineName.VLLM, version="0.23.0"),
        flags={
            "max_model_len": 1_048_576,
            "data_parallel_size": 2,
            "tensor_parallel_size": 16,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 8192,
        },
        failure=Failure(phase=Phase.POOL, available_kv_cache_gib=11.35, needed_gib=12.06, longest_tokens=986_880),
        kv_cache_gib=11.35,
    )
    advice = advise([refused], 1_000_000)
    assert advice.status in ANSWERED, advice.explanation
    assert 0.942 <= advised_fraction(advice) <= 0.97


# Qwen3.8 with a draft on two small GPUs


@pytest.mark.parametrize(("target", "least"), [(32_000, 0.95), (120_000, 0.9)])
def test_a_dropped_draft_frees_its_weights(target: int, least: float) -> None:
    """2.87 GiB of draft weights at 16.5 kB per token are more than 170,000 tokens: both fit without it, and it is the
    first lever, at the fraction where pool and memory together are likeliest."""
    runs = start(
        1,
        0.95,
        13_303,
        1.82,
        hardware=Hardware(gpu="NVIDIA GeForce RTX 5060 Ti", gpu_count=2, memory_gib=15.48, unified_memory=False),
        model=Model(name="nvidia/Qwen3.8-27B-NVFP4"),
        engine=Engine(name=EngineName.SGLANG, version="0.5.18"),
        flags={
            "tp_size": 2,
            "context_length": 8192,
            "max_running_requests": 1,
            "chunked_prefill_size": 2048,
            "kv_cache_dtype": "fp8_e4m3",
            "quantization": "modelopt_fp4",
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 3,
            "max_mamba_cache_size": 4,
        },
        free_before_load_gib=14.97,
        free_after_load_gib=1.72,
        kv_cache_gib=0.20,
        draft_kv_cache_gib=0.02,
        draft_weights_gib=2.87,
    )
    advice = advise([runs], target)
    dropped = [lever for lever in advice.alternatives if lever.flags.get("speculative_algorithm", "kept") is None]
    assert dropped, (advice.status, advice.alternatives)
    assert advice.alternatives[0] is dropped[0]
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.pool_tokens.median + dropped[0].gain_tokens >= target
    assert dropped[0].joint is not None
    assert dropped[0].joint >= least


# GLM-5.3-Flash on two GB10: the chunk of the prefill


def chunk_starts() -> list[Observation]:
    """86,444 tokens passed and 102,644 did not with chunk 8192; with 2048 alone changed both passed."""
    flags: dict[str, Any] = {
        "context_length": 131_072,
        "max_running_requests": 8,
        "tp_size": 2,
        "kv_cache_dtype": "fp8_e4m3",
        "speculative_algorithm": "DFLASH",
        "max_mamba_cache_size": 40,
        "mamba_ssm_dtype": "bfloat16",
    }
    common: dict[str, Any] = {
        "hardware": GB10,
        "model": Model(name="zai-org/GLM-5.3-Flash"),
        "engine": Engine(name=EngineName.SGLANG, version="0.5.18"),
    }
    shorter = passed(86_444, elapsed_seconds=111.6)
    died = Failure(phase=Phase.SERVING, prompt_tokens=102_644)
    large, small = {**flags, "chunked_prefill_size": 8192}, {**flags, "chunked_prefill_size": 2048}
    return [
        start(1, 0.92, 244_288, flags=large, checks=[shorter], **common),
        start(2, 0.92, 244_288, flags=large, outcome="oom_runtime", failure=died, **common),
        start(3, 0.92, 244_288, flags=small, checks=[shorter, passed(102_644, elapsed_seconds=65.5)], **common),
    ]


def test_a_smaller_chunk_is_offered_and_kept_once_verified() -> None:
    """The pool is known where it ran and the death forbids such a prompt there: that is said, the chunk offered."""
    before = advise(chunk_starts()[:2], 102_644)
    assert (before.status, before.binding_constraint) == (Status.INFEASIBLE, "out_of_memory")
    assert before.prediction.pool_tokens is not None
    assert before.prediction.pool_tokens.median == 244_288
    assert before.alternatives[0].flags == {"mem_fraction_static": 0.92, "chunked_prefill_size": 2048}
    shorter = advise(chunk_starts()[:2], 86_444)
    assert is_kept(shorter, 0.92), (shorter.status, shorter.explanation)
    held = advise(chunk_starts()[:2], 102_644, flags={"chunked_prefill_size": 2048})
    assert held.binding_constraint != "out_of_memory"
    after = advise(chunk_starts(), 102_644)
    assert is_kept(after, 0.92), (after.status, after.flags, after.explanation)
    assert after.status is Status.OK


# TensorRT-LLM


def test_a_serving_engine_is_believed() -> None:
    runs = start(
        1,
        0.9,
        86_720,
        hardware=replace(GB10, gpu_count=1),
        model=Model(name="openai/gpt-oss-120b"),
        engine=Engine(name=EngineName.TENSORRT_LLM, version="1.1.0rc3"),
        flags={"max_batch_size": 64, "max_num_tokens": 8192, "tp_size": 1},
        kv_cache_gib=5.95,
        device_memory_gib=119.70,
        weights_gib=63.32,
    )
    assert is_kept(advise([runs], 80_000), 0.9)


@pytest.mark.parametrize(("concurrent", "lowest"), [(1, 0.05), (9, 0.826)])
def test_a_run_time_death_bounds_the_fraction_by_what_it_wanted(concurrent: int, lowest: float) -> None:
    """It wanted 2.82 GiB with 0.086 free at 0.9 of 132.83: at least 0.021 less; nine prompts hold from 0.827 up."""
    died = start(
        1,
        0.9,
        979_360,
        outcome="oom_runtime",
        hardware=Hardware(gpu="NVIDIA GH200 144G HBM3e", gpu_count=1, memory_gib=143.77, unified_memory=False),
        model=Model(name="meta-llama/Llama-3.1-8B-Instruct"),
        engine=TENSORRT,
        flags={"max_seq_len": 131_072, "max_batch_size": 2048, "max_num_tokens": 8192},
        failure=Failure(phase=Phase.SERVING, wanted_gib=2.82, free_gib=0.086, cause=Cause.GPU_MEMORY),
        kv_cache_gib=119.55,
        device_memory_gib=143.77,
    )
    advice = advise([died], 100_000, concurrent=concurrent)
    assert advice.status in ANSWERED, advice.explanation
    assert lowest <= advised_fraction(advice) <= 0.879


# LMDeploy


def test_a_truncated_session_binds_at_its_own_flags() -> None:
    """1,740 blocks of 64 tokens: the session was cut to 111,360. A longer one needs more of what is free."""
    runs = start(
        1,
        0.8,
        111_360,
        hardware=Hardware(gpu="NVIDIA GeForce RTX 4090", gpu_count=1, memory_gib=23.54, unified_memory=False),
        model=Model(name="Qwen/Qwen3-30B-A3B-AWQ"),
        engine=TURBOMIND,
        flags={"tp": 1, "session_len": 111_360, "max_batch_size": 128, "quant_policy": 8, "cache_block_seq_len": 64},
        kv_cache_gib=1.434,
        longest_prompt_tokens=111_360,
    )
    assert is_kept(advise([runs], 100_000), 0.8)
    longer = advise([runs], 120_000)
    assert not is_kept(longer, 0.8)
    if longer.status in ANSWERED:
        assert 0.86 <= advised_fraction(longer) < 1.0


# deaths that are none, or that are one


def test_a_death_of_the_host_says_nothing_of_the_fraction() -> None:
    killed = start(
        1,
        0.9,
        17_920,
        outcome="failed",
        hardware=Hardware(gpu="NVIDIA A800-SXM4-80GB", gpu_count=2, memory_gib=79.32, unified_memory=False),
        model=Model(name="llama-70b-ft"),
        engine=Engine(name=EngineName.VLLM, version="0.2.1"),
        flags={"tensor_parallel_size": 2, "max_model_len": 4096, "max_num_seqs": 256},
        failure=Failure(phase=Phase.SERVING, cause=Cause.HOST_MEMORY),
    )
    advice = advise([killed], 4_000, reply_tokens=90)
    assert is_kept(advice, 0.9), (advice.status, advice.flags, advice.explanation)


def test_no_fraction_at_or_above_a_run_time_death_is_advised() -> None:
    common: dict[str, Any] = {
        "hardware": Hardware(gpu="NVIDIA A100-SXM4-80GB", gpu_count=1, memory_gib=79.15, unified_memory=False),
        "model": Model(name="Qwen/Qwen2.5-7B-Instruct"),
        "engine": Engine(name=EngineName.VLLM, version="0.10.1.1"),
        "flags": {"max_model_len": 32_768, "tensor_parallel_size": 1},
    }
    starts = [
        start(1, 0.45, 363_936, kv_cache_gib=19.44, **common),
        start(2, 0.60, 586_112, outcome="oom_runtime", kv_cache_gib=31.31, **common),
    ]
    for asked in ({"concurrent": 20}, {"concurrent": 15}, {"concurrent": 2, "prefer": "pool"}):
        advice = advise(starts, 30_000, **asked)
        stated = advice.flags.get("gpu_memory_utilization")
        assert stated is None or stated < 0.60, (asked, advice.status, stated)
        if asked["concurrent"] < 20:
            assert advice.status in ANSWERED, (asked, advice.explanation)


def test_a_suggestion_line_is_a_point_of_the_line() -> None:
    """Current KV memory 7.03 GiB at 0.9 of 60.96: 8.25 at 0.92."""
    runs = start(
        1,
        0.9,
        312_832,
        hardware=Hardware(gpu="Ascend 910B3", gpu_count=8, memory_gib=60.96, unified_memory=False),
        engine=VLLM,
        flags={"data_parallel_size": 8},
        kv_cache_gib=7.03,
        device_memory_gib=60.96,
        free_before_load_gib=60.61,
        weights_gib=47.4,
    )
    found = predict([runs], {"gpu_memory_utilization": 0.92})
    assert found.kv_cache_gib is not None
    assert found.kv_cache_gib.median == pytest.approx(8.25, abs=0.05)
    assert found.pool_tokens is not None
    assert found.pool_tokens.median == pytest.approx(312_832 * 8.25 / 7.03, rel=0.01)
