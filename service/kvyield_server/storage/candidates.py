"""Which rows may be of a start that is posted: the queries; what is of one start the domain decides."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, select, union

from kvyield_server.domain.facts.accounts import AT_ONCE, LARGEST_SHIFT, Account, host_key
from kvyield_server.storage import tables

MOST_NEAR = 200  # rows that may be of a posted start; more share a host and a moment on no real host

_it = tables.observation.c
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_AROUND = LARGEST_SHIFT + AT_ONCE


def _parameter(name: str, like: ColumnElement[Any]) -> Any:
    return bindparam(name, type_=like.type)


_ON_HOST = _it.host_key == _parameter("host_key", _it.host_key)


def _between(since: str, until: str) -> ColumnElement[bool]:
    return _it.observed_at.between(_parameter(since, _it.observed_at), _parameter(until, _it.observed_at))


def _newest(*where: ColumnElement[bool]) -> Select[Any]:
    found = select(_it.id).where(*where).order_by(_it.observed_at.desc()).limit(MOST_NEAR)
    return select(found.subquery().c.id)


_AT_ONCE = _between("since", "until")
_POOL = and_(_ON_HOST, _it.pool_tokens == _parameter("pool_tokens", _it.pool_tokens), _it.pool_tokens.is_not(None))
_OF_HOST = union(
    _newest(_ON_HOST, _AT_ONCE),
    _newest(_it.host_key.is_(None), _AT_ONCE),  # no host, or a row that a replica of release 0.1 has just written
    _newest(_POOL, _between("earliest", "latest")),
    _newest(_POOL, _it.is_timed.is_(False)),
    _newest(_ON_HOST, _between("earliest_death", "latest"), _it.pool_tokens.is_(None), _it.log_excerpt.is_not(None)),
)
_OF_ANY_HOST = _newest(_AT_ONCE)


def query_near(account: Account) -> tuple[Any, dict[str, Any]]:
    """Return the query for the ids of rows that may be of the start that an account tells, and its parameters.

    Rows of the same time, whatever corrections made of their facts; of a host also those with the same pool, be they a
    zone apart or told without a time, and logs of starts that died before their pool a zone apart. A range that is
    empty asks for nothing.
    """
    start = account.observation
    at, earliest, latest = start.observed_at, start.observed_at - _AROUND, start.observed_at + _AROUND
    is_log_of_death = start.measurements.pool_tokens is None and start.log_excerpt is not None
    moment = {"since": at - AT_ONCE if account.is_timed else latest, "until": at + AT_ONCE}
    if start.host is None:
        return _OF_ANY_HOST, moment
    return _OF_HOST, moment | {
        "host_key": host_key(start),
        "pool_tokens": start.measurements.pool_tokens,
        "earliest": earliest if account.is_timed else _EARLIEST,
        "earliest_death": earliest if account.is_timed and is_log_of_death else latest + AT_ONCE,
        "latest": latest,
    }
