"""Small values that the storage tests are written with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from kvyield_server.domain.answers import (
    Advice,
    AdvicePrediction,
    Basis,
    BasisKind,
    Caution,
    Change,
    Estimate,
    Headline,
    HeadlineCode,
    Lever,
    Prefer,
    Probability,
    Question,
    RestartPlan,
    Status,
    Window,
)
from kvyield_server.domain.facts.observation import (
    Answer,
    Cause,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Phase,
    Verification,
)
from kvyield_server.domain.records import StoredObservation, StoredRecommendation
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import new_id, utc_now

NOON = datetime(2026, 5, 30, 12, 0, 0, 123456, tzinfo=UTC)
HARDWARE = Hardware(gpu="RTX PRO 6000", gpu_count=8)
MODEL = Model(name="moonshotai/Kimi-K2.6")


def minutes(count: float) -> datetime:
    """Return a time that many minutes after noon."""
    return NOON + timedelta(minutes=count)


def start(at: datetime = NOON, **fields: Any) -> Observation:
    """Return an observation of the sample pair; ``fields`` replace or add."""
    defaults: dict[str, Any] = {
        "id": new_id(),
        "observed_at": at,
        "hardware": HARDWARE,
        "model": MODEL,
        "engine": Engine(name=EngineName.SGLANG, version="0.5.12"),
        "outcome": Outcome.READY,
        "flags": {"mem_fraction_static": 0.92, "tp_size": 8},
        "measurements": Measurements(pool_tokens=192406),
    }
    return Observation(**defaults | fields)


def full_start() -> Observation:
    """Return an observation in which every field holds something."""
    return start(
        hardware=Hardware(gpu="GB10", gpu_count=1, memory_gib=119.25, unified_memory=True, driver_memory_gib=119.7),
        model=Model(name="org/model", revision="abc", facts={"layers": 61, "types": ["full", "sliding"], "scale": 0.5}),
        engine=Engine(name=EngineName.VLLM, version="0.11", variant="fork"),
        outcome=Outcome.OOM_RUNTIME,
        flags={"gpu_memory_utilization": 0.9, "enforce_eager": True, "speculative": None, "kv_cache_dtype": "auto"},
        measurements=Measurements(
            pool_tokens=1,
            free_at_ready_gib=2.0,
            free_at_pool_end_gib=3.5,
            free_before_load_gib=4.0,
            free_after_load_gib=5.0,
            kv_cache_gib=6.0,
            draft_kv_cache_gib=0.28,
            weights_gib=7.0,
            graph_gib=0.1,
            device_memory_gib=119.25,
            startup_seconds=360.0,
            uncapped_pool_tokens=2,
            swa_pool_tokens=3,
            longest_prompt_tokens=4,
            draft_weights_gib=1.5,
            fitted_max_model_len=5,
        ),
        failure=Failure(
            phase=Phase.SERVING,
            message="out of memory — é",
            minimum_fraction=0.7,
            prompt_tokens=60010,
            available_kv_cache_gib=-0.5,
            cause=Cause.GPU_MEMORY,
            wanted_gib=1.0,
            free_gib=0.5,
            needed_gib=2.0,
            longest_tokens=4096,
            rank=3,
        ),
        verifications=(
            Verification(
                prompt_tokens=60010,
                passed=True,
                completion_tokens=4,
                cached_tokens=0,
                elapsed_seconds=45.9,
                time_to_first_token_seconds=44.0,
                answer_expected="Dog",
                answer_received="Dog.",
                lowest_free_gib=3.0,
                free_before_gib=4.2,
                concurrent=1,
                memory_samples=459,
                error="none",
                answer=Answer.RIGHT,
            ),
        ),
        host="gpu-01",
        source="log",
        recommendation_id=new_id(),
        log_excerpt="line one\nline two\t'quoted' \\u0000",
    )


def recording(observation: Observation, digest: str | None = None, **options: Any) -> Callable[[UnitOfWork], UUID]:
    """Return a job that stores the observation as it is and returns its pair's id."""

    def job(unit: UnitOfWork) -> UUID:
        pair = unit.pairs.ensure(observation.hardware, observation.model)
        stored = StoredObservation(
            observation=observation,
            pair_id=pair.id,
            content_digest=digest or str(observation.id),
            **{"received_at": utc_now(), **options},
        )
        unit.observations.add([stored], [pair])
        return pair.id

    return job


def recommendation(pair_id: UUID | None = None, made_at: datetime = NOON) -> StoredRecommendation:
    """Return an answer with something in every field."""
    estimate = Estimate(median=200225.0, low=200144.0, high=200306.0)
    advice = Advice(
        status=Status.AT_RISK,
        engine=EngineName.SGLANG,
        flags={"mem_fraction_static": 0.926, "context_length": 200007, "speculative_algorithm": None},
        command_line="--mem-fraction-static 0.926 --context-length 200007",
        changes=(Change(flag="mem_fraction_static", from_value=0.94, to_value=0.926, reason="enough"),),
        prediction=AdvicePrediction(
            pool_tokens=estimate, quantiles={"pool_tokens": ((0.05, 200144.0), (0.5, 200225.0))}
        ),
        probability=Probability(pool=0.999, memory=0.84, joint=0.84),
        window=Window(lowest=0.926, highest=0.94),
        restarts=RestartPlan(expected=1.2, minutes=7.2, minutes_each=6.0),
        verification_seconds=153.0,
        basis=Basis(kind=BasisKind.SEVERAL_STARTS, deployment="tp8", verified_prompt_tokens=60010),
        alternatives=(Lever(flags={"kv_cache_dtype": "fp8"}, gain_tokens=5, gain_gib=0.5, joint=0.9, cost="accuracy"),),
        warnings=(Caution(code="context_length_does_not_grow_pool", detail="It does not."),),
        explanation="Because.",
        headline=Headline(code=HeadlineCode.AT_RISK, estimate=False, text="Restart with 0.926, then verify."),
    )
    return StoredRecommendation(
        id=new_id(),
        made_at=made_at,
        pair_id=pair_id,
        question=Question(target_tokens=200000, flags={"max_running_requests": 8}, prefer=Prefer.POOL),
        advice=advice,
        selector={"gpu": "RTX PRO 6000", "like": None},
    )
