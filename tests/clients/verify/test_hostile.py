"""Servers that answer anything at all: a verification always ends, and never raises."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvyield._engine_http import open_engine
from kvyield.verify import Order, verify

NAMES: tuple[str, ...] = (
    "data",
    "id",
    "max_model_len",
    "owned_by",
    "version",
    "mem_fraction_static",
    "max_total_num_tokens",
    "tp_size",
)
NAMES += ("count", "choices", "delta", "text", "usage", "prompt_tokens", "meta_info", "error", "message", "success")
SCALARS: tuple[object, ...] = (None, True, 0, -1, 1, 10**9, 1.5, "", "sglang", "vllm", "1234", [], {})


def anything(rng: random.Random, depth: int = 3) -> object:
    """A JSON value built of names that engines use."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(SCALARS)
    if rng.random() < 0.3:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {name: anything(rng, depth - 1) for name in rng.sample(NAMES, rng.randrange(1, 8))}


class Hostile(BaseHTTPRequestHandler):
    """Answers every request with a random status and body; ``rng`` decides."""

    rng = random.Random(0)

    def do_GET(self) -> None:
        """Random."""
        self._answer()

    def do_POST(self) -> None:
        """Random."""
        self.rfile.read(int(self.headers["content-length"] or 0))
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Keeps test output clean."""

    def _answer(self) -> None:
        rng = self.rng
        if self.path == "/v1/models" and rng.random() < 0.8:
            value: object = {
                "data": [{"id": "m", "owned_by": rng.choice(("vllm", "sglang", "x")), "max_model_len": 4096}]
            }
        else:
            value = anything(rng)
        streamed = rng.random() < 0.5
        body = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in (value, anything(rng)))
        self.send_response(rng.choice((200, 200, 200, 200, 404, 500)))
        self.send_header("content-type", "text/event-stream" if streamed else "application/json")
        self.end_headers()
        self.wfile.write(body if streamed else json.dumps(value).encode())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A hostile server."""
    with HTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_server_answers_a_verification_is_reported(url: str, seed: int) -> None:
    """Every answer ends in a verification that did not pass or did, with tokens that the wire takes."""
    Hostile.rng = random.Random(seed)
    with open_engine(url) as http:
        report = verify(http, Order(1_000, timeout_seconds=2, grace_seconds=0, seed=seed))
    assert report.results or report.refusal
    assert all(result.verification.prompt_tokens >= 0 for result in report.results)
    assert report.passed or report.refusal or report.results[-1].verification.error
