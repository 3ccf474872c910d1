"""Bulk ingest: a status per item, one bad item never stops the others."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from litestar import Request, post
from litestar.params import JSONBody
from uuid6 import uuid7

from kvyield_server.api.auth import POSTS, token_id_of
from kvyield_server.api.problems import ProblemContext, problem_of, raise_faults
from kvyield_server.api.services import Services, services_of, utc_now
from kvyield_server.errors import StorageUnavailableError
from kvyield_server.schemas.batch import BatchIn, BatchItemOut, BatchOut
from kvyield_server.schemas.observations import ObservationIn, content_digest, observation_faults, to_domain
from kvyield_server.schemas.strict import accept
from kvyield_server.usecases.record import Recorded, record


@post("/observations/batch", operation_id="post_observations", opt=POSTS, status_code=200)
async def post_observations(request: Request[Any, Any, Any], data: JSONBody[BatchIn]) -> BatchOut:
    """Record up to 500 engine starts; each item is answered as if it were posted alone."""
    services, token_id, where = services_of(request), token_id_of(request), ProblemContext.of(request)
    taken = [_take(services, item, token_id) for item in data.observations]
    results = await asyncio.gather(*taken, return_exceptions=True)
    for result in results:
        if isinstance(result, StorageUnavailableError):
            raise result
    return BatchOut(items=[_item(index, result, where) for index, result in enumerate(results)])


async def _take(services: Services, item: Any, token_id: UUID | None) -> Recorded:
    body = accept(item, ObservationIn)
    raise_faults(observation_faults(body))
    now = utc_now()
    start = to_domain(body, new_id=uuid7(), now=now)
    recorded = await services.write(record(start, content_digest(body), token_id=token_id, now=now))
    services.metrics.observations.labels("new" if recorded.is_new else "again").inc()
    return recorded


def _item(index: int, result: Recorded | BaseException, where: ProblemContext) -> BatchItemOut:
    if isinstance(result, Recorded):
        return BatchItemOut(index=index, status=201 if result.is_new else 200, id=result.stored.observation.id)
    if not isinstance(result, Exception):
        raise result
    problem = problem_of(result, where)
    return BatchItemOut(index=index, status=problem.status, problem=problem)
