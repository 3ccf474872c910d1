"""The API's JSON as structs: what is sent is strict, what is received tolerates fields that a newer service adds.

Names, units and optionality are those of the API. Times are aware and UTC; ``_gib`` is 2^30 bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType, field

Scalar = None | bool | int | float | str
EngineName = Literal["sglang", "vllm", "tensorrt-llm", "lmdeploy"]
OutcomeName = Literal["ready", "refused", "oom_startup", "oom_runtime", "failed"]
PhaseName = Literal["load", "pool", "graph_capture", "serving", "unknown"]
Moment = Annotated[datetime, Meta(tz=True)]
Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Tokens = Annotated[int, Meta(ge=0)]
Gib = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class Sent(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of what a client sends."""


class Received(Struct, kw_only=True):
    """Base of what a service answers; unknown fields are tolerated."""


class Hardware(Sent, kw_only=True):
    """GPU model, with its MIG profile, times count."""

    gpu: Name
    gpu_count: Count
    memory_gib: Gib | None = None
    unified_memory: bool | None = None


class Model(Sent, kw_only=True):
    """A model by name; ``facts`` are fields of its own ``config.json``."""

    name: Name
    revision: str | None = None
    facts: dict[str, object] = field(default_factory=dict)


class Engine(Sent, kw_only=True):
    """The engine; a fork names its parent in ``name`` and itself in ``variant``."""

    name: EngineName
    version: str | None = None
    variant: str | None = None


class Measurements(Sent, kw_only=True):
    """What the engine logged: minima over ranks, except where the API says more."""

    pool_tokens: Tokens | None = None
    free_at_ready_gib: Gib | None = None
    free_at_pool_end_gib: Gib | None = None
    free_before_load_gib: Gib | None = None
    free_after_load_gib: Gib | None = None
    kv_cache_gib: Gib | None = None
    draft_kv_cache_gib: Gib | None = None
    weights_gib: Gib | None = None
    graph_gib: Gib | None = None
    device_memory_gib: Gib | None = None
    startup_seconds: Seconds | None = None


class Failure(Sent, kw_only=True):
    """How a start failed, with the evidence that the engine's words hold."""

    phase: PhaseName = "unknown"
    message: str | None = None
    minimum_fraction: float | None = None
    prompt_tokens: Tokens | None = None
    available_kv_cache_gib: float | None = None


class Verification(Sent, kw_only=True):
    """A long prompt sent to the running server; ``lowest_free_gib`` is the lowest over all cards meanwhile."""

    prompt_tokens: Tokens
    passed: bool
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    elapsed_seconds: Seconds | None = None
    time_to_first_token_seconds: Seconds | None = None
    answer_expected: str | None = None
    answer_received: str | None = None
    lowest_free_gib: Gib | None = None
    free_before_gib: Gib | None = None
    concurrent: Count | None = None
    memory_samples: Tokens | None = None
    error: str | None = None


class Observation(Sent, kw_only=True):
    """What was recorded of one engine start, as posted. Without an ``id`` or a time the service makes them."""

    id: UUID | None = None
    observed_at: Moment | None = None
    host: str | None = None
    source: str | None = None
    hardware: Hardware
    model: Model
    engine: Engine
    flags: dict[str, Scalar] = field(default_factory=dict)
    outcome: OutcomeName
    measurements: Measurements = field(default_factory=Measurements)
    failure: Failure | None = None
    verifications: list[Verification] = field(default_factory=list)
    recommendation_id: UUID | None = None
    log_excerpt: str | None = None


class Selector(Sent, kw_only=True, omit_defaults=True):
    """What a question is about: a pair by id, or hardware, model and engine by name."""

    pair_id: UUID | None = None
    gpu: str | None = None
    gpu_count: Count | None = None
    model: str | None = None
    engine: EngineName | None = None
    engine_version: str | None = None
    like: UUID | None = None
    facts: dict[str, object] | UnsetType = UNSET


class Question(Sent, kw_only=True, omit_defaults=True):
    """What ``recommend`` asks; None means not said."""

    target_tokens: Count
    pair_id: UUID | None = None
    gpu: str | None = None
    gpu_count: Count | None = None
    model: str | None = None
    engine: EngineName | None = None
    engine_version: str | None = None
    like: UUID | None = None
    reply_tokens: Tokens | None = None
    concurrent: Count | None = None
    max_running_requests: Count | None = None
    confidence: Annotated[float, Meta(gt=0, lt=1)] | None = None
    prompt_need_gib: Gib | None = None
    kv_cache_dtype: str | None = None
    chunked_prefill_size: int | None = None


class HardwareOut(Hardware, forbid_unknown_fields=False):
    """Hardware as the service tells it."""


class ModelOut(Model, forbid_unknown_fields=False):
    """A model as the service tells it."""


class EngineOut(Engine, forbid_unknown_fields=False):
    """An engine as the service tells it."""


class MeasurementsOut(Measurements, forbid_unknown_fields=False):
    """Measurements as the service tells them."""


class FailureOut(Failure, forbid_unknown_fields=False):
    """A failure as the service tells it."""


class VerificationOut(Verification, forbid_unknown_fields=False):
    """A verification as the service tells it."""


class StoredObservation(Observation, kw_only=True, forbid_unknown_fields=False):
    """An observation in the ledger."""

    hardware: HardwareOut
    model: ModelOut
    engine: EngineOut
    measurements: MeasurementsOut = field(default_factory=MeasurementsOut)
    failure: FailureOut | None = None
    verifications: list[VerificationOut] = field(default_factory=list)  # type: ignore[assignment]  # list is invariant
    pair_id: UUID | None = None
    received_at: datetime | None = None
    retracted_at: datetime | None = None
    retraction_reason: str | None = None


class Fault(Received, kw_only=True):
    """One fault of a refused body; ``pointer`` is a JSON pointer."""

    pointer: str = ""
    detail: str = ""


class Problem(Received, kw_only=True):
    """Why the service refused or failed (RFC 9457)."""

    type: str = "about:blank"
    title: str | None = None
    status: int | None = None
    detail: str | None = None
    instance: str | None = None
    errors: list[Fault] = field(default_factory=list)
    request_id: str | None = None


class BatchItem(Received, kw_only=True):
    """What became of one observation of a batch: 201 stored, 200 known already, else ``problem`` says why not."""

    index: int
    status: int
    id: UUID | None = None
    problem: Problem | None = None


class Estimate(Received, kw_only=True):
    """A median and a central interval that holds the truth with probability ``level``."""

    median: float
    low: float
    high: float
    level: float = 0.9


class Caution(Received, kw_only=True):
    """A first-class warning: a stable ``code`` and a sentence for people."""

    code: str
    detail: str = ""


class Basis(Received, kw_only=True):
    """What an answer stands on."""

    kind: str
    deployment: str | None = None
    observation_ids: list[UUID] = field(default_factory=list)
    verified_prompt_tokens: int | None = None


class Prediction(Received, kw_only=True):
    """Pool and free memory of one set of flags; an estimate is None when there is not enough evidence."""

    flags: dict[str, object] = field(default_factory=dict)
    pool_tokens: Estimate | None = None
    kv_cache_gib: Estimate | None = None
    free_at_ready_gib: Estimate | None = None
    basis: Basis | None = None
    warnings: list[Caution] = field(default_factory=list)


class Change(Received, kw_only=True, rename={"from_value": "from", "to_value": "to"}):
    """A flag that changes, and why."""

    flag: str
    from_value: object = None
    to_value: object = None
    reason: str = ""


class Probability(Received, kw_only=True):
    """Of the pool holding the target, of the memory sufficing, and of both."""

    pool: float | None = None
    memory: float | None = None
    joint: float | None = None


class Window(Received, kw_only=True):
    """The fractions that satisfy both conditions."""

    lowest: float
    highest: float


class RestartPlan(Received, kw_only=True):
    """How many restarts to expect and how long they take."""

    expected: float | None = None
    minutes: float | None = None
    minutes_each: float | None = None


class Lever(Received, kw_only=True):
    """A change of flags that gains pool or headroom, with what it is predicted to gain and what it costs."""

    flags: dict[str, object] = field(default_factory=dict)
    gain_tokens: float | None = None
    gain_gib: float | None = None
    joint: float | None = None
    cost: str | None = None


class AdvicePrediction(Received, kw_only=True):
    """What the advised flags are predicted to give."""

    pool_tokens: Estimate | None = None
    free_at_ready_gib: Estimate | None = None
    headroom_gib: Estimate | None = None


class Recommendation(Received, kw_only=True):
    """The answer to ``recommend``. ``status``: ok, at_risk, infeasible or not_enough_evidence."""

    status: str
    engine: str | None = None
    id: UUID | None = None
    flags: dict[str, object] = field(default_factory=dict)
    command_line: str | None = None
    changes: list[Change] = field(default_factory=list)
    prediction: AdvicePrediction | None = None
    probability: Probability | None = None
    window: Window | None = None
    restarts: RestartPlan | None = None
    verification_seconds: float | None = None
    basis: Basis | None = None
    alternatives: list[Lever] = field(default_factory=list)
    warnings: list[Caution] = field(default_factory=list)
    explanation: str | None = None
    binding_constraint: str | None = None


class Pair(Received, kw_only=True):
    """One hardware and one model."""

    id: UUID
    hardware: HardwareOut
    model: ModelOut
    observation_count: int | None = None
    last_observed_at: datetime | None = None
    engines: list[str] = field(default_factory=list)


class Fit(Received, kw_only=True):
    """One fitted deployment: parameters by name with unit, evidence used and set aside, labels."""

    deployment: str
    deployment_id: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    parameters: dict[str, Estimate | None] = field(default_factory=dict)
    basis: Basis | None = None
    evidence: list[dict[str, object]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    warnings: list[Caution] = field(default_factory=list)


class Health(Received, kw_only=True):
    """Whether the service can work: ``status`` and what was checked."""

    status: str = ""
    checks: dict[str, object] = field(default_factory=dict)
    version: str | None = None
