"""Statements that several repositories share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Insert, Select, Table, literal, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from kvyield_server.storage.records import PageKey

T = TypeVar("T")
MOST_TOGETHER = 500  # values in one IN: either database takes far more


def batched(items: Iterable[T], size: int = MOST_TOGETHER) -> Iterator[list[T]]:
    """Yield the items in lists of at most ``size``."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows; nothing is done where there are none."""
    if rows:
        connection.execute(_insert(table), list(rows))


@cache
def _insert(table: Table) -> Insert:
    return table.insert()


def insert_unknown(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those rows whose keys are not there yet, whichever process put them there."""
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), list(rows))


def page_of_rows(
    query: Select[Any],
    by: ColumnElement[Any],
    row_id: ColumnElement[Any],
    after: PageKey | None,
    size: int,
    *,
    is_descending: bool = True,
) -> Select[Any]:
    """Order by (by, id) from the newest or last, begin after ``after``, and take one row more than the page holds."""
    if after is not None:
        row, last = tuple_(by, row_id), tuple_(literal(after.at, by.type), literal(after.id, row_id.type))
        query = query.where(row < last if is_descending else row > last)
    order = (by.desc(), row_id.desc()) if is_descending else (by.asc(), row_id.asc())
    return query.order_by(*order).limit(size + 1)
