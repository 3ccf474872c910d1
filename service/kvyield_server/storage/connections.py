"""Which database a URL means, and how its connections are set for reading, writing and migrating.

SQLite has one writer at a time: its lock is taken at the start of each write (BEGIN IMMEDIATE). On PostgreSQL writers
of several processes lock the pairs that they write to, so those of different pairs write at the same time; migrations
take an advisory lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from kvyield_server.errors import InvalidError, StorageUnavailableError

LOCK_WAIT_SECONDS = 5
MIGRATION_LOCK_WAIT_SECONDS = 60
MIGRATION_LOCK = int.from_bytes(b"kvyield")  # any number that nobody else locks in this database
READERS = 16
_ENCODED = frozenset("@/?#")  # these end a part of a URL where they are not encoded

_DRIVERS: Mapping[str, str] = MappingProxyType(
    {
        "sqlite": "sqlite",
        "sqlite+pysqlite": "sqlite",
        "postgres": "postgresql+psycopg",
        "postgresql": "postgresql+psycopg",
        "postgresql+psycopg": "postgresql+psycopg",
    }
)
_POSTGRES_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "connect_timeout": 5,
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
        "application_name": "kvyield-server",
    }
)


class Use(Enum):
    """What an engine's connections are for."""

    READ = auto()
    WRITE = auto()
    MIGRATE = auto()


def database_url(url: str) -> URL:
    """Return the parsed URL with its driver named; InvalidError when it means no database that kvyield can use."""
    authority, _, _ = url.partition("://")[2].rpartition("@")
    if not url.startswith("sqlite") and not _ENCODED.isdisjoint(authority):
        detail = "has a user or password with one of @ / ? #: write them as %40 %2F %3F %23"
        raise InvalidError([("/database", f"The database URL {detail}.")])
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # what they say holds the URL, and with it the password
        raise InvalidError(
            [("/database", "The database URL cannot be read; it must be sqlite:///file or postgresql+psycopg://...")]
        ) from None
    if parsed.drivername not in _DRIVERS:
        begins = f"The database URL begins with {parsed.drivername[:40]}://"
        raise InvalidError([("/database", f"{begins}; it must begin with sqlite:/// or postgresql+psycopg://.")])
    parsed = parsed.set(drivername=_DRIVERS[parsed.drivername])
    if is_sqlite(parsed) and (parsed.database or ":memory:").startswith((":memory:", "file:")):
        raise InvalidError(
            [
                (
                    "/database",
                    "The database URL must name a file: sqlite:///path. What is in memory is lost at the end.",
                )
            ]
        )
    return parsed


def is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def engine_for(url: URL, use: Use) -> Engine:
    """Return an engine whose connections are set for that use; nothing is connected yet."""
    if use is Use.MIGRATE:
        options: dict[str, Any] = {"poolclass": NullPool}
    else:
        size, overflow = (1, 0) if use is Use.WRITE else (READERS // 4, READERS - READERS // 4)
        options = {"pool_size": size, "max_overflow": overflow, "pool_timeout": 10, "pool_pre_ping": True}
    options["hide_parameters"] = True  # bodies stay out of the log
    options |= {"json_serializer": _json_text, "json_deserializer": msgspec.json.decode}
    return _sqlite_engine(url, use, options) if is_sqlite(url) else _postgres_engine(url, use, options)


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _sqlite_engine(url: URL, use: Use, options: dict[str, Any]) -> Engine:
    engine = create_engine(url, **options | {"pool_pre_ping": False})
    begin = "BEGIN" if use is Use.READ else "BEGIN IMMEDIATE"

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself
        _set_up_sqlite(connection, use)

    @event.listens_for(engine, "begin")
    def take_lock(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _set_up_sqlite(connection: Any, use: Use) -> None:
    seconds = MIGRATION_LOCK_WAIT_SECONDS if use is Use.MIGRATE else LOCK_WAIT_SECONDS
    connection.execute(f"PRAGMA busy_timeout = {seconds * 1000}")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageUnavailableError(
            f"SQLite answers journal mode {mode!r} where WAL is needed: the file may be on a network disk."
        )
    connection.execute("PRAGMA synchronous = FULL")
    # a batch migration drops and makes tables anew, which must not reach rows that refer to them
    connection.execute(f"PRAGMA foreign_keys = {'OFF' if use is Use.MIGRATE else 'ON'}")
    if use is Use.READ:
        connection.execute("PRAGMA query_only = ON")
    else:
        # what a savepoint or a statement may have to undo is kept aside; in a file that costs a third of each write
        connection.execute("PRAGMA temp_store = MEMORY")


def _postgres_engine(url: URL, use: Use, options: dict[str, Any]) -> Engine:
    defaults = {name: value for name, value in _POSTGRES_DEFAULTS.items() if name not in url.query}
    # writers: a snapshot, taken before a pair's lock is got, would not show what the lock's last holder wrote
    level = "REPEATABLE READ" if use is Use.READ else "READ COMMITTED"
    engine = create_engine(url, connect_args=defaults, isolation_level=level, **options)
    if use is Use.READ:
        event.listen(engine, "connect", _read_only)
    else:
        seconds = LOCK_WAIT_SECONDS if use is Use.WRITE else MIGRATION_LOCK_WAIT_SECONDS

        @event.listens_for(engine, "begin")
        def set_up(connection: Connection) -> None:
            waits = f"SET LOCAL lock_timeout = '{seconds}s'; SET LOCAL idle_in_transaction_session_timeout = '60s'"
            connection.exec_driver_sql(waits)
            if use is Use.MIGRATE:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")

    return engine


def _read_only(connection: Any, _record: object) -> None:
    connection.read_only = True
