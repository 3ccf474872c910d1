"""The writer thread: groups of jobs share a commit, and what goes wrong reaches exactly those that it concerns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from kvyield_server.errors import StorageUnavailableError
from kvyield_server.storage import migrate, tables, writer
from kvyield_server.storage.connections import Use, database_url, engine_for
from kvyield_server.storage.writer import Writer


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine for writing to a fresh, migrated database."""
    name = "sqlite_url" if request.param == "sqlite" else "empty_postgres_url"
    url = request.getfixturevalue(name)
    migrate.upgrade(url)
    engine = engine_for(database_url(url), Use.WRITE)
    yield engine
    engine.dispose()


@pytest.fixture
def bare(engine: Engine) -> Iterator[Writer[Connection]]:
    """A writer whose jobs get the connection itself."""
    made = Writer(engine, lambda connection: connection)
    yield made
    made.close()


def insert(number: int) -> Any:
    """Return a job that inserts one row."""
    row = {"id": UUID(int=number), "gpu": f"G{number}", "gpu_count": 1}
    return lambda connection: connection.execute(tables.hardware.insert(), row)


def rows(engine: Engine) -> int:
    """Count rows as another client sees them: the writer keeps its own connection."""
    other = create_engine(engine.url, poolclass=NullPool)
    with other.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM hardware")).scalar_one())


@contextmanager
def held(bare: Writer[Connection]) -> Iterator[None]:
    """Keep the writer busy, so that what is queued meanwhile becomes one group."""
    is_held, go = Event(), Event()

    def hold(_: object) -> None:
        is_held.set()
        go.wait(10)

    holding = bare.submit(hold)
    is_held.wait(10)
    yield
    go.set()
    holding.result()


def test_jobs_that_wait_share_a_commit(bare: Writer[Connection], engine: Engine) -> None:
    """A hundred jobs that wait take two commits on SQLite, groups of at most 64; on PostgreSQL each its own."""
    commits: list[Connection] = []
    with held(bare):
        futures = [bare.submit(insert(number)) for number in range(100)]
        assert bare.depth == 100
        event.listen(engine, "commit", commits.append)
    for future in futures:
        future.result()
    shared = 2 if engine.dialect.name == "sqlite" else 100
    assert len(commits) == shared + 1  # the job that held the writer is one more
    assert rows(engine) == 100


def test_a_future_is_done_after_the_commit_only(bare: Writer[Connection], engine: Engine) -> None:
    """While a commit runs, no future is done of what it writes."""
    states: list[bool] = []
    with held(bare):
        futures = [bare.submit(insert(number)) for number in range(3)]
        event.listen(engine, "commit", lambda _: states.append(futures[-1].done()))
    for future in futures:
        future.result()
    assert states == [False] * len(states)
    assert len(states) >= 2


def test_a_cancelled_job_never_runs(bare: Writer[Connection], engine: Engine) -> None:
    """A caller that went away before its job began has it dropped, and the jobs beside it run."""
    with held(bare):
        gone, stays = bare.submit(insert(1)), bare.submit(insert(2))
        assert gone.cancel()
    stays.result()
    assert rows(engine) == 1


def test_a_broken_transaction_is_run_again_apart(bare: Writer[Connection], engine: Engine) -> None:
    """A job that ends the shared transaction fails alone: the others run again, each in a transaction of its own."""
    with held(bare):
        before = [bare.submit(insert(number)) for number in range(3)]
        breaking = bare.submit(lambda connection: connection.connection.rollback())
        after = [bare.submit(insert(number)) for number in range(3, 6)]
    assert isinstance(breaking.exception(), StorageUnavailableError)
    assert [future.exception() for future in (*before, *after)] == [None] * 6
    assert rows(engine) == 6


def test_a_job_that_hides_a_database_error_is_not_believed(bare: Writer[Connection], engine: Engine) -> None:
    """PostgreSQL drops a transaction in which a statement failed: a job that went on after that must not succeed."""

    def hiding(connection: Connection) -> None:
        insert(1)(connection)
        try:
            connection.execute(text("SELECT * FROM nothing"))
        except SQLAlchemyError:
            return

    future = bare.submit(hiding)
    assert (future.exception() is None) == (rows(engine) == 1)


def test_a_failed_commit_is_a_failure_for_all(bare: Writer[Connection], engine: Engine) -> None:
    """When it cannot be known whether a commit is on disk, no job of its transaction is told that it is."""
    numbers = count()

    def lose_the_answer(_: Connection) -> None:
        if next(numbers) == 1:  # the commit after the one of the job that holds the writer
            raise ConnectionError("the answer was lost")

    with held(bare):
        futures = [bare.submit(insert(number)) for number in range(3)]
        event.listen(engine, "commit", lose_the_answer)
    errors = [future.exception() for future in futures]
    lost = errors if engine.dialect.name == "sqlite" else errors[:1]
    assert all(isinstance(error, StorageUnavailableError) for error in lost)
    assert all(isinstance(error.__cause__, ConnectionError) for error in lost if error)
    assert errors[len(lost) :] == [None] * (3 - len(lost))
    assert bare.submit(insert(9)).exception() is None


def test_two_servers_that_write_the_same_pairs_in_other_orders_never_deadlock(empty_postgres_url: str) -> None:
    """Each job's locks end with the job: groups that held those of many pairs spent most of their time in deadlocks."""
    migrate.upgrade(empty_postgres_url)
    engines = [engine_for(database_url(empty_postgres_url), Use.WRITE) for _ in range(2)]
    both = [Writer(engine, lambda connection: connection) for engine in engines]

    def again(number: int) -> Any:
        changed = tables.hardware.update().where(tables.hardware.c.id == UUID(int=number)).values(memory_gib=1.0)
        return lambda connection: connection.execute(changed)

    for number in range(8):
        both[0].submit(insert(number)).result()
    orders = (range(8), range(7, -1, -1))
    for _ in range(10):
        with held(both[0]), held(both[1]):
            done = [one.submit(again(n)) for one, order in zip(both, orders, strict=True) for n in order]
        assert [future.exception() for future in done] == [None] * 16
    for one in both:
        one.close()
    with engines[0].connect() as connection:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert connection.execute(query).scalar_one() == 0
    for engine in engines:
        engine.dispose()


def test_a_database_that_cannot_be_reached_fails_all_that_wait(bare: Writer[Connection], engine: Engine) -> None:
    """Nobody waits behind a database that is gone, and the writer goes on when it is back."""

    def refuse(_: Connection) -> None:
        raise ConnectionError("gone")

    with held(bare):
        futures = [bare.submit(insert(number)) for number in range(200)]
        event.listen(engine, "begin", refuse)
    errors = [future.exception() for future in futures]
    assert all(isinstance(error, StorageUnavailableError) for error in errors)
    event.remove(engine, "begin", refuse)
    assert bare.submit(insert(1)).exception() is None
    assert rows(engine) == 1


def test_a_full_queue_refuses_at_once(bare: Writer[Connection], monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is far behind says so instead of taking memory without end."""
    monkeypatch.setattr(writer, "CAPACITY", 3)
    with held(bare):
        futures = [bare.submit(insert(number)) for number in range(4)]
        assert futures[3].done()
    assert isinstance(futures[3].exception(), StorageUnavailableError)
    assert [future.exception() for future in futures[:3]] == [None] * 3
