"""What handlers work with: the storage and its reader threads, fits, answers, tokens and metrics."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from litestar.connection import ASGIConnection

from kvyield_server.api.telemetry import Metrics
from kvyield_server.api.tokens import KnownTokens
from kvyield_server.errors import StorageUnavailableError
from kvyield_server.settings import Settings
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.usecases.fits import FitCache
from kvyield_server.usecases.fleet import FleetRefresher

T = TypeVar("T")
LOOK_SECONDS = 4.0  # two of them are less than a scrape of Prometheus waits


class Answers:
    """Answers by question, right until anything is committed: another stamp of the storage empties them."""

    def __init__(self, size: int = 1_024) -> None:
        self._size = size
        self._lock = Lock()
        self._stamp: Hashable = None
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, stamp: Hashable, question: Hashable, make: Callable[[], T]) -> T:
        """Return the answer to a question at a stamp, made when it is new."""
        with self._lock:
            if stamp != self._stamp:
                self._stamp = stamp
                self._answers.clear()
            if question in self._answers:
                known: T = self._answers[question]
                return known
        made = make()
        with self._lock:
            if stamp == self._stamp:
                self._answers[question] = made
            if len(self._answers) > self._size:
                self._answers.popitem(last=False)
        return made


class Services:
    """One per application. Reads run in reader threads, fits in threads of their own, writes in the writer.

    A read may wait for a fit; tokens and health are looked up in threads of their own, which no read holds up.
    """

    def __init__(self, settings: Settings, storage: Storage) -> None:
        self.settings = settings
        self.storage = storage
        self.metrics = Metrics()
        self.tokens = KnownTokens(storage)
        self._answers = Answers()
        self._readers = ThreadPoolExecutor(settings.reader_threads, "kvyield-read")
        self._lookers = ThreadPoolExecutor(2, "kvyield-look")
        self._fitters = ThreadPoolExecutor(settings.fit_threads, "kvyield-fit")
        self.fits = FitCache(self._fitters)
        self.fleet = FleetRefresher(storage, FitCache(self._fitters, size=1))

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run work on a snapshot of the database, in a reader thread."""
        return await self.in_reader(lambda: self._on_snapshot(work))

    async def read_once(self, question: Hashable, work: Callable[[UnitOfWork], T]) -> T:
        """Run work as ``read`` does; the same question again is answered from memory until anything is committed."""
        answers, stamp = self._answers, self.storage.stamp
        return await self.in_reader(lambda: answers.get(stamp(), question, lambda: self._on_snapshot(work)))

    def _on_snapshot(self, work: Callable[[UnitOfWork], T]) -> T:
        with self.storage.read() as uow:
            return work(uow)

    async def look(self, work: Callable[[], T]) -> T:
        """Run work that takes a moment, such as to look a token up, while long reads wait for each other.

        Raises:
            StorageUnavailableError: the database did not answer in time.
        """
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._lookers, work)
        except TimeoutError:
            raise StorageUnavailableError(f"The database did not answer within {LOOK_SECONDS:.0f} s.") from None

    async def in_reader(self, work: Callable[[], T]) -> T:
        """Run work that may wait for the database, in a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def write(self, job: Callable[[UnitOfWork], T]) -> T:
        """Run a job in the writer and return what it returned, once that is on disk."""
        return await asyncio.wrap_future(self.storage.write(job))

    async def close(self) -> None:
        """Finish what was begun: reads and fits first, then the writer's queue."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.fleet.close()
        for threads in (self._lookers, self._readers, self._fitters):
            threads.shutdown(wait=True, cancel_futures=True)
        self.storage.close()


def services_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Services:
    """Return the services of the application that a request came to."""
    services: Services = connection.app.state.services
    return services
