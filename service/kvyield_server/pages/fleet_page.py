"""The pages of all pairs: the fleet, and the drift between versions of an engine. They show what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response
from msgspec import Meta, Struct

from kvyield_server.api.services import Services, services_of
from kvyield_server.errors import InvalidError
from kvyield_server.pages.rendering import page
from kvyield_server.pages.session import look
from kvyield_server.pages.views.fleet import change_text, drift_view, fleet_view, sort_links, summary_of
from kvyield_server.schemas.strict import faults_of
from kvyield_server.storage.records import VersionChange
from kvyield_server.storage.uow import UnitOfWork

PAGE_SIZE = 50
PATIENCE_SECONDS = 0.3  # a page waits this long for rows that are nearly up to date, never for all
FLEET_SORTS = {
    "attention": "",
    "model": "",
    "gpu": "",
    "started": "-",
    "newest": "-",
    "pool": "-",
    "free": "",
    "headroom": "",
    "verified": "",
}
DRIFT_SORTS = {"model": "", "starts": "", "slope": "-", "pool": "-", "free": "-"}
"""By what one may sort, each with its first direction: what needs a look comes first."""

FLEET_FILTERS = (
    ("died", "newest start did not stay up"),
    ("no", "does not answer its last question"),
    ("at_risk", "answers it at risk"),
    ("unverified", "never verified"),
    ("nothing_runs", "nothing runs"),
)
PageNumber = Annotated[int, Meta(ge=1, le=1_000_000)]
Text = Annotated[str, Meta(max_length=200)]


class FleetQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which pairs, in which order: a sort key with ``-`` before it is turned round."""

    search: Text = ""
    show: Literal["", "died", "no", "at_risk", "unverified", "nothing_runs"] = ""
    sort: Text = "attention"
    page: PageNumber = 1


class DriftQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which two versions, as the page itself names them, and in which order."""

    versions: Text = ""
    sort: Text = "-pool"
    page: PageNumber = 1


@look("/ui/fleet", *FleetQuery.__struct_fields__)
async def show_fleet(request: Request[Any, Any, Any]) -> Response[str]:
    """Show all pairs with what runs now and whether it answers its last question."""
    services, asked = services_of(request), _query(request, FleetQuery, FLEET_SORTS)
    await _nearly_up_to_date(services)

    def work(uow: UnitOfWork) -> dict[str, Any]:
        search, show = asked.search.strip() or None, asked.show or None
        total, offset = uow.fleet.count(search, show), PAGE_SIZE * (asked.page - 1)
        sort, is_descending = _direction(asked.sort)
        rows = uow.fleet.page(search, show, sort=sort, is_descending=is_descending, offset=offset, size=PAGE_SIZE)
        questions = uow.fleet.questions([row.recommendation_id for row in rows if row.recommendation_id])
        views = [
            fleet_view(row, questions.get(row.recommendation_id) if row.recommendation_id else None) for row in rows
        ]
        return {"rows": views, "waiting": services.fleet.count_stale(uow), **_pages(asked.page, total)}

    given = {"search": asked.search.strip(), "show": asked.show, "sort": asked.sort}
    links = sort_links(FLEET_SORTS, asked.sort, given)
    shown = {"here": "fleet", "asked": asked, "given": given, "links": links, "filters": FLEET_FILTERS}
    return page(request, "fleet.html", {**shown, **await services.read(work)})


@look("/ui/drift", *DriftQuery.__struct_fields__)
async def show_drift(request: Request[Any, Any, Any]) -> Response[str]:
    """Show what changed between two versions of an engine over all pairs."""
    services, asked = services_of(request), _query(request, DriftQuery, DRIFT_SORTS)
    await _nearly_up_to_date(services)

    def work(uow: UnitOfWork) -> dict[str, Any]:
        changes = uow.fleet.version_changes()
        chosen = _chosen(changes, asked.versions)
        values = {
            "changes": [(_name(each), change_text(each)) for each in changes],
            "waiting": services.fleet.count_stale(uow),
        }
        if chosen is None:
            return {**values, "chosen": None, "rows": [], **_pages(1, 0)}
        sort, is_descending = _direction(asked.sort)
        rows = uow.fleet.drifts(
            (chosen.engine, chosen.from_version, chosen.to_version),
            sort=sort,
            is_descending=is_descending,
            offset=PAGE_SIZE * (asked.page - 1),
            size=PAGE_SIZE,
        )
        views = [drift_view(row) for row in rows]
        told = {
            "chosen": chosen,
            "chosen_name": _name(chosen),
            "title": change_text(chosen),
            "summary": summary_of(chosen),
        }
        return {**values, **told, "rows": views, **_pages(asked.page, chosen.deployments)}

    values = await services.read(work)
    given = {"versions": values.get("chosen_name", ""), "sort": asked.sort}
    links = sort_links(DRIFT_SORTS, asked.sort, given)
    return page(request, "drift.html", {"here": "drift", "given": given, "links": links, **values})


async def _nearly_up_to_date(services: Services) -> None:
    """Begin to bring the rows up to date and return soon, whether or not that is done."""
    await asyncio.wait([asyncio.wrap_future(services.fleet.begin())], timeout=PATIENCE_SECONDS)


def _query(request: Request[Any, Any, Any], kind: Any, sorts: Mapping[str, str]) -> Any:
    """Return the query of a page.

    Raises:
        InvalidError: a parameter is unknown or has a value that it cannot have.
    """
    given = dict(request.query_params)
    if faults := faults_of(given, kind, strict=False):
        raise InvalidError([(fault.pointer, fault.detail) for fault in faults])
    asked = msgspec.convert(given, kind, strict=False)
    if asked.sort.removeprefix("-") not in sorts:
        raise InvalidError(
            [("/sort", f"sort is {asked.sort!r}; it may be one of {', '.join(sorts)}, or - before one.")]
        )
    return asked


def _direction(sort: str) -> tuple[str, bool]:
    return sort.removeprefix("-"), sort.startswith("-")


def _pages(number: int, total: int) -> dict[str, Any]:
    first = PAGE_SIZE * (number - 1)
    return {
        "total": total,
        "first": min(first + 1, total),
        "last": min(first + PAGE_SIZE, total),
        "previous": min(number - 1, -(-total // PAGE_SIZE)) or None,
        "next": number + 1 if first + PAGE_SIZE < total else None,
    }


def _name(change: VersionChange) -> str:
    """Return what names two versions in an address."""
    return msgspec.json.encode((change.engine, change.from_version, change.to_version)).decode()


def _chosen(changes: list[VersionChange], wanted: str) -> VersionChange | None:
    """Return the two versions that were asked for, else those that ran last."""
    named = (each for each in changes if _name(each) == wanted)
    if wanted and not any(_name(each) == wanted for each in changes):
        raise InvalidError([("/versions", f"No pair ran both versions {wanted}; choose two from the list.")])
    return next(named, None) if wanted else next(iter(changes), None)
