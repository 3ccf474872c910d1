"""The storage as use cases see it: one unit of work, its repositories, and the store that hands them out.

All times are aware and UTC. All pages run from the newest row to the oldest. A repository method that names a thing by
id raises NotFoundError when nothing has that id, except ``get``, ``find`` and ``by_...``, which answer None. Reads have
connections of their own; writes go through the one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from kvyield_server.errors import StorageUnavailableError
from kvyield_server.storage import migrate
from kvyield_server.storage.audit import Audit
from kvyield_server.storage.connections import LOCK_WAIT_SECONDS
from kvyield_server.storage.faults import translated
from kvyield_server.storage.fleet import Fleet
from kvyield_server.storage.observations import Observations
from kvyield_server.storage.pairs import Pairs
from kvyield_server.storage.recommendations import Recommendations
from kvyield_server.storage.stamps import Stamps
from kvyield_server.storage.tokens import Tokens
from kvyield_server.storage.writer import Writer

T = TypeVar("T")

PROBE_SECONDS = 2 * LOCK_WAIT_SECONDS


class UnitOfWork:
    """One transaction: what is read is one snapshot, what is written is kept or dropped as a whole."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pairs = Pairs(connection)
        self.observations = Observations(connection)
        self.fleet = Fleet(connection)
        self.recommendations = Recommendations(connection, self.observations)
        self.tokens = Tokens(connection)
        self.audit = Audit(connection)


class Storage:
    """A database, SQLite or PostgreSQL, with one writer and many readers; made by ``open_storage``."""

    def __init__(self, reader: Engine, writer: Engine) -> None:
        self._reader = reader
        self._writing_engine = writer
        self._is_closed = False
        self._stamps = Stamps(reader)
        self._writer: Writer[UnitOfWork] = Writer(writer, UnitOfWork)

    @property
    def queue_depth(self) -> int:
        """Jobs that wait for the writer."""
        return self._writer.depth

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """Open a snapshot to read from. StorageUnavailableError when the database cannot be reached."""
        with self._connection() as connection:
            yield UnitOfWork(connection)

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
        """Queue a job; its future holds what the job returned, once that is on disk.

        A job that raises is rolled back alone and its future holds the error. The future holds a
        StorageUnavailableError when the write failed or may have failed: the caller may send it again. A job may run
        more than once before one run is committed, so it must do nothing but use its unit of work.
        """
        return self._writer.submit(job)

    def stamp(self) -> Hashable:
        """Return a value that equals an earlier one only if nothing was committed in between, by any process."""
        if self._is_closed:
            raise StorageUnavailableError("The storage is closed.")
        return self._stamps.read()

    def ping(self) -> None:
        """Return when the database answers, and takes writes again if the last one failed, else raise
        StorageUnavailableError."""
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
        """Say whether the schema is the one that this version needs."""
        with self._connection() as connection:
            return migrate.revision_of(connection) == migrate.head()

    def close(self) -> None:
        """Finish the jobs that wait, then let go of the database. Later calls do nothing."""
        self._is_closed = True
        self._writer.close()
        self._stamps.close()
        self._writing_engine.dispose()
        self._reader.dispose()


def _same_revision(unit: UnitOfWork) -> None:
    unit.connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
