"""What handlers work with: the storage behind two thread pools, fits, answers, metrics and the clock."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from litestar.connection import ASGIConnection

from kvyield_server.api.intake import Intake
from kvyield_server.api.kept import KeptAnswers
from kvyield_server.api.telemetry import Metrics
from kvyield_server.api.turns import Turns, answered
from kvyield_server.settings import Settings
from kvyield_server.usecases.fits import FitCache
from kvyield_server.usecases.ports import ApiToken, Storage, UnitOfWork
from kvyield_server.usecases.recommend import AnswerCache

T = TypeVar("T")
LARGE_BODY_BYTES = 65_536
COLLECT_EVERY_BYTES = 16 << 20


class Services:
    """One per application. Reads run in reader threads, fits in threads of their own, writes in the writer's."""

    def __init__(self, settings: Settings, storage: Storage) -> None:
        self.settings = settings
        self.storage = storage
        self.metrics = Metrics()
        self.answers = AnswerCache()
        self.intake = Intake(storage)
        self._readers = ThreadPoolExecutor(settings.reader_threads, "kvyield-read")
        self._decoder = ThreadPoolExecutor(1, "kvyield-decode")
        self._fitters = ThreadPoolExecutor(settings.fit_threads, "kvyield-fit")
        self.fits = FitCache(self._fitters)
        self.kept = KeptAnswers()
        self._large_bytes = 0
        self._stamps: Turns[None, Hashable] = Turns(self._readers, lambda asked: [storage.stamp()] * len(asked))
        self._tokens: Turns[str, ApiToken | None] = Turns(self._readers, self._tokens_by_hash)

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run work on a snapshot of the database, off the event loop."""

        def run() -> T:
            with self.storage.read() as uow:
                return work(uow)

        return await asyncio.get_running_loop().run_in_executor(self._readers, run)

    async def stamp(self) -> Hashable:
        """Return a value that equals an earlier one only if nothing was committed in between."""
        return await self._stamps.ask(None)

    async def token_with(self, token_hash: str) -> ApiToken | None:
        """Return the token with that hash as the database has it now."""
        return await self._tokens.ask(token_hash)

    def _tokens_by_hash(self, hashes: Sequence[str]) -> list[ApiToken | None]:
        with self.storage.read() as uow:
            found = {each: uow.tokens.by_hash(each) for each in set(hashes)}
        return [found[each] for each in hashes]

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Run work off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def decoded(self, size: int, work: Callable[[], T]) -> T:
        """Decode a body of that many bytes: a large one off the event loop, in a thread that nothing else waits for."""
        if size <= LARGE_BODY_BYTES:
            return work()
        self._large_bytes += size
        if self._large_bytes > COLLECT_EVERY_BYTES:
            self._large_bytes = 0
            gc.collect(1)  # the collector counts objects: it would let a few large ones lie
        return await asyncio.get_running_loop().run_in_executor(self._decoder, work)

    async def write(self, job: Callable[[UnitOfWork], T]) -> T:
        """Run a job in the writer and return what it returned, once that is on disk."""
        return await answered(self.storage.write(job))

    async def close(self) -> None:
        """Finish what was begun: reads and fits first, then the writer's queue."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._decoder.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._fitters.shutdown(wait=True, cancel_futures=True)
        self.storage.close()


def services_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Services:
    """Return the services of the application that a request came to."""
    services: Services = connection.scope["litestar_app"].services  # type: ignore[attr-defined]  # of app.py
    return services


def utc_now() -> datetime:
    """Return the present moment, aware and UTC."""
    return datetime.now(UTC)
