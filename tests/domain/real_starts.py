"""Real starts as observations: one H200 measured in full, public cases, and the worked case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
)

DATA = Path(__file__).parent / "data"
NAMESPACE = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
EPOCH = datetime(2026, 5, 1, tzinfo=UTC)
H200 = Hardware(gpu="NVIDIA H200", gpu_count=1, memory_gib=140.4, unified_memory=False)
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
PRO_6000 = Hardware(
    gpu="NVIDIA RTX PRO 6000 Blackwell Workstation Edition", gpu_count=8, memory_gib=95.59, unified_memory=False
)
KIMI_SLOPE, KIMI_ZERO = 1_303_889.0, 0.77244


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def observe(
    name: str,
    position: int,
    *,
    hardware: Hardware,
    model: Model,
    engine: Engine,
    flags: Mapping[str, Any],
    outcome: str = "ready",
    **measured: Any,
) -> Observation:
    """Return an observation with an id from its name and a time from its position."""
    return Observation(
        id=uuid5(NAMESPACE, name),
        observed_at=EPOCH + timedelta(minutes=position),
        hardware=hardware,
        model=model,
        engine=engine,
        flags=dict(flags),
        outcome=Outcome(outcome),
        measurements=Measurements(**measured),
    )


@lru_cache(maxsize=1)
def h200_starts() -> dict[str, Observation]:
    """Return every measured H200 start by its name."""
    facts = json.loads((DATA / "models.json").read_text())
    starts = {}
    for position, row in enumerate(_lines("h200.jsonl")):
        starts[row["id"]] = observe(
            row["id"],
            position,
            hardware=H200,
            model=Model(name=row["model"], facts=facts[row["model"]]),
            engine=Engine(name=EngineName(row["engine"]), version=row["version"]),
            flags=row["flags"],
            outcome=row["outcome"],
            **row["measurements"],
        )
    return starts


def h200_ladder(model: str, engine: str = "sglang") -> list[Observation]:
    """Return the forked starts that differ in the fraction alone, one per fraction, by rising fraction."""
    plain = {"c6_sgl_q8_f", "c7_sgl_q8_fine", "c6_sgl_mla_f", "c7_sgl_mla_f", "c4_vllm_q8_f", "c8_vllm_q8_f"}
    chosen: dict[float, Observation] = {}
    for name, start in h200_starts().items():
        stem = name.rstrip("0123456789.")
        is_plain = stem in plain or name.endswith("fNone")
        if is_plain and start.model.name == model and start.engine.name == engine and start.measurements.pool_tokens:
            chosen.setdefault(start.fraction or 0.0, start)
    return [chosen[fraction] for fraction in sorted(chosen)]


@lru_cache(maxsize=1)
def case_groups() -> dict[str, tuple[Observation, ...]]:
    """Return the public cases by group: runs of one hardware, model and engine."""
    groups: dict[str, list[Observation]] = {}
    for position, row in enumerate(_lines("cases.jsonl")):
        hardware = Hardware(
            gpu=row.get("gpu", "unknown"), gpu_count=row.get("gpu_count", 1), memory_gib=row.get("memory_gib")
        )
        start = observe(
            row["id"],
            position,
            hardware=hardware,
            model=Model(name=row.get("model", row["group"])),
            engine=Engine(name=EngineName(row["engine"]), version=row.get("version"), variant=row.get("variant")),
            flags=row["flags"],
            outcome=row["outcome"],
            **row["measurements"],
        )
        groups.setdefault(row["group"], []).append(start)
    return {name: tuple(starts) for name, starts in groups.items()}


def worked_case() -> tuple[Observation, Observation, Observation]:
    """Return starts 1 to 3 of the deployment that the project grew from."""
    rows = ((0.85, 64, 101_134, 10.37), (0.92, 8, 192_406, 6.1), (0.94, 8, 218_484, 4.2))
    first, second, third = (
        observe(
            f"worked-{position}",
            position,
            hardware=PRO_6000,
            model=KIMI,
            engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
            flags={
                "mem_fraction_static": fraction,
                "context_length": 200_000,
                "max_running_requests": requests,
                "tp_size": 8,
                "chunked_prefill_size": 8192,
                "speculative_algorithm": "DFLASH",
            },
            pool_tokens=pool,
            free_at_ready_gib=free,
            startup_seconds=360.0,
        )
        for position, (fraction, requests, pool, free) in enumerate(rows, start=1)
    )
    return first, second, third
