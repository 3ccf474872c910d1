"""The worked case as people post it: Kimi K2.6 with a DFlash draft on eight GPUs, and starts like it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Scalar,
    Verification,
)

KIMI = Model(
    name="moonshotai/Kimi-K2.6",
    facts={
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "max_position_embeddings": 262144,
    },
)
RTX_PRO = Hardware(gpu="NVIDIA RTX PRO 6000 Blackwell Workstation Edition", gpu_count=8, memory_gib=95.59)
BIRTH = datetime(2026, 5, 30, 21, 0, tzinfo=UTC)


def start(
    number: int,
    flags: dict[str, Scalar],
    *,
    pool_tokens: int | None = None,
    free_at_ready_gib: float | None = None,
    free_at_pool_end_gib: float | None = None,
    startup_seconds: float | None = None,
    outcome: Outcome = Outcome.READY,
    failure: Failure | None = None,
    verifications: tuple[Verification, ...] = (),
    model: Model = KIMI,
    hardware: Hardware = RTX_PRO,
    engine: Engine | None = None,
) -> Observation:
    """Return one start; those with a higher number are later."""
    return Observation(
        id=UUID(int=number),
        observed_at=BIRTH + timedelta(minutes=10 * number),
        hardware=hardware,
        model=model,
        engine=engine or Engine(name=EngineName.SGLANG, version="0.5.12"),
        outcome=outcome,
        flags=flags,
        measurements=Measurements(
            pool_tokens=pool_tokens,
            free_at_ready_gib=free_at_ready_gib,
            free_at_pool_end_gib=free_at_pool_end_gib,
            startup_seconds=startup_seconds,
        ),
        failure=failure,
        verifications=verifications,
    )


def kimi_flags(fraction: float, requests: int, **more: Scalar) -> dict[str, Scalar]:
    """Return the flags of the worked case."""
    return {
        "mem_fraction_static": fraction,
        "context_length": 200000,
        "max_running_requests": requests,
        "tp_size": 8,
        "chunked_prefill_size": 8192,
        "speculative_algorithm": "DFLASH",
        **more,
    }


DOG = Verification(
    prompt_tokens=60010,
    completion_tokens=4,
    elapsed_seconds=45.9,
    passed=True,
    answer_expected="Dog.",
    answer_received="Dog.",
)


def worked_starts() -> list[Observation]:
    """Return starts 1 to 3 of the worked case, newest first."""
    first = start(
        1,
        kimi_flags(0.85, 64),
        pool_tokens=101134,
        free_at_ready_gib=10.37,
        free_at_pool_end_gib=10.37,
        startup_seconds=360,
    )
    second = start(2, kimi_flags(0.92, 8), pool_tokens=192406, free_at_ready_gib=6.1, startup_seconds=360)
    third = start(
        3,
        kimi_flags(0.94, 8),
        pool_tokens=218484,
        free_at_ready_gib=4.2,
        startup_seconds=360,
        verifications=(DOG,),
    )
    return [third, second, first]
