"""The page of a pair: its advice, its two plots, its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from litestar import MediaType, Request, Response, post
from litestar.params import FromPath
from uuid6 import uuid7

from kvyield_server.api.services import Services, services_of
from kvyield_server.domain.facts.observation import FRACTION_FLAG
from kvyield_server.errors import InvalidError
from kvyield_server.pages.advising import advised, chosen_deployment, store_advice
from kvyield_server.pages.asking import CONFIDENCES, FIELDS, LABELS, PREFERENCES
from kvyield_server.pages.history import FILTERS, history_values
from kvyield_server.pages.pairs_page import row_of
from kvyield_server.pages.rendering import address_after, page
from kvyield_server.pages.session import LOOKS, look
from kvyield_server.pages.views.comparison import compare
from kvyield_server.pages.views.pairs import hardware_text, labels_of, memory_text
from kvyield_server.pages.views.plot import starts_view
from kvyield_server.pages.views.starts import start_row, told_apart
from kvyield_server.schemas.observations import from_domain
from kvyield_server.storage.records import Pair
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import utc_now
from kvyield_server.usecases.browse import stored_observation, stored_pair

QUESTION = ("deployment", *FIELDS)
HISTORY = (*FILTERS, "page_token")


@look("/ui/pairs/{pair_id:uuid}", *QUESTION, *HISTORY)
async def show_pair(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> Response[str]:
    """Show a pair whole."""
    services, given = services_of(request), dict(request.query_params)

    def work(uow: UnitOfWork) -> dict[str, Any]:
        pair = stored_pair(uow, pair_id)
        values = {"row": row_of(uow, services, pair), "memory": memory_text(pair.hardware), "here": "pairs"}
        return {**values, **_fitted(uow, services, pair, given), **history_values(uow, pair_id, given)}

    return page(request, "pair.html", await services.read(work))


@look("/ui/pairs/{pair_id:uuid}/advice", *QUESTION)
async def show_advice(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> Response[str]:
    """Show the advice alone, for a form that changed."""
    services, given = services_of(request), dict(request.query_params)

    def work(uow: UnitOfWork) -> dict[str, Any]:
        return {"row": {"id": pair_id}, "is_swap": True, **advised(uow, services, stored_pair(uow, pair_id), given)}

    values = await services.read(work)
    said = {name: given.get(name) for name in QUESTION}
    address = address_after(request, f"/ui/pairs/{pair_id}", said)
    status = 422 if values["faults"] else 200
    return page(request, "advice.html", values, status_code=status, headers={"HX-Replace-Url": address})


@post("/ui/pairs/{pair_id:uuid}/advice", guards=[LOOKS])
async def store_in_log(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> Response[Any]:
    """Keep the advice in the log, so that the start that follows can be compared with it."""
    services = services_of(request)
    given = {name: str(value) for name, value in (await request.form()).multi_items()}
    job = await services.read(
        lambda uow: store_advice(uow, services, stored_pair(uow, pair_id), given, new_id=uuid7(), now=utc_now())
    )
    stored = await services.write(job)
    return Response("", status_code=303, headers={"Location": f"/ui/advice#{stored.id}"}, media_type=MediaType.HTML)


@look("/ui/pairs/{pair_id:uuid}/history", *HISTORY)
async def show_history(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> Response[str]:
    """Show the history alone, filtered."""
    services, given = services_of(request), dict(request.query_params)

    def work(uow: UnitOfWork) -> dict[str, Any]:
        return {"row": {"id": stored_pair(uow, pair_id).id}, **history_values(uow, pair_id, given)}

    values = await services.read(work)
    address = address_after(request, f"/ui/pairs/{pair_id}", {name: given.get(name) for name in FILTERS})
    return page(request, "history.html", values, headers={"HX-Replace-Url": address})


@look("/ui/pairs/{pair_id:uuid}/compare", several=("start",))
async def show_comparison(request: Request[Any, Any, Any], pair_id: FromPath[UUID]) -> Response[str]:
    """Show two starts of a pair side by side, the older one first."""
    services = services_of(request)
    chosen = two_starts(request.query_params.getall("start", []))

    def work(uow: UnitOfWork) -> dict[str, Any]:
        found = [from_domain(stored_observation(uow, start)) for start in chosen]
        for start in found:
            if start.pair_id != pair_id:
                raise InvalidError([("/start", f"The start {start.id} is of another pair; choose two of this pair.")])
        first, second = sorted(found, key=lambda start: start.observed_at)
        pair = stored_pair(uow, pair_id)
        row = {"id": pair_id, "model": pair.model.name, "hardware": hardware_text(pair.hardware)}
        rows = told_apart([start_row(first), start_row(second)])
        return {
            "row": row,
            "first": rows[0],
            "second": rows[1],
            "comparison": compare(first, second),
        }

    return page(request, "compare.html", {"here": "pairs", **await services.read(work)})


def two_starts(given: list[str]) -> list[UUID]:
    """Return the two ids that were chosen.

    Raises:
        InvalidError: not two, or not ids.
    """
    try:
        chosen = [UUID(text) for text in given]
    except ValueError:
        chosen = []
    if len(set(chosen)) != 2:
        raise InvalidError([("/start", "Choose two different starts in the history, then compare them.")])
    return chosen


def _fitted(uow: UnitOfWork, services: Services, pair: Pair, given: Mapping[str, str]) -> dict[str, Any]:
    fits = services.fits.of_pair(uow, pair)
    if not fits.deployments:
        return {"fit": None, "deployments": []}
    summaries = [deployment.summary for deployment in fits.deployments]
    chosen = chosen_deployment(fits, given) or fits.deployments[0]
    fit = chosen.summary
    return {
        "fit": fit,
        "deployments": summaries,
        "labels": labels_of(fit),
        "plot_starts": starts_view(chosen.starts),
        "curve_flag": FRACTION_FLAG[fit.engine],
        "confidences": CONFIDENCES,
        "preferences": PREFERENCES,
        "field_labels": LABELS,
        "kept": [(name, given[name]) for name in FIELDS if given.get(name)],
        **advised(uow, services, pair, given),
    }
