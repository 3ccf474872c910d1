"""Is it alive, is it ready, what does it count."""

from __future__ import annotations

from typing import Any

from litestar import HttpMethod, MediaType, Request, Response, get, route
from litestar.handlers import HTTPRouteHandler
from litestar.types import Method
from litestar.types.internal_types import PathParameterDefinition
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kvyield_server import __version__
from kvyield_server.api.auth import ASKERS
from kvyield_server.api.problems import responses_of
from kvyield_server.api.services import Services, services_of
from kvyield_server.errors import MigrationNeededError, StorageUnavailableError

_PROMETHEUS = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")  # the framework adds it to every text
_LOOKS = [HttpMethod.GET, HttpMethod.HEAD]


def _by_method(_: HTTPRouteHandler, method: Method, path: list[str | PathParameterDefinition]) -> str:
    return f"{method.lower()}_health_{path[-1]}"


class HealthOut(Struct, frozen=True, kw_only=True):
    """How the service is.

    Attributes:
        status: `live` or `ready`, as asked.
        version: Version of the service.
        queue_depth: Number of writes that wait for the database.
    """

    status: str
    version: str
    queue_depth: int


@route("/health/live", http_method=_LOOKS, operation_id=_by_method)
async def live(request: Request[Any, Any, Any]) -> HealthOut:
    """Say that the process runs; looks at nothing else."""
    return HealthOut(status="live", version=__version__, queue_depth=services_of(request).storage.queue_depth)


@route(
    "/health/ready",
    http_method=_LOOKS,
    operation_id=_by_method,
    responses=responses_of(MigrationNeededError, StorageUnavailableError),
)
async def ready(request: Request[Any, Any, Any]) -> HealthOut:
    """Say that the service is ready: the database answers, takes writes again if the last one failed, and has the
    schema that this version needs; 503 when not."""
    storage = services_of(request).storage

    def look() -> bool:
        storage.ping()
        return storage.migration_current()

    if not await services_of(request).look(look):
        raise MigrationNeededError("The database's schema is not this version's; run kvyield-server db upgrade.")
    return HealthOut(status="ready", version=__version__, queue_depth=storage.queue_depth)


@get("/metrics", operation_id="metrics", media_type=MediaType.TEXT, guards=[ASKERS])
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return counters in the Prometheus text format, by route template."""
    services = services_of(request)
    services.metrics.queue.set(services.storage.queue_depth)
    services.metrics.fits.set(services.fits.made)
    services.metrics.database.set(await _answers(services))
    return Response(generate_latest(services.metrics.registry), media_type=_PROMETHEUS)


async def _answers(services: Services) -> bool:
    try:
        await services.look(services.storage.ping)
    except StorageUnavailableError:
        return False
    return True
