"""Starts to store, as kvyield and as MLflow keep them; no two numbers give the same one."""

from __future__ import annotations

import json
import time

from api.samples import start
from bench.clients import Connection

ITEMS = 250
MODELS = 16


def body(number: int, *, prefix: str = "gpu") -> bytes:
    """Return a start that no other number has, spread over 16 pairs."""
    changed = start(id=None, host=f"{prefix}-{number}", model={"name": f"model-{number % MODELS}"})
    return json.dumps({key: value for key, value in changed.items() if value is not None}).encode()


async def post_one(connection: Connection, number: int) -> bool:
    """Post one start."""
    status, _ = await connection.send("POST", "/observations", body(number))
    return status == 201


async def post_batch(connection: Connection, number: int) -> bool:
    """Post a batch, and take it for stored only when every item says so."""
    items = b",".join(body(number * ITEMS + item, prefix="batched") for item in range(ITEMS))
    status, answer = await connection.send("POST", "/observations/batch", b'{"observations":[' + items + b"]}")
    return status == 200 and answer.count(b'"status":201') == ITEMS


async def log_run(connection: Connection, number: int) -> bool:
    """Keep a start as a run: created with its tags, then one batch of its flags and measurements."""
    facts = start(host=f"gpu-{number}", model={"name": f"model-{number % MODELS}"})
    now = int(time.time() * 1000)
    tags = {"gpu": facts["hardware"]["gpu"], "gpu_count": "8", "model": facts["model"]["name"], "host": facts["host"]}
    tags |= {"engine": "sglang", "engine_version": "0.5.12", "outcome": facts["outcome"]}
    created = {"experiment_id": "0", "start_time": now, "run_name": facts["host"], "tags": _pairs(tags)}
    status, answer = await connection.send("POST", "/api/2.0/mlflow/runs/create", json.dumps(created).encode())
    if status != 200:
        return False
    run = json.loads(answer)["run"]["info"]["run_id"]
    measured = {key: value for key, value in facts["measurements"].items() if value is not None}
    metrics = [{"key": key, "value": value, "timestamp": now, "step": 0} for key, value in measured.items()]
    batch = {"run_id": run, "metrics": metrics, "params": _pairs(facts["flags"])}
    status, _ = await connection.send("POST", "/api/2.0/mlflow/runs/log-batch", json.dumps(batch).encode())
    return status == 200


def _pairs(values: dict[str, object]) -> list[dict[str, str]]:
    return [{"key": key, "value": str(value)} for key, value in values.items()]
