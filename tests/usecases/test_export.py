"""Export reads a page when it is asked for, so its memory does not grow with the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from uuid6 import uuid7

from _storages import fresh_storage
from kvyield_server.domain.facts.observation import Engine, EngineName, Hardware, Model, Observation, Outcome
from kvyield_server.storage.records import ObservationFilter
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.usecases.export import PAGE_SIZE, export
from kvyield_server.usecases.record import Arrival, record

NOON = datetime(2026, 5, 30, 12, tzinfo=UTC)


class CountingStorage:
    """Counts the snapshots that are opened of a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.reads = 0

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        self.reads += 1
        with self.storage.read() as uow:
            yield uow


def start(number: int) -> Observation:
    """Return a failed start, the plainest there is."""
    return Observation(
        id=uuid7(),
        observed_at=NOON + timedelta(seconds=number),
        hardware=Hardware(gpu="H200", gpu_count=1),
        model=Model(name="m"),
        engine=Engine(name=EngineName.VLLM),
        outcome=Outcome.FAILED,
    )


def test_pages_are_read_one_at_a_time() -> None:
    """The first page comes after one read, the last after the third, and every row once, newest first."""
    storage = CountingStorage(fresh_storage())
    starts = [start(number) for number in range(2 * PAGE_SIZE + 1)]

    def fill(uow: UnitOfWork) -> None:
        for item in starts:
            record([Arrival(item, str(item.id), None, NOON, "loopback")])(uow)

    storage.storage.write(fill).result()
    pages = export(storage, ObservationFilter())
    first = next(pages)
    assert (len(first), storage.reads) == (PAGE_SIZE, 1)
    rows = [*first, *(row for page in pages for row in page)]
    assert storage.reads == 3
    assert [row.observation.id for row in rows] == [item.id for item in reversed(starts)]
