"""Statements that several repositories share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, insert, literal, tuple_
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
        connection.execute(insert(table), rows[0] if len(rows) == 1 else list(rows))
    except IntegrityError as error:
        raise translated(error) from error


def newest_first(
    query: Select[Any], at: ColumnElement[Any], row_id: ColumnElement[Any], after: PageKey | None, size: int
) -> Select[Any]:
    """Order by (at, id) from the newest, begin below ``after``, and take one row more than the page holds."""
    if after is not None:
        query = query.where(tuple_(at, row_id) < tuple_(literal(after.at, at.type), literal(after.id, row_id.type)))
    return query.order_by(at.desc(), row_id.desc()).limit(size + 1)
