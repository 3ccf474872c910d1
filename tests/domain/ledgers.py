"""Small ledgers written by hand: starts of one deployment whose true line is known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from kvyield_server.domain.answers import Advice
from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
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

NAMESPACE = UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
EPOCH = datetime(2026, 6, 1, tzinfo=UTC)
H100S = Hardware(gpu="NVIDIA H100 80GB HBM3", gpu_count=8, memory_gib=79.65, unified_memory=False)
SGLANG = Engine(name=EngineName.SGLANG, version="0.5.12")
VLLM = Engine(name=EngineName.VLLM, version="0.20.0")
PLAIN = Model(name="example/model")
GROUPED = Model(name="example/Qwen-400B")
"""A model whose name tells that its attention is plain, which that of the other leaves open."""
TP8: dict[str, Any] = {
    "tp_size": 8,
    "context_length": 1_048_576,
    "max_running_requests": 64,
    "chunked_prefill_size": 8192,
}
SLOPE, ZERO = 1_300_000, 0.5


def pool_at(fraction: float) -> int:
    """Return the pool of the true line, tokens."""
    return round(SLOPE * (fraction - ZERO))


def start(
    number: int,
    fraction: float | None,
    pool: int | None = None,
    free: float | None = None,
    *,
    outcome: str = "ready",
    hardware: Hardware = H100S,
    model: Model = PLAIN,
    engine: Engine = SGLANG,
    flags: dict[str, Any] | None = None,
    failure: Failure | None = None,
    checks: Sequence[Verification] = (),
    **measured: Any,
) -> Observation:
    """Return the start with this number; higher numbers are later, an hour each. Flags are added to eight GPUs' own."""
    own = {FRACTION_FLAG[engine.name]: fraction} if fraction is not None else {}
    base = TP8 if engine.name is EngineName.SGLANG else {}
    is_failed = outcome not in ("ready", "oom_runtime")
    serving = Failure(phase=Phase.SERVING) if outcome == "oom_runtime" else None
    return Observation(
        id=uuid5(NAMESPACE, f"{number}"),
        observed_at=EPOCH + timedelta(hours=number),
        hardware=hardware,
        model=model,
        engine=engine,
        flags={**base, **own, **(flags or {})},
        outcome=Outcome(outcome),
        measurements=Measurements(pool_tokens=pool, free_at_ready_gib=free, **measured),
        failure=failure or (Failure(phase=Phase.POOL) if is_failed else serving),
        verifications=tuple(checks),
    )


def on_line(number: int, fraction: float, **more: Any) -> Observation:
    """Return a ready start on the true line, free memory 7.0 GiB at 0.90 and 80 GiB less per 1.0."""
    return start(number, fraction, pool_at(fraction), round(7.0 - 80.0 * (fraction - 0.90), 2), **more)


def passed(prompt_tokens: int, before: float | None = None, lowest: float | None = None, **more: Any) -> Verification:
    """Return a verification that was served."""
    return Verification(
        prompt_tokens=prompt_tokens, passed=True, free_before_gib=before, lowest_free_gib=lowest, **more
    )


def unserved(prompt_tokens: int, error: str = "no answer within 420 s", **more: Any) -> Verification:
    """Return a verification that was not served."""
    return Verification(prompt_tokens=prompt_tokens, passed=False, error=error, **more)


def advised_fraction(advice: Advice) -> float:
    """Return the fraction that the advice states."""
    value = advice.flags.get(FRACTION_FLAG[advice.engine])
    assert isinstance(value, int | float), advice.explanation
    return float(value)


def is_kept(advice: Advice, fraction: float) -> bool:
    """Return whether the answer is to leave what runs at this fraction as it is."""
    runs = advice.flags.get(FRACTION_FLAG[advice.engine]) == fraction and advice.changes == ()
    needs_none = advice.restarts is None or advice.restarts.expected == 0
    return runs and needs_none and advice.command_line != "" and advice.status.value in ("ok", "at_risk")


def words(advice: Advice) -> str:
    """Return all that the answer says, in lower case."""
    parts = [advice.explanation, *(warning.detail for warning in advice.warnings), *(c.reason for c in advice.changes)]
    return " ".join(parts).lower()


def codes(advice: Advice) -> set[str]:
    """Return the codes of the answer's warnings."""
    return {warning.code for warning in advice.warnings}
