"""What a writer remembers of pairs between its transactions, as long as nobody else has written meanwhile."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from kvyield_server.domain.facts.observation import Hardware, Model
from kvyield_server.storage.records import Pair
from kvyield_server.storage.statements import run

MOST_REMEMBERED = 10_000
Name = tuple[str, int, str]


class KnownPairs:
    """Pairs by name. Only SQLite tells cheaply that no other connection wrote; elsewhere nothing is remembered."""

    def __init__(self) -> None:
        self._pairs: dict[Name, Pair] = {}
        self._seen: tuple[object, int] | None = None

    def begin(self, connection: Connection) -> None:
        """Forget everything unless the database is as this connection left it. Call it within the transaction."""
        if connection.dialect.name != "sqlite":
            self._pairs.clear()
            return
        driver: Any = connection.connection.dbapi_connection
        seen = (driver, run(connection, "PRAGMA data_version").fetchone()[0])
        if self._seen != seen:
            self._pairs.clear()
            self._seen = seen

    def get(self, name: Name) -> Pair | None:
        """Return the pair with that name, if it is remembered."""
        return self._pairs.get(name)

    def keep(self, pair: Pair) -> None:
        """Remember a pair as this transaction sees it."""
        if len(self._pairs) >= MOST_REMEMBERED:
            self._pairs.clear()
        self._pairs[name_of(pair.hardware, pair.model)] = pair

    def clear(self) -> None:
        """Forget everything: something was undone, or written past this."""
        self._pairs.clear()


def name_of(hardware: Hardware, model: Model) -> Name:
    return hardware.gpu, hardware.gpu_count, model.name
