"""Advice for models that keep windows or states: pools beside tokens, and requests that move them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from domain.real_starts import observe
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question, Status
from kvyield_server.domain.facts.observation import Engine, EngineName, Hardware, Model, Observation, Outcome
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, fit_pair

H200 = Hardware(gpu="NVIDIA H200", gpu_count=1, memory_gib=140.4)
SHAPE = {"num_attention_heads": 16, "head_dim": 256, "hidden_size": 4096, "max_position_embeddings": 262144}
QWEN3_NEXT = {**SHAPE, "num_hidden_layers": 48, "num_key_value_heads": 2, "full_attention_interval": 4}
GEMMA = {
    **SHAPE,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
}
BASE, WEIGHTS, GIB = 139.0, 60.0, 2**30


def token_bytes(facts: Mapping[str, Any]) -> float:
    """Return what SGLang bills: full layers and 0.8 of windowed ones, or full layers where states are one a request."""
    layer = facts["num_key_value_heads"] * 2 * 256 * 2
    return float(layer * (8 + 0.8 * 40) if facts is GEMMA else layer * 12)


def start(position: int, facts: Mapping[str, Any], fraction: float, requests: int = 32) -> Observation:
    state = 0.05 * requests if facts is QWEN3_NEXT else 0.0
    pool = int((BASE * fraction - WEIGHTS - state) * GIB / token_bytes(facts))
    return observe(
        f"hybrid-{position}",
        position,
        hardware=H200,
        model=Model(name="hybrid", facts=facts),
        engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
        flags={
            "mem_fraction_static": fraction,
            "max_running_requests": requests,
            "context_length": 131072,
            "speculative_algorithm": None,
            "tp_size": 1,
            "disable_radix_cache": facts is QWEN3_NEXT,
        },
        pool_tokens=pool,
        free_at_ready_gib=BASE * (1 - fraction) - 2.5,
        free_before_load_gib=BASE,
        free_after_load_gib=BASE - WEIGHTS,
    )


def fitted(*starts: Observation) -> DeploymentFit:
    return fit_pair(PairEvidence(starts)).deployments[0]


@pytest.mark.parametrize("facts", [QWEN3_NEXT, GEMMA], ids=["recurrent", "window"])
@pytest.mark.parametrize("seen", [1, 2])
def test_advice_truly_holds_the_target(facts: Mapping[str, Any], seen: int) -> None:
    """From one start or two, the advised fraction holds the target on the engine's own line, and not by much more."""
    starts = [start(position, facts, f) for position, f in enumerate((0.6, 0.7)[:seen])]
    target = start(9, facts, 0.8).measurements.pool_tokens or 0
    advice = recommend(fitted(*starts), Question(target_tokens=target // 8, concurrent=8))
    advised = advice.flags["mem_fraction_static"]
    assert isinstance(advised, float)
    assert advice.status in (Status.OK, Status.AT_RISK)
    assert 0.799 <= advised <= 0.806


def test_requests_that_move_the_pool_are_answered_more_widely() -> None:
    """Asked for other running requests, a model with states is less sure of its pool, and a dense one is not."""
    fit = fitted(start(1, QWEN3_NEXT, 0.6), start(2, QWEN3_NEXT, 0.7))
    same, more = (
        fit.predict({"mem_fraction_static": 0.65, "max_running_requests": requests}).pool_tokens
        for requests in (32, 64)
    )
    assert same is not None
    assert more is not None
    assert more.high - more.low > 10 * (same.high - same.low)
    truth = start(3, QWEN3_NEXT, 0.65, requests=64).measurements.pool_tokens or 0
    assert more.low <= truth <= more.high


def test_starts_of_other_running_requests_lend_their_slope() -> None:
    """One start with 64 requests beside two with 32 is a deployment of its own that predicts its next fraction."""
    fit = fitted(start(1, QWEN3_NEXT, 0.6), start(2, QWEN3_NEXT, 0.7), start(3, QWEN3_NEXT, 0.65, requests=64))
    truth = start(4, QWEN3_NEXT, 0.8, requests=64).measurements.pool_tokens or 0
    estimate = fit.predict({"mem_fraction_static": 0.8}).pool_tokens
    assert estimate is not None
    assert estimate.median == pytest.approx(truth, rel=1e-3)
    assert estimate.low <= truth <= estimate.high


def test_fewer_requests_are_a_lever_that_gains_pool_where_states_follow_them() -> None:
    """For a model with states the lever's pool is doubtful, so that it never promises more than the model knows."""
    fit = fitted(start(1, QWEN3_NEXT, 0.6), start(2, QWEN3_NEXT, 0.7))
    advice = recommend(fit, Question(target_tokens=200_000, concurrent=4))
    for lever in advice.alternatives:
        assert 0.0 <= lever.joint <= 1.0


def test_vllms_hybrid_is_advised_at_its_own_longest_request() -> None:
    """A vLLM hybrid keeps its longest request, in which its pool's tokens are counted, when the pool holds it."""
    starts = [
        observe(
            f"gemma-{position}",
            position,
            hardware=H200,
            model=Model(name="gemma", facts=GEMMA),
            engine=Engine(name=EngineName.VLLM, version="0.26.0"),
            flags={
                "gpu_memory_utilization": fraction,
                "max_model_len": 131072,
                "max_num_batched_tokens": 8192,
                "speculative_config": None,
                "tensor_parallel_size": 1,
            },
            pool_tokens=int((139.8 * fraction - 66) * GIB / 8192 / (8 + 40 * 9216 / 131072) / 16) * 16,
            kv_cache_gib=round(139.8 * fraction - 66, 2),
            device_memory_gib=139.8,
        )
        for position, fraction in enumerate((0.6, 0.7))
    ]
    advice = recommend(fitted(*starts), Question(target_tokens=100_000, concurrent=2))
    assert advice.flags["max_model_len"] == 131072
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.pool_tokens.median >= 200_000


def qwen36(model: str = "qwen3.6-27b-autoround-int4", pool_tokens: int = 612_157, **ended: Any) -> Observation:
    """Return a start of a public report: Qwen3.6-27B on two RTX 3090 with room for 2.34 requests of 262,144 tokens."""
    return observe(
        "qwen36",
        1,
        hardware=Hardware(gpu="NVIDIA GeForce RTX 3090", gpu_count=2, memory_gib=23.56),
        model=Model(name=model),
        engine=Engine(name=EngineName.VLLM, version="0.23.1"),
        flags={
            "gpu_memory_utilization": 0.95,
            "max_model_len": 262144,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 8192,
            "tensor_parallel_size": 2,
            "kv_cache_dtype": "fp8_e5m2",
        },
        pool_tokens=pool_tokens,
        kv_cache_gib=10.85,
        **ended,
    )


def test_no_sentence_says_that_the_context_does_not_move_a_pool_counted_in_requests() -> None:
    """vLLM counts a hybrid's pool in requests of the context length, so a longer one is another pool."""
    question = Question(target_tokens=300_000)
    alias, hybrid, plain = (
        recommend(fitted(qwen36(*start)), question)
        for start in (("served", 612_157), ("qwen3.6-27b", 612_160), ("served", 612_160))
    )
    code = "context_length_does_not_grow_pool"
    (said,), (unsaid,) = ([c for c in it.changes if c.flag == "max_model_len"] for it in (plain, hybrid))
    assert code in {caution.code for caution in plain.warnings}
    assert code not in {caution.code for caution in hybrid.warnings}
    assert said.reason == f"{unsaid.reason}; it does not grow the pool"
    assert "does not affect" not in hybrid.explanation
    assert "does not affect" in plain.explanation
    assert alias.explanation == recommend(fitted(qwen36("qwen3.6-27b")), question).explanation


def test_a_lever_that_cuts_the_context_says_so() -> None:
    """A lower fraction whose pool no longer holds a request of the context length has its price."""
    died = qwen36(outcome=Outcome.OOM_RUNTIME)
    advice = recommend(fitted(died), Question(target_tokens=88_000))
    assert advice.flags["max_model_len"] == 262144
    cut = [lever for lever in advice.alternatives if "max_model_len" in lever.flags]
    assert cut
    assert all("longer requests are refused" in lever.cost for lever in cut)
    assert any(lever.cost.endswith("suffice; longer requests are refused") for lever in cut)
