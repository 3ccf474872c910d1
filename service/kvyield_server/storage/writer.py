"""One thread that writes, with group commit on SQLite: jobs that wait together share a transaction and a flush to disk.

On PostgreSQL each job has its own transaction: groups of two servers held the locks of many pairs at once, each in its
order of arrival, and most of their time went to deadlocks (a second each).

Each job runs within its own savepoint, so that a job that raises takes nothing along. A savepoint costs little beside
the job, and its release proves that the database still holds the transaction that is about to be committed: both
databases drop a transaction by themselves on some errors, and would then commit nothing without a word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from kvyield_server.errors import StorageUnavailableError
from kvyield_server.storage.faults import is_race, translated, unavailable

T = TypeVar("T")
U = TypeVar("U")

GROUP_SIZE = 64
CAPACITY = 10_000
MOST_RACES = 3


class _UnreachableError(Exception):
    """No transaction could be opened; the cause says why."""


class _BrokenError(Exception):
    """A job left the transaction unusable for the other jobs of its group; the cause is what the job raised."""


@dataclass(slots=True)
class _Entry(Generic[U]):
    job: Callable[[U], Any]
    future: Future[Any]
    is_alone: bool = False
    races: int = 0


class Writer(Generic[U]):
    """Runs jobs in order of arrival. ``unit`` makes a unit of work of a connection that is in a transaction.

    ``has_failed`` says that the database did not take the last write. A job that lost a race with another process (a
    deadlock, a key that was taken meanwhile) is run again, in a transaction of its own.
    """

    def __init__(self, engine: Engine, unit: Callable[[Connection], U]) -> None:
        self._engine = engine
        self._unit = unit
        self._queue: deque[_Entry[U]] = deque()
        self._wake = Condition()
        self._is_closing = False
        self._group_size = 1 if engine.dialect.name == "postgresql" else GROUP_SIZE
        self._connection: Connection | None = None
        self.has_failed = self._is_unwell = False
        self._thread = Thread(target=self._loop, name="kvyield-writer", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        return len(self._queue)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: Callable[[U], T]) -> Future[T]:
        """Queue a job; fails at once when the writer is closed or far behind."""
        future: Future[T] = Future()
        with self._wake:
            refusal = self._refusal()
            if refusal is None:
                self._queue.append(_Entry(job, future))
                self._wake.notify()
        if refusal is not None:
            future.set_exception(StorageUnavailableError(refusal))
        return future

    def _refusal(self) -> str | None:
        if self._is_closing:
            return "The storage is closed."
        return "Too many writes wait already." if len(self._queue) >= CAPACITY else None

    def close(self) -> None:
        """Write what waits, then stop."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self._thread.join()

    def _loop(self) -> None:
        while entries := self._next_group():
            self._write([entry for entry in entries if entry.is_alone or entry.future.set_running_or_notify_cancel()])
        self._disconnect()

    def _next_group(self) -> list[_Entry[U]]:
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._is_closing)
            group: list[_Entry[U]] = []
            while self._queue and len(group) < self._group_size and not (group and self._queue[0].is_alone):
                group.append(self._queue.popleft())
                if group[-1].is_alone:
                    break
            return group

    def _write(self, entries: list[_Entry[U]]) -> None:
        try:
            outcomes = self._attempt(entries) if entries else []
        except _UnreachableError as error:
            self._fail([*entries, *self._drained()], error.__cause__ or error)
        except _BrokenError as error:
            self._write_apart(entries, error.__cause__ or error)
        except Exception as error:  # the commit itself failed: it may or may not be on disk, so nobody is told it is
            self._fail(entries, error)
        else:
            self.has_failed = self._is_unwell if entries else self.has_failed
            for entry, tell in zip(entries, outcomes, strict=True):
                if tell is not None:
                    tell(entry.future)
            self._requeue([entry for entry, tell in zip(entries, outcomes, strict=True) if tell is None])

    def _attempt(self, entries: Sequence[_Entry[U]]) -> list[Callable[[Future[Any]], None] | None]:
        self._is_unwell = False
        with self._transaction() as connection:
            return [self._run(connection, entry) for entry in entries]

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """One transaction, on the connection that the last one left well."""
        try:
            connection = self._begun()
        except Exception as error:
            self._disconnect()
            raise _UnreachableError from error
        try:
            yield connection
            connection.commit()
        except BaseException:
            self._disconnect()
            raise

    def _begun(self) -> Connection:
        """Return a connection in a transaction, a new one where the last was lost meanwhile."""
        if self._connection is not None:
            try:
                self._connection.begin()
                return self._connection
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                self._disconnect()
        self._connection = self._engine.connect()
        self._connection.begin()
        return self._connection

    def _disconnect(self) -> None:
        """End the connection, and with it what is not committed: one that failed is not trusted with a rollback."""
        connection, self._connection = self._connection, None
        with suppress(SQLAlchemyError):
            if connection is not None:
                connection.invalidate()
                connection.close()

    def _run(self, connection: Connection, entry: _Entry[U]) -> Callable[[Future[Any]], None] | None:
        """Return how to tell the job's future, once the group is committed; None when it is to be run again."""
        try:
            connection.exec_driver_sql("SAVEPOINT job")
            result = entry.job(self._unit(connection))
            connection.exec_driver_sql("RELEASE SAVEPOINT job")
        except BaseException as error:
            _undo(connection, error)
            if is_race(error) and entry.races < MOST_RACES:
                entry.races += 1
                return None
            failure = translated(error)
            self._is_unwell = self._is_unwell or isinstance(failure, StorageUnavailableError)
            if failure is not error:
                failure.__cause__ = error
            return lambda future: future.set_exception(failure)
        return lambda future: future.set_result(result)

    def _write_apart(self, entries: list[_Entry[U]], error: BaseException) -> None:
        """Give each job of a broken group a transaction of its own, ahead of all others."""
        if len(entries) == 1:
            self._fail(entries, error)
            return
        self._requeue(entries)

    def _requeue(self, entries: Sequence[_Entry[U]]) -> None:
        for entry in entries:
            entry.is_alone = True
        with self._wake:
            self._queue.extendleft(reversed(entries))

    def _drained(self) -> list[_Entry[U]]:
        with self._wake:
            waiting = list(self._queue)
            self._queue.clear()
        return [entry for entry in waiting if entry.is_alone or entry.future.set_running_or_notify_cancel()]

    def _fail(self, entries: Sequence[_Entry[U]], error: BaseException) -> None:
        self.has_failed = True
        failure = unavailable(error)
        for entry in entries:
            entry.future.set_exception(failure)


def _undo(connection: Connection, error: BaseException) -> None:
    try:
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT job")
        connection.exec_driver_sql("RELEASE SAVEPOINT job")
    except Exception:
        raise _BrokenError from error
