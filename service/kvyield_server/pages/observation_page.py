"""The page of one start, and its retraction."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from litestar import MediaType, Request, Response, post
from litestar.params import FromPath

from kvyield_server.api.auth import actor_of, token_of
from kvyield_server.api.services import services_of
from kvyield_server.pages.rendering import page
from kvyield_server.pages.session import MANAGES, look
from kvyield_server.pages.views.observation import observation_view
from kvyield_server.pages.views.pairs import hardware_text
from kvyield_server.pages.views.starts import start_row
from kvyield_server.schemas.observations import RetractionIn, from_domain
from kvyield_server.storage.records import Role
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import utc_now
from kvyield_server.usecases.browse import stored_observation, stored_pair
from kvyield_server.usecases.retract import retract


@look("/ui/observations/{observation_id:uuid}")
async def show_observation(request: Request[Any, Any, Any], observation_id: FromPath[UUID]) -> Response[str]:
    """Show everything known of a start."""
    return await _shown(request, observation_id, "", 200)


@post("/ui/observations/{observation_id:uuid}/retraction", guards=[MANAGES])
async def retract_observation(request: Request[Any, Any, Any], observation_id: FromPath[UUID]) -> Response[Any]:
    """Mark a start as not to be believed, and show it again."""
    reason = str((await request.form()).get("reason", "")).strip()
    try:
        body = msgspec.convert({"reason": reason.replace("\0", "")}, RetractionIn)
    except msgspec.ValidationError:
        return await _shown(request, observation_id, "Say why, in up to 200 characters.", 422)
    await services_of(request).write(retract(observation_id, body.reason, actor=actor_of(request), now=utc_now()))
    location = {"Location": f"/ui/observations/{observation_id}"}
    return Response("", status_code=303, headers=location, media_type=MediaType.HTML)


async def _shown(request: Request[Any, Any, Any], observation_id: UUID, fault: str, status: int) -> Response[str]:
    services, token = services_of(request), token_of(request)

    def work(uow: UnitOfWork) -> dict[str, Any]:
        start = from_domain(stored_observation(uow, observation_id))
        pair = stored_pair(uow, start.pair_id)
        fits = [fit.summary for fit in services.fits.of_pair(uow, pair).deployments]
        row = {"model": pair.model.name, "hardware": hardware_text(start.hardware)}
        return {"start": start, "row": row, "line": start_row(start), "view": observation_view(start, fits)}

    may_retract = token is None or Role.ADMIN in token.roles
    values = {"here": "pairs", "fault": fault, "may_retract": may_retract, **await services.read(work)}
    return page(request, "observation.html", values, status_code=status)
