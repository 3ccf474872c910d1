"""What a client sends, as strict structs: unknown fields are refused.

Names, units and optionality are those of the API. Times are aware and UTC; ``_gib`` is 2^30 bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct, field

Scalar = None | bool | int | float | str
EngineName = Literal["sglang", "vllm", "tensorrt-llm", "lmdeploy"]
OutcomeName = Literal["ready", "refused", "oom_startup", "oom_runtime", "failed"]
PhaseName = Literal["load", "pool", "graph_capture", "serving", "unknown"]
AnswerName = Literal["right", "wrong", "not_checked"]
PreferName = Literal["keep", "headroom", "pool"]
CauseName = Literal["gpu_memory", "host_memory", "killed", "error"]
Moment = Annotated[datetime, Meta(tz=True)]
Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Tokens = Annotated[int, Meta(ge=0)]
Gib = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class Sent(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of what a client sends."""


class Hardware(Sent, kw_only=True):
    """GPU model, with its MIG profile, times count. ``memory_gib`` is what the framework sees of one GPU."""

    gpu: Name
    gpu_count: Count
    memory_gib: Gib | None = None
    unified_memory: bool | None = None
    driver_memory_gib: Gib | None = None


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
    uncapped_pool_tokens: Tokens | None = None
    swa_pool_tokens: Tokens | None = None
    longest_prompt_tokens: Tokens | None = None
    draft_weights_gib: Gib | None = None
    fitted_max_model_len: Tokens | None = None


class Failure(Sent, kw_only=True):
    """How a start failed, with the evidence that the engine's words hold."""

    phase: PhaseName = "unknown"
    message: str | None = None
    minimum_fraction: float | None = None
    prompt_tokens: Tokens | None = None
    available_kv_cache_gib: float | None = None
    cause: CauseName | None = None
    wanted_gib: Gib | None = None
    free_gib: Gib | None = None
    needed_gib: Gib | None = None
    longest_tokens: Tokens | None = None
    rank: Tokens | None = None


class Verification(Sent, kw_only=True):
    """A long prompt sent to the running server; ``lowest_free_gib`` is the lowest over all GPUs meanwhile.

    ``passed`` says that the whole prompt was served without an error, ``answer`` whether the answer was right.
    """

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
    answer: AnswerName | None = None


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
    facts: dict[str, object] | None = None
    memory_gib: Gib | None = None
    unified_memory: bool | None = None


class Question(Selector, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What ``recommend`` asks; None means not said."""

    target_tokens: Count
    reply_tokens: Tokens | None = None
    concurrent: Count | None = None
    confidence: Annotated[float, Meta(gt=0, lt=1)] | None = None
    prompt_need_gib: Gib | None = None
    max_running_requests: Count | None = None
    kv_cache_dtype: str | None = None
    chunked_prefill_size: int | None = None
    prefer: PreferName | None = None
