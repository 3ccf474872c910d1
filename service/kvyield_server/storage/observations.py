"""The observation repository over SQL. Each change of evidence also brings the pair's own row up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import nlargest
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    bindparam,
    delete,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)

from kvyield_server.domain.facts.observation import Observation, Outcome, Verification
from kvyield_server.errors import NotFoundError
from kvyield_server.storage import tables
from kvyield_server.storage.known_pairs import KnownPairs
from kvyield_server.storage.paging import cut, observation_key
from kvyield_server.storage.pairs import PAIRS, SOURCE
from kvyield_server.storage.records import ObservationFilter, Page, PageKey, Pair, StoredObservation
from kvyield_server.storage.rows import (
    observation_from_row,
    observation_to_row,
    pair_from_row,
    verification_from_row,
    verification_to_row,
)
from kvyield_server.storage.statements import MOST_TOGETHER, batched, insert_rows, newest_first, row_shape
from kvyield_server.storage.values import refuse_unstorable

_it, _pair, _verification = tables.observation.c, tables.pair.c, tables.verification.c
_ALL = select(tables.observation)
_WITHOUT_LOG = select(*(column for column in _it if column.name != "log_excerpt"), null().label("log_excerpt"))
_BY_DIGEST = _ALL.where(_it.content_digest == bindparam("content_digest"))
_MATCHING = _ALL.where(
    or_(
        _it.id.in_(bindparam("ids", expanding=True)),
        _it.content_digest.in_(bindparam("digests", expanding=True)),
    )
)
_COUNTED = ("id", "observation_count", "last_observed_at", "engines")
_COUNT = """WITH added (id, observation_count, last_observed_at, engines) AS (VALUES {rows})
UPDATE pair SET revision = pair.revision + 1, observation_count = pair.observation_count + added.observation_count,
last_observed_at = added.last_observed_at, engines = added.engines FROM added WHERE pair.id = added.id"""
MOST_PAIRS = 50  # of one GPU or model, to be asked one by one; the starts of more are found among all starts
_EQUALS = ("pair_id", "gpu", "model", "engine", "outcome", "host", "token_id")


class SqlObservations:
    def __init__(self, connection: Connection, clock: Callable[[], datetime], known: KnownPairs) -> None:
        self._connection = connection
        self._clock = clock
        self._remembered = known

    def add(
        self,
        observation: Observation,
        pair_id: UUID,
        content_digest: str,
        *,
        received_at: datetime | None = None,
        token_id: UUID | None = None,
    ) -> None:
        refuse_unstorable(observation)
        stored = StoredObservation(
            observation=observation,
            pair_id=pair_id,
            received_at=received_at or self._clock(),
            content_digest=content_digest,
            token_id=token_id,
        )
        self.add_all([stored], self._pairs(pair_id))

    def _pairs(self, pair_id: UUID) -> list[Pair]:
        query = PAIRS.where(_pair.id == pair_id)
        return [pair_from_row(row) for row in self._connection.execute(query).mappings()]

    def add_all(self, observations: Sequence[StoredObservation], pairs: Sequence[Pair]) -> None:
        if observations:
            self._insert(observations)
            self._count(observations, {pair.id: pair for pair in pairs})

    def _insert(self, observations: Sequence[StoredObservation]) -> None:
        insert_rows(self._connection, tables.observation, [observation_to_row(stored) for stored in observations])
        verifications = [
            verification_to_row(stored.observation.id, position, verification)
            for stored in observations
            for position, verification in enumerate(stored.observation.verifications)
        ]
        insert_rows(self._connection, tables.verification, verifications)

    def _count(self, added: Sequence[StoredObservation], pairs: Mapping[UUID, Pair]) -> None:
        own: dict[UUID, list[Observation]] = {}
        for stored in added:
            own.setdefault(stored.pair_id, []).append(stored.observation)
        for some in batched(own.items(), MOST_TOGETHER):
            counted = [_counted(pairs[pair_id], observations) for pair_id, observations in some]
            changes = [
                {
                    "id": pair.id,
                    "observation_count": len(own[pair.id]),
                    "last_observed_at": pair.last_observed_at,
                    "engines": pair.engines,
                }
                for pair in counted
            ]
            row_shape(tables.pair, _COUNTED, self._connection.dialect).run(self._connection, _COUNT, changes)
            for pair in counted:
                self._remembered.keep(pair)

    def _recount(self, pair_id: UUID) -> None:
        live = (_it.pair_id == pair_id, _it.retracted_at.is_(None))
        count, newest = self._connection.execute(select(func.count(), func.max(_it.observed_at)).where(*live)).one()
        engines = self._connection.execute(select(_it.engine).where(*live).distinct()).scalars()
        self._update_pair(pair_id, observation_count=count, last_observed_at=newest, engines=sorted(engines))

    def _update_pair(self, pair_id: UUID, **values: Any) -> None:
        self._remembered.clear()
        values["revision"] = _pair.revision + 1
        self._connection.execute(update(tables.pair).where(_pair.id == pair_id).values(values))

    def get(self, observation_id: UUID) -> StoredObservation | None:
        return next(iter(self.by_ids([observation_id])), None)

    def by_digest(self, content_digest: str) -> StoredObservation | None:
        return next(iter(self._load(_BY_DIGEST, {"content_digest": content_digest})), None)

    def matching(self, ids: Sequence[UUID], digests: Sequence[str]) -> list[StoredObservation]:
        return self._load(_MATCHING, {"ids": ids, "digests": digests})

    def by_ids(self, ids: Sequence[UUID]) -> list[StoredObservation]:
        """Return the observations with these ids, in no order."""
        return self._load(_ALL.where(_it.id.in_(ids)))

    def page(
        self, where: ObservationFilter, after: PageKey | None, size: int, *, with_logs: bool = True
    ) -> Page[StoredObservation]:
        chosen = _ALL if with_logs else _WITHOUT_LOG
        if where.pair_id is None and (where.gpu is not None or where.model is not None):
            pairs = self._pairs_named(where)
            if len(pairs) <= MOST_PAIRS:
                ids = self._newest_of(pairs, where, after, size)
                return cut(self._load(_newest(chosen.where(_it.id.in_(ids)), None, size)), size, observation_key)
        return cut(self._load(_newest(chosen.where(*_conditions(where)), after, size)), size, observation_key)

    def _pairs_named(self, where: ObservationFilter) -> Sequence[UUID]:
        """Return up to one more than ``MOST_PAIRS`` of the pairs whose starts are wanted."""
        query = select(_pair.id).select_from(SOURCE)
        if where.gpu is not None:
            query = query.where(tables.hardware.c.gpu == where.gpu)
        if where.model is not None:
            query = query.where(tables.model.c.name == where.model)
        return self._connection.execute(query.limit(MOST_PAIRS + 1)).scalars().all()

    def _newest_of(
        self, pairs: Sequence[UUID], where: ObservationFilter, after: PageKey | None, size: int
    ) -> list[UUID]:
        """Return the ids of the newest starts of some pairs, each pair's newest found by the pair's own index."""
        found: list[tuple[datetime, UUID]] = []
        for pair_id in pairs:
            query = select(_it.observed_at, _it.id).where(_it.pair_id == pair_id, *_conditions(where))
            found += [(row.observed_at, row.id) for row in self._connection.execute(_newest(query, after, size))]
        return [row_id for _, row_id in nlargest(size + 1, found)]

    def of_pair(
        self, pair_id: UUID, include_retracted: bool = False, newest: int | None = None
    ) -> tuple[StoredObservation, ...]:
        where = ObservationFilter(pair_id=pair_id, include_retracted=include_retracted)
        query = _WITHOUT_LOG.where(*_conditions(where)).order_by(_it.observed_at.desc(), _it.id.desc()).limit(newest)
        rows = self._connection.execute(query).mappings().all()
        since = rows[-1]["observed_at"] if rows else None
        of_pair = select(tables.verification).join(tables.observation)
        of_pair = of_pair.where(_it.pair_id == pair_id, _it.observed_at >= since)
        return tuple(self._assemble(rows, of_pair))

    def expired(self, before: datetime, newest: int, size: int) -> tuple[StoredObservation, ...]:
        age = func.row_number().over(partition_by=_it.pair_id, order_by=(_it.observed_at.desc(), _it.id.desc()))
        live = select(_it.id, age.label("age")).where(_it.retracted_at.is_(None)).subquery()
        superseded = select(live.c.id).where(live.c.age > newest)
        settling = select(tables.recommendation.c.observation_id).where(
            tables.recommendation.c.observation_id.is_not(None)
        )
        query = _ALL.where(
            _it.observed_at < before,
            or_(_it.retracted_at.is_not(None), _it.id.in_(superseded)),
            _it.id.not_in(settling),
        )
        return tuple(self._load(query.order_by(_it.observed_at, _it.id).limit(size)))

    def remove(self, ids: Sequence[UUID]) -> None:
        pairs = set(self._connection.execute(select(_it.pair_id).where(_it.id.in_(ids))).scalars())
        self._connection.execute(delete(tables.verification).where(_verification.observation_id.in_(ids)))
        self._connection.execute(delete(tables.observation).where(_it.id.in_(ids)))
        for pair_id in pairs:
            self._recount(pair_id)

    def retract(self, observation_id: UUID, reason: str, at: datetime) -> StoredObservation:
        refuse_unstorable(reason)
        stored = self._known(observation_id)
        if stored.retracted_at is not None:
            return stored
        values = {"retracted_at": at, "retraction_reason": reason}
        self._connection.execute(update(tables.observation).where(_it.id == observation_id).values(values))
        self._recount(stored.pair_id)
        return self._known(observation_id)

    def add_verification(self, observation_id: UUID, verification: Verification) -> bool:
        refuse_unstorable(verification)
        stored = self._known(observation_id)
        present = stored.observation.verifications
        if verification in present:
            return False
        insert_rows(
            self._connection,
            tables.verification,
            [verification_to_row(observation_id, len(present), verification)],
        )
        self._update_pair(stored.pair_id)
        return True

    def _known(self, observation_id: UUID) -> StoredObservation:
        stored = self.get(observation_id)
        if stored is None:
            raise NotFoundError(f"No observation has the id {observation_id}.")
        return stored

    def _load(self, query: Select[Any], values: Mapping[str, object] | None = None) -> list[StoredObservation]:
        rows = self._connection.execute(query, values).mappings().all()
        ids = [row["id"] for row in rows]
        return self._assemble(rows, select(tables.verification).where(_verification.observation_id.in_(ids)))

    def _assemble(self, rows: Sequence[RowMapping], verifications: Select[Any]) -> list[StoredObservation]:
        """Return the observations of ``rows``, each with its own of the verifications."""
        if not rows:
            return []
        ordered = verifications.order_by(_verification.observation_id, _verification.position)
        found = self._connection.execute(ordered).mappings().all()
        own = {
            key: [verification_from_row(each) for each in group]
            for key, group in groupby(found, key=lambda row: row["observation_id"])
        }
        return [observation_from_row(row, own.get(row["id"], ())) for row in rows]


def _counted(pair: Pair, added: Sequence[Observation]) -> Pair:
    """Return what a pair becomes once these observations are added."""
    newest = max(each.observed_at for each in added)
    engines = {each.engine.name for each in added}
    return replace(
        pair,
        revision=pair.revision + 1,
        observation_count=pair.observation_count + len(added),
        last_observed_at=max(newest, pair.last_observed_at or newest),
        engines=pair.engines if engines.issubset(pair.engines) else tuple(sorted(engines.union(pair.engines))),
    )


def _newest(query: Select[Any], after: PageKey | None, size: int) -> Select[Any]:
    return newest_first(query, _it.observed_at, _it.id, after, size)


def _conditions(where: ObservationFilter) -> list[ColumnElement[bool]]:
    wanted = [(name, getattr(where, name)) for name in _EQUALS]
    conditions: list[ColumnElement[bool]] = [_it[name] == value for name, value in wanted if value is not None]
    if where.outcome not in (None, Outcome.READY):
        conditions.append(_it.outcome != literal_column("'ready'"))  # said as the index says it, else it is not used
    if where.since is not None:
        conditions.append(_it.observed_at >= where.since)
    if where.until is not None:
        conditions.append(_it.observed_at < where.until)
    if not where.include_retracted:
        conditions.append(_it.retracted_at.is_(None))
    return conditions
