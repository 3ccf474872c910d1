"""The list of pairs, and what to do when there is none yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog
from litestar import Request, Response

from kvyield_server.api.auth import token_of
from kvyield_server.api.pagination import key_of, page_of
from kvyield_server.api.services import Services, services_of
from kvyield_server.domain.facts.observation import Outcome
from kvyield_server.errors import KvyieldError
from kvyield_server.pages.rendering import page
from kvyield_server.pages.session import look
from kvyield_server.pages.views.pairs import PairRow, pair_row
from kvyield_server.pages.views.words import UNKNOWN
from kvyield_server.schemas.observations import from_domain
from kvyield_server.schemas.pairs import pair_out
from kvyield_server.storage.records import NEWEST_CREATED, ObservationFilter, Pair
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.browse import pairs_page
from kvyield_server.usecases.tokens import is_loopback

log = structlog.get_logger("kvyield.pages")

NOT_FITTED = "could not be fitted"
PAGE_SIZE = 25
MOST_SEARCHED = 200


@look("/ui", "search", "page_token")
async def show_pairs(request: Request[Any, Any, Any]) -> Response[str]:
    """Show pairs, the newest first, or how to record the first one."""
    services = services_of(request)
    given = dict(request.query_params)
    search = given.get("search", "").strip()[:MOST_SEARCHED]
    token = given.get("page_token")

    def work(uow: UnitOfWork) -> dict[str, Any]:
        found = page_of(
            pairs_page(uow, search or None, key_of(token, NEWEST_CREATED), PAGE_SIZE, None),
            lambda pair: pair,
            NEWEST_CREATED,
        )
        rows = [row_of(uow, services, pair) for pair in found.items]
        return {"rows": rows, "next_token": found.next_page_token}

    values = await services.read(work)
    is_empty = not values["rows"] and not search and not token
    first = first_visit(request, needs_token=token_of(request) is not None) if is_empty else {}
    shown = {"here": "pairs", "search": search, "is_later": bool(token), "is_empty": is_empty}
    return page(request, "pairs.html", {**shown, **values, **first})


def row_of(uow: UnitOfWork, services: Services, pair: Pair) -> PairRow:
    """Return the line of one pair; one that cannot be fitted says so, and takes nothing else along."""
    newest = uow.observations.page(ObservationFilter(pair_id=pair.id, include_retracted=False), None, 1).items
    last = from_domain(newest[0]) if newest else None
    try:
        fits = services.fits.of_pair(uow, pair).deployments
    except KvyieldError:
        raise
    except Exception:
        log.exception("pair_not_fitted", pair_id=str(pair.id))
        return replace(pair_row(pair_out(pair), last, [], 0), deployments=UNKNOWN, alerts=(NOT_FITTED,))
    failures = sum(start.outcome is not Outcome.READY for fit in fits for start in fit.starts)
    return pair_row(pair_out(pair), last, [fit.summary for fit in fits], failures)


def first_visit(request: Request[Any, Any, Any], *, needs_token: bool) -> dict[str, Any]:
    """Return the commands of a first visit, with the address at which the reader sees this page."""
    address = f"export KVYIELD_URL={str(request.base_url).rstrip('/')}"
    token = "\nexport KVYIELD_TOKEN=kvy_..." if needs_token else ""
    return {
        "first_address": address + token,
        "needs_token": needs_token,
        "is_loopback": is_loopback(request.base_url.hostname or ""),
    }
