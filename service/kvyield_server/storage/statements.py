"""Statements that several repositories share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, literal, tuple_
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
        connection.execute(table.insert(), list(rows))


def insert_unknown(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those rows whose keys are not there yet, whichever process put them there."""
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), list(rows))


def newest_first(
    query: Select[Any], at: ColumnElement[Any], row_id: ColumnElement[Any], after: PageKey | None, size: int
) -> Select[Any]:
    """Order by (at, id) from the newest, begin below ``after``, and take one row more than the page holds."""
    if after is not None:
        query = query.where(tuple_(at, row_id) < tuple_(literal(after.at, at.type), literal(after.id, row_id.type)))
    return query.order_by(at.desc(), row_id.desc()).limit(size + 1)
