"""What runs in each pair and what changed between versions of an engine, kept for the pages of all pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy import and_ as all_of

from kvyield_server.domain.answers import Drift, Question
from kvyield_server.domain.facts.observation import EngineName, Outcome
from kvyield_server.storage import tables
from kvyield_server.storage.pairs import SOURCE
from kvyield_server.storage.records import (
    FleetRow,
    StoredDrift,
    Verdict,
    VersionChange,
)
from kvyield_server.storage.statements import batched, insert_unknown
from kvyield_server.storage.values import refuse_unstorable

_it, _pair, _drift = tables.fleet.c, tables.pair.c, tables.drift.c
NEVER_LOOKED_AT = -1

_NOTHING_RUNS = all_of(_it.observation_id.is_(None), _it.revision != NEVER_LOOKED_AT)
_HAS_DIED = all_of(_it.newest_outcome.is_not(None), _it.newest_outcome != Outcome.READY.value)
_ATTENTION = case(
    (_HAS_DIED, 0),
    (_it.verdict == Verdict.NO.value, 1),
    (_it.verdict == Verdict.AT_RISK.value, 2),
    (_it.note.is_not(None), 3),
    (_NOTHING_RUNS, 4),
    (_it.verdict == Verdict.YES.value, 6),
    else_=5,
)
FLEET_SORTS: Mapping[str, ColumnElement[Any]] = MappingProxyType(
    {
        "attention": _ATTENTION,
        "model": _it.model,
        "gpu": _it.gpu,
        "started": _it.observed_at,
        "newest": _it.newest_at,
        "pool": _it.pool_tokens,
        "free": _it.free_at_ready_gib,
        "headroom": _it.headroom_gib,
        "verified": _it.verified_tokens,
    }
)
"""What the fleet can be sorted by; the first of equal rows is by model, GPU and pair."""

FLEET_FILTERS: Mapping[str, ColumnElement[bool]] = MappingProxyType(
    {
        "died": _HAS_DIED,
        "no": _it.verdict == Verdict.NO.value,
        "at_risk": _it.verdict == Verdict.AT_RISK.value,
        "unverified": all_of(_it.observation_id.is_not(None), _it.verified_tokens.is_(None)),
        "nothing_runs": _NOTHING_RUNS,
    }
)

DRIFT_SORTS: Mapping[str, ColumnElement[Any]] = MappingProxyType(
    {
        "pool": func.abs(_drift.pool_tokens),
        "free": func.abs(_drift.free_gib),
        "slope": func.abs(_drift.to_slope_tokens - _drift.from_slope_tokens),
        "model": tables.model.c.name,
        "starts": _drift.to_starts,
    }
)


class Fleet:
    """One row per pair, and one per deployment and two versions; a pair's rows hold while its revision is theirs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add_unknown(self, now: datetime) -> None:
        """Add a bare row for each pair that has none, so that every pair is listed."""
        known = select(_it.pair_id).where(_it.pair_id == _pair.id).exists()
        hardware, model = tables.hardware.c, tables.model.c
        bare = select(
            _pair.id,
            literal(NEVER_LOOKED_AT),
            literal(now, _it.looked_at.type),
            model.name,
            hardware.gpu,
            hardware.gpu_count,
        )
        names = ("pair_id", "revision", "looked_at", "model", "gpu", "gpu_count")
        rows = bare.select_from(SOURCE).where(~known)
        self._connection.execute(tables.fleet.insert().from_select(names, rows))

    def stale(self) -> list[UUID]:
        """Return the pairs whose row is missing or older than their evidence, the newest changed first."""
        query = _stale(select(_pair.id)).order_by(_pair.last_observed_at.desc(), _pair.id)
        return list(self._connection.execute(query).scalars())

    def stale_count(self) -> int:
        """Return how many pairs ``stale`` names."""
        return int(self._connection.execute(_stale(select(func.count()))).scalar_one())

    def save(self, rows: Sequence[FleetRow], drifts: Sequence[tuple[UUID, Drift]]) -> None:
        """Replace what is kept of the pairs of ``rows``; a pair that is gone meanwhile is left out.

        Of two processes that save one pair at once the first counts: a row that is too old is stale and made again.
        """
        refuse_unstorable((rows, [drift for _, drift in drifts]))
        wanted = [row.pair_id for row in rows]
        present = set(self._connection.execute(select(_pair.id).where(_pair.id.in_(wanted))).scalars())
        for table in (tables.fleet, tables.drift):
            self._connection.execute(delete(table).where(table.c.pair_id.in_(wanted)))
        insert_unknown(self._connection, tables.fleet, [_as_row(row) for row in rows if row.pair_id in present])
        insert_unknown(
            self._connection,
            tables.drift,
            [{"pair_id": pair_id, **_as_row(each)} for pair_id, each in drifts if pair_id in present],
        )

    def ask_again(self, pair_id: UUID) -> None:
        """Make a pair's row stale: another question was asked about it."""
        self._connection.execute(update(tables.fleet).where(_it.pair_id == pair_id).values(revision=NEVER_LOOKED_AT))

    def count(self, search: str | None, show: str | None) -> int:
        """Return how many rows ``page`` runs over."""
        query = select(func.count()).select_from(tables.fleet).where(*_chosen(search, show))
        return int(self._connection.execute(query).scalar_one())

    def page(
        self, search: str | None, show: str | None, *, sort: str, is_descending: bool, offset: int, size: int
    ) -> list[FleetRow]:
        """Return ``size`` rows from ``offset`` on, sorted by one of ``FLEET_SORTS``; what is not known comes last."""
        query = select(tables.fleet).where(*_chosen(search, show))
        query = query.order_by(_ordered(FLEET_SORTS[sort], is_descending), _it.model, _it.gpu, _it.pair_id)
        found = self._connection.execute(query.offset(offset).limit(size)).mappings()
        return [_from_row(row, FleetRow) for row in found]

    def questions(self, ids: Sequence[UUID]) -> dict[UUID, Question]:
        """Return the questions of answers."""
        asked = tables.recommendation.c
        found: dict[UUID, Question] = {}
        for some in batched(ids):
            query = select(asked.id, asked.question).where(asked.id.in_(some))
            found |= {row.id: msgspec.convert(row.question, Question) for row in self._connection.execute(query)}
        return found

    def version_changes(self) -> list[VersionChange]:
        """Return every two versions of an engine that can be compared, those that ran last first."""
        moved = func.sum(case((or_(_drift.pool_low > 0, _drift.pool_high < 0), 1), else_=0))
        freed = func.sum(case((or_(_drift.free_low > 0, _drift.free_high < 0), 1), else_=0))
        query = select(
            _drift.engine,
            _drift.from_version,
            _drift.to_version,
            func.count(_drift.pair_id.distinct()).label("pairs"),
            func.count().label("deployments"),
            func.sum(_drift.from_starts).label("from_starts"),
            func.sum(_drift.to_starts).label("to_starts"),
            func.max(_drift.newest_at).label("newest_at"),
            moved.label("pool_changed"),
            freed.label("free_changed"),
            func.min(_drift.pool_tokens).label("lowest_pool_tokens"),
            func.max(_drift.pool_tokens).label("highest_pool_tokens"),
            func.min(_drift.free_gib).label("lowest_free_gib"),
            func.max(_drift.free_gib).label("highest_free_gib"),
        ).group_by(_drift.engine, _drift.from_version, _drift.to_version)
        found = self._connection.execute(query.order_by(func.max(_drift.newest_at).desc(), _drift.to_version))
        return [_from_row(row, VersionChange) for row in found.mappings()]

    def drifts(
        self,
        change: tuple[EngineName, str, str],
        *,
        sort: str,
        is_descending: bool,
        offset: int,
        size: int,
    ) -> list[StoredDrift]:
        """Return ``size`` deployments that ran both versions, from ``offset`` on."""
        engine, older, newer = change
        named = (tables.model.c.name, tables.hardware.c.gpu, tables.hardware.c.gpu_count)
        query = select(tables.drift, *named).select_from(tables.drift.join(SOURCE, _drift.pair_id == _pair.id))
        query = query.where(_drift.engine == engine.value, _drift.from_version == older, _drift.to_version == newer)
        ties = (tables.model.c.name, tables.hardware.c.gpu, _drift.pair_id, _drift.to_deployment_id)
        query = query.order_by(_ordered(DRIFT_SORTS[sort], is_descending), *ties)
        found = self._connection.execute(query.offset(offset).limit(size)).mappings()
        return [_drift_from_row(row) for row in found]


def _stale(query: Select[Any]) -> Select[Any]:
    joined = tables.pair.outerjoin(tables.fleet, _it.pair_id == _pair.id)
    return query.select_from(joined).where(or_(_it.pair_id.is_(None), _it.revision != _pair.revision))


def _chosen(search: str | None, show: str | None) -> list[ColumnElement[bool]]:
    wanted = [FLEET_FILTERS[show]] if show else []
    if search:
        columns = (_it.model, _it.gpu)
        wanted.append(or_(*(func.lower(each).contains(search.lower(), autoescape=True) for each in columns)))
    return wanted


def _ordered(column: ColumnElement[Any], is_descending: bool) -> ColumnElement[Any]:
    return (column.desc() if is_descending else column.asc()).nulls_last()


def _drift_from_row(row: RowMapping) -> StoredDrift:
    names = {"model": row["name"], "gpu": row["gpu"], "gpu_count": row["gpu_count"]}
    return StoredDrift(pair_id=row["pair_id"], drift=_from_row(row, Drift), **names)


def _as_row(record: FleetRow | Drift) -> dict[str, Any]:
    return {name: getattr(value, "value", value) for name, value in asdict(record).items()}


def _from_row(row: RowMapping, kind: Any) -> Any:
    return msgspec.convert({name: row[name] for name in kind.__dataclass_fields__}, kind)
