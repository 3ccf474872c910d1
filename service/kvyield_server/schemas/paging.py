"""Pages on the wire: opaque tokens that name the last row, so that rows that arrive never shift a page."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from kvyield_server.domain.facts.observation import EngineName, Outcome
from kvyield_server.schemas.common import Instant, ModelName, Name
from kvyield_server.schemas.strict import Fault, FaultyBodyError

PageSize = Annotated[int, Meta(ge=1, le=500)]
PageToken = Annotated[str, Meta(min_length=1, max_length=200)]


class PageQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """A page, newest first.

    Attributes:
        page_size: Rows per page.
        page_token: `next_page_token` of the page before; absent for the first page.
    """

    page_size: PageSize = 50
    page_token: PageToken | None = None


class PairsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """A page of pairs, newest first.

    Attributes:
        search: Part of a GPU or model name, in any case.
        page_size: Rows per page.
        page_token: `next_page_token` of the page before; absent for the first page.
    """

    search: Name | None = None
    page_size: PageSize = 50
    page_token: PageToken | None = None


class ExportQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which observations.

    Attributes:
        pair_id: Only starts of this pair.
        gpu: Only starts on this GPU model, by its exact name.
        model: Only starts of this model, by its exact name.
        engine: Only starts of this engine.
        outcome: Only starts that ended like this.
        host: Only starts on the machine of this name.
        since: Only starts at or after this time, with its zone.
        until: Only starts before this time, with its zone.
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
    """A page of the ledger, newest first.

    Attributes:
        page_size: Rows per page.
        page_token: `next_page_token` of the page before; absent for the first page.
    """

    page_size: PageSize = 50
    page_token: PageToken | None = None


def page_token(at: datetime, row_id: UUID) -> str:
    """Return the token that names a row."""
    return base64.urlsafe_b64encode(f"{at.isoformat()} {row_id.hex}".encode()).decode().rstrip("=")


def row_named(token: str) -> tuple[datetime, UUID]:
    """Return the row that a token names.

    Raises:
        FaultyBodyError: the token was not made by ``page_token``.
    """
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        at, row_id = text.split(" ")
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC), UUID(row_id)
    except (ValueError, OverflowError, binascii.Error):
        detail = "page_token is not one that this service gave; take next_page_token of the page before."
        raise FaultyBodyError([Fault("/page_token", detail)]) from None
