"""Bulk ingest: a status per item, one bad item never stops the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from litestar import Request, post
from litestar.params import JSONBody

from kvyield_server.api.auth import POSTERS, actor_of, token_id_of
from kvyield_server.api.observations import arrived
from kvyield_server.api.problems import ProblemContext, problem_of, raise_faults
from kvyield_server.api.services import Services, services_of
from kvyield_server.errors import KvyieldError, StorageUnavailableError
from kvyield_server.schemas.batch import BatchIn, BatchItemOut, BatchOut
from kvyield_server.schemas.observations import ExportedIn, observation_faults, posted
from kvyield_server.schemas.strict import FaultyBodyError, MalformedJsonError, decode
from kvyield_server.usecases.record import Arrival, Outcome, Recorded, record

Result = Recorded | Exception


@post("/observations/batch", operation_id="post_observations", guards=[POSTERS], status_code=200)
async def post_observations(request: Request[Any, Any, Any], data: JSONBody[BatchIn]) -> BatchOut:
    """Record up to 500 engine starts; each item is answered as if it were posted alone."""
    services, where = services_of(request), ProblemContext.of(request)
    token_id, actor = token_id_of(request), actor_of(request)
    read = await asyncio.to_thread(lambda: [_read(item, token_id, actor) for item in data.observations])
    outcomes = iter(await _recorded(services, [item for item in read if isinstance(item, Arrival)]))
    results = [next(outcomes) if isinstance(item, Arrival) else item for item in read]
    for result in results:
        if isinstance(result, Recorded):
            services.metrics.count_observation(is_new=result.is_new)
    return BatchOut(items=[_item(index, result, where) for index, result in enumerate(results)])


def _read(item: msgspec.Raw, token_id: UUID | None, actor: str) -> Arrival | Exception:
    try:
        body = posted(decode(bytes(item), ExportedIn))
        raise_faults(observation_faults(body))
    except (FaultyBodyError, MalformedJsonError, KvyieldError) as error:
        return error
    return arrived(body, token_id, actor)


async def _recorded(services: Services, arrivals: Sequence[Arrival]) -> Sequence[Outcome | KvyieldError]:
    """Record starts in one write; where that fails, each in one of its own, so that one bad start fails alone."""
    try:
        return await services.write(record(arrivals))
    except StorageUnavailableError:
        raise
    except KvyieldError as error:
        if len(arrivals) == 1:
            return [error]
    return [outcome for each in arrivals for outcome in await _recorded(services, [each])]


def _item(index: int, result: Result, where: ProblemContext) -> BatchItemOut:
    if isinstance(result, Recorded):
        return BatchItemOut(index=index, status=201 if result.is_new else 200, id=result.stored.observation.id)
    problem = problem_of(result, where)
    return BatchItemOut(index=index, status=problem.status, problem=problem)
