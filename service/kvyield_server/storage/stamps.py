"""Stamps: a cheap way to learn that nothing was committed since, by this process or any other."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection

from kvyield_server.storage.faults import unavailable

_SQLITE = "PRAGMA data_version"  # changes when another connection commits; all writes come from others than this one
_POSTGRES = "SELECT pg_current_snapshot()::text"  # an equal snapshot sees exactly the same rows


class Stamps:
    """Reads stamps over one connection of its own. A stamp is worth nothing after that connection is lost, so each
    connection's stamps are told apart."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._query = _SQLITE if engine.dialect.name == "sqlite" else _POSTGRES
        self._lock = Lock()
        self._connection: PoolProxiedConnection | None = None
        self._connections = 0

    def read(self) -> Hashable:
        """Return the stamp of this moment. StorageUnavailableError when the database does not answer."""
        with self._lock:
            try:
                return self._read()
            except Exception:
                self._forget()
            try:
                return self._read()
            except Exception as error:
                self._forget()
                raise unavailable(error) from error

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._forget()

    def _read(self) -> Hashable:
        if self._connection is None:
            self._connection = self._opened()
        cursor = self._connection.cursor()
        try:
            cursor.execute(self._query)
            row = cursor.fetchone()
        finally:
            cursor.close()
        return (self._connections, row[0] if row else None)

    def _opened(self) -> PoolProxiedConnection:
        connection = self._engine.raw_connection()
        connection.detach()
        self._connections += 1
        if self._query is _POSTGRES:
            driver: Any = connection.dbapi_connection
            driver.autocommit = True
        return connection

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.dbapi_connection is not None:
            connection.dbapi_connection.close()  # the pool's close would roll back first, over what may be dead
