"""Domain values made by hand for the view models."""

from __future__ import annotations

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
    EvidenceItem,
    FitSummary,
    Lever,
    Prediction,
    Probability,
    RestartPlan,
    Status,
    Window,
)
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
)
from kvyield_server.domain.records import StoredObservation
from kvyield_server.schemas.observations import ObservationOut, from_domain

NOON = datetime(2026, 5, 30, 12, tzinfo=UTC)
HARDWARE = Hardware(gpu="NVIDIA H200", gpu_count=8, memory_gib=139.72)
BASIS = Basis(
    kind=BasisKind.SEVERAL_STARTS, deployment="SGLang 0.5.12, TP 8", observation_ids=(UUID(int=1), UUID(int=2))
)


def observation(
    number: int = 1, fraction: float | None = 0.9, pool: int | None = 100_000, **changes: Any
) -> Observation:
    """Return a start with an id and a time made from its number."""
    flags = {} if fraction is None else {"mem_fraction_static": fraction}
    fields: dict[str, Any] = {
        "id": UUID(int=number),
        "observed_at": NOON + timedelta(minutes=number),
        "hardware": HARDWARE,
        "model": Model(name="org/model"),
        "engine": Engine(name=EngineName.SGLANG, version="0.5.12"),
        "outcome": Outcome.READY,
        "flags": {**flags, "max_running_requests": 8, "context_length": 200_000},
        "measurements": Measurements(pool_tokens=pool, free_at_ready_gib=5.5, startup_seconds=360),
    }
    return Observation(**{**fields, **changes})


def kept(start: Observation, **changes: Any) -> ObservationOut:
    """Return a start as the wire has it."""
    fields: dict[str, Any] = {"pair_id": UUID(int=9), "received_at": NOON, "content_digest": "0"}
    return from_domain(StoredObservation(observation=start, **{**fields, **changes}))


def summary(**changes: Any) -> FitSummary:
    """Return a fit that used the first start."""
    fields: dict[str, Any] = {
        "deployment": "SGLang 0.5.12, TP 8",
        "deployment_id": "abc",
        "engine": EngineName.SGLANG,
        "engine_version": "0.5.12",
        "parameters": {},
        "basis": BASIS,
        "evidence": (EvidenceItem(observation_id=UUID(int=1), use="point", reason="a start that became ready"),),
        "labels": (),
    }
    return FitSummary(**{**fields, **changes})


def advice(**changes: Any) -> Advice:
    """Return the advice of the worked case."""
    fields: dict[str, Any] = {
        "status": Status.AT_RISK,
        "engine": EngineName.SGLANG,
        "flags": {"mem_fraction_static": 0.926, "context_length": 200_007},
        "command_line": "--mem-fraction-static 0.926 --context-length 200007",
        "changes": (Change(flag="mem_fraction_static", from_value=0.94, to_value=0.926, reason="It suffices."),),
        "prediction": AdvicePrediction(
            pool_tokens=Estimate(median=200_225, low=200_144, high=200_306),
            free_at_ready_gib=Estimate(median=5.5, low=5.2, high=5.8),
            headroom_gib=Estimate(median=2.5, low=-2.6, high=4.4),
        ),
        "probability": Probability(pool=0.9997, memory=0.84, joint=0.84),
        "window": None,
        "restarts": RestartPlan(expected=1.2, minutes=7.2, minutes_each=6.0),
        "verification_seconds": 153.0,
        "basis": BASIS,
        "alternatives": (
            Lever(flags={"max_running_requests": 4}, gain_tokens=0, gain_gib=0.12, joint=0.85, cost="slower"),
        ),
        "warnings": (Caution(code="nothing_verified", detail="Nothing was verified at this length."),),
        "explanation": "The pool is a straight line.",
    }
    return Advice(**{**fields, **changes})


def window(lowest: float, highest: float) -> Window:
    return Window(lowest=lowest, highest=highest)


def prediction(pool: float | None, free: float | None) -> Prediction:
    """Return a prediction with intervals of one per cent to both sides."""
    return Prediction(
        flags={},
        pool_tokens=_around(pool),
        kv_cache_gib=None,
        free_at_ready_gib=_around(free),
        basis=BASIS,
    )


def _around(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(median=value, low=value * 0.99, high=value * 1.01)
