"""The newest fits of each pair, kept for history pages and for the drift between engine versions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, delete, select

from kvyield_server.domain.answers import FitSummary
from kvyield_server.storage import tables
from kvyield_server.storage.records import StoredFit
from kvyield_server.storage.rows import fit_from_row, fit_to_row
from kvyield_server.storage.statements import insert_rows
from kvyield_server.storage.values import refuse_unstorable

_it = tables.fit.c


class Fits:
    """The newest fits of each pair, kept for history pages and for the drift between engine versions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def save(self, pair_id: UUID, revision: int, summaries: Sequence[FitSummary], fitted_at: datetime) -> None:
        """Replace the fits of a pair."""
        refuse_unstorable(summaries)
        self._connection.execute(delete(tables.fit).where(_it.pair_id == pair_id))
        fits = [
            StoredFit(pair_id=pair_id, revision=revision, fitted_at=fitted_at, summary=summary) for summary in summaries
        ]
        insert_rows(self._connection, tables.fit, [fit_to_row(each, place) for place, each in enumerate(fits)])

    def of_pair(self, pair_id: UUID) -> tuple[StoredFit, ...]:
        """Return the saved fits of a pair in the order in which they were saved."""
        query = select(tables.fit).where(_it.pair_id == pair_id).order_by(_it.position)
        return tuple(fit_from_row(row) for row in self._connection.execute(query).mappings())
