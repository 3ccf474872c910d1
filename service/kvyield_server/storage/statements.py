"""Statements that several repositories share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Dialect, Select, Table, bindparam, insert, literal, tuple_
from sqlalchemy.exc import DBAPIError, IntegrityError

from kvyield_server.storage.faults import translated
from kvyield_server.storage.records import PageKey

T = TypeVar("T")
MOST_TOGETHER = 128  # rows in one statement: of the widest table far fewer values than either database takes
_NAMED = re.compile(r"%\(\w+\)s")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most ``size``."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, many in one statement; a broken constraint raises ConflictError, NotFoundError or InvalidError."""
    if not rows:
        return
    names = tuple(rows[0])
    shape = row_shape(table, names, connection.dialect)
    text = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {{rows}}"  # noqa: S608 - names of our own tables
    for some in batched(rows, MOST_TOGETHER):
        shape.run(connection, text, some)


def run(connection: Connection, text: str, values: Sequence[Any] = ()) -> Any:
    """Run a statement on the driver's own cursor and return that cursor.

    SQLAlchemy's own way costs as much as a small write. Its errors are raised all the same, a broken constraint as
    ConflictError, NotFoundError or InvalidError.
    """
    dialect, driver = connection.dialect, connection.connection
    errors: Any = dialect.loaded_dbapi
    cursor: Any = driver.cursor()
    try:
        cursor.execute(text, *((values,) if values else ()))
    except errors.Error as error:
        is_lost = dialect.is_disconnect(error, driver.dbapi_connection, cursor)
        if is_lost:
            connection.invalidate(error)
        told = DBAPIError.instance(
            text, None, error, errors.Error, hide_parameters=True, connection_invalidated=is_lost, dialect=dialect
        )
        raise (translated(told) if isinstance(told, IntegrityError) else told) from error
    return cursor


class RowShape:
    """How rows of some columns are written as placeholders, and their values bound.

    Many rows in one statement: a driver gives up the interpreter's lock for each, and may wait long to get it back.
    """

    def __init__(self, table: Table, names: Sequence[str], dialect: Dialect) -> None:
        compiled: Any = insert(table).values({name: bindparam(name) for name in names}).compile(dialect=dialect)
        self._row = _NAMED.sub("%s", str(compiled).partition(" VALUES ")[2])
        processors = [table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names]
        self._binds = [(place, bind) for place, bind in enumerate(processors) if bind]
        self._in_order = itemgetter(*names)
        self._texts: dict[tuple[str, int], str] = {}

    def run(self, connection: Connection, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement whose ``{rows}`` stands for these rows, at most ``MOST_TOGETHER``."""
        key = (text, len(rows))
        if key not in self._texts:
            self._texts[key] = text.format(rows=", ".join([self._row] * len(rows)))
        values: list[Any] = []
        for row in rows:
            values += self._bound(row)
        run(connection, self._texts[key], values)

    def _bound(self, row: Mapping[str, Any]) -> list[Any]:
        """Return a row's values as the driver takes them; None is NULL for every type there is."""
        values = list(self._in_order(row))
        for place, bind in self._binds:
            if values[place] is not None:
                values[place] = bind(values[place])
        return values


@lru_cache(64)
def row_shape(table: Table, names: tuple[str, ...], dialect: Dialect) -> RowShape:
    """Return the shape of rows with these columns in this order."""
    return RowShape(table, names, dialect)


def newest_first(
    query: Select[Any], at: ColumnElement[Any], row_id: ColumnElement[Any], after: PageKey | None, size: int
) -> Select[Any]:
    """Order by (at, id) from the newest, begin below ``after``, and take one row more than the page holds."""
    if after is not None:
        query = query.where(tuple_(at, row_id) < tuple_(literal(after.at, at.type), literal(after.id, row_id.type)))
    return query.order_by(at.desc(), row_id.desc()).limit(size + 1)
