"""Free memory and prompts of real starts on one H200, as observations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from domain.real_starts import DATA, H200, observe
from kvyield_server.domain.facts.observation import Engine, EngineName, Model, Observation, Verification


@lru_cache(maxsize=1)
def measured_starts() -> dict[str, Observation]:
    """Return every measured start by its name, without its prompts."""
    return {row["id"]: _observed(position, row) for position, row in enumerate(_rows())}


@lru_cache(maxsize=1)
def measured_prompts() -> dict[str, tuple[Verification, ...]]:
    """Return the prompts that were sent to a start, in the order sent, by the start's name."""
    return {row["id"]: tuple(_prompt(each) for each in row["prompts"]) for row in _rows() if "prompts" in row}


def ladder(model: str, engine: str = "sglang") -> list[Observation]:
    """Return the starts that differ in the fraction alone, graphs off, one per fraction, by rising fraction."""
    plain = {"c6_sgl_q8_f", "c7_sgl_q8_fine", "c6_sgl_mla_f", "c7_sgl_mla_f", "c4_vllm_q8_f", "c8_vllm_q8_f"}
    chosen: dict[float, Observation] = {}
    for name, start in measured_starts().items():
        if name.rstrip("0123456789.") in plain and start.model.name == model and start.engine.name == engine:
            chosen.setdefault(start.fraction or 0.0, start)
    return [chosen[fraction] for fraction in sorted(chosen)]


def in_full(model: str, engine: str) -> list[Observation]:
    """Return all starts of a model with what they leave out stated as off, as a log's full line of arguments does.

    The record keeps given flags alone; one that is missing would be taken as whatever the newest start has.
    """
    same = [start for start in measured_starts().values() if start.model.name == model and start.engine.name == engine]
    off = {**dict.fromkeys(name for start in same for name in start.flags), "kv_cache_dtype": "auto"}
    return [replace(start, flags={**off, **start.flags}) for start in same]


def _rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "h200_memory.jsonl").read_text().splitlines()]


@lru_cache(maxsize=1)
def _facts() -> Mapping[str, Mapping[str, Any]]:
    facts: Mapping[str, Mapping[str, Any]] = json.loads((DATA / "models.json").read_text())
    return facts


def _observed(position: int, row: Mapping[str, Any]) -> Observation:
    figures = {key: value for key, value in row.items() if key.endswith(("_gib", "_tokens"))}
    return observe(
        row["id"],
        position,
        hardware=H200,
        model=Model(name=row["model"], facts=_facts()[row["model"]]),
        engine=Engine(name=EngineName(row["engine"]), version=row["version"]),
        flags=row["flags"],
        **figures,
    )


def _prompt(row: Mapping[str, Any]) -> Verification:
    return Verification(
        prompt_tokens=row["tokens"],
        passed=True,
        elapsed_seconds=row["seconds"],
        free_before_gib=row["before"],
        lowest_free_gib=row["lowest"],
    )
