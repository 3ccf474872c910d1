"""The pair repository over SQL: hardware, model and pair are three tables, merged on the way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, Select, Table, bindparam, func, or_, select, update

from kvyield_server.domain.facts.observation import Hardware, Model
from kvyield_server.errors import NotFoundError
from kvyield_server.storage import tables
from kvyield_server.storage.known_pairs import KnownPairs, Name, name_of
from kvyield_server.storage.paging import cut, pair_key
from kvyield_server.storage.records import Page, PageKey, Pair, PairName
from kvyield_server.storage.rows import pair_from_row
from kvyield_server.storage.statements import batched, insert_rows, newest_first
from kvyield_server.storage.values import merge_hardware, merge_model, new_id, plain, refuse_unstorable

_hardware, _model, _pair = tables.hardware.c, tables.model.c, tables.pair.c
_OWNERS = ("hardware_id", "model_id")
SOURCE = tables.pair.join(tables.hardware).join(tables.model)
PAIRS = select(
    tables.pair,
    _hardware.gpu,
    _hardware.gpu_count,
    _hardware.memory_gib,
    _hardware.unified_memory,
    _hardware.driver_memory_gib,
    _model.name.label("model"),
    _model.revision.label("model_revision"),
    _model.facts,
).select_from(SOURCE)

_NAMED = PAIRS.where(
    _hardware.gpu == bindparam("gpu"), _hardware.gpu_count == bindparam("gpu_count"), _model.name == bindparam("model")
)
_AMONG = PAIRS.where(
    _hardware.gpu.in_(bindparam("gpus", expanding=True)), _model.name.in_(bindparam("models", expanding=True))
)
_MOST_NAMED = 50  # of each kind in one query, which finds all their combinations


class SqlPairs:
    def __init__(self, connection: Connection, clock: Callable[[], datetime], known: KnownPairs) -> None:
        self._connection = connection
        self._clock = clock
        self._remembered = known

    def ensure(self, hardware: Hardware, model: Model) -> Pair:
        refuse_unstorable((hardware, model))
        row = self._named(hardware.gpu, hardware.gpu_count, model.name) or self._make(hardware, model)
        known = pair_from_row(row)
        is_news = [
            self._merge_hardware(row, merge_hardware(known.hardware, hardware), known.hardware),
            self._merge_model(row, merge_model(known.model, model), known.model),
        ]
        if not any(is_news):
            self._remembered.keep(known)
            return known
        self._remembered.clear()  # what is written for one pair may be shared by others
        touched = or_(*(_pair[name] == row[name] for name, news in zip(_OWNERS, is_news, strict=True) if news))
        self._connection.execute(update(tables.pair).where(touched).values(revision=_pair.revision + 1))
        merged = self._one(PAIRS.where(_pair.id == known.id))
        self._remembered.keep(merged)
        return merged

    def ensure_all(self, wanted: Sequence[tuple[Hardware, Model]]) -> list[Pair]:
        names = [name_of(*each) for each in wanted]
        self._look_up(names)
        for name, (hardware, model) in zip(names, wanted, strict=True):
            known = self._remembered.get(name)
            if known is None or not _is_old_news(known, hardware, model):
                self.ensure(hardware, model)
        pairs = self._look_up(names)  # anew, since news of one pair change others that share its hardware or model
        return [pairs[name] for name in names]

    def _look_up(self, names: Sequence[Name]) -> dict[Name, Pair]:
        """Return the pairs with these names that there are, and remember them."""
        found = {name: pair for name in names if (pair := self._remembered.get(name)) is not None}
        for some in batched({name for name in names if name not in found}, _MOST_NAMED):
            values = {"gpus": [name[0] for name in some], "models": [name[2] for name in some]}
            for row in self._connection.execute(_AMONG, values).mappings():
                pair = pair_from_row(row)
                found[name_of(pair.hardware, pair.model)] = pair
                self._remembered.keep(pair)
        return found

    def _named(self, gpu: str, gpu_count: int, model: str) -> RowMapping | None:
        names = {"gpu": gpu, "gpu_count": gpu_count, "model": model}
        return self._connection.execute(_NAMED, names).mappings().first()

    def _make(self, hardware: Hardware, model: Model) -> RowMapping:
        row = {
            "id": new_id(),
            "hardware_id": self._hardware_id(hardware),
            "model_id": self._model_id(model),
            "created_at": self._clock(),
            "revision": 0,
            "observation_count": 0,
            "engines": [],
        }
        insert_rows(self._connection, tables.pair, [row])
        return self._connection.execute(PAIRS.where(_pair.id == row["id"])).mappings().one()

    def _hardware_id(self, hardware: Hardware) -> UUID:
        query = select(_hardware.id).where(_hardware.gpu == hardware.gpu, _hardware.gpu_count == hardware.gpu_count)
        return self._known_id(query) or self._insert(tables.hardware, hardware)

    def _model_id(self, model: Model) -> UUID:
        return self._known_id(select(_model.id).where(_model.name == model.name)) or self._insert(tables.model, model)

    def _known_id(self, query: Select[Any]) -> UUID | None:
        known: UUID | None = self._connection.execute(query).scalar()
        return known

    def _insert(self, table: Table, value: Hardware | Model) -> UUID:
        row_id = new_id()
        insert_rows(self._connection, table, [{"id": row_id, **plain(value)}])
        return row_id

    def _merge_hardware(self, row: RowMapping, merged: Hardware, known: Hardware) -> bool:
        if merged == known:
            return False
        values = {"memory_gib": merged.memory_gib, "unified_memory": merged.unified_memory}
        values["driver_memory_gib"] = merged.driver_memory_gib
        where = _hardware.id == row["hardware_id"]
        self._connection.execute(update(tables.hardware).where(where).values(values))
        return True

    def _merge_model(self, row: RowMapping, merged: Model, known: Model) -> bool:
        if merged == known:
            return False
        values = {"revision": merged.revision, "facts": plain(merged.facts)}
        self._connection.execute(update(tables.model).where(_model.id == row["model_id"]).values(values))
        return True

    def get(self, pair_id: UUID) -> Pair | None:
        return self._first(PAIRS.where(_pair.id == pair_id))

    def find(self, gpu: str, gpu_count: int, model: str) -> Pair | None:
        row = self._named(gpu, gpu_count, model)
        return None if row is None else pair_from_row(row)

    def names(self) -> tuple[PairName, ...]:
        query = select(_pair.id, _hardware.gpu, _hardware.gpu_count, _model.name.label("model")).select_from(SOURCE)
        names = [PairName(**row) for row in self._connection.execute(query).mappings()]
        return tuple(sorted(names, key=lambda name: (name.model, name.gpu, name.gpu_count)))

    def page(self, search: str | None, after: PageKey | None, size: int) -> Page[Pair]:
        query = PAIRS
        if search:
            columns = (_model.name, _hardware.gpu)
            query = query.where(or_(*(func.lower(each).contains(search.lower(), autoescape=True) for each in columns)))
        return cut(self._all(newest_first(query, _pair.created_at, _pair.id, after, size)), size, pair_key)

    def of_model(self, model: str) -> tuple[Pair, ...]:
        return tuple(self._all(PAIRS.where(_model.name == model).order_by(_pair.created_at, _pair.id)))

    def posted_by(self, token_id: UUID) -> frozenset[UUID]:
        observation = tables.observation.c
        query = select(observation.pair_id).where(observation.token_id == token_id).distinct()
        return frozenset(self._connection.execute(query).scalars())

    def bump(self, pair_id: UUID) -> int:
        self._remembered.clear()
        statement = update(tables.pair).where(_pair.id == pair_id).values(revision=_pair.revision + 1)
        revision: int | None = self._connection.execute(statement.returning(_pair.revision)).scalar()
        if revision is None:
            raise NotFoundError(f"No pair has the id {pair_id}.")
        return revision

    def _all(self, query: Select[Any]) -> list[Pair]:
        return [pair_from_row(row) for row in self._connection.execute(query).mappings()]

    def _first(self, query: Select[Any]) -> Pair | None:
        return next(iter(self._all(query)), None)

    def _one(self, query: Select[Any]) -> Pair:
        return pair_from_row(self._connection.execute(query).mappings().one())


def _is_old_news(pair: Pair, hardware: Hardware, model: Model) -> bool:
    if (pair.hardware, pair.model) == (hardware, model):
        return True
    return merge_hardware(pair.hardware, hardware) == pair.hardware and merge_model(pair.model, model) == pair.model
