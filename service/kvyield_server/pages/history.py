"""The history of a pair: a filtered page of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from kvyield_server.api.pagination import key_of, page_of, where_of
from kvyield_server.domain.facts.observation import EngineName, Outcome
from kvyield_server.pages.views.starts import start_row, told_apart
from kvyield_server.pages.views.words import engine_word, outcome_word
from kvyield_server.schemas.observations import from_domain
from kvyield_server.schemas.paging import ObservationsQuery
from kvyield_server.storage.records import NEWEST_OBSERVED
from kvyield_server.storage.uow import UnitOfWork

FILTERS = ("outcome", "engine", "host")
PAGE_SIZE = 25
OUTCOME_OPTIONS = [(outcome.value, outcome_word(outcome)) for outcome in Outcome]
ENGINE_OPTIONS = [(engine.value, engine_word(engine)) for engine in EngineName]


def history_values(uow: UnitOfWork, pair_id: UUID, given: Mapping[str, str]) -> dict[str, Any]:
    """Return what the history's template shows; a filter that does not exist is named, and nothing is hidden."""
    filters = {name: given[name].strip() for name in FILTERS if given.get(name, "").strip()}
    token, fault = given.get("page_token"), ""
    try:
        query = msgspec.convert({**filters, "pair_id": str(pair_id)}, ObservationsQuery, strict=False)
    except msgspec.ValidationError as error:
        query, filters, token, fault = ObservationsQuery(pair_id=pair_id), {}, None, f"No such filter: {error}."
    found = page_of(
        uow.observations.page(where_of(query), key_of(token, NEWEST_OBSERVED), PAGE_SIZE), from_domain, NEWEST_OBSERVED
    )
    return {
        "starts": told_apart([start_row(start) for start in found.items]),
        "next_token": found.next_page_token,
        "is_later": bool(token),
        "filters": {name: filters.get(name, "") for name in FILTERS},
        "history_fault": fault,
        "outcome_options": OUTCOME_OPTIONS,
        "engine_options": ENGINE_OPTIONS,
    }
