"""Pages on the wire: opaque tokens that name the last row, so that rows that arrive never shift a page."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from kvyield_server.domain.facts.observation import EngineName, Outcome
from kvyield_server.schemas.common import Instant, ModelName, Name
from kvyield_server.schemas.strict import Fault, FaultyBodyError

PageSize = Annotated[int, Meta(ge=1, le=500)]
PageToken = Annotated[str, Meta(min_length=1, max_length=4_000)]
ObservationSort = Literal["-observed_at", "observed_at", "-received_at", "received_at"]
PairSort = Literal["-created_at", "created_at", "name", "-name", "last_start", "-last_start"]


class PageQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """A page, newest first.

    Attributes:
        page_size: Rows per page.
        page_token: `next_page_token` of the page before; absent for the first page.
    """

    page_size: PageSize = 50
    page_token: PageToken | None = None


class PairsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """A page of pairs.

    Attributes:
        search: Part of a GPU or model name, in any case.
        gpu: Only pairs of this GPU model, as loosely written as in a selector.
        model: Only pairs of this model, as loosely written as in a selector.
        sort: By when the pair was first recorded, by the model's name or by the last live start; `-` for the newest or
            last first. Pairs without a live start come last by `last_start`.
        page_size: Rows per page.
        page_token: `next_page_token` of the page before; absent for the first page.
    """

    search: Name | None = None
    gpu: Name | None = None
    model: ModelName | None = None
    sort: PairSort = "-created_at"
    page_size: PageSize = 50
    page_token: PageToken | None = None


class ExportQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which observations.

    Attributes:
        pair_id: Only starts of this pair.
        gpu: Only starts on this GPU model, written as loosely as in a selector; 409 when several match.
        model: Only starts of this model, written as loosely as in a selector; 409 when several match.
        engine: Only starts of this engine.
        outcome: Only starts that ended like this.
        host: Only starts on the machine of this name.
        since: Only starts at or after this time with its zone, or from the beginning of this day in UTC.
        until: Only starts before this time with its zone, or to the end of this day in UTC.
    """

    pair_id: UUID | None = None
    gpu: Name | None = None
    model: ModelName | None = None
    engine: EngineName | None = None
    outcome: Outcome | None = None
    host: Name | None = None
    since: Instant | None = None
    until: Instant | None = None


class ObservationsQuery(ExportQuery, forbid_unknown_fields=True, kw_only=True):
    """A page of the ledger.

    Attributes:
        sort: By when the engine started or by when the service received it; `-` for the newest first.
        page_size: Rows per page.
        page_token: `next_page_token` of the page before; absent for the first page.
    """

    sort: ObservationSort = "-observed_at"
    page_size: PageSize = 50
    page_token: PageToken | None = None


def page_token(value: datetime | str | None, row_id: UUID, sort: str) -> str:
    """Return the token that names a row of a list by what it is sorted by there and its id.

    No two lists have an order of the same name, so that a token is of one list.
    """
    text = value.isoformat() if isinstance(value, datetime) else value
    return base64.urlsafe_b64encode(msgspec.json.encode([sort, text, row_id.hex])).decode().rstrip("=")


def row_named(token: str, sort: str) -> tuple[datetime | str | None, UUID]:
    """Return the row that a token names in a list that is sorted so.

    Raises:
        FaultyBodyError: the token was not made by ``page_token``, or for another list or order.
    """
    try:
        told = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        made_for, text, row_id = msgspec.json.decode(told, type=tuple[str, str | None, str])
        if made_for == sort:
            return _value(text, sort), UUID(row_id)
    except (ValueError, OverflowError):
        detail = "not one that this service gave; take next_page_token of the page before."
    else:
        detail = (
            f"of another list, or of this one in another order than {sort}; leave it out to start from the first page."
        )
    raise FaultyBodyError([Fault("/page_token", f"page_token is {token[:60]}: it is {detail}")])


def _value(text: str | None, sort: str) -> datetime | str | None:
    if "\0" in (text or "").encode().decode():  # a half of a surrogate pair has no encoding
        raise ValueError
    if sort.endswith("name"):
        return text or ""
    if text is None and sort.endswith("last_start"):
        return None
    moment = datetime.fromisoformat(text or "")
    if moment.tzinfo is None:
        raise ValueError
    return moment.astimezone(UTC)
