"""The ledger over HTTP: post, read, verify, retract."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from kvyield_server.api.auth import MANAGERS, POSTERS, READERS, actor_of, bound_to, token_id_of
from kvyield_server.api.pagination import key_of, page_of, where_of
from kvyield_server.api.problems import LOCATION, raise_faults, responses_of
from kvyield_server.api.services import services_of
from kvyield_server.errors import AmbiguousError, ConflictError, NotFoundError
from kvyield_server.schemas.common import Page
from kvyield_server.schemas.corrections import CorrectionIn, changes_of, correction_faults
from kvyield_server.schemas.observations import (
    ObservationIn,
    ObservationOut,
    RetractionIn,
    VerificationIn,
    content_digest,
    from_domain,
    observation_faults,
    to_domain,
    verification_faults,
    verification_to_domain,
)
from kvyield_server.schemas.paging import ObservationsQuery
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import new_id, utc_now
from kvyield_server.usecases.audit import audited
from kvyield_server.usecases.browse import as_spelled, require_own_pair, require_own_start, stored_observation
from kvyield_server.usecases.correct import correct
from kvyield_server.usecases.record import Arrival, Recorded, record
from kvyield_server.usecases.retract import retract
from kvyield_server.usecases.verify import verify

AGAIN = {200: ResponseSpec(ObservationOut, generate_examples=False, description="It was stored before.")}


@post(
    "/observations",
    operation_id="post_observation",
    guards=[POSTERS],
    responses=AGAIN | responses_of(ConflictError),
    response_headers=[LOCATION],
)
async def post_observation(request: Request[Any, Any, Any], data: JSONBody[ObservationIn]) -> Response[ObservationOut]:
    """Record one engine start; the same id or the same content again answers 200 with what is stored."""
    services = services_of(request)
    raise_faults(observation_faults(data))
    (recorded,) = await services.write(record([arrived(data, token_id_of(request), actor_of(request))]))
    if isinstance(recorded, Exception):
        raise recorded
    services.metrics.count_observation(is_new=recorded.is_new)
    return _answer(recorded)


@get("/observations", operation_id="list_observations", guards=[READERS], responses=responses_of(AmbiguousError))
async def list_observations(
    request: Request[Any, Any, Any], parameters: NamedDependency[ObservationsQuery]
) -> Page[ObservationOut]:
    """List observations, newest first, without their log excerpts: GET /observations/{observation_id} has those."""
    token_id, sort, size = bound_to(request), parameters.sort, parameters.page_size
    where, after = where_of(parameters, token_id), key_of(parameters.page_token, sort)

    def work(uow: UnitOfWork) -> Page[ObservationOut]:
        if parameters.pair_id is not None:
            require_own_pair(uow, parameters.pair_id, token_id)
        found = uow.observations.page(as_spelled(uow, where), after, size, sort=sort, with_logs=False)
        return page_of(found, from_domain, sort)

    return await services_of(request).read(work)


@get(
    "/observations/{observation_id:uuid}",
    operation_id="get_observation",
    guards=[READERS],
    responses=responses_of(NotFoundError),
)
async def get_observation(request: Request[Any, Any, Any], observation_id: FromPath[UUID]) -> ObservationOut:
    """Return one observation."""
    token_id = bound_to(request)

    def work(uow: UnitOfWork) -> ObservationOut:
        stored = stored_observation(uow, observation_id)
        require_own_start(stored, token_id)
        return from_domain(stored)

    return await services_of(request).read(work)


@post(
    "/observations/{observation_id:uuid}/verifications",
    operation_id="post_verification",
    guards=[POSTERS],
    responses=AGAIN | responses_of(NotFoundError, ConflictError),
    response_headers=[LOCATION],
)
async def post_verification(
    request: Request[Any, Any, Any], observation_id: FromPath[UUID], data: JSONBody[VerificationIn]
) -> Response[ObservationOut]:
    """Append a verification to a start; the same one again answers 200."""
    raise_faults(list(verification_faults(data)))
    job = audited(
        verify(observation_id, verification_to_domain(data), bound_to(request)),
        "verify",
        actor=actor_of(request),
        now=utc_now(),
        subject=lambda recorded: observation_id if recorded.is_new else None,
    )
    return _answer(await services_of(request).write(job))


@post(
    "/observations/{observation_id:uuid}/retraction",
    operation_id="post_retraction",
    guards=[MANAGERS],
    responses=responses_of(NotFoundError),
    status_code=200,
)
async def post_retraction(
    request: Request[Any, Any, Any], observation_id: FromPath[UUID], data: JSONBody[RetractionIn]
) -> ObservationOut:
    """Mark an observation as not to be believed; it stays in the ledger and leaves the fits."""
    job = retract(observation_id, data.reason, actor=actor_of(request), now=utc_now())
    return from_domain(await services_of(request).write(job))


@post(
    "/observations/{observation_id:uuid}/corrections",
    operation_id="post_correction",
    guards=[POSTERS],
    responses=responses_of(NotFoundError),
    status_code=200,
)
async def post_correction(
    request: Request[Any, Any, Any], observation_id: FromPath[UUID], data: JSONBody[CorrectionIn]
) -> ObservationOut:
    """Correct wrong facts of a start; the old values stay in its history, and fits use the new ones at once."""
    raise_faults(correction_faults(data))
    actor, now = actor_of(request), utc_now()
    job = audited(
        correct(observation_id, changes_of(data), data.reason, actor=actor, token_id=bound_to(request), now=now),
        "correct",
        actor=actor,
        now=now,
        subject=lambda recorded: recorded.stored.observation.id if recorded.is_new else None,
        details={"reason": data.reason},
    )
    return from_domain((await services_of(request).write(job)).stored)


def arrived(body: ObservationIn, token_id: UUID | None, actor: str) -> Arrival:
    """Return a posted start as it is recorded."""
    now = utc_now()
    start = to_domain(body, new_id=new_id(), now=now)
    is_named, is_timed = body.id is not None, body.observed_at is not None
    return Arrival(start, content_digest(body), token_id, now, actor, is_named=is_named, is_timed=is_timed)


def _answer(recorded: Recorded) -> Response[ObservationOut]:
    out = from_domain(recorded.stored)
    status = 201 if recorded.is_new else 200
    return Response(out, status_code=status, headers={"Location": f"/observations/{out.id}"})
