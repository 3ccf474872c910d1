"""What is told about requests: an id on each, one log line without bodies or secrets, and Prometheus metrics."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import sys
import time
from datetime import UTC, datetime
from functools import lru_cache
from threading import Lock
from typing import Any, TextIO

import msgspec
import structlog
from litestar.types import Message, Scope, Send
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

REQUEST_ID = "kvyield_request_id"
CALLER = "kvyield_caller"
_GOOD_ID = re.compile(rb"[A-Za-z0-9._\-]{8,64}")
_UNTEMPLATED = "unmatched"
_PROCESS, _numbers = secrets.token_hex(8), itertools.count(1)
_NOT_A_PAGE = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """Counters of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "kvyield_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "kvyield_http_request_seconds", "Time to the whole answer.", ["method", "route"], registry=self.registry
        )
        observations = Counter(
            "kvyield_observations", "Observations taken, by what became of them.", ["result"], registry=self.registry
        )
        self.new_observations, self.known_observations = observations.labels("new"), observations.labels("again")
        self.recommendations = Counter(
            "kvyield_recommendations", "Recommendations given, by status.", ["status"], registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self.queue = Gauge("kvyield_writer_queue", "Jobs that wait for the writer.", registry=self.registry)
        self.database = Gauge("kvyield_database_up", "1 when the database answered last.", registry=self.registry)
        self.fits = Gauge("kvyield_fits_made", "Fits made since the start.", registry=self.registry)
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request by its route's template, of which there are few."""
        key = (method, route, status)
        if key not in self._series:
            self._series[key] = (
                self.requests.labels(method, route, str(status)),
                self.seconds.labels(method, route),
            )
        requests, times = self._series[key]
        requests.inc()
        times.observe(seconds)


class Telemetry:
    """Watches one request from its first byte to the last of its answer."""

    def __init__(self, metrics: Metrics, scope: Scope, send: Send) -> None:
        self._metrics, self._scope, self._send = metrics, scope, send
        self._started = time.perf_counter()
        self._status = 500
        self._id = _request_id(scope)
        scope.setdefault("state", {})[REQUEST_ID] = self._id

    async def send(self, message: Message) -> None:
        """Pass an event on; the answer's head gets the request id and safe defaults."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = list(message.get("headers", []))
            headers.append((b"x-request-id", self._id.encode()))
            headers.append((b"x-content-type-options", b"nosniff"))
            if b"content-security-policy" not in dict(headers):
                headers += _NOT_A_PAGE
            message["headers"] = headers
        await self._send(message)

    def finish(self) -> None:
        """Count and log the request."""
        method = self._scope.get("method", "")
        method = method if method in _METHODS else "OTHER"
        route = self._scope.get("path_template") or _UNTEMPLATED
        seconds = time.perf_counter() - self._started
        self._metrics.count(method, route, self._status, seconds)
        request_log.tell(
            {
                "method": method,
                "route": route,
                "path": self._scope.get("path", ""),
                "status": self._status,
                "milliseconds": round(seconds * 1000, 2),
                "request_id": self._id,
                "caller": self._scope["state"].get(CALLER),
                "event": "request",
                "level": "info",
            }
        )


class RequestLog:
    """Writes the line of each request as the other loggers would, without their chain of processors."""

    lines: Lines | None = None  # none while the level is above that of requests

    def tell(self, fields: dict[str, Any]) -> None:
        """Write a line, with the time added."""
        if self.lines is not None:
            seconds, microseconds = divmod(time.time_ns() // 1_000, 1_000_000)
            fields["timestamp"] = f"{_second(seconds)}.{microseconds:06d}Z"
            self.lines.msg(_json(fields))


request_log = RequestLog()


@lru_cache(1)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def request_id_of(scope: Any) -> str:
    """Return the id of the request of a scope."""
    return str(scope.get("state", {}).get(REQUEST_ID, ""))


def configure_logs(level: str) -> None:
    """Write JSON lines to standard error, from structlog and from the standard library alike."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    render = structlog.processors.JSONRenderer(serializer=_json)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: Lines(sys.stderr),
        cache_logger_on_first_use=True,
    )
    request_log.lines = Lines(sys.stderr) if number <= logging.INFO else None
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            render,
        ],
    )
    handler.setFormatter(formatter)
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)


class Lines:
    """Writes the lines of one turn of the event loop together; without a loop, at once."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = Lock()
        self._lines: list[str] = []

    def msg(self, line: str) -> None:
        """Take a line."""
        loop = asyncio._get_running_loop()
        with self._lock:
            self._lines.append(line + "\n")
            is_first = len(self._lines) == 1
        if loop is None:
            self._flush()
        elif is_first:
            loop.call_soon(self._flush)

    debug = info = warning = error = critical = msg

    def _flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        self._file.write("".join(lines))
        self._file.flush()


def _json(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=repr).decode()


def _request_id(scope: Scope) -> str:
    for name, value in scope.get("headers", []):
        if name == b"x-request-id" and _GOOD_ID.fullmatch(value):
            return value.decode()
    return f"{_PROCESS}-{next(_numbers):06x}"
