"""Statements that several repositories share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Dialect, Select, Table, insert, literal, tuple_
from sqlalchemy.exc import IntegrityError

from kvyield_server.storage.faults import translated
from kvyield_server.storage.records import PageKey

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most ``size``."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows; a broken constraint raises ConflictError, NotFoundError or InvalidError."""
    if not rows:
        return
    insertion = _insertion(table, connection.dialect, tuple(rows[0]))
    values = [insertion.values(row) for row in rows]
    try:
        connection.exec_driver_sql(insertion.text, values[0] if len(values) == 1 else values)
    except IntegrityError as error:
        raise translated(error) from error


class _Insertion:
    """An insert compiled once: its rows skip what SQLAlchemy would decide anew for each of them."""

    def __init__(self, table: Table, dialect: Dialect, names: tuple[str, ...]) -> None:
        compiled = insert(table).compile(dialect=dialect, column_keys=list(names))
        ordered = getattr(compiled, "positiontup", None) or names
        self.text = str(compiled)
        self._is_positional = dialect.positional
        self._binds = [(name, table.c[name].type.dialect_impl(dialect).bind_processor(dialect)) for name in ordered]

    def values(self, row: Mapping[str, Any]) -> Any:
        """Return a row as the driver takes it."""
        bound = [bind(row[name]) if bind else row[name] for name, bind in self._binds]
        if self._is_positional:
            return tuple(bound)
        return {name: value for (name, _), value in zip(self._binds, bound, strict=True)}


@lru_cache(64)
def _insertion(table: Table, dialect: Dialect, names: tuple[str, ...]) -> _Insertion:
    return _Insertion(table, dialect, names)


def newest_first(
    query: Select[Any], at: ColumnElement[Any], row_id: ColumnElement[Any], after: PageKey | None, size: int
) -> Select[Any]:
    """Order by (at, id) from the newest, begin below ``after``, and take one row more than the page holds."""
    if after is not None:
        query = query.where(tuple_(at, row_id) < tuple_(literal(after.at, at.type), literal(after.id, row_id.type)))
    return query.order_by(at.desc(), row_id.desc()).limit(size + 1)
