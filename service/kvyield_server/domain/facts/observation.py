"""What was recorded of one engine start: the value types that every layer shares.

Units are in the names. ``gib`` is 2^30 bytes, which is what SGLang and vLLM print as "GB" or "GiB".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from uuid import UUID

Scalar = None | bool | int | float | str
Flags = Mapping[str, Scalar]
"""The engine's own flag names, as resolved. A key with None is known to be off; a missing key is unknown."""

Facts = Mapping[str, object]
"""Fields of the model's own ``config.json``, as far as they are known (numbers, strings, lists of them)."""

LARGEST_FRACTION = 1e9
"""LMDeploy's flag may be a count of blocks; nothing beyond this is a fraction or a count."""

NOTHING: Mapping[str, Scalar] = MappingProxyType({})


class EngineName(StrEnum):
    """The engines whose logs and arithmetic kvyield knows."""

    SGLANG = "sglang"
    VLLM = "vllm"
    TENSORRT_LLM = "tensorrt-llm"
    LMDEPLOY = "lmdeploy"


FRACTION_FLAG: Mapping[EngineName, str] = MappingProxyType(
    {
        EngineName.SGLANG: "mem_fraction_static",
        EngineName.VLLM: "gpu_memory_utilization",
        EngineName.TENSORRT_LLM: "free_gpu_memory_fraction",
        EngineName.LMDEPLOY: "cache_max_entry_count",
    }
)

NO_MEMORY_FLAGS = frozenset(
    (
        *("host", "port", "nccl_port", "dist_init_addr", "master_port", "random_seed", "seed"),
        *("served_model_name", "log_level", "log_level_http", "uvicorn_log_level", "log_requests", "enable_metrics"),
        *("decode_log_interval", "enable_cache_report", "watchdog_timeout", "tool_call_parser", "reasoning_parser"),
    )
)
"""Flags that name, seed, report or address a server: two starts that differ in these alone are alike to the memory."""


class Outcome(StrEnum):
    """How a start ended: `ready`; `refused`, the engine said no before or at the pool; `oom_startup` and `oom_runtime`,
    out of GPU memory before and after it was ready; `failed` for another reason."""

    READY = "ready"
    REFUSED = "refused"
    OOM_STARTUP = "oom_startup"
    OOM_RUNTIME = "oom_runtime"
    FAILED = "failed"


class Phase(StrEnum):
    """Where in its life a start failed: while it loaded weights, sized the pool, captured graphs or served."""

    LOAD = "load"
    POOL = "pool"
    GRAPH_CAPTURE = "graph_capture"
    SERVING = "serving"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """GPU model times count. ``gpu`` carries the MIG profile when there is one; the rest are attributes.

    ``memory_gib`` is the total of one GPU that the framework sees, ``driver_memory_gib`` the driver's.
    """

    gpu: str
    gpu_count: int
    memory_gib: float | None = None
    unified_memory: bool | None = None
    driver_memory_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    revision: str | None = None
    facts: Facts = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    name: EngineName
    version: str | None = None
    variant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What the engine logged. All memory figures are GiB and the minimum over ranks, except where the field says more.

    ``weights_gib`` and ``graph_gib``, which are taken and not left, are the largest over ranks.
    ``free_before_load_gib`` is T and ``free_after_load_gib`` is A of the yield model. ``pool_tokens`` is per
    data-parallel rank. ``free_at_pool_end_gib`` was read before graphs were captured: an upper bound of free at ready.
    ``uncapped_pool_tokens`` is what the engine counted before a flag capped the pool; ``swa_pool_tokens`` the
    sliding-window pool beside it. ``longest_prompt_tokens`` is an input limit that the engine printed;
    ``fitted_max_model_len`` the context length that vLLM fitted to the pool when asked to.
    """

    pool_tokens: int | None = None
    free_at_ready_gib: float | None = None
    free_at_pool_end_gib: float | None = None
    free_before_load_gib: float | None = None
    free_after_load_gib: float | None = None
    kv_cache_gib: float | None = None
    draft_kv_cache_gib: float | None = None
    weights_gib: float | None = None
    graph_gib: float | None = None
    device_memory_gib: float | None = None
    startup_seconds: float | None = None
    uncapped_pool_tokens: int | None = None
    swa_pool_tokens: int | None = None
    longest_prompt_tokens: int | None = None
    draft_weights_gib: float | None = None
    fitted_max_model_len: int | None = None


class Cause(StrEnum):
    """Why a start failed: the memory of the GPU or of the host, killed from outside, or an error of the engine."""

    GPU_MEMORY = "gpu_memory"
    HOST_MEMORY = "host_memory"
    KILLED = "killed"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a start failed, in the engine's own words, with the evidence that the words hold.

    ``minimum_fraction`` is SGLang's "minimum viable" (the zero crossing f0). ``prompt_tokens`` is the longest prompt in
    flight at a run-time OOM. ``available_kv_cache_gib`` is what vLLM says it had when it refused, ``needed_gib`` what
    it needed and ``longest_tokens`` the longest context that would have fitted. ``wanted_gib`` is the allocation that
    failed and ``free_gib`` what was free then; ``rank`` is the rank whose figures these are.
    """

    phase: Phase = Phase.UNKNOWN
    message: str | None = None
    minimum_fraction: float | None = None
    prompt_tokens: int | None = None
    available_kv_cache_gib: float | None = None
    cause: Cause | None = None
    wanted_gib: float | None = None
    free_gib: float | None = None
    needed_gib: float | None = None
    longest_tokens: int | None = None
    rank: int | None = None


class Answer(StrEnum):
    """What the check of a verification's answer found."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A long prompt sent to the running server; ``lowest_free_gib`` is the lowest over all GPUs meanwhile.

    ``passed`` says that the whole prompt was served without an error, ``answer`` whether the answer was right.
    """

    prompt_tokens: int
    passed: bool
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    elapsed_seconds: float | None = None
    time_to_first_token_seconds: float | None = None
    answer_expected: str | None = None
    answer_received: str | None = None
    lowest_free_gib: float | None = None
    free_before_gib: float | None = None
    concurrent: int | None = None
    memory_samples: int | None = None
    error: str | None = None
    answer: Answer | None = None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One engine start. ``source`` is log, endpoint, import or manual; times are UTC."""

    id: UUID
    observed_at: datetime
    hardware: Hardware
    model: Model
    engine: Engine
    outcome: Outcome
    flags: Flags = field(default_factory=lambda: NOTHING)
    measurements: Measurements = field(default_factory=Measurements)
    failure: Failure | None = None
    verifications: tuple[Verification, ...] = ()
    host: str | None = None
    source: str | None = None
    recommendation_id: UUID | None = None
    log_excerpt: str | None = None

    @property
    def came_up(self) -> bool:
        """Whether the engine became ready, even if it crashed later while serving."""
        died_serving = self.failure is not None and self.failure.phase is Phase.SERVING
        return self.outcome in (Outcome.READY, Outcome.OOM_RUNTIME) or (self.outcome is Outcome.FAILED and died_serving)

    @property
    def death(self) -> Outcome | None:
        """How GPU memory ran out: at start-up or while serving, also where the outcome says only that it failed."""
        if self.outcome in (Outcome.OOM_STARTUP, Outcome.OOM_RUNTIME):
            return self.outcome
        if self.outcome is not Outcome.FAILED or self.failure is None or self.failure.cause is not Cause.GPU_MEMORY:
            return None
        return Outcome.OOM_RUNTIME if self.failure.phase is Phase.SERVING else Outcome.OOM_STARTUP

    @cached_property
    def fraction(self) -> float | None:
        """The value of the engine's pool flag, as the engine resolved it; None where it is not a usable number."""
        value = self.flags.get(FRACTION_FLAG[self.engine.name])
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if abs(value) < LARGEST_FRACTION else None
