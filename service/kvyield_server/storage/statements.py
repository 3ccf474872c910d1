"""Statements that several repositories share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Dialect, Executable, Select, Table, bindparam, insert, literal, tuple_
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
    try:
        run_compiled(connection, _insertion(table, tuple(rows[0])), rows)
    except IntegrityError as error:
        raise translated(error) from error


def run_compiled(connection: Connection, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run a statement that the module keeps, once per row of its parameters, and ask for nothing back."""
    compiled = _compiled(statement, connection.dialect)
    values = [compiled.values(row) for row in rows]
    connection.exec_driver_sql(compiled.text, values[0] if len(values) == 1 else values)


class _Compiled:
    """A statement compiled once: its rows skip what SQLAlchemy would decide anew for each of them."""

    def __init__(self, statement: Executable, dialect: Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]  # an element, whatever its type says
        names = compiled.positiontup or list(compiled.binds)
        self.text = str(compiled)
        self._is_positional = dialect.positional
        self._fixed = {name: compiled.binds[name].value for name in names if not compiled.binds[name].required}
        self._binds = [
            (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect)) for name in names
        ]

    def values(self, row: Mapping[str, Any]) -> Any:
        """Return a row as the driver takes it."""
        given = {**self._fixed, **row} if self._fixed else row
        bound = [bind(given[name]) if bind else given[name] for name, bind in self._binds]
        if self._is_positional:
            return tuple(bound)
        return {name: value for (name, _), value in zip(self._binds, bound, strict=True)}


@lru_cache(64)
def _compiled(statement: Executable, dialect: Dialect) -> _Compiled:
    return _Compiled(statement, dialect)


@lru_cache(64)
def _insertion(table: Table, names: tuple[str, ...]) -> Executable:
    return insert(table).values({name: bindparam(name) for name in names})


def newest_first(
    query: Select[Any], at: ColumnElement[Any], row_id: ColumnElement[Any], after: PageKey | None, size: int
) -> Select[Any]:
    """Order by (at, id) from the newest, begin below ``after``, and take one row more than the page holds."""
    if after is not None:
        query = query.where(tuple_(at, row_id) < tuple_(literal(after.at, at.type), literal(after.id, row_id.type)))
    return query.order_by(at.desc(), row_id.desc()).limit(size + 1)
