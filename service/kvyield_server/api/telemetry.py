"""What is told about requests: an id on each, one log line without bodies or secrets, and Prometheus metrics."""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Any

import structlog
from litestar.types import Message, Scope, Send
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from uuid6 import uuid7

log = structlog.get_logger("kvyield.request")

REQUEST_ID = "kvyield_request_id"
CALLER = "kvyield_caller"
_GOOD_ID = re.compile(rb"[A-Za-z0-9._\-]{8,64}")
_UNTEMPLATED = "unmatched"
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
        self.observations = Counter(
            "kvyield_observations", "Observations taken, by what became of them.", ["result"], registry=self.registry
        )
        self.recommendations = Counter(
            "kvyield_recommendations", "Recommendations given, by status.", ["status"], registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self.queue = Gauge("kvyield_writer_queue", "Jobs that wait for the writer.", registry=self.registry)


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
            message["headers"] = headers
        await self._send(message)

    def finish(self) -> None:
        """Count and log the request."""
        method = self._scope.get("method", "")
        method = method if method in _METHODS else "OTHER"
        route = self._scope.get("path_template") or _UNTEMPLATED
        seconds = time.perf_counter() - self._started
        self._metrics.requests.labels(method, route, str(self._status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        log.info(
            "request",
            method=method,
            route=route,
            path=self._scope.get("path", ""),
            status=self._status,
            milliseconds=round(seconds * 1000, 2),
            request_id=self._id,
            caller=self._scope["state"].get(CALLER),
        )


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
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler.setFormatter(formatter)
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)


def _request_id(scope: Scope) -> str:
    for name, value in scope.get("headers", []):
        if name == b"x-request-id" and _GOOD_ID.fullmatch(value):
            return value.decode()
    return str(uuid7())
