"""Jobs are kept or dropped as a whole, in one order, and are seen at once by whoever reads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest

from kvyield_server.errors import StorageUnavailableError
from kvyield_server.storage.records import ObservationFilter
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.usecases.record import Arrival, Outcome, record
from storage.samples import minutes, recording, start

THREADS = 8


def count(storage: Storage) -> int:
    with storage.read() as unit:
        return len(unit.observations.page(ObservationFilter(), None, 10_000).items)


class DeliberateError(Exception):
    """What a job raises here."""


def failing(unit: UnitOfWork) -> None:
    recording(start())(unit)
    raise DeliberateError


def test_what_a_job_returns_is_in_its_future(storage: Storage) -> None:
    """The future of a job holds its result, and by then every reader sees what it wrote."""
    observation = start()
    pair_id = storage.write(recording(observation)).result()
    with storage.read() as unit:
        stored = unit.observations.get(observation.id)
    assert stored is not None
    assert stored.pair_id == pair_id


def test_a_job_that_raises_leaves_nothing(storage: Storage) -> None:
    """The error is in the future as it was raised, and nothing that the job wrote is kept."""
    assert isinstance(storage.write(failing).exception(), DeliberateError)
    assert count(storage) == 0


def test_a_job_that_raises_takes_no_other_along(storage: Storage) -> None:
    """Of jobs that are written together, exactly those that raised are missing."""
    go = Event()
    first = storage.write(lambda _: go.wait(0.2))
    futures = [storage.write(failing if number % 3 == 0 else recording(start())) for number in range(30)]
    go.set()
    first.result()
    raised = [isinstance(future.exception(), DeliberateError) for future in futures]
    assert raised == [number % 3 == 0 for number in range(30)]
    assert count(storage) == 20


def test_a_duplicate_takes_no_other_along(storage: Storage) -> None:
    """A row that breaks a constraint fails alone, though it shares its commit with others."""
    same = start()
    futures = [storage.write(recording(same if number < 5 else start())) for number in range(20)]
    assert sum(future.exception() is None for future in futures) == 16
    assert count(storage) == 16


def test_jobs_run_in_the_order_of_arrival(storage: Storage) -> None:
    """One thread's jobs are never reordered."""
    seen: list[int] = []

    def note(number: int, _: UnitOfWork) -> None:
        seen.append(number)

    futures = [storage.write(partial(note, number)) for number in range(200)]
    for future in futures:
        future.result()
    assert seen == list(range(200))


def test_a_reader_sees_one_moment(storage: Storage) -> None:
    """What is written while a snapshot is open is not seen in it, and is seen in the next."""
    storage.write(recording(start())).result()
    with storage.read() as unit:
        before = unit.observations.page(ObservationFilter(), None, 10)
        storage.write(recording(start(minutes(1)))).result()
        assert unit.observations.page(ObservationFilter(), None, 10) == before
    assert count(storage) == 2


def test_eight_threads_write_at_once(storage: Storage) -> None:
    """No row is lost or doubled and the pair counts each one, whoever writes meanwhile."""

    def post(_: int) -> None:
        for _each in range(25):
            storage.write(recording(start())).result()
            assert count(storage) > 0

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(post, range(THREADS)))
    with storage.read() as unit:
        (pair,) = unit.pairs.page(None, None, 10).items
    assert pair.observation_count == pair.revision == count(storage) == 25 * THREADS


def once(digest: str) -> Callable[[UnitOfWork], list[Outcome]]:
    """Return the job that records a start with that content."""
    return record([Arrival(start(), digest, None, minutes(9), "loopback")])


def test_eight_threads_post_the_same_content(storage: Storage) -> None:
    """One of them stores it and all of them get what is stored."""
    with ThreadPoolExecutor(THREADS) as pool:
        futures = list(pool.map(lambda number: storage.write(once(f"{number % 5}")), range(100)))
    ids = {future.result()[0].stored.observation.id for future in futures}
    assert len(ids) == count(storage) == 5


def test_closing_writes_what_waits(storage: Storage) -> None:
    """Jobs that were accepted before the close are on disk after it."""
    futures = [storage.write(recording(start())) for _ in range(100)]
    storage.close()
    assert all(future.exception(timeout=0) is None for future in futures)


def test_a_closed_storage_says_so(storage: Storage) -> None:
    """After the close, writing, reading and pinging fail by name, and closing again is not an error."""
    storage.ping()
    storage.close()
    storage.close()
    assert isinstance(storage.write(recording(start())).exception(), StorageUnavailableError)
    with pytest.raises(StorageUnavailableError):
        storage.ping()
    with pytest.raises(StorageUnavailableError), storage.read():
        pass


def test_an_open_storage_is_current_and_idle(storage: Storage) -> None:
    """A storage that was just opened answers, has the newest schema, and nothing waits for its writer."""
    storage.ping()
    assert storage.migration_current()
    assert storage.queue_depth == 0
