"""Answers that were given, and the starts that settled them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, select, update

from kvyield_server.domain.records import StoredRecommendation
from kvyield_server.errors import NotFoundError
from kvyield_server.storage import tables
from kvyield_server.storage.observations import Observations
from kvyield_server.storage.paging import cut, recommendation_key, settled_key
from kvyield_server.storage.records import Page, PageKey, SettledRecommendation
from kvyield_server.storage.rows import recommendation_from_row, recommendation_to_row
from kvyield_server.storage.statements import insert_rows, page_of_rows
from kvyield_server.storage.values import refuse_unstorable

_it = tables.recommendation.c
_SETTLED = select(tables.recommendation).join(tables.observation).where(tables.observation.c.retracted_at.is_(None))


class Recommendations:
    """Answers that were given, and the starts that settled them."""

    def __init__(self, connection: Connection, observations: Observations) -> None:
        self._connection = connection
        self._observations = observations

    def add(self, recommendation: StoredRecommendation) -> None:
        """Keep an answer. ConflictError when its id is already stored."""
        refuse_unstorable(recommendation)
        insert_rows(self._connection, tables.recommendation, [recommendation_to_row(recommendation)])

    def get(self, recommendation_id: UUID) -> StoredRecommendation | None:
        """Return the answer with that id."""
        query = select(tables.recommendation).where(_it.id == recommendation_id)
        row = self._connection.execute(query).mappings().first()
        return None if row is None else recommendation_from_row(row)

    def settle(self, recommendation_id: UUID, observation_id: UUID, at: datetime) -> bool:
        """Tie an answer to the start that followed it; False when it is settled already: the first start counts."""
        if self.get(recommendation_id) is None:
            raise NotFoundError(f"No recommendation has the id {recommendation_id}.")
        if self._observations.get(observation_id) is None:
            raise NotFoundError(f"No observation has the id {observation_id}.")
        unsettled = (_it.id == recommendation_id, _it.observation_id.is_(None))
        values = {"observation_id": observation_id, "settled_at": at}
        return self._connection.execute(update(tables.recommendation).where(*unsettled).values(values)).rowcount == 1

    def newest_of(self, pair_id: UUID) -> StoredRecommendation | None:
        """Return the answer about a pair that was kept last."""
        query = select(tables.recommendation).where(_it.pair_id == pair_id)
        row = self._connection.execute(query.order_by(_it.made_at.desc(), _it.id.desc()).limit(1)).mappings().first()
        return None if row is None else recommendation_from_row(row)

    def settled_by(self, observation_id: UUID) -> UUID | None:
        """Return the id of the answer that a start settled, if it settled one."""
        query = select(_it.id).where(_it.observation_id == observation_id)
        settled: UUID | None = self._connection.execute(query.limit(1)).scalar()
        return settled

    def settled_by_any(self, ids: Sequence[UUID]) -> list[StoredRecommendation]:
        """Return the answers that some starts settled."""
        query = select(tables.recommendation).where(_it.observation_id.in_(ids)).order_by(_it.id)
        return [recommendation_from_row(row) for row in self._connection.execute(query).mappings()]

    def page(self, after: PageKey | None, size: int) -> Page[StoredRecommendation]:
        """Return all answers, settled or not, by (made_at, id), newest first."""
        query = page_of_rows(select(tables.recommendation), _it.made_at, _it.id, after, size)
        found = [recommendation_from_row(row) for row in self._connection.execute(query).mappings()]
        return cut(found, size, recommendation_key)

    def page_settled(self, after: PageKey | None, size: int) -> Page[SettledRecommendation]:
        """Return settled answers whose start is not retracted, by (settled_at, id), newest first."""
        query = page_of_rows(_SETTLED, _it.settled_at, _it.id, after, size)
        found = [recommendation_from_row(row) for row in self._connection.execute(query).mappings()]
        starts = self._observations.by_ids([each.observation_id for each in found if each.observation_id])
        by_id = {start.observation.id: start for start in starts}
        settled = [
            SettledRecommendation(recommendation=each, observation=by_id[each.observation_id])
            for each in found
            if each.observation_id is not None
        ]
        return cut(settled, size, settled_key)
