"""The storage over SQL: reads on connections of their own, writes through the one writer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from kvyield_server.errors import StorageUnavailableError
from kvyield_server.storage import migrate
from kvyield_server.storage.audit import SqlAudit
from kvyield_server.storage.connections import LOCK_WAIT_SECONDS
from kvyield_server.storage.faults import translated
from kvyield_server.storage.fits import SqlFits
from kvyield_server.storage.known_pairs import KnownPairs
from kvyield_server.storage.observations import SqlObservations
from kvyield_server.storage.pairs import SqlPairs
from kvyield_server.storage.recommendations import SqlRecommendations
from kvyield_server.storage.stamps import Stamps
from kvyield_server.storage.tokens import SqlTokens
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import utc_now
from kvyield_server.storage.writer import Writer

T = TypeVar("T")


PROBE_SECONDS = 2 * LOCK_WAIT_SECONDS


def _same_revision(unit: UnitOfWork) -> None:
    assert isinstance(unit, SqlUnitOfWork)
    unit.connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")


class SqlUnitOfWork:
    """Repositories over one connection that is in a transaction."""

    def __init__(
        self, connection: Connection, clock: Callable[[], datetime] = utc_now, known: KnownPairs | None = None
    ) -> None:
        known = KnownPairs() if known is None else known
        self.connection = connection
        self.pairs = SqlPairs(connection, clock, known)
        self.observations = SqlObservations(connection, clock, known)
        self.fits = SqlFits(connection)
        self.recommendations = SqlRecommendations(connection, self.observations)
        self.tokens = SqlTokens(connection)
        self.audit = SqlAudit(connection)


class SqlStorage:
    """SQLite or PostgreSQL behind the ``Storage`` protocol; made by ``open_storage``."""

    def __init__(self, reader: Engine, writer: Engine) -> None:
        self._reader = reader
        self._writing_engine = writer
        self._is_closed = False
        self._stamps = Stamps(reader)
        self._known = KnownPairs()
        self._writer: Writer[UnitOfWork] = Writer(writer, self._unit, self._known.clear)

    @property
    def queue_depth(self) -> int:
        return self._writer.depth

    def _unit(self, connection: Connection) -> SqlUnitOfWork:
        self._known.begin(connection)
        return SqlUnitOfWork(connection, known=self._known)

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        with self._connection() as connection:
            yield SqlUnitOfWork(connection)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        if self._is_closed:
            raise StorageUnavailableError("The storage is closed.")
        try:
            with self._reader.connect() as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise translated(error) from error

    def write(self, job: Callable[[UnitOfWork], T]) -> Future[T]:
        return self._writer.submit(job)

    def stamp(self) -> Hashable:
        if self._is_closed:
            raise StorageUnavailableError("The storage is closed.")
        return self._stamps.read()

    def ping(self) -> None:
        if not self._writer.is_alive:
            raise StorageUnavailableError("The writer has ended.")
        with self._connection() as connection:
            connection.exec_driver_sql("SELECT 1")
        if self._writer.has_failed:
            self._write_the_same()

    def _write_the_same(self) -> None:
        """Write what is there already, after a write that failed: it shows whether the disk takes writes again."""
        try:
            self._writer.submit(_same_revision).result(PROBE_SECONDS)
        except TimeoutError:
            raise StorageUnavailableError("The last write failed, and another one takes long.") from None

    def migration_current(self) -> bool:
        with self._connection() as connection:
            return migrate.revision_of(connection) == migrate.head()

    def close(self) -> None:
        self._is_closed = True
        self._writer.close()
        self._stamps.close()
        self._writing_engine.dispose()
        self._reader.dispose()
