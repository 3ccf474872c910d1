"""All pages under one router: its guard, its errors, its static files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, Router
from litestar.datastructures import CacheControlHeader
from litestar.exceptions import HTTPException, NotFoundException
from litestar.static_files import create_static_files_router

from kvyield_server.errors import KvyieldError
from kvyield_server.pages import (
    advice_page,
    fleet_page,
    observation_page,
    pair_page,
    pairs_page,
    schema_page,
    sign_in,
)
from kvyield_server.pages.rendering import SECURITY_HEADERS, STATIC_FOLDER, STATIC_PATH
from kvyield_server.pages.session import answer_page_error, known_parameters_only, own_forms_only

MAX_PATH_BYTES = 200


HANDLERS = (
    pairs_page.show_pairs,
    pair_page.show_pair,
    pair_page.show_advice,
    pair_page.store_in_log,
    pair_page.show_history,
    pair_page.show_comparison,
    observation_page.show_observation,
    observation_page.retract_observation,
    fleet_page.show_fleet,
    fleet_page.show_drift,
    advice_page.show_log,
    schema_page.show_schema,
    sign_in.sign_in_page,
    sign_in.sign_in,
    sign_in.sign_out,
)


def page_routers() -> Sequence[Router]:
    """Return the routers of the pages and of their static files, to be added to an application."""
    pages = Router(
        "/",
        route_handlers=HANDLERS,
        guards=[own_forms_only, known_parameters_only],
        include_in_schema=False,
        exception_handlers={
            KvyieldError: answer_page_error,
            HTTPException: answer_page_error,
            Exception: answer_page_error,
        },
    )
    static = create_static_files_router(
        path=STATIC_PATH,
        directories=[STATIC_FOLDER],
        include_in_schema=False,
        cache_control=CacheControlHeader(max_age=31_536_000, public=True, immutable=True),
        before_request=_refuse_no_name,
        after_request=_secured,
    )
    return [pages, static]


async def _refuse_no_name(request: Request[Any, Any, Any]) -> None:
    """Answer 404 to what no file system takes for a name."""
    if "\0" in request.scope["path"] or len(request.scope["path"].encode(errors="replace")) > MAX_PATH_BYTES:
        raise NotFoundException


async def _secured(response: Response[Any]) -> Response[Any]:
    response.headers.update(SECURITY_HEADERS)
    return response
