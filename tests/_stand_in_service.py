"""A small real HTTP server that keeps observations as kvyield's service does, and misbehaves when told to."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

PAIR = "01970000-0000-7000-8000-000000000001"
SILENT_SECONDS = 30.0


class StandIn(ThreadingHTTPServer):
    """``faults`` are used up one a request, then all is well. ``posts`` lists the ids that arrived."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: deque[Callable[[Handler], None]] = deque()
        self.stored: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.posts: list[str] = []
        self.advice: dict[str, Any] = {"status": "ok"}
        self.prediction: dict[str, Any] = {}
        self.settled: dict[str, str] = {}
        self.tokens: list[str | None] = []
        self.lock = threading.Lock()
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def by_id(self, observation_id: str) -> dict[str, Any] | None:
        """The observation that is stored under an id."""
        return next((one for one in list(self.stored.values()) if one["id"] == observation_id), None)

    def pairs(self) -> list[dict[str, Any]]:
        """The pair of each stored start, all under one id."""
        one = next(iter(self.stored.values()), None)
        return [{"id": PAIR, "hardware": one["hardware"], "model": one["model"]}] if one else []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are the point of these tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StandIn

    def log_message(self, format: str, *args: Any) -> None:
        """Keep test output clean."""

    def do_GET(self) -> None:
        self._handle(self._get)

    def do_POST(self) -> None:
        self._handle(self._post)

    def _handle(self, well: Callable[[], None]) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with self.server.lock:
            self.server.requests.append((self.command, self.path))
            self.server.tokens.append(self.headers.get("authorization"))
            fault = self.server.faults.popleft() if self.server.faults else None
        if fault is None:
            well()
        else:
            fault(self)

    def _get(self) -> None:
        if self.path.startswith("/health"):
            self.answer(200, {"status": "ready", "version": "0"})
        elif self.path.startswith("/observations/"):
            found = self.server.by_id(self.path.rpartition("/")[2])
            self.answer(200 if found else 404, found or {"title": "Not found", "status": 404})
        elif self.path.startswith("/pairs"):
            self.answer(200, {"items": self.server.pairs(), "next_page_token": None})
        elif self.path.startswith("/recommend?"):
            self.answer(200, self.server.advice)
        elif self.path.startswith("/observations"):
            asked = parse_qs(urlsplit(self.path).query)
            [host], [model] = asked.get("host", [None]), asked.get("model", [None])
            items = sorted(self.server.stored.values(), key=lambda one: str(one["id"]), reverse=True)
            items = [one for one in items if host is None or one.get("host") == host]
            items = [one for one in items if model is None or one["model"]["name"] == model]
            self.answer(200, {"items": items, "next_page_token": None})
        else:
            self.answer(404, {"title": "Not found", "status": 404, "detail": self.path}, "application/problem+json")

    def _post(self) -> None:
        if self.body == b"{}":
            self.answer(422, {"title": "Invalid", "status": 422, "detail": "fields are missing"})
        elif self.path == "/predictions":
            self.answer(200, {"items": [self.server.prediction for _ in json.loads(self.body)["flags"]]})
        elif self.path == "/observations":
            self.answer(*self.keep(json.loads(self.body)))
        elif self.path == "/observations/batch":
            results = [self.keep(one) for one in json.loads(self.body)["observations"]]
            items = [
                {"index": index, "status": status, **({"id": kept["id"]} if status < 300 else {"problem": kept})}
                for index, (status, kept) in enumerate(results)
            ]
            self.answer(200, {"items": items})
        elif self.path.endswith("/verifications"):
            found = self.server.by_id(self.path.split("/")[2])
            assert found is not None
            found["verifications"].append(json.loads(self.body))
            self.answer(201, found)
        elif self.path.endswith("/corrections"):
            found = self.server.by_id(self.path.split("/")[2])
            assert found is not None
            correction = json.loads(self.body)
            reason = correction.pop("reason")
            for part, fields in correction.items():
                found[part] = {**found[part], **fields}
            changes = [{"field": f"{part}.{name}"} for part, fields in correction.items() for name in fields]
            found.setdefault("history", []).append({"action": "correction", "reason": reason, "changes": changes})
            self.answer(200, found)
        elif self.path.endswith("/settlement"):
            answered, by = self.path.split("/")[2], json.loads(self.body)["observation_id"]
            self.server.settled[answered] = by
            self.answer(200, {**self.server.advice, "id": answered, "observation_id": by})

    def keep(self, observation: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """201 for a new one, 200 for the same again, 409 for its id with other content, 422 for a refused model."""
        if observation["model"]["name"] == "refused/model":
            return 422, {"title": "Invalid", "status": 422, "detail": "not this one", "errors": []}
        content = json.dumps({**observation, "id": None}, sort_keys=True)
        with self.server.lock:
            self.server.posts.append(str(observation["id"]))
            if content in self.server.stored:
                return 200, self.server.stored[content]
            if self.server.by_id(str(observation["id"])):
                return 409, {"title": "Conflict", "status": 409, "detail": "stored with other content"}
            kept = {**observation, "id": observation["id"] or str(uuid4()), "pair_id": PAIR}
            self.server.stored[content] = kept
        return 201, kept

    def answer(self, status: int, body: object, kind: str = "application/json", **headers: str) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind if status < 400 else "application/problem+json")
        self.send_header("content-length", str(len(raw)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def raw(self, data: bytes) -> None:
        with suppress(OSError):
            self.wfile.write(data)
            self.wfile.flush()


def status(code: int, **headers: str) -> Callable[[Handler], None]:
    """A problem document with this status."""
    return lambda handler: handler.answer(code, {"title": f"status {code}", "status": code}, **headers)


def cut(handler: Handler) -> None:
    """Half an answer, then the connection ends."""
    handler.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{")
    handler.close_connection = True


def stored_but_cut(handler: Handler) -> None:
    """The observation is kept, and the answer never arrives."""
    handler.keep(json.loads(handler.body))
    handler.close_connection = True


def drip(head: bytes) -> Callable[[Handler], None]:
    """After ``head`` one byte at a time without end: each read succeeds, the answer never ends."""

    def dripping(handler: Handler) -> None:
        handler.raw(head)
        with suppress(OSError):
            while not handler.server.stopping.wait(0.02):
                handler.wfile.write(b"x")
                handler.wfile.flush()
        handler.close_connection = True

    return dripping


drip_headers = drip(b"HTTP/1.1 200 OK\r\nx-slow: ")
drip_body = drip(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n")


def silent(handler: Handler) -> None:
    """No byte at all."""
    handler.server.stopping.wait(SILENT_SECONDS)
    handler.close_connection = True


def huge(handler: Handler) -> None:
    """A body without end and without a declared length."""
    handler.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
    with suppress(OSError):
        while not handler.server.stopping.is_set():
            handler.wfile.write(b" " * 65536)
    handler.close_connection = True


def body(raw: bytes, kind: str = "application/json", code: int = 200, **headers: str) -> Callable[[Handler], None]:
    """This body as it is."""
    return lambda handler: handler.answer(code, raw, kind, **headers)


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """A running service on a free loopback port."""
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def wait_until(claim: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when the claim holds; fail when it does not within the time."""
    ends = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.01)
