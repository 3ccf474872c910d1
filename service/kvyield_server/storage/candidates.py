"""Which rows may be of a start that is posted: the queries; what is of one start the domain decides."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Subquery, and_, column, literal, or_, select, values

from kvyield_server.domain.facts.accounts import AT_ONCE, LARGEST_SHIFT, Account, short_host
from kvyield_server.domain.facts.observation import Observation
from kvyield_server.storage import tables

_it = tables.observation.c
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


def near_queries(accounts: Sequence[Account]) -> list[Select[tuple[UUID]]]:
    """Return the queries for the rows that may be of one of some starts."""
    timed = [each for each in accounts if each.is_timed]
    queries = []
    hosted = _moments([each for each in timed if each.observation.host is not None])
    if hosted is not None:
        at_once = _it.observed_at.between(hosted.c.since, hosted.c.until)
        queries += [_joined(hosted, and_(_it.host == hosted.c.host, at_once))]
        queries += [_joined(hosted, and_(_it.host.is_(None), at_once))]
    unknown = _moments([each for each in timed if each.observation.host is None])
    if unknown is not None:
        queries += [_joined(unknown, _it.observed_at.between(unknown.c.since, unknown.c.until))]
    pools = _pools([each for each in accounts if each.observation.host is not None])
    if pools is not None:
        is_near = or_(_it.observed_at <= pools.c.until, _it.is_timed.is_(False))
        same = and_(_it.host == pools.c.host, _it.pool_tokens == pools.c.pool_tokens, _it.pool_tokens.is_not(None))
        queries += [_joined(pools, and_(same, _it.observed_at >= pools.c.since, is_near))]
    deaths = _moments([each for each in timed if _is_told_by_log(each.observation)], LARGEST_SHIFT + AT_ONCE)
    if deaths is not None:
        died = and_(_it.pool_tokens.is_(None), _it.log_excerpt.is_not(None))
        at = _it.observed_at.between(deaths.c.since, deaths.c.until)
        queries += [_joined(deaths, and_(_it.host == deaths.c.host, at, died))]
    return queries


def _joined(wanted: Subquery, on: ColumnElement[bool]) -> Select[tuple[UUID]]:
    fits = or_(wanted.c.fraction.is_(None), _it.fraction.is_(None), wanted.c.fraction == _it.fraction)
    return select(_it.id).join(wanted, and_(on, fits)).distinct()


def _is_told_by_log(start: Observation) -> bool:
    return start.host is not None and start.measurements.pool_tokens is None and start.log_excerpt is not None


def _moments(accounts: Sequence[Account], around: timedelta = AT_ONCE) -> Any:
    """Return a table of hosts and the times around each start; None for no starts."""
    rows = [
        (host, start.observed_at - around, start.observed_at + around, start.fraction)
        for start in (each.observation for each in accounts)
        for host in hosts_of(start)
    ]
    return _table(("host", "since", "until", "fraction"), rows)


def _pools(accounts: Sequence[Account]) -> Any:
    """Return a table of hosts, pools and the times that a row of each start may have; None for no starts."""
    rows = []
    for each in accounts:
        start = each.observation
        if start.measurements.pool_tokens is None:
            continue
        shift = LARGEST_SHIFT + AT_ONCE
        since = start.observed_at - shift if each.is_timed else _EARLIEST
        rows += [
            (host, since, start.observed_at + shift, start.fraction, start.measurements.pool_tokens)
            for host in hosts_of(start)
        ]
    return _table(("host", "since", "until", "fraction", "pool_tokens"), rows)


def hosts_of(start: Observation) -> list[str | None]:
    """Return a start's host, and its short name where it has a domain."""
    return [start.host] if start.host is None else list(dict.fromkeys((start.host, short_host(start.host))))


def _table(names: Sequence[str], rows: list[tuple[Any, ...]]) -> Any:
    if not rows:
        return None
    kinds = {"host": _it.host, "since": _it.observed_at, "until": _it.observed_at}
    columns = [column(name, kinds.get(name, _it.get(name)).type) for name in names]  # type: ignore[union-attr]
    if len(rows) == 1:  # as bound values, so that the statement is compiled once
        bound = (literal(value, it.type).label(it.name) for value, it in zip(rows[0], columns, strict=True))
        return select(*bound).cte("wanted")
    return values(*columns).data(rows).cte("wanted")
