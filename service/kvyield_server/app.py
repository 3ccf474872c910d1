"""The composition root: the only file that knows every concrete class."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from kvyield_server.api.auth import own_hosts_only
from kvyield_server.api.mcp import Agents
from kvyield_server.api.openapi import document
from kvyield_server.api.problems import EXCEPTION_HANDLERS
from kvyield_server.api.request import StrictRequest
from kvyield_server.api.router import API
from kvyield_server.api.services import Services
from kvyield_server.api.telemetry import Telemetry
from kvyield_server.api.tracing import plugin
from kvyield_server.errors import ForbiddenError
from kvyield_server.pages.router import page_routers
from kvyield_server.pages.session import answer_unrouted
from kvyield_server.settings import Settings
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.uow import Storage
from kvyield_server.storage.values import utc_now
from kvyield_server.usecases.tokens import any_valid_token, is_loopback

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def create_app(settings: Settings, storage: Storage | None = None, traces: TracerProvider | None = None) -> Litestar:
    """Return the service. It closes the storage, its writer drained, when it stops, and sends the last of its traces.

    Raises:
        StorageUnavailableError: the database cannot be opened, or needs ``db upgrade``.
        ForbiddenError: no valid token exists and the address is not loopback.
    """
    services, agents = Services(settings, storage or open_storage(settings.database)), Agents()
    require_token_unless_loopback(settings, services.storage)
    app = Litestar(
        route_handlers=[API, *page_routers()],
        guards=[own_hosts_only],
        request_class=StrictRequest,
        request_max_body_size=settings.max_body_bytes,
        exception_handlers={**EXCEPTION_HANDLERS, HTTPException: answer_unrouted},
        state=State({"services": services, "openapi": cache(lambda: document(API)), "agents": agents}),
        lifespan=[_lifespan(services, agents, traces)],
        plugins=[plugin(traces)] if traces else [],
        openapi_config=None,
        logging_config=None,
    )
    # The framework's middleware does not see requests that lead nowhere; this wraps its routing too.
    app.asgi_handler = Telemetry(app.asgi_handler, services.metrics)
    return app


def require_token_unless_loopback(settings: Settings, storage: Storage) -> None:
    """Return when the service may be served at its address.

    Raises:
        ForbiddenError: others could reach it, and no valid token exists.
    """
    if is_loopback(settings.host):
        return
    with storage.read() as uow:
        has_token = any_valid_token(uow, utc_now())
    if not has_token:
        raise ForbiddenError(
            f"{settings.host} can be reached by others and no token exists; make one with "
            "kvyield-server token create, or serve on 127.0.0.1."
        )


def _lifespan(services: Services, agents: Agents, traces: TracerProvider | None) -> Any:
    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        services.storage.write(lambda uow: uow.observations.complete_host_keys())
        try:
            yield
        finally:
            await agents.close()
            await services.close()
            if traces:
                await to_thread(traces.shutdown)

    return lifespan
