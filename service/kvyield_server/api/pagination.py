"""Pages of lists: from query to filter and key, from stored page to wire page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from kvyield_server.schemas.common import Page as PageOut
from kvyield_server.schemas.common import as_utc
from kvyield_server.schemas.paging import ExportQuery, page_token, row_named
from kvyield_server.storage.records import ObservationFilter, Page, PageKey

Stored = TypeVar("Stored")
Out = TypeVar("Out")


def key_of(token: str | None, sort: str) -> PageKey | None:
    """Return where the page before ended."""
    return PageKey(*row_named(token, sort)) if token else None


def page_of(page: Page[Stored], to_out: Callable[[Stored], Out], sort: str) -> PageOut[Out]:
    """Return a page in its wire form."""
    key = page.next_key
    token = page_token(key.at, key.id, sort) if key else None
    return PageOut(items=[to_out(item) for item in page.items], next_page_token=token)


def where_of(query: ExportQuery, token_id: UUID | None = None) -> ObservationFilter:
    """Return the filter of a query; a caller bound to a token sees the starts that were posted with it."""
    return ObservationFilter(
        pair_id=query.pair_id,
        gpu=query.gpu,
        model=query.model,
        engine=query.engine,
        outcome=query.outcome,
        host=query.host,
        since=query.since and as_utc(query.since),
        until=query.until and as_utc(query.until),
        token_id=token_id,
    )
