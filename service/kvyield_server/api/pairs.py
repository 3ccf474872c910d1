"""Pairs, their fits and their curves over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from kvyield_server.api.auth import READERS, bound_to
from kvyield_server.api.pagination import key_of, page_of
from kvyield_server.api.problems import responses_of
from kvyield_server.api.services import services_of
from kvyield_server.errors import NotFoundError
from kvyield_server.schemas.common import Page
from kvyield_server.schemas.paging import PairsQuery
from kvyield_server.schemas.pairs import CurveOut, CurveQuery, FitsOut, PairOut, curve_out, fits_out, pair_out
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.browse import pairs_page, readable_pair
from kvyield_server.usecases.curve import curve

UNKNOWN = responses_of(NotFoundError)


@get("/pairs", operation_id="list_pairs", guards=[READERS])
async def list_pairs(request: Request[Any, Any, Any], parameters: NamedDependency[PairsQuery]) -> Page[PairOut]:
    """List pairs, the newest first; an ingest token sees the pairs that it posted to."""
    token_id, asked = bound_to(request), parameters
    after = key_of(asked.page_token, asked.sort)

    def work(uow: UnitOfWork) -> Page[PairOut]:
        names = {"gpu": asked.gpu, "model": asked.model}
        found = pairs_page(uow, asked.search, after, asked.page_size, token_id, sort=asked.sort, **names)
        return page_of(found, pair_out, asked.sort)

    return await services_of(request).read(work)


@get("/pairs/{pair_id:uuid}", operation_id="get_pair", guards=[READERS], responses=UNKNOWN)
async def get_pair(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> PairOut:
    """Return one pair."""
    token_id = bound_to(request)
    return await services_of(request).read(lambda uow: pair_out(readable_pair(uow, pair_id, token_id)))


@get("/pairs/{pair_id:uuid}/fits", operation_id="get_fits", guards=[READERS], responses=UNKNOWN)
async def get_fits(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> FitsOut:
    """Return the fits of a pair: one per deployment, with the evidence used and set aside."""
    services, token_id = services_of(request), bound_to(request)

    def work(uow: UnitOfWork) -> FitsOut:
        pair = readable_pair(uow, pair_id, token_id)
        fit = services.fits.of_pair(uow, pair)
        return fits_out(pair.id, pair.revision, [deployment.summary for deployment in fit.deployments])

    return await services_of(request).read(work)


@get("/pairs/{pair_id:uuid}/curve", operation_id="get_curve", guards=[READERS], responses=UNKNOWN)
async def get_curve(
    request: Request[Any, Any, Any], pair_id: FromPath[UUID], parameters: NamedDependency[CurveQuery]
) -> CurveOut:
    """Return the yield curve of one deployment: medians and bands for plots."""
    services, token_id = services_of(request), bound_to(request)

    def work(uow: UnitOfWork) -> CurveOut:
        fits = services.fits.of_pair(uow, readable_pair(uow, pair_id, token_id))
        low, high = parameters.lowest, parameters.highest
        found = curve(
            pair_id, fits, deployment=parameters.deployment, lowest=low, highest=high, points=parameters.points
        )
        return curve_out(found)

    return await services_of(request).read(work)
