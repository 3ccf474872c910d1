"""What a reader found out about one engine start, each value with the line or endpoint that it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Scalar = None | bool | int | float | str
EngineName = Literal["sglang", "vllm", "tensorrt-llm", "lmdeploy"]
Outcome = Literal["ready", "refused", "oom_startup", "oom_runtime", "failed", "unfinished"]
Phase = Literal["load", "pool", "graph_capture", "serving", "unknown"]


@dataclass(frozen=True)
class Sourced:
    """A value and where it came from: ``line 12: <text>``, ``default`` or ``GET /server_info``."""

    value: Scalar
    source: str


@dataclass
class Start:
    """One engine start as far as the sources told. What they did not tell is absent, never guessed.

    ``flags`` uses the engine's own names, resolved; a value of None is a flag known to be off. ``measurements``
    and ``failure`` use the wire's names (``pool_tokens``, ``free_at_ready_gib``, ``phase``...). The outcome
    ``unfinished`` never goes to the service: the source ends before the engine was ready or had failed. ``facts``
    holds what is not a flag: ``model_name``, ``model_revision``, ``engine_version``, ``engine_variant``, ``gpu``,
    ``gpu_count``, ``gpu_memory_gib``, ``host`` and anything a later reader needs. ``zone`` is the one that
    ``observed_at`` was taken in where the log's stamps name none. ``process`` tells where ``observed_at`` comes from
    when it is the start of the process, up to minutes before its log's first line."""

    engine: EngineName
    outcome: Outcome
    flags: dict[str, Sourced] = field(default_factory=dict)
    measurements: dict[str, Sourced] = field(default_factory=dict)
    failure: dict[str, Sourced] = field(default_factory=dict)
    facts: dict[str, Sourced] = field(default_factory=dict)
    model_facts: Mapping[str, object] = field(default_factory=dict)
    observed_at: datetime | None = None
    zone: str | None = None
    process: str | None = None
    contradictions: list[str] = field(default_factory=list)
    excerpt: list[str] = field(default_factory=list)
