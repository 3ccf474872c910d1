"""Ways in which engines size a pool that a plain straight line through flags does not tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid5

import pytest

from domain.real_starts import KIMI, PRO_6000, case_groups, h200_starts, observe
from kvyield_server.domain.answers import Estimate
from kvyield_server.domain.engines.fraction_share import fraction_share
from kvyield_server.domain.engines.token_cost import token_cost
from kvyield_server.domain.facts.observation import Engine, EngineName, Hardware, Model, Observation
from kvyield_server.domain.model.evidence import Label, Use, classify
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, fit_pair

GIB = 2**30
MI300X = Hardware(gpu="AMD Instinct MI300X", gpu_count=1, memory_gib=191.98)
LLAMA = Model(
    name="llama",
    facts={
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "max_position_embeddings": 131072,
    },
)
SGLANG = Engine(name=EngineName.SGLANG, version="0.5.12")
NO_DRAFT: dict[str, Any] = {"speculative_algorithm": None, "tp_size": 1}


def start(position: int, pool: int, *, hardware: Hardware = MI300X, **flags: Any) -> Observation:
    return observe(
        f"sizing-{position}",
        position,
        hardware=hardware,
        model=LLAMA,
        engine=SGLANG,
        flags={**NO_DRAFT, **flags},
        pool_tokens=pool,
    )


def only(*starts: Observation) -> DeploymentFit:
    (fit,) = fit_pair(PairEvidence(starts)).deployments
    return fit


def pool(fit: DeploymentFit, **flags: Any) -> Estimate:
    estimate = fit.predict(flags).pool_tokens
    assert estimate is not None
    return estimate


def aiter_pool(fraction: float, *, long: bool) -> int:
    return int((190.0 * fraction * (0.85 if long else 1.0) - 16.0) * GIB / 131072)


def test_aiters_share_of_the_fraction_is_applied() -> None:
    """Short and long contexts of an AMD GPU share a line over the fraction that is really applied, 0.85 of it."""
    line = only(
        start(1, aiter_pool(0.7, long=True), mem_fraction_static=0.7, context_length=32768),
        start(2, aiter_pool(0.9, long=True), mem_fraction_static=0.9, context_length=32768),
    )
    short = pool(line, mem_fraction_static=0.8, context_length=8192)
    assert short.median == pytest.approx(aiter_pool(0.8, long=False), abs=3)
    assert pool(line, mem_fraction_static=0.8).median == pytest.approx(aiter_pool(0.8, long=True), abs=3)
    mixed = only(
        start(1, aiter_pool(0.7, long=False), mem_fraction_static=0.7, context_length=4096),
        start(2, aiter_pool(0.9, long=True), mem_fraction_static=0.9, context_length=32768),
    )
    assert pool(mixed, mem_fraction_static=0.8).median == pytest.approx(aiter_pool(0.8, long=True), abs=3)
    assert Label.SLOPE_DISAGREEMENT not in mixed.summary.labels


def test_the_parameters_are_per_fraction_as_flagged() -> None:
    """Slope and zero crossing are told in the flag's own units, whatever share of it is applied."""
    line = only(
        start(1, aiter_pool(0.7, long=True), mem_fraction_static=0.7),
        start(2, aiter_pool(0.9, long=True), mem_fraction_static=0.9),
    )
    slope = (aiter_pool(0.9, long=True) - aiter_pool(0.7, long=True)) / 0.2
    assert line.summary.parameters["slope_tokens_per_fraction"].median == pytest.approx(slope, rel=0.01)
    assert line.summary.parameters["zero_fraction"].median == pytest.approx(16 / 190 / 0.85, abs=0.002)


@pytest.mark.parametrize(
    ("version", "flags", "amd", "share"),
    [
        ("0.5.12", {}, True, 0.85),
        ("0.5.12", {"attention_backend": "aiter", "context_length": 16384}, True, 0.85),
        ("0.5.12", {"context_length": 8192}, True, 1.0),
        ("0.5.12", {"attention_backend": "triton"}, True, 1.0),
        ("0.5.4", {}, True, 1.0),
        ("0.5.24", {}, True, 1.0),
        ("0.5.12", {}, False, 1.0),
    ],
)
def test_the_share_is_of_some_versions_gpus_and_contexts(
    version: str, flags: dict[str, Any], share: float, *, amd: bool
) -> None:
    """Only 0.5.5 to 0.5.23, on AMD, with aiter and a context beyond 8,192 tokens."""
    engine = Engine(name=EngineName.SGLANG, version=version)
    assert fraction_share(engine, flags, amd=amd, context_tokens=131072) == share
    other = Engine(name=EngineName.VLLM, version=version)
    assert fraction_share(other, flags, amd=amd, context_tokens=131072) == 1.0


def test_pools_sized_after_graph_capture_stand_apart_with_their_label() -> None:
    """SGLang's post-capture sizing is another deployment, labelled, whose load lines do not price a token."""
    ladder = [h200_starts()[f"c6_sgl_q8_f{f}"] for f in (0.5, 0.9)]
    after = [
        replace(s, id=uuid5(s.id, "after capture"), flags={**s.flags, "post_capture_kv_sizing": True}) for s in ladder
    ]
    plain = [replace(s, flags={**s.flags, "post_capture_kv_sizing": None}) for s in ladder]
    fits = fit_pair(PairEvidence((*plain, *after))).deployments
    assert sorted(Label.POST_CAPTURE in fit.summary.labels for fit in fits) == [False, True]
    (one,) = fit_pair(PairEvidence((after[0],))).deployments
    estimate = one.predict({"mem_fraction_static": 0.9}).pool_tokens
    assert estimate is not None
    assert estimate.high - estimate.low > 1000


def test_unequal_pipeline_stages_bend_the_line_beyond_the_evidence() -> None:
    """Another stage may decide farther out: 61 layers in two stages widen what lies beyond the starts, not between."""

    def line(layers: int) -> DeploymentFit:
        starts = [
            observe(
                f"stages-{position}",
                position,
                hardware=PRO_6000,
                model=replace(KIMI, facts={**KIMI.facts, "num_hidden_layers": layers}),
                engine=SGLANG,
                flags={"mem_fraction_static": f, "tp_size": 4, "pp_size": 2, "speculative_algorithm": None},
                pool_tokens=round(2_810_000 * (f - 0.6)),
            )
            for position, f in enumerate((0.8, 0.85))
        ]
        return only(*starts)

    even, uneven = line(62), line(61)
    for fraction, wider in ((0.82, False), (0.95, True)):
        one, two = pool(even, mem_fraction_static=fraction), pool(uneven, mem_fraction_static=fraction)
        assert two.median == pytest.approx(one.median, rel=0.01)
        assert (two.high - two.low > 1.2 * (one.high - one.low)) == wider


def test_running_requests_split_a_model_with_states() -> None:
    """DeepSeek V4's fixed states follow running requests: starts that differ in them are deployments of their own."""
    flags = {"mem_fraction_static": 0.9, "tp_size": 8}
    pair = [
        observe(
            f"states-{requests}",
            requests,
            hardware=PRO_6000,
            model=Model(name="deepseek-ai/DeepSeek-V4-Flash"),
            engine=SGLANG,
            flags={**flags, "max_running_requests": requests},
            pool_tokens=1_000_000 - 15_000 * requests,
        )
        for requests in (8, 32)
    ]
    assert len(fit_pair(PairEvidence(tuple(pair))).deployments) == 2
    dense = [replace(each, model=LLAMA) for each in pair]
    assert len(fit_pair(PairEvidence(tuple(dense))).deployments) == 1


GEMMA = {
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
}
QWEN3_NEXT = {
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
}


@pytest.mark.parametrize(
    ("facts", "version", "length", "expected"),
    [
        (GEMMA, "0.20.0", 131072, 12 * 4096),
        (GEMMA, "0.26.0", 131072, 4096 * (2 + 10 * (1024 + 2048) / 131072)),
        (GEMMA, "0.26.0", 2048, 4096 * 12),
        (QWEN3_NEXT, "0.20.0", 262144, 48 * 2048),
        (QWEN3_NEXT, "0.26.0", 262144, 2048 * (12 + 36 * 1056 / 262144)),
    ],
)
def test_vllm_hybrids_by_their_two_definitions_of_a_token(
    facts: dict[str, Any], version: str, length: int, expected: float
) -> None:
    """Up to 0.20 a token is billed in every layer; later a fixed part per request is shared out over its length."""
    flags = {
        "tensor_parallel_size": 1,
        "max_model_len": length,
        "max_num_batched_tokens": 2048,
        "speculative_config": None,
    }
    cost = token_cost(facts, Engine(name=EngineName.VLLM, version=version), flags, 1)
    assert cost is not None
    assert cost.bytes_per_token == pytest.approx(expected, rel=0.03)
    assert cost.relative_sd >= 0.05


def test_hybrids_share_no_line_across_a_change_of_the_definition() -> None:
    """Ten times the tokens in 0.26 are another count of the same memory, no drift; in 0.19 they are drift."""

    def start_of(position: int, version: str, fraction: float, pool: int) -> Observation:
        return observe(
            f"gemma-{position}",
            position,
            hardware=Hardware(gpu="NVIDIA H200", gpu_count=1),
            model=Model(name="gemma", facts={**GEMMA, "num_key_value_heads": None, "num_attention_heads": None}),
            engine=Engine(name=EngineName.VLLM, version=version),
            flags={"gpu_memory_utilization": fraction, "max_model_len": 131072, "speculative_config": None},
            pool_tokens=pool,
        )

    old = [start_of(1, "0.20.0", 0.5, 800_000), start_of(2, "0.20.0", 0.9, 1_900_000)]
    for version, is_drift in (("0.19.0", True), ("0.26.0", False)):
        newest = fit_pair(PairEvidence((*old, start_of(3, version, 0.8, 16_250_000)))).deployments[0]
        assert newest.summary.engine_version == version
        assert (Label.DRIFT in newest.summary.labels) == is_drift
        estimate = newest.predict({"gpu_memory_utilization": 0.9}).pool_tokens
        assert estimate is not None
        assert is_drift or estimate.median == pytest.approx(19_000_000, rel=0.02)


def test_lmdeploys_policy_is_its_kv_dtype() -> None:
    """quant_policy 8 splits a deployment and holds about twice the tokens of the same line; 4 about four times."""
    facts = LLAMA.facts
    engine = Engine(name=EngineName.LMDEPLOY, version="0.14.0")

    def cost(policy: int) -> float:
        found = token_cost(facts, engine, {"tp": 1, "quant_policy": policy}, 1)
        assert found is not None
        return found.bytes_per_token

    assert cost(0) / cost(8) == pytest.approx(1.94, abs=0.01)
    assert cost(0) / cost(4) == pytest.approx(3.76, abs=0.01)
    pair = [
        observe(
            f"policy-{policy}",
            policy,
            hardware=Hardware(gpu="NVIDIA H200", gpu_count=1),
            model=LLAMA,
            engine=engine,
            flags={"cache_max_entry_count": 0.8, "tp": 1, "quant_policy": policy},
            pool_tokens=700_000 * (1 + policy // 8),
            free_after_load_gib=110.0,
        )
        for policy in (0, 8)
    ]
    assert len(fit_pair(PairEvidence(tuple(pair))).deployments) == 2


def test_a_pool_given_in_bytes_prices_a_token_and_is_no_point() -> None:
    """kv_cache_memory_bytes makes the fraction inert, and what it holds still tells what a token costs."""
    served = h200_starts()["c4_vllm_q8_f0.8"]
    told = replace(
        served,
        model=Model(name="unknown"),
        flags={**served.flags, "kv_cache_memory_bytes": 40 * GIB},
        measurements=replace(served.measurements, pool_tokens=291_264, kv_cache_gib=None),
    )
    assert classify(told).use is Use.BOUND
    (fit,) = fit_pair(PairEvidence((told,))).deployments
    assert fit.summary.parameters["bytes_per_token"].median == pytest.approx(147_456, rel=0.002)


def test_a_pool_of_exactly_the_requests_is_capped() -> None:
    """As many tokens as requests times context were set by demand, though no flag caps them."""
    item = classify(
        start(1, 131_072, mem_fraction_static=0.85, max_running_requests=32, context_length=4096, hardware=PRO_6000)
    )
    assert item.use is Use.BOUND
    assert Label.CAPPED in item.labels


def test_a_second_server_on_a_gpu_is_seen_where_free_memory_was_logged() -> None:
    """Far less free before load than the empty GPU has is another process, for SGLang and vLLM alike."""
    for name in ("c6_sgl_q8_f0.8", "c4_vllm_q8_f0.8"):
        alone = h200_starts()[name]
        shared = replace(alone, measurements=replace(alone.measurements, free_before_load_gib=80.0))
        assert Label.NEIGHBOUR in classify(shared).labels
        assert Label.NEIGHBOUR not in classify(alone).labels


@pytest.mark.parametrize(
    "group",
    [
        "vllm|RTXPRO6000x2|56711642453-model|MTP2",
        "vllm|RTX5090x1|60814306904-K6",
        "vllm|H100x8|DeepSeek-V4-Flash",
    ],
)
def test_vllm_boots_with_drafts_or_states_differ_beside_the_pool(group: str) -> None:
    """One start of a public pair predicts the other inside its interval, though their slope is not the GPU's."""
    starts = case_groups()[group]
    for one, other in (starts, starts[::-1]):
        prediction = only(one).predict(other.flags)
        for estimate, truth in (
            (prediction.pool_tokens, other.measurements.pool_tokens),
            (prediction.kv_cache_gib, other.measurements.kv_cache_gib),
        ):
            assert estimate is not None
            assert truth is not None
            assert estimate.low <= truth <= estimate.high
