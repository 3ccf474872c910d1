"""The examples of the OpenAPI document, played against the service; run as a program, it records the answers anew.

What the service makes itself (ids, times, its version) differs each time: a recorded answer keeps the old ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import structlog
from litestar.testing import TestClient

from _storages import fresh_storage
from kvyield_server import __version__
from kvyield_server.api import openapi
from kvyield_server.api.router import API
from kvyield_server.app import create_app
from kvyield_server.settings import Settings

FILE = Path(openapi.__file__).with_name("examples.json")
REQUEST_ID = "0197b0a0-request"
UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)"
MADE = re.compile(f"{UUID}|{TIME}|{re.escape(__version__)}")
PARQUET, PARQUET_BEGINS = "application/vnd.apache.parquet", "PAR1"  # the example of a binary file is its first bytes
EXCERPT = "metrics"  # whose example is some lines of the answer
EXCERPTED = ("kvyield_observations_total", "kvyield_writer_queue", "kvyield_database_up")
DOCUMENT = openapi.document(API)
WHERE = {
    operation["operationId"]: (method, path)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}
Step = dict[str, Any]


class Played(NamedTuple):
    """A step of the examples, what was really answered, and that answer as it would be recorded."""

    step: Step
    response: httpx.Response
    answer: Any


def play(steps: list[Step]) -> Iterator[Played]:
    """Send the requests in their order to a service with an empty ledger."""
    ids: dict[str, str] = {}
    with TestClient(create_app(Settings(), fresh_storage())) as client:
        for step in steps:
            method, path = WHERE[step["operation"]]
            asked = _replaced(step, ids)
            response = client.request(
                method,
                path.format(**asked.get("path", {})),
                params=asked.get("query"),
                json=asked.get("body"),
                headers={"X-Request-Id": REQUEST_ID},
            )
            answer = _answer(response)
            _learn(step.get("answer"), answer, ids)
            names = {actual: recorded for recorded, actual in ids.items()}
            yield Played(step, response, _settled(step.get("answer"), _replaced(answer, names)))


def expected(played: Played) -> Any:
    """Return what the example says, comparable with the answer."""
    example = played.step.get("answer")
    if played.step["operation"] == EXCERPT:
        return played.answer if set(example.splitlines()) <= set(played.answer.splitlines()) else example
    return example


def record(steps: list[Step]) -> list[Step]:
    """Return the steps with the answers that they have now."""
    recorded = []
    for step, response, answer in play(steps):
        media_type = response.headers.get("content-type", "").partition(";")[0]
        if response.status_code != step.get("status", response.status_code):
            raise SystemExit(
                f"{step['operation']} is answered {response.status_code}, not {step['status']} as recorded: correct "
                "the service, or the recorded status by hand where the change is intended"
            )
        said = {"status": response.status_code}
        if response.content:
            text = "\n".join(_excerpt(answer)) if step["operation"] == EXCERPT else answer
            said |= {"media_type": media_type, "answer": text}
        recorded.append(
            {**{name: step[name] for name in ("operation", "path", "query", "body") if name in step}, **said}
        )
    return recorded


def _excerpt(metrics: str) -> list[str]:
    return [line for line in metrics.splitlines() if line.removeprefix("# HELP ").startswith(EXCERPTED)]


def _answer(response: httpx.Response) -> Any:
    kind = response.headers.get("content-type", "")
    if kind == PARQUET:
        return response.content[: len(PARQUET_BEGINS)].decode()
    is_json = response.content and "json" in kind and "ndjson" not in kind
    return response.json() if is_json else response.text


def _replaced(value: Any, ids: dict[str, str]) -> Any:
    """Return a value with ids in it replaced, in texts too."""
    if isinstance(value, dict):
        return {name: _replaced(item, ids) for name, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, ids) for item in value]
    return re.sub(UUID, lambda found: ids.get(found[0], found[0]), value) if isinstance(value, str) else value


def _learn(example: Any, answer: Any, ids: dict[str, str]) -> None:
    """Note which id of the answer is which of the example."""
    if isinstance(example, dict) and isinstance(answer, dict):
        for name in example.keys() & answer.keys():
            _learn(example[name], answer[name], ids)
    elif isinstance(example, list) and isinstance(answer, list):
        for one, other in zip(example, answer, strict=False):
            _learn(one, other, ids)
    elif isinstance(example, str) and isinstance(answer, str) and re.fullmatch(UUID, example):
        ids.setdefault(example, answer)


def _settled(example: Any, answer: Any) -> Any:
    """Return an answer with what the service makes itself as the example has it, where both have it."""
    if isinstance(example, dict) and isinstance(answer, dict):
        return {name: _settled(example.get(name), item) for name, item in answer.items()}
    if isinstance(example, list) and isinstance(answer, list):
        known = [*example, *[None] * len(answer)]
        return [_settled(one, other) for one, other in zip(known, answer, strict=False)]
    if isinstance(example, str) and isinstance(answer, str) and MADE.sub("", example) == MADE.sub("", answer):
        return example
    return answer


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    steps = record(openapi.examples())
    FILE.write_text(json.dumps(steps, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(steps)} examples are recorded in {FILE.name}.")
