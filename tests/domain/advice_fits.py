"""Yield models for the rules of advice: the worked case with later starts, and a dense model on one GPU."""

from __future__ import annotations

from dataclasses import replace

from domain.given_model import GIB, GivenModel, with_starts
from domain.worked_starts import KIMI, RTX_PRO, start, worked_starts
from kvyield_server.domain.answers import Advice
from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Hardware,
    Model,
    Observation,
    Scalar,
    Verification,
)

PLAIN = Model(
    name="plain", facts={"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "head_dim": 128}
)
HARDWARE = Hardware(gpu="NVIDIA H200", gpu_count=2, memory_gib=140.4)
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


def codes(advice: Advice) -> set[str]:
    return {warning.code for warning in advice.warnings}


def fraction(advice: Advice) -> float:
    value = advice.flags[NAMES[advice.engine].fraction]
    assert isinstance(value, float)
    return value


def worked(*later: Observation) -> GivenModel:
    """Return the worked case, its true line and 4.2 GiB free at 0.94, with later starts (oldest first)."""
    given = GivenModel(
        model=KIMI,
        hardware=RTX_PRO,
        engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
        flags={},
        base=93.73,
        zero=0.77244,
        token_bytes=93.73 * GIB / 1_303_889,
        free_at_zero=4.2 + 93.73 * 0.94 + 0.03 * 8,
        need_gib=1.0,
        need_sd=0.6,
        need_grows_from=65_536,
        context_tokens=262_144,
    )
    return with_starts(given, *reversed(worked_starts()), *later)


def plain(
    engine: EngineName, flags: dict[str, Scalar], *, zero: float = 0.2, page: int = 1, free: float = 30.0
) -> GivenModel:
    """Return a dense model: 100 GiB base, 128 KiB a token, one start with two chunks verified and ``free`` GiB left."""
    names = NAMES[engine]
    given = GivenModel(
        model=PLAIN,
        hardware=HARDWARE,
        engine=Engine(name=engine, version="1.0"),
        flags=flags,
        zero=zero,
        page_tokens=page,
        need_gib=1.0,
    )
    value = flags[names.fraction]
    assert isinstance(value, float)
    free_at_zero = free + 100.0 * value + 0.03 * (positive(flags, names.requests) or 0)
    check = Verification(prompt_tokens=30_000, passed=True, free_before_gib=free, lowest_free_gib=free - 1.0)
    served = start(
        1,
        flags,
        pool_tokens=int(100.0 * (value - zero) * 8192) // page * page,
        free_at_ready_gib=free,
        verifications=(check,),
        model=PLAIN,
        hardware=HARDWARE,
        engine=given.engine,
    )
    return with_starts(replace(given, free_at_zero=free_at_zero), served)
