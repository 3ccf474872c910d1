"""The composition root: the only file that knows every concrete class."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from litestar import Litestar, Request
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.types import Receive, Send

from kvyield_server.api import about, advice, audit, batch, calibration, exports, health, observations, pairs
from kvyield_server.api.auth import Gate, authorise, refuse_other_hosts
from kvyield_server.api.lane import Lane
from kvyield_server.api.openapi import document
from kvyield_server.api.problems import EXCEPTION_HANDLERS
from kvyield_server.api.request import StrictRequest, refuse_parameters
from kvyield_server.api.services import Services, utc_now
from kvyield_server.api.telemetry import Telemetry
from kvyield_server.errors import ForbiddenError
from kvyield_server.pages.router import page_routers
from kvyield_server.settings import Settings
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.tokens import any_valid_token, is_loopback

HANDLERS: tuple[HTTPRouteHandler, ...] = (
    observations.post_observation,
    batch.post_observations,
    observations.list_observations,
    observations.get_observation,
    observations.post_verification,
    observations.post_retraction,
    pairs.list_pairs,
    pairs.get_pair,
    pairs.get_fits,
    pairs.get_curve,
    advice.post_predictions,
    advice.get_recommend,
    advice.post_recommendation,
    advice.get_recommendation,
    advice.post_settlement,
    calibration.get_calibration,
    audit.list_audit,
    exports.export_ndjson,
    exports.export_csv,
    health.live,
    health.ready,
    health.metrics,
    about.index,
    about.is_here,
    about.list_problems,
    about.get_problem,
    about.openapi,
)

FREQUENT = (observations.post_observation, batch.post_observations, advice.get_recommend)


class Application(Litestar):
    """The framework's application, with each request watched from outside: routing failures are counted too."""

    services: Services
    gate: Gate
    lane: Lane

    async def __call__(self, scope: Any, receive: Receive | Any, send: Send | Any) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        telemetry = Telemetry(self.services.metrics, scope, send)
        try:
            track = self.lane.track_of(scope)
            if track is None:
                await super().__call__(scope, receive, telemetry.send)
            else:
                await self.lane.run(track, scope, receive, telemetry.send)
        finally:
            telemetry.finish()


def create_app(settings: Settings, storage: Storage | None = None) -> Litestar:
    """Return the service. It closes the storage, its writer drained, when it stops.

    Raises:
        StorageUnavailableError: the database cannot be opened, or needs ``db upgrade``.
        ForbiddenError: no valid token exists and the address is not loopback.
    """
    services = Services(settings, storage or open_storage(settings.database))
    require_token_unless_loopback(settings, services.storage)
    app = Application(
        route_handlers=[*HANDLERS, *page_routers()],
        request_class=StrictRequest,
        exception_handlers=EXCEPTION_HANDLERS,
        before_request=_admit,
        state=State({"openapi": cache(lambda: document(HANDLERS))}),
        lifespan=[_lifespan(services)],
        openapi_config=None,
        logging_config=None,
    )
    app.services, app.gate = services, Gate()
    app.lane = Lane(app, FREQUENT, _admit)
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


async def _admit(request: Request[Any, Any, Any]) -> None:
    """Ask who calls before anything of the request is looked at. A guard would do the same at a higher price."""
    await refuse_other_hosts(request)
    await authorise(request, request.route_handler)
    refuse_parameters(request)


def _lifespan(services: Services) -> Any:
    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await services.close()

    return lifespan
