"""Traces: off unless the environment asks, a span per request when it does, exported by the time the service stops."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from litestar.testing import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from _storages import fresh_storage
from e2e.running import Server
from kvyield_server.api.tracing import tracer_provider
from kvyield_server.app import create_app
from kvyield_server.errors import KvyieldError
from kvyield_server.settings import Settings


def test_nothing_is_traced_unless_asked() -> None:
    """Without an endpoint, or switched off by a standard variable, there is no provider."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert tracer_provider({}) is None
    assert tracer_provider(endpoint | {"OTEL_SDK_DISABLED": "true"}) is None
    assert tracer_provider(endpoint | {"OTEL_TRACES_EXPORTER": "none"}) is None


def test_the_sdk_is_not_imported_unless_asked() -> None:
    """A service without traces does not pay for them."""
    code = "import sys, kvyield_server.serving; print([name for name in sys.modules if 'opentelemetry.sdk' in name])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable that asked."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(KvyieldError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT asks .* 'kvyield-server\[otel\]'"):
        tracer_provider({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})


def test_a_request_is_a_span_named_by_its_route() -> None:
    """Probes have none; a span tells route and status."""
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with TestClient(create_app(Settings(), fresh_storage(), provider)) as client:
        assert client.get("/health/live").status_code == 200
        assert client.get("/pairs").status_code == 200
        assert client.get("/observations/0197ffff-0000-7000-8000-000000000000").status_code == 404
    told = [(span.name, (span.attributes or {}).get("http.status_code")) for span in spans.get_finished_spans()]
    assert [status for _, status in told] == [200, 404]
    assert ["/pairs" in told[0][0], "/observations/" in told[1][0]] == [True, True]


class _Collector(BaseHTTPRequestHandler):
    got: list[bytes]

    def do_POST(self) -> None:
        self.got.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Listen as a collector does."""
    got: list[bytes] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Collector", (_Collector,), {"got": got}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_served_request_reaches_a_collector(
    collector: tuple[str, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process, told by the standard variables alone, has sent its spans when it stops."""
    url, got = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "kvyield-of-a-test")
    assert os.environ["OTEL_SERVICE_NAME"]
    server = Server(tmp_path)
    assert httpx.get(f"{server.url}/pairs").status_code == 200
    assert server.stop() == 0
    sent = [ExportTraceServiceRequest.FromString(body) for body in got]
    resources = [span for request in sent for span in request.resource_spans]
    names = {
        value.value.string_value
        for one in resources
        for value in one.resource.attributes
        if value.key == "service.name"
    }
    assert names == {"kvyield-of-a-test"}
    assert any("/pairs" in span.name for one in resources for scope in one.scope_spans for span in scope.spans)
