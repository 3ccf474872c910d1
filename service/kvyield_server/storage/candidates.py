"""Which rows may be of a start that is posted: the queries; what is of one start the domain decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Select, and_, bindparam, select, union_all

from kvyield_server.domain.facts.accounts import AT_ONCE, LARGEST_SHIFT, Account, host_key
from kvyield_server.storage import tables
from kvyield_server.storage.statements import batched

MOST_NEAR = 200  # rows that may be of a posted start; more share a host and a moment on no real host
TOGETHER = 20  # accounts in one statement, five SELECTs each: SQLite takes 500 in one

_it = tables.observation.c
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_AROUND = LARGEST_SHIFT + AT_ONCE


def queries_near(accounts: Iterable[Account]) -> Iterator[tuple[CompoundSelect[Any], dict[str, Any]]]:
    """Yield queries for the ids of rows that may be of the starts that accounts tell, with their parameters.

    Rows of the same time, whatever corrections made of their facts; of a host also those with the same pool, be they a
    zone apart or told without a time, and logs of starts that died before their pool a zone apart. A range that is
    empty asks for nothing.
    """
    of_host: list[dict[str, Any]] = []
    of_any_host: list[dict[str, Any]] = []
    for each in accounts:
        (of_any_host if each.observation.host is None else of_host).append(_parameters(each))
    for has_host, wanted in ((True, of_host), (False, of_any_host)):
        for some in batched(wanted, TOGETHER):
            # two statements of each kind, not one per count: what SQLAlchemy keeps of this one is 1.5 MB
            count = TOGETHER if len(some) > 1 else 1
            filled = some + some[-1:] * (count - len(some))
            parameters = {_name(key, place): value for place, own in enumerate(filled) for key, value in own.items()}
            yield _query(count, has_host=has_host), parameters


def _parameters(account: Account) -> dict[str, Any]:
    start = account.observation
    at, earliest, latest = start.observed_at, start.observed_at - _AROUND, start.observed_at + _AROUND
    is_log_of_death = start.measurements.pool_tokens is None and start.log_excerpt is not None
    moment = {"since": at - AT_ONCE if account.is_timed else latest, "until": at + AT_ONCE}
    if start.host is None:
        return moment
    return moment | {
        "host_key": host_key(start),
        "pool_tokens": start.measurements.pool_tokens,
        "earliest": earliest if account.is_timed else _EARLIEST,
        "earliest_death": earliest if account.is_timed and is_log_of_death else latest + AT_ONCE,
        "latest": latest,
    }


@cache
def _query(count: int, *, has_host: bool) -> CompoundSelect[Any]:
    arms = _of_host if has_host else _of_any_host
    return union_all(*(arm for place in range(count) for arm in arms(place)))


def _of_host(place: int) -> Iterator[Select[Any]]:
    on_host, pool_tokens = _equals(_it.host_key, place), _equals(_it.pool_tokens, place)
    at_once, same_pool = _between("since", "until", place), and_(on_host, pool_tokens, _it.pool_tokens.is_not(None))
    yield _newest(on_host, at_once)
    yield _newest(_it.host_key.is_(None), at_once)  # no host, or one that a replica of release 0.1 has just written
    yield _newest(same_pool, _between("earliest", "latest", place))
    yield _newest(same_pool, _it.is_timed.is_(False))
    died_before_pool = and_(on_host, _it.pool_tokens.is_(None), _it.log_excerpt.is_not(None))
    yield _newest(died_before_pool, _between("earliest_death", "latest", place))


def _of_any_host(place: int) -> Iterator[Select[Any]]:
    yield _newest(_between("since", "until", place))


def _newest(*where: ColumnElement[bool]) -> Select[Any]:
    found = select(_it.id).where(*where).order_by(_it.observed_at.desc()).limit(MOST_NEAR)
    return select(found.subquery().c.id)


def _equals(column: ColumnElement[Any], place: int) -> ColumnElement[bool]:
    return column == bindparam(_name(column.key or "", place), type_=column.type)


def _between(since: str, until: str, place: int) -> ColumnElement[bool]:
    at = _it.observed_at
    return at.between(bindparam(_name(since, place), type_=at.type), bindparam(_name(until, place), type_=at.type))


def _name(key: str, place: int) -> str:
    return f"{key}_{place}"
