"""Where starts come in: those that arrive while others are being written share the next write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from kvyield_server.api.turns import answered, hand_on
from kvyield_server.errors import KvyieldError, StorageUnavailableError
from kvyield_server.usecases.ports import Storage, UnitOfWork
from kvyield_server.usecases.record import Arrival, Outcome, Recorded, record, record_all, record_new

MOST_TOGETHER = 64
LEAST_TOGETHER = 16

Job = Callable[[UnitOfWork], Recorded]
Jobs = Callable[[Sequence[Arrival]], Callable[[UnitOfWork], Sequence[Outcome]]]
Waiting = tuple[Arrival, "asyncio.Future[Recorded]"]


class Intake:
    """Belongs to one event loop. Each start is answered once it is on disk, and fails alone."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._waiting: list[Waiting] = []
        self._is_writing = False

    async def take(self, arrival: Arrival) -> Recorded:
        """Record one start.

        Raises:
            ConflictError, InvalidError: as ``record``.
            StorageUnavailableError: it may not have been stored; it may be sent again.
        """
        answer: asyncio.Future[Recorded] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrival, answer))
        self._write_soon()
        return await answer

    async def take_all(self, arrivals: Sequence[Arrival]) -> Sequence[Outcome | KvyieldError]:
        """Record starts in one write and say what became of each; StorageUnavailableError is raised for all."""
        for job in (record_new(arrivals), record_all(arrivals)):
            try:
                return await answered(self._storage.write(job))
            except StorageUnavailableError:
                raise
            except KvyieldError:
                continue
        return [await self._alone(arrival) for arrival in arrivals]

    def _write_soon(self) -> None:
        """Write what waits, one write at a time. Of many that wait only half: the rest is read and answered meanwhile,
        where clients that all wait for the same write would leave this loop idle until it ends."""
        if self._is_writing or not self._waiting:
            return
        count = min(MOST_TOGETHER, max(LEAST_TOGETHER, len(self._waiting) // 2))
        together, self._waiting = self._waiting[:count], self._waiting[count:]
        self._is_writing = True
        self._put(together, record_new)

    def _put(self, together: list[Waiting], jobs: Jobs) -> None:
        loop = asyncio.get_running_loop()
        written = self._storage.write(jobs([arrival for arrival, _ in together]))
        written.add_done_callback(lambda done: loop.call_soon_threadsafe(self._told, together, jobs, done))

    def _told(self, together: list[Waiting], jobs: Jobs, done: Future[Sequence[Outcome]]) -> None:
        error = done.exception()
        if isinstance(error, KvyieldError) and jobs is record_new and not isinstance(error, StorageUnavailableError):
            self._put(together, record_all)
            return
        self._is_writing = False
        self._write_soon()
        if error is None:
            for (_, answer), outcome in zip(together, done.result(), strict=True):
                _tell(answer, outcome)
        elif len(together) == 1 or isinstance(error, StorageUnavailableError):
            for _, answer in together:
                _tell(answer, error)
        else:
            for arrival, answer in together:
                self._again(arrival, answer)

    def _again(self, arrival: Arrival, answer: asyncio.Future[Recorded]) -> None:
        """Write one start of a group that failed, so that the one at fault fails alone."""
        hand_on(self._storage.write(_single(arrival)), answer)

    async def _alone(self, arrival: Arrival) -> Outcome | KvyieldError:
        try:
            return await answered(self._storage.write(_single(arrival)))
        except StorageUnavailableError:
            raise
        except KvyieldError as error:
            return error


def _single(arrival: Arrival) -> Job:
    return record(arrival.observation, arrival.digest, token_id=arrival.token_id, now=arrival.now)


def _tell(answer: asyncio.Future[Recorded], outcome: Recorded | BaseException) -> None:
    if answer.done():  # the caller went away
        return
    if isinstance(outcome, BaseException):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
