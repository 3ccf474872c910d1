"""The pair repository: hardware, model and pair are three tables, merged on the way out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, Select, bindparam, delete, exists, func, or_, select, update

from kvyield_server.domain.facts.observation import Hardware, Model
from kvyield_server.storage import tables
from kvyield_server.storage.paging import cut, pair_key
from kvyield_server.storage.records import (
    NEWEST_CREATED,
    Page,
    PageKey,
    Pair,
    PairName,
)
from kvyield_server.storage.rows import hardware_from_row, pair_from_row
from kvyield_server.storage.statements import batched, insert_unknown, page_of_rows
from kvyield_server.storage.values import merge_hardware, merge_model, new_id, plain, refuse_unstorable, utc_now

_hardware, _model, _pair = tables.hardware.c, tables.model.c, tables.pair.c
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
_REVISIONS = (
    select(_pair.id, _pair.revision)
    .select_from(tables.pair.join(tables.model))
    .where(_model.name == bindparam("model"))
    .order_by(_pair.id)
)
_LOCKED = (
    PAIRS.where(
        _hardware.gpu.in_(bindparam("gpus", expanding=True)), _model.name.in_(bindparam("models", expanding=True))
    )
    .order_by(_pair.id)
    .with_for_update(of=tables.pair)
)
Kind = Literal["gpu", "model"]
_NAMES = {"gpu": _hardware.gpu, "model": _model.name}
_MOST_NAMED = 50  # of each kind in one query, which finds all their combinations
Name = tuple[str, int, str]


class Pairs:
    """Pairs, named by GPU, GPU count and model name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ensure(self, hardware: Hardware, model: Model) -> Pair:
        """Return the pair, made when it is new; newest attributes that are not None are merged in."""
        return self.ensure_all([(hardware, model)])[0]

    def ensure_all(self, wanted: Sequence[tuple[Hardware, Model]]) -> list[Pair]:
        """Do as ``ensure`` for each in turn, at little more than the cost of one where nothing is new.

        Until the transaction ends no other writes to these pairs: their rows are locked, in the order of their ids.
        """
        refuse_unstorable(wanted)
        names = [_name_of(*each) for each in wanted]
        known = self._locked(names)
        self._make([each for name, each in zip(names, wanted, strict=True) if name not in known])
        known = self._locked(names) if len(known) < len(set(names)) else known
        news = [
            each for name, each in zip(names, wanted, strict=True) if not _is_old_news(known[name], each[0], each[1])
        ]
        for hardware, model in news:
            self._merge(hardware, model)
        known = self._locked(names) if news else known  # news of one pair change others that share its GPU or model
        return [known[name] for name in names]

    def restore(self, pair_id: UUID, hardware: Hardware, model: Model, created_at: datetime) -> None:
        """Make a pair with the id and time that an export tells, unless there is a pair of these names."""
        insert_unknown(self._connection, tables.hardware, [{"id": new_id(), **plain(hardware)}])
        insert_unknown(self._connection, tables.model, [{"id": new_id(), **plain(model)}])
        owners = {"hardware_id": self._hardware_id(hardware), "model_id": self._model_id(model)}
        row = {"id": pair_id, **owners, "created_at": created_at, "revision": 0, "observation_count": 0, "engines": []}
        insert_unknown(self._connection, tables.pair, [row])

    def _locked(self, names: Iterable[Name]) -> dict[Name, Pair]:
        """Return the pairs with these names that there are, locked for this transaction."""
        wanted = sorted(set(names))
        found: dict[Name, Pair] = {}
        for some in batched(wanted, _MOST_NAMED):
            values = {"gpus": [name[0] for name in some], "models": [name[2] for name in some]}
            for row in self._connection.execute(_LOCKED, values).mappings():
                pair = pair_from_row(row)
                found[_name_of(pair.hardware, pair.model)] = pair
        return {name: found[name] for name in wanted if name in found}

    def _make(self, wanted: Sequence[tuple[Hardware, Model]]) -> None:
        insert_unknown(
            self._connection, tables.hardware, [{"id": new_id(), **plain(hardware)} for hardware, _ in wanted]
        )
        insert_unknown(self._connection, tables.model, [{"id": new_id(), **plain(model)} for _, model in wanted])
        rows = [
            {
                "id": new_id(),
                "hardware_id": self._hardware_id(hardware),
                "model_id": self._model_id(model),
                "created_at": utc_now(),
                "revision": 0,
                "observation_count": 0,
                "engines": [],
            }
            for hardware, model in wanted
        ]
        insert_unknown(self._connection, tables.pair, rows)

    def _hardware_id(self, hardware: Hardware) -> UUID:
        query = select(_hardware.id).where(_hardware.gpu == hardware.gpu, _hardware.gpu_count == hardware.gpu_count)
        found: UUID = self._connection.execute(query).scalar_one()
        return found

    def _model_id(self, model: Model) -> UUID:
        found: UUID = self._connection.execute(select(_model.id).where(_model.name == model.name)).scalar_one()
        return found

    def _merge(self, hardware: Hardware, model: Model) -> None:
        """Merge attributes into what is known, and count a change of each pair that has them."""
        hardware_id, model_id = self._hardware_id(hardware), self._model_id(model)
        row = self._one(select(tables.hardware).where(_hardware.id == hardware_id).with_for_update())
        known_hardware = hardware_from_row(row)
        if (better := merge_hardware(known_hardware, hardware)) != known_hardware:
            self._connection.execute(update(tables.hardware).where(_hardware.id == hardware_id).values(plain(better)))
            self._bump(_pair.hardware_id == hardware_id)
        row = self._one(select(tables.model).where(_model.id == model_id).with_for_update())
        known_model = Model(name=row["name"], revision=row["revision"], facts=row["facts"])
        if (fuller := merge_model(known_model, model)) != known_model:
            self._connection.execute(update(tables.model).where(_model.id == model_id).values(plain(fuller)))
            self._bump(_pair.model_id == model_id)

    def _bump(self, where: Any) -> None:
        self._connection.execute(update(tables.pair).where(where).values(revision=_pair.revision + 1))

    def get(self, pair_id: UUID) -> Pair | None:
        """Return the pair with that id."""
        return self._first(PAIRS.where(_pair.id == pair_id))

    def find(self, gpu: str, gpu_count: int, model: str) -> Pair | None:
        """Return the pair with exactly these names."""
        names = {"gpu": gpu, "gpu_count": gpu_count, "model": model}
        row = self._connection.execute(_NAMED, names).mappings().first()
        return None if row is None else pair_from_row(row)

    def names(self) -> tuple[PairName, ...]:
        """Return the names of all pairs, ordered by model, GPU and count."""
        query = select(
            _pair.id, _pair.observation_count, _hardware.gpu, _hardware.gpu_count, _model.name.label("model")
        ).select_from(SOURCE)
        names = [PairName(**row) for row in self._connection.execute(query).mappings()]
        return tuple(sorted(names, key=lambda name: (name.model, name.gpu, name.gpu_count)))

    def spellings(self, kind: Kind) -> Sequence[str]:
        """Return the names of all GPUs or models."""
        return self._connection.execute(select(_NAMES[kind]).distinct().order_by(_NAMES[kind])).scalars().all()

    def knows(self, kind: Kind, name: str) -> bool:
        """Say whether a GPU or model has exactly that name."""
        return bool(self._connection.execute(select(exists().where(_NAMES[kind] == name))).scalar())

    def page(
        self,
        search: str | None,
        after: PageKey | None,
        size: int,
        *,
        sort: str = NEWEST_CREATED,
        gpus: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
    ) -> Page[Pair]:
        """Return pairs whose GPU or model name holds ``search`` in any case, of these GPUs and models.

        ``sort`` is created_at, name (the model's) or last_start, from the newest or last when it begins with -; pairs
        without a live start have no last one, and come after all others.
        """
        query, by, is_descending = PAIRS, sort.lstrip("-"), sort.startswith("-")
        if search:
            columns = (_model.name, _hardware.gpu)
            query = query.where(or_(*(func.lower(each).contains(search.lower(), autoescape=True) for each in columns)))
        for names, column in ((gpus, _hardware.gpu), (models, _model.name)):
            query = query if names is None else query.where(column.in_(names))
        if by == "last_start":
            rows = self._by_last_start(query, after, size, is_descending=is_descending)
        elif by == "name":
            if after is not None:  # which the two columns of two tables do not tell the database
                query = query.where(_model.name <= after.at if is_descending else _model.name >= after.at)
            rows = self._all(page_of_rows(query, _model.name, _pair.id, after, size, is_descending=is_descending))
        else:
            rows = self._all(page_of_rows(query, _pair.created_at, _pair.id, after, size, is_descending=is_descending))
        return cut(rows, size, partial(pair_key, by=by))

    def _by_last_start(
        self, query: Select[Any], after: PageKey | None, size: int, *, is_descending: bool
    ) -> list[Pair]:
        last, rows = _pair.last_observed_at, list[Pair]()
        if after is None or after.at is not None:
            live = query.where(last.is_not(None))
            rows = self._all(page_of_rows(live, last, _pair.id, after, size, is_descending=is_descending))
            after = None
        if len(rows) <= size:
            others = query.where(last.is_(None))
            if after is not None:
                others = others.where(_pair.id < after.id if is_descending else _pair.id > after.id)
            order = _pair.id.desc() if is_descending else _pair.id.asc()
            rows += self._all(others.order_by(order).limit(size + 1 - len(rows)))
        return rows

    def of_model(self, model: str) -> tuple[Pair, ...]:
        """Return all pairs of that model, oldest first: the ones that can lend evidence to each other."""
        return tuple(self._all(PAIRS.where(_model.name == model).order_by(_pair.created_at, _pair.id)))

    def revisions_of_model(self, model: str) -> tuple[tuple[UUID, int], ...]:
        """Return the id and revision of each pair of that model, in the order of their ids."""
        return tuple((row.id, row.revision) for row in self._connection.execute(_REVISIONS, {"model": model}))

    def posted_by(self, token_id: UUID) -> frozenset[UUID]:
        """Return the ids of the pairs that hold an observation posted with that token."""
        starts, accounts = tables.observation, tables.account
        first = select(starts.c.pair_id).where(starts.c.token_id == token_id)
        more = select(starts.c.pair_id).join(accounts, accounts.c.observation_id == starts.c.id)
        found = self._connection.execute(first.union(more.where(accounts.c.token_id == token_id)))
        return frozenset(found.scalars())

    def drop_empty(self, pair_id: UUID) -> None:
        """Remove a pair that nothing refers to: its starts were corrected to be of another."""
        starts = exists().where(tables.observation.c.pair_id == pair_id)
        answers = exists().where(tables.recommendation.c.pair_id == pair_id)
        is_empty = self._connection.execute(select(~or_(starts, answers))).scalar()
        if is_empty:
            self._connection.execute(delete(tables.fit).where(tables.fit.c.pair_id == pair_id))
            self._connection.execute(delete(tables.pair).where(_pair.id == pair_id))

    def _all(self, query: Select[Any]) -> list[Pair]:
        return [pair_from_row(row) for row in self._connection.execute(query).mappings()]

    def _first(self, query: Select[Any]) -> Pair | None:
        return next(iter(self._all(query)), None)

    def _one(self, query: Select[Any]) -> Any:
        return self._connection.execute(query).mappings().one()


def _name_of(hardware: Hardware, model: Model) -> Name:
    return hardware.gpu, hardware.gpu_count, model.name


def _is_old_news(pair: Pair, hardware: Hardware, model: Model) -> bool:
    return merge_hardware(pair.hardware, hardware) == pair.hardware and merge_model(pair.model, model) == pair.model
