"""Bytes per token against the engines' own arithmetic and against real logs."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any

import pytest

from domain import ledgers
from domain.real_starts import KIMI, h200_starts
from kvyield_server.domain.engines.token_cost import token_cost
from kvyield_server.domain.facts.observation import Engine, EngineName, Failure, Model, Phase
from kvyield_server.domain.model.prior import measured_price

QWEN3_8B = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
}
QWEN3_06B = {**QWEN3_8B, "num_hidden_layers": 28, "num_attention_heads": 16, "hidden_size": 1024}
LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
QWEN25_7B = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}
DSV32 = {**KIMI.facts, "index_head_dim": 128}
GPT_OSS = {
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
QWEN3_NEXT = {
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
}
BLOCK_DRAFT = {"draft_num_hidden_layers": 6, "draft_num_key_value_heads": 8, "draft_head_dim": 128}
OFF: dict[str, Any] = {"speculative_algorithm": None}
GIB = 2**30


def cost(
    facts: Mapping[str, Any], version: str | None, flags: Mapping[str, Any], engine: EngineName = EngineName.SGLANG
) -> float:
    found = token_cost(facts, Engine(name=engine, version=version), flags, 8)
    assert found is not None
    return found.bytes_per_token


@pytest.mark.parametrize(
    ("facts", "version", "flags", "expected"),
    [
        (QWEN3_8B, "0.5.17", {**OFF, "tp_size": 1}, 147_456),
        (QWEN3_8B, "0.5.17", {**OFF, "tp_size": 8}, 18_432),
        (QWEN3_8B, "0.5.17", {**OFF, "tp_size": 16}, 18_432),
        (QWEN3_8B, "0.5.17", {**OFF, "tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 147_456),
        (QWEN3_8B, "0.5.17", {**OFF, "tp_size": 1, "pp_size": 2}, 73_728),
        (QWEN3_8B, "0.5.17", {**OFF, "tp_size": 1, "kv_cache_dtype": "fp8_e5m2"}, 73_728),
        (QWEN3_8B, "0.5.17", {**OFF, "tp_size": 1, "kv_cache_dtype": "fp4_e2m1"}, 147_456 * (0.25 + 1 / 32)),
        (KIMI.facts, "0.5.12", {**OFF, "tp_size": 8}, 70_272),
        (KIMI.facts, "0.5.12", {**OFF, "tp_size": 1}, 70_272),
        (KIMI.facts, "0.5.18", {**OFF, "tp_size": 8, "dcp_size": 4}, 70_272 / 4),
        (DSV32, "0.5.12", {**OFF, "tp_size": 8}, 61 * (576 * 2 + 132)),
        (DSV32, "0.5.12", {**OFF, "kv_cache_dtype": "fp8_e4m3"}, 61 * 708),
        (DSV32, "0.5.23", {**OFF, "kv_cache_dtype": "fp8_e4m3"}, 61 * 788),
        (GPT_OSS, "0.5.12", {**OFF, "tp_size": 1}, 2 * 8 * 128 * 2 * 1.8),
        (QWEN3_NEXT, "0.5.12", {**OFF, "tp_size": 1, "max_mamba_cache_size": 100}, 12 * 2 * 512 * 2),
        (QWEN3_NEXT, "0.5.12", {**OFF, "tp_size": 1}, 12 * 2 * 512 * 2 * 1.9),
        ({**KIMI.facts, **BLOCK_DRAFT}, "0.5.12", {"speculative_algorithm": "DFLASH", "tp_size": 8}, 77_184),
        ({**KIMI.facts, **BLOCK_DRAFT}, "0.5.18", {"speculative_algorithm": "DFLASH", "tp_size": 8}, 73_344),
        (KIMI.facts, "0.5.12", {"speculative_algorithm": "EAGLE"}, 70_272),
        (KIMI.facts, "0.5.18", {"speculative_algorithm": "EAGLE"}, 70_272 + 1152),
        (KIMI.facts, "0.5.5", {}, 70_272),
        (KIMI.facts, None, {}, 70_272 * 1.06),
    ],
)
def test_sglang_prices_follow_its_own_arithmetic(
    facts: Mapping[str, Any], version: str | None, flags: Mapping[str, Any], expected: float
) -> None:
    """Each architecture, layout, dtype and era costs what SGLang's configurators budget."""
    assert cost(facts, version, flags) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("facts", "dtype", "gib", "tokens", "tolerance"),
    [
        (QWEN3_8B, "auto", 94.65, 689_248, 0.001),
        (QWEN3_8B, "fp8", 94.62, 1_378_048, 0.001),
        (QWEN3_06B, "auto", 18.74, 175_456, 0.001),
        (LLAMA_8B, "auto", 3.81, 31_232, 0.003),
        (QWEN25_7B, "auto", 5.01, 93_840, 0.003),
    ],
)
def test_vllm_prices_agree_with_real_logs(
    facts: Mapping[str, Any], dtype: str, gib: float, tokens: int, tolerance: float
) -> None:
    """KV memory over pool tokens of real logs is the formula's price, up to the log's rounding."""
    flags = {"tensor_parallel_size": 1, "kv_cache_dtype": dtype, "speculative_config": None}
    assert cost(facts, "0.26.0", flags, EngineName.VLLM) == pytest.approx(gib * GIB / tokens, rel=tolerance)


def test_sglang_prices_agree_with_every_measured_start() -> None:
    """On the H200 the printed KV memory over the pool is the price for dense and latent attention, bf16 and fp8."""
    for start in h200_starts().values():
        measured = start.measurements
        if start.engine.name is EngineName.SGLANG and measured.kv_cache_gib and (measured.pool_tokens or 0) > 50_000:
            assert measured.pool_tokens is not None
            price = cost(start.model.facts, start.engine.version, start.flags)
            assert price == pytest.approx(measured.kv_cache_gib * GIB / measured.pool_tokens, rel=0.002)


@pytest.mark.parametrize("facts", [{}, {"num_hidden_layers": "many"}, {"num_hidden_layers": -3}, {"layer_types": 7}])
def test_configs_that_do_not_tell_price_nothing(facts: Mapping[str, Any]) -> None:
    """A config without usable sizes gives no price instead of a guess."""
    assert token_cost(facts, Engine(name=EngineName.VLLM), {}, 1) is None


@pytest.mark.parametrize(("name", "sd"), [("example/plain", 0.003), ("example/Qwen3.6-27B-int4", 0.05)])
def test_a_refusal_that_states_two_prices_is_priced_by_the_dearer(name: str, sd: float) -> None:
    """4.26 GiB needed for 100,000 tokens, and 99,328 fit in the 4.25 that were told: a request takes something fixed.

    So 99,500 tokens, which the engine said do not fit, are not expected in the same bytes.
    """
    failure = Failure(phase=Phase.POOL, needed_gib=4.26, available_kv_cache_gib=4.25, longest_tokens=99_328)
    flags = {"kv_cache_memory_bytes": 4_563_402_752, "max_model_len": 100_000}
    refused = ledgers.start(
        1, 0.92, outcome="refused", engine=ledgers.VLLM, model=Model(name=name), flags=flags, failure=failure
    )
    found = measured_price(refused)
    assert found is not None
    assert 4_563_402_752 / exp(found.mean) == pytest.approx(99_328, rel=1e-4)
    assert sd * 0.5 < found.sd < sd * 1.1


def test_a_model_whose_tokens_have_no_price_is_not_priced_by_a_refusal() -> None:
    """DeepSeek V4 takes from 7 to 60 KiB for a token by the length of a request."""
    failure = Failure(phase=Phase.POOL, needed_gib=4.26, available_kv_cache_gib=4.25, longest_tokens=99_328)
    model = Model(name="deepseek-ai/DeepSeek-V4-Flash")
    refused = ledgers.start(1, 0.92, outcome="refused", engine=ledgers.VLLM, model=model, failure=failure)
    assert measured_price(refused) is None


@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        ("turboquant_k8v4", 12.5),
        ("turboquant_k3v4_nc", 7.5),
        ("turboquant_4bit_nc", 8.5),
        ("int8_per_token_head", 16.0),
    ],
)
def test_named_bits_price_a_token(dtype: str, share: float) -> None:
    """vLLM's smaller KV types are priced by the bits in their names and their scales, of 32 for bfloat16."""
    whole, named = (cost(QWEN3_8B, "0.22.0", {"kv_cache_dtype": it}, EngineName.VLLM) for it in ("auto", dtype))
    assert named / whole == pytest.approx(share / 32)
