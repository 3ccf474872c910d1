"""Starts of real HTTP servers on one H200, as the service stored them: SGLang 0.5.17 and vLLM 0.26.0, two models.

SGLang's log does not name its version. A start that came up and crashed later is there twice, as one ledger had it.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import uuid5

from domain.real_starts import DATA, NAMESPACE
from kvyield_server.domain.facts.observation import (
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


@lru_cache(maxsize=1)
def trial_starts() -> tuple[Observation, ...]:
    """Return every start, oldest first."""
    facts = json.loads((DATA / "models.json").read_text())
    rows = [json.loads(line) for line in (DATA / "trial.jsonl").read_text().splitlines()]
    return tuple(_observed(number, row, facts[row["model"]]) for number, row in enumerate(rows))


def of(model: str, engine: str) -> list[Observation]:
    """Return the starts of one model on one engine, oldest first."""
    return [start for start in trial_starts() if start.model.name == model and start.engine.name == engine]


def _observed(number: int, row: dict[str, Any], facts: dict[str, Any]) -> Observation:
    failure = row.get("failure")
    return Observation(
        id=uuid5(NAMESPACE, f"trial-{number}"),
        observed_at=datetime.fromisoformat(row["observed_at"].replace("Z", "+00:00")),
        hardware=Hardware(gpu="NVIDIA H200", gpu_count=1, memory_gib=row["memory_gib"], unified_memory=False),
        model=Model(name=row["model"], facts=facts),
        engine=Engine(name=EngineName(row["engine"]), version=row["version"]),
        outcome=Outcome(row["outcome"]),
        flags=row["flags"],
        measurements=Measurements(**row["measurements"]),
        failure=None if failure is None else Failure(**{**failure, "phase": Phase(failure["phase"])}),
        verifications=tuple(Verification(**check) for check in row["verifications"]),
    )
