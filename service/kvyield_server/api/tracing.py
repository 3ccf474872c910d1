"""OpenTelemetry traces, for services whose environment asks for them: Litestar's plugin, the SDK's own variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvyield_server.errors import KvyieldError

if TYPE_CHECKING:
    from litestar.plugins.opentelemetry import OpenTelemetryPlugin
    from opentelemetry.sdk.trace import TracerProvider

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NOT_TRACED = ["/health/live", "/health/ready", "/metrics"]


def tracer_provider(environment: Mapping[str, str]) -> TracerProvider | None:
    """Return what makes and exports spans over OTLP and HTTP; None unless the environment names where they go.

    ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``..._TRACES_ENDPOINT``) turns traces on; ``OTEL_SDK_DISABLED`` and
    ``OTEL_TRACES_EXPORTER=none`` turn them off. ``OTEL_SERVICE_NAME``, samplers, headers and the rest are read by the
    SDK itself: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/

    Raises:
        KvyieldError: traces are asked for, and the extra that brings the SDK is not installed.
    """
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return None
    named = next((name for name in _ENDPOINTS if environment.get(name)), None)
    if named is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise KvyieldError(f"{named} asks for traces, which need: pip install 'kvyield-server[otel]'.") from None
    name = environment.get("OTEL_SERVICE_NAME") or "kvyield-server"
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def plugin(provider: TracerProvider) -> OpenTelemetryPlugin:
    """Return Litestar's plugin: a span per request, named by its route; probes and metrics have none."""
    from litestar.plugins.opentelemetry import OpenTelemetryConfig, OpenTelemetryPlugin

    config = OpenTelemetryConfig(tracer_provider=provider, exclude=_NOT_TRACED, exclude_spans=["receive", "send"])
    return OpenTelemetryPlugin(config)
