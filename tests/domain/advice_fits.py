"""Fits for the rules of advice: the worked case with later starts, and a dense model on one card."""

from __future__ import annotations

from dataclasses import replace

from domain.straight_line import HandFit, StraightLine, hand_fit, start, worked_line, worked_starts
from kvyield_server.domain.answers import Advice
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Hardware,
    Model,
    Observation,
    Outcome,
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
