"""The storage in memory, for tests and dry runs: the same promises as the databases, except that nothing lasts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import TypeVar

from kvyield_server.errors import StorageUnavailableError
from kvyield_server.storage.memory_answers import MemoryAudit, MemoryFits, MemoryRecommendations, MemoryTokens
from kvyield_server.storage.memory_ledger import MemoryObservations, MemoryPairs, State
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import utc_now

T = TypeVar("T")


class MemoryUnitOfWork:
    """Repositories over one state."""

    def __init__(self, state: State, clock: Callable[[], datetime]) -> None:
        self.pairs = MemoryPairs(state, clock)
        self.observations = MemoryObservations(state, clock)
        self.fits = MemoryFits(state)
        self.recommendations = MemoryRecommendations(state)
        self.tokens = MemoryTokens(state)
        self.audit = MemoryAudit(state)


class MemoryStorage:
    """Keeps immutable records in a state that each job copies and, when it succeeds, replaces."""

    queue_depth = 0

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._lock = Lock()
        self._state = State()
        self._closed = False
        self._commits = 0

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """Open a snapshot: writes that come later are not seen in it."""
        self.ping()
        yield MemoryUnitOfWork(self._state.copy(), self._clock)

    def write(self, job: Callable[[UnitOfWork], T]) -> Future[T]:
        """Run the job at once, in the caller's thread; the future is done when this returns."""
        future: Future[T] = Future()
        try:
            future.set_result(self._run(job))
        except Exception as error:
            future.set_exception(error)
        return future

    def _run(self, job: Callable[[UnitOfWork], T]) -> T:
        with self._lock:
            self.ping()
            state = self._state.copy()
            result = job(MemoryUnitOfWork(state, self._clock))
            self._state = state
            self._commits += 1
        return result

    def stamp(self) -> Hashable:
        self.ping()
        return self._commits

    def ping(self) -> None:
        if self._closed:
            raise StorageUnavailableError("The storage is closed.")

    def migration_current(self) -> bool:
        return True

    def close(self) -> None:
        self._closed = True
