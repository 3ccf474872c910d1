"""What is told about requests: an id on each, one log line without bodies or secrets, and Prometheus metrics."""

from __future__ import annotations

import logging
import re
import sys
import time
from random import getrandbits
from typing import Any

import structlog
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

log = structlog.get_logger("kvyield.requests")

REQUEST_ID = "request_id"
UNMATCHED = "unmatched"
_GOOD_ID = re.compile(r"[A-Za-z0-9._\-]{8,64}")
_NOT_A_PAGE = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}
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
            "kvyield_observations", "Observations received, by result.", ["result"], registry=self.registry
        )
        self.recommendations = Counter(
            "kvyield_recommendations", "Recommendations given, by status.", ["status"], registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self.queue = Gauge("kvyield_writer_queue", "Jobs that wait for the writer.", registry=self.registry)
        self.database = Gauge("kvyield_database_up", "1 when the database answered last.", registry=self.registry)
        self.fits = Gauge("kvyield_fits_made", "Fits made since the start.", registry=self.registry)

    def count_observation(self, *, is_new: bool) -> None:
        """Count an observation that was taken."""
        self.observations.labels("new" if is_new else "again").inc()


class Telemetry:
    """Wraps the whole application, routing included: each answer gets a request id and safe headers, is counted by its
    route's template and logged."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        started = ended = time.perf_counter()
        status, request_id = 500, _request_id(scope)
        scope["state"][REQUEST_ID] = request_id

        async def watched(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableScopeHeaders.from_message(message)
                headers["x-request-id"] = request_id
                headers["x-content-type-options"] = "nosniff"
                if "content-security-policy" not in headers:
                    headers.update(_NOT_A_PAGE)
            ended = time.perf_counter()
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._tell(scope, status, ended - started)

    def _tell(self, scope: HTTPScope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        route = scope.get("path_template") or UNMATCHED
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        caller = scope.get("user")
        log.info(
            "request",
            method=method,
            route=route,
            path=scope["path"],
            status=status,
            milliseconds=round(seconds * 1000, 2),
            request_id=scope["state"][REQUEST_ID],
            caller=caller.name if caller else None,
        )


def request_id_of(scope: Scope) -> str:
    """Return the id of the request of a scope."""
    return str(scope["state"].get(REQUEST_ID, ""))


def configure_logs(level: str) -> None:
    """Write JSON lines to standard error, from structlog and from the standard library alike."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    render = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
    )
    handler.setFormatter(formatter)
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)


def _request_id(scope: Scope) -> str:
    given = Headers.from_scope(scope).get("x-request-id", "")
    return given if _GOOD_ID.fullmatch(given) else f"{getrandbits(128):032x}"  # names a request, keeps no secret
