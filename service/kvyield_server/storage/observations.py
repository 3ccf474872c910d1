"""The observation repository. Each change of evidence also brings the pair's own row up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from heapq import nlargest, nsmallest
from itertools import groupby, zip_longest
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    bindparam,
    delete,
    func,
    null,
    or_,
    select,
    union_all,
    update,
)

from kvyield_server.domain.facts.accounts import Account, short_host
from kvyield_server.domain.facts.observation import Observation, Verification
from kvyield_server.domain.records import HistoryEntry, StoredObservation
from kvyield_server.errors import NotFoundError
from kvyield_server.storage import tables
from kvyield_server.storage.candidates import queries_near
from kvyield_server.storage.filters import conditions
from kvyield_server.storage.paging import cut, observation_key
from kvyield_server.storage.pairs import SOURCE
from kvyield_server.storage.records import (
    NEWEST_OBSERVED,
    ObservationFilter,
    Page,
    PageKey,
    Pair,
    StoredAccount,
)
from kvyield_server.storage.rows import (
    account_from_row,
    account_to_row,
    history_from_row,
    history_to_row,
    observation_from_row,
    observation_to_row,
    verification_from_row,
    verification_to_row,
)
from kvyield_server.storage.statements import batched, insert_rows, insert_unknown, page_of_rows
from kvyield_server.storage.values import refuse_unstorable

_it, _pair, _verification = tables.observation.c, tables.pair.c, tables.verification.c
_account, _alias, _history = tables.account.c, tables.alias.c, tables.history.c
_ALL = select(tables.observation)
_WITHOUT_LOG = select(*(each for each in _it if each.name != "log_excerpt"), null().label("log_excerpt"))
_IDS: Any = bindparam("ids", expanding=True)
_DIGESTS: Any = bindparam("digests", expanding=True)
_KNOWN = union_all(
    select(_it.id.label("row"), _it.id, _it.content_digest).where(_it.id.in_(_IDS)),
    select(_it.id, _it.id, _it.content_digest).where(_it.content_digest.in_(_DIGESTS)),
    select(_alias.observation_id, _alias.id, null()).where(_alias.id.in_(_IDS)),
    select(_account.observation_id, null(), _account.content_digest).where(_account.content_digest.in_(_DIGESTS)),
)
_COUNT = (
    update(tables.pair)
    .where(_pair.id == bindparam("pair"))
    .values(
        revision=_pair.revision + 1,
        observation_count=_pair.observation_count + bindparam("count"),
        last_observed_at=bindparam("newest"),
        engines=bindparam("names"),
    )
)
MOST_PAIRS = 50  # of one GPU or model, to be asked one by one; the starts of more are found among all starts


class Observations:
    """The ledger: rows are added, marked, merged with further accounts and corrected; what was is kept beside them.

    Every id that was posted for a start finds its row.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, observations: Sequence[StoredObservation], pairs: Iterable[Pair]) -> None:
        """Keep new observations with their verifications, all or none. ``pairs`` are their pairs as just ensured.

        Raises:
            ConflictError: an id or a digest is already stored.
        """
        if not observations:
            return
        for stored in observations:
            refuse_unstorable(stored.observation)
        insert_rows(self._connection, tables.observation, [observation_to_row(stored) for stored in observations])
        self._insert_verifications(observations)
        self._count(observations, {pair.id: pair for pair in pairs})

    def _insert_verifications(self, observations: Iterable[StoredObservation]) -> None:
        rows = [
            verification_to_row(stored.observation.id, position, verification)
            for stored in observations
            for position, verification in enumerate(stored.observation.verifications)
        ]
        insert_rows(self._connection, tables.verification, rows)

    def _count(self, added: Sequence[StoredObservation], pairs: Mapping[UUID, Pair]) -> None:
        own: dict[UUID, list[Observation]] = {}
        for stored in added:
            if stored.retracted_at is None:
                own.setdefault(stored.pair_id, []).append(stored.observation)
        if not own:
            return
        changes = [_counted(pairs[pair_id], starts) for pair_id, starts in own.items()]
        self._connection.execute(_COUNT, changes)

    def update(self, stored: StoredObservation, was: StoredObservation) -> None:
        """Bring a row to what its accounts and corrections make of it, the pair or pairs and the verifications too."""
        refuse_unstorable(stored.observation)
        row = observation_to_row(stored)
        row_id = row.pop("id")
        self._connection.execute(update(tables.observation).where(_it.id == row_id).values(row))
        if stored.observation.verifications != was.observation.verifications:
            self._connection.execute(delete(tables.verification).where(_verification.observation_id == row_id))
            self._insert_verifications([stored])
        for pair_id in {stored.pair_id, was.pair_id}:
            self._recount(pair_id)

    def add_accounts(self, observation_id: UUID, accounts: Sequence[StoredAccount]) -> None:
        """Keep what was told of a start; an account that is kept already stays as it is."""
        for each in accounts:
            refuse_unstorable(each.account.observation)
        insert_unknown(self._connection, tables.account, [account_to_row(observation_id, each) for each in accounts])

    def add_ids(self, observation_id: UUID, ids: Iterable[UUID]) -> None:
        """Let further ids find a row."""
        rows = [{"id": each, "observation_id": observation_id} for each in ids if each != observation_id]
        insert_unknown(self._connection, tables.alias, rows)

    def add_history(self, observation_id: UUID, entries: Sequence[HistoryEntry]) -> None:
        """Keep what changed in a row, by whom and when."""
        for each in entries:
            refuse_unstorable(each)
        insert_unknown(self._connection, tables.history, [history_to_row(observation_id, each) for each in entries])

    def complete_host_keys(self) -> None:
        """Find the key of each host where it is missing: replicas of release 0.1 do not write it during an upgrade."""
        missing = (_it.host_key.is_(None), _it.host.is_not(None))
        for host in self._connection.execute(select(_it.host).where(*missing).distinct()).scalars().all():
            rows = update(tables.observation).where(*missing, _it.host == host)
            self._connection.execute(rows.values(host_key=short_host(host).lower()))

    def absorb(self, into: UUID, other: StoredObservation) -> None:
        """Move all that belongs to a row to another that is of the same start; the id of the first finds the second."""
        gone = other.observation.id
        for table in (tables.account, tables.alias, tables.history, tables.recommendation):
            owned = update(table).where(table.c.observation_id == gone)
            self._connection.execute(owned.values(observation_id=into))
        self._connection.execute(delete(tables.verification).where(_verification.observation_id == gone))
        self._connection.execute(delete(tables.observation).where(_it.id == gone))
        self.add_ids(into, [gone])
        self._recount(other.pair_id)

    def get(self, observation_id: UUID) -> StoredObservation | None:
        """Return the observation that an id was posted for."""
        found = self._load(_ALL.where(or_(_it.id == observation_id, _it.id == _owner_of(observation_id))))
        return found[0] if found else None

    def by_ids(self, ids: Sequence[UUID]) -> list[StoredObservation]:
        """Return the observations whose rows have these ids, in no order."""
        return [each for some in batched(ids) for each in self._load(_ALL.where(_it.id.in_(some)))]

    def known(self, ids: Sequence[UUID], digests: Sequence[str]) -> tuple[dict[UUID, UUID], dict[str, UUID]]:
        """Return the id of the row of each posted id and of each content that is stored; a row's own id and content
        are found by each other."""
        by_id: dict[UUID, UUID] = {}
        by_digest: dict[str, UUID] = {}
        for some, contents in zip_longest(batched(ids), batched(digests), fillvalue=()):
            for row_id, posted_id, digest in self._connection.execute(_KNOWN, {"ids": some, "digests": contents}):
                by_id |= {} if posted_id is None else {posted_id: row_id}
                by_digest |= {} if digest is None else {digest: row_id}
        return by_id, by_digest

    def near(self, accounts: Iterable[Account]) -> set[UUID]:
        """Return the ids of the rows that may be of one of these starts: by host and time, or by host and pool."""
        return {row_id for query in queries_near(accounts) for row_id in self._connection.execute(*query).scalars()}

    def accounts(self, ids: Sequence[UUID]) -> dict[UUID, list[StoredAccount]]:
        """Return what was told of each start that was told more than once or corrected, oldest first."""
        found: dict[UUID, list[StoredAccount]] = {}
        for some in batched(ids):
            query = select(tables.account).where(_account.observation_id.in_(some))
            for row in self._connection.execute(
                query.order_by(_account.received_at, _account.content_digest)
            ).mappings():
                found.setdefault(row["observation_id"], []).append(account_from_row(row))
        return found

    def aliases(self, ids: Sequence[UUID]) -> dict[UUID, list[UUID]]:
        """Return the further ids of each row."""
        found: dict[UUID, list[UUID]] = {}
        for some in batched(ids):
            query = select(tables.alias).where(_alias.observation_id.in_(some)).order_by(_alias.id)
            for row in self._connection.execute(query):
                found.setdefault(row.observation_id, []).append(row.id)
        return found

    def page(
        self,
        where: ObservationFilter,
        after: PageKey | None,
        size: int,
        *,
        sort: str = NEWEST_OBSERVED,
        with_logs: bool = True,
    ) -> Page[StoredObservation]:
        """Return observations by (observed_at, id) or (received_at, id), the newest first when ``sort`` begins with -.

        Rows that arrive meanwhile never shift a page.
        """
        chosen, by = _ALL if with_logs else _WITHOUT_LOG, sort.lstrip("-")
        key, wanted = partial(observation_key, by=by), conditions(where)
        pairs = self._pairs_named(where) if where.pair_id is None and (where.gpu or where.model) else None
        if pairs is not None and len(pairs) <= MOST_PAIRS:
            ids: Sequence[UUID] = self._first_of(pairs, where, after, size, sort)
        elif by == "received_at" and wanted:  # no index has both: sort times and ids, not whole rows
            ids = self._connection.execute(_sorted(select(_it.id).where(*wanted), after, size, sort)).scalars().all()
        else:
            return cut(self._load(_sorted(chosen.where(*wanted), after, size, sort)), size, key)
        return cut(self._load(_sorted(chosen.where(_it.id.in_(ids)), None, size, sort)), size, key)

    def _pairs_named(self, where: ObservationFilter) -> Sequence[UUID]:
        """Return up to one more than ``MOST_PAIRS`` of the pairs whose starts are wanted."""
        query = select(_pair.id).select_from(SOURCE)
        if where.gpu is not None:
            query = query.where(tables.hardware.c.gpu == where.gpu)
        if where.model is not None:
            query = query.where(tables.model.c.name == where.model)
        return self._connection.execute(query.limit(MOST_PAIRS + 1)).scalars().all()

    def _first_of(
        self, pairs: Sequence[UUID], where: ObservationFilter, after: PageKey | None, size: int, sort: str
    ) -> list[UUID]:
        """Return the ids of the first starts of some pairs, each pair's first found by the pair's own index."""
        found: list[tuple[datetime, UUID]] = []
        for pair_id in pairs:
            query = select(_it[sort.lstrip("-")].label("at"), _it.id).where(_it.pair_id == pair_id, *conditions(where))
            found += [(row.at, row.id) for row in self._connection.execute(_sorted(query, after, size, sort))]
        first = nlargest if sort.startswith("-") else nsmallest
        return [row_id for _, row_id in first(size + 1, found)]

    def of_pair(
        self, pair_id: UUID, include_retracted: bool = False, newest: int | None = None
    ) -> tuple[StoredObservation, ...]:
        """Return the observations of a pair, all or that many, newest first; without log excerpts and history, which no
        fit needs."""
        where = ObservationFilter(pair_id=pair_id, include_retracted=include_retracted)
        query = _WITHOUT_LOG.where(*conditions(where)).order_by(_it.observed_at.desc(), _it.id.desc()).limit(newest)
        rows = self._connection.execute(query).mappings().all()
        if not rows:
            return ()
        of_pair = select(tables.verification).join(tables.observation)
        of_pair = of_pair.where(_it.pair_id == pair_id, _it.observed_at >= rows[-1]["observed_at"])
        return tuple(self._assemble(rows, of_pair))

    def expired(self, before: datetime, newest: int, size: int) -> tuple[StoredObservation, ...]:
        """Return up to ``size`` observations made before a time that are retracted, or older than the ``newest`` of
        their pair; not those that settled a recommendation."""
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
        """Take observations out of the ledger, with all that belongs to them."""
        pairs = set(self._connection.execute(select(_it.pair_id).where(_it.id.in_(ids))).scalars())
        for table in (tables.verification, tables.account, tables.alias, tables.history):
            self._connection.execute(delete(table).where(table.c.observation_id.in_(ids)))
        self._connection.execute(delete(tables.observation).where(_it.id.in_(ids)))
        for pair_id in pairs:
            self._recount(pair_id)

    def retract(self, observation_id: UUID, reason: str, at: datetime) -> StoredObservation:
        """Mark an observation as not to be believed. A second retraction changes nothing: the first reason stays."""
        refuse_unstorable(reason)
        stored = self._known(observation_id)
        if stored.retracted_at is not None:
            return stored
        marks = {"retracted_at": at, "retraction_reason": reason}
        self._connection.execute(update(tables.observation).where(_it.id == stored.observation.id).values(marks))
        self._recount(stored.pair_id)
        return self._known(observation_id)

    def add_verification(self, observation_id: UUID, verification: Verification) -> bool:
        """Append a verification; False when an equal one is already there, so that it may be sent again."""
        refuse_unstorable(verification)
        stored = self._known(observation_id)
        present = stored.observation.verifications
        if verification in present:
            return False
        row = verification_to_row(stored.observation.id, len(present), verification)
        insert_rows(self._connection, tables.verification, [row])
        self._change_pair(stored.pair_id)
        return True

    def _known(self, observation_id: UUID) -> StoredObservation:
        stored = self.get(observation_id)
        if stored is None:
            raise NotFoundError(f"No observation has the id {observation_id}.")
        return stored

    def _recount(self, pair_id: UUID) -> None:
        live = (_it.pair_id == pair_id, _it.retracted_at.is_(None))
        count, newest = self._connection.execute(select(func.count(), func.max(_it.observed_at)).where(*live)).one()
        engines = self._connection.execute(select(_it.engine).where(*live).distinct()).scalars()
        self._change_pair(pair_id, observation_count=count, last_observed_at=newest, engines=sorted(engines))

    def _change_pair(self, pair_id: UUID, **changes: Any) -> None:
        changes["revision"] = _pair.revision + 1
        self._connection.execute(update(tables.pair).where(_pair.id == pair_id).values(changes))

    def _load(self, query: Select[Any]) -> list[StoredObservation]:
        rows = self._connection.execute(query).mappings().all()
        if not rows:
            return []
        ids = [row["id"] for row in rows]
        verifications = select(tables.verification).where(_verification.observation_id.in_(ids))
        return self._assemble(rows, verifications, self._histories(ids), self._other_tokens(ids))

    def _histories(self, ids: Sequence[UUID]) -> dict[UUID, tuple[HistoryEntry, ...]]:
        query = select(tables.history).where(_history.observation_id.in_(ids)).order_by(_history.at, _history.id)
        found: dict[UUID, tuple[HistoryEntry, ...]] = {}
        for row in self._connection.execute(query).mappings():
            found[row["observation_id"]] = (*found.get(row["observation_id"], ()), history_from_row(row))
        return found

    def _other_tokens(self, ids: Sequence[UUID]) -> dict[UUID, frozenset[UUID]]:
        query = select(_account.observation_id, _account.token_id).where(_account.observation_id.in_(ids))
        found: dict[UUID, frozenset[UUID]] = {}
        for row in self._connection.execute(query.where(_account.token_id.is_not(None)).distinct()):
            found[row.observation_id] = found.get(row.observation_id, frozenset()) | {row.token_id}
        return found

    def _assemble(
        self,
        rows: Sequence[RowMapping],
        verifications: Select[Any],
        histories: Mapping[UUID, tuple[HistoryEntry, ...]] | None = None,
        tokens: Mapping[UUID, frozenset[UUID]] | None = None,
    ) -> list[StoredObservation]:
        """Return the observations of ``rows``, each with what belongs to it."""
        ordered = verifications.order_by(_verification.observation_id, _verification.position)
        found = self._connection.execute(ordered).mappings().all()
        own = {
            key: [verification_from_row(each) for each in group]
            for key, group in groupby(found, key=lambda row: row["observation_id"])
        }
        return [
            observation_from_row(
                row,
                own.get(row["id"], ()),
                (histories or {}).get(row["id"], ()),
                (tokens or {}).get(row["id"], frozenset()),
            )
            for row in rows
        ]


def _counted(pair: Pair, added: Sequence[Observation]) -> dict[str, Any]:
    """Return what a pair's own row becomes once these observations are added."""
    newest = max(each.observed_at for each in added)
    return {
        "pair": pair.id,
        "count": len(added),
        "newest": max(newest, pair.last_observed_at or newest),
        "names": sorted({*pair.engines, *(each.engine.name.value for each in added)}),
    }


def _owner_of(posted_id: UUID) -> Any:
    return select(_alias.observation_id).where(_alias.id == posted_id).scalar_subquery()


def _sorted(query: Select[Any], after: PageKey | None, size: int, sort: str) -> Select[Any]:
    by = _it[sort.lstrip("-")]
    return page_of_rows(query, by, _it.id, after, size, is_descending=sort.startswith("-"))
