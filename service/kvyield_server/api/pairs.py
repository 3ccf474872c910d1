"""Pairs, their fits and their curves over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request, Response, get
from litestar.params import FromPath

from kvyield_server.api.auth import READS, bound_to
from kvyield_server.api.conditional import answered
from kvyield_server.api.pages import key_of, page_of
from kvyield_server.api.request import QUERY, query_of
from kvyield_server.api.services import services_of
from kvyield_server.schemas.common import Page
from kvyield_server.schemas.paging import PairsQuery
from kvyield_server.schemas.pairs import CurveOut, CurveQuery, FitsOut, PairOut, curve_out, fits_out, pair_out
from kvyield_server.usecases.browse import pairs_page, readable_pair
from kvyield_server.usecases.curve import curve
from kvyield_server.usecases.ports import UnitOfWork


@get("/pairs", operation_id="list_pairs", opt={**READS, QUERY: PairsQuery})
async def list_pairs(request: Request[Any, Any, Any]) -> Response[Page[PairOut]]:
    """List pairs, the newest first; an ingest token sees the pairs that it posted to."""
    query, token_id = query_of(request, PairsQuery), bound_to(request)
    after = key_of(query.page_token)

    def work(uow: UnitOfWork) -> Page[PairOut]:
        return page_of(pairs_page(uow, query.search, after, query.page_size, token_id), pair_out)

    return await answered(request, work, seen_by=token_id)


@get("/pairs/{pair_id:uuid}", operation_id="get_pair", opt=READS)
async def get_pair(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> Response[PairOut]:
    """Return one pair."""
    token_id = bound_to(request)
    return await answered(request, lambda uow: pair_out(readable_pair(uow, pair_id, token_id)), seen_by=token_id)


@get("/pairs/{pair_id:uuid}/fits", operation_id="get_fits", opt=READS)
async def get_fits(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> Response[FitsOut]:
    """Return the fits of a pair: one per deployment, with the evidence used and set aside."""
    services, token_id = services_of(request), bound_to(request)

    def work(uow: UnitOfWork) -> FitsOut:
        pair = readable_pair(uow, pair_id, token_id)
        fit = services.fits.of_pair(uow, pair)
        return fits_out(pair.id, pair.revision, [deployment.summary for deployment in fit.deployments])

    return await answered(request, work, seen_by=token_id)


@get("/pairs/{pair_id:uuid}/curve", operation_id="get_curve", opt={**READS, QUERY: CurveQuery})
async def get_curve(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> Response[CurveOut]:
    """Return the yield curve of one deployment: medians and bands for plots."""
    services, token_id, query = services_of(request), bound_to(request), query_of(request, CurveQuery)

    def work(uow: UnitOfWork) -> CurveOut:
        fits = services.fits.of_pair(uow, readable_pair(uow, pair_id, token_id))
        low, high = query.lowest, query.highest
        found = curve(pair_id, fits, deployment=query.deployment, lowest=low, highest=high, points=query.points)
        return curve_out(found)

    return await answered(request, work, seen_by=token_id)
