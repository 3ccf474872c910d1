"""Which observations a filter means."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, literal_column, select, union

from kvyield_server.domain.facts.observation import Outcome
from kvyield_server.storage import tables
from kvyield_server.storage.records import ObservationFilter

_it, _account = tables.observation.c, tables.account.c
_EQUALS = ("pair_id", "gpu", "model", "engine", "outcome", "host")


def conditions(where: ObservationFilter) -> list[ColumnElement[bool]]:
    """Return what a row must satisfy."""
    wanted = [(name, getattr(where, name)) for name in _EQUALS]
    conditions: list[ColumnElement[bool]] = [_it[name] == value for name, value in wanted if value is not None]
    if where.outcome not in (None, Outcome.READY):
        conditions.append(_it.outcome != literal_column("'ready'"))  # said as the index says it, else it is not used
    if where.token_id is not None:
        conditions.append(_it.id.in_(posted_with(where.token_id)))
    if where.since is not None:
        conditions.append(_it.observed_at >= where.since)
    if where.until is not None:
        conditions.append(_it.observed_at < where.until)
    if not where.include_retracted:
        conditions.append(_it.retracted_at.is_(None))
    return conditions


def posted_with(token_id: UUID) -> Any:
    """Return the query for the ids of all starts of which a token posted an account."""
    first = select(_it.id).where(_it.token_id == token_id)
    return union(first, select(_account.observation_id).where(_account.token_id == token_id))
