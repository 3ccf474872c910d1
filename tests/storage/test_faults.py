"""Killed processes, full disks, locks and lost databases: what was acknowledged is there, and the writer goes on."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Connection, create_engine, event, select

from _postgres import PostgresCluster
from kvyield_server.errors import InvalidError, StorageUnavailableError
from kvyield_server.storage import connections, migrate, tables
from kvyield_server.storage.connections import Use, engine_for
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.records import ObservationFilter
from kvyield_server.storage.uow import Storage
from storage.samples import recording, start

TESTS = Path(__file__).resolve().parents[1]


def child(url: str, count: int, threads: int) -> subprocess.Popen[str]:
    """Start a process that writes ``count`` observations in each of its threads."""
    command = [sys.executable, "-m", "storage.child", url, str(count), str(threads)]
    return subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True)


def stored_ids(storage: Storage) -> set[UUID]:
    with storage.read() as unit:
        return {row.observation.id for row in unit.observations.page(ObservationFilter(), None, 100_000).items}


@contextmanager
def opened(url: str) -> Iterator[Storage]:
    with closing(open_storage(url)) as storage:
        yield storage


def fails(storage: Storage) -> bool:
    return isinstance(storage.write(recording(start())).exception(), StorageUnavailableError)


def eventually(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_what_was_acknowledged_survives_a_kill(database_url: str) -> None:
    """After kill -9 in the middle of group commits, every acknowledged row is there, and the pair counts it."""
    with child(database_url, 100_000, 8) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(300)]
        process.kill()
        acknowledged += process.stdout.readlines()
    ids = {UUID(line.strip()) for line in acknowledged if line.endswith("\n")}
    with opened(database_url) as storage:
        present = stored_ids(storage)
        with storage.read() as unit:
            (pair,) = unit.pairs.page(None, None, 2).items
    assert len(ids) >= 300
    assert ids <= present
    assert pair.observation_count == len(present)


def test_two_processes_write_to_one_database(database_url: str) -> None:
    """Two services on one database, made at the same moment when it is a file, lose nothing and share the pair."""
    with child(database_url, 40, 4) as first, child(database_url, 40, 4) as second:
        outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    ids = {UUID(line) for output in outputs for line in output.split()}
    with opened(database_url) as storage:
        assert stored_ids(storage) == ids
        with storage.read() as unit:
            (pair,) = unit.pairs.page(None, None, 2).items
    assert pair.observation_count == len(ids) == 320


def test_a_locked_file_is_unavailable_and_then_available(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that waits too long for another process's lock fails; readers go on; later writes succeed."""
    monkeypatch.setattr(connections, "LOCK_WAIT_SECONDS", 0.2)
    with opened(sqlite_url) as storage:
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as other:
            other.execute("BEGIN IMMEDIATE")
            error = storage.write(recording(start())).exception()
            assert stored_ids(storage) == set()
            with pytest.raises(StorageUnavailableError):
                storage.ping()
        assert isinstance(error, StorageUnavailableError)
        assert "locked" in str(error.__cause__)
        assert not fails(storage)


def test_a_lock_in_postgresql_is_waited_for_only_so_long(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs while it holds a pair makes others fail by name instead of hanging too."""
    monkeypatch.setattr(connections, "LOCK_WAIT_SECONDS", 0.2)
    other = engine_for(connections.database_url(postgres_url), Use.WRITE)
    with opened(postgres_url) as storage:
        assert not fails(storage)
        with other.begin() as connection:
            connection.execute(select(tables.pair).with_for_update())
            assert fails(storage)
        storage.ping()
        assert not fails(storage)
    other.dispose()


def test_a_database_that_reached_its_limit_refuses_and_recovers(sqlite_url: str) -> None:
    """At SQLite's page limit writes fail by name, acknowledged rows stay readable, and room makes writes succeed."""
    migrate.upgrade(sqlite_url)
    parsed = connections.database_url(sqlite_url)
    writing = engine_for(parsed, Use.WRITE)
    limit = [100]

    @event.listens_for(writing, "begin")
    def set_limit(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {limit[0]}")

    with closing(Storage(engine_for(parsed, Use.READ), writing)) as storage:
        acknowledged = fill(storage)
        limit[0] = 10_000
        assert not fails(storage)
        assert acknowledged < stored_ids(storage)


def fill(storage: Storage) -> set[UUID]:
    """Write until the storage is full; return what was acknowledged."""
    acknowledged: set[UUID] = set()
    while True:
        observations = [start(log_excerpt="x" * 2000) for _ in range(20)]
        futures = [storage.write(recording(each)) for each in observations]
        errors = [future.exception() for future in futures]
        acknowledged |= {each.id for each, error in zip(observations, errors, strict=True) if error is None}
        assert all(error is None or isinstance(error, StorageUnavailableError) for error in errors)
        assert stored_ids(storage) == acknowledged
        if any(errors):
            return acknowledged


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A folder that takes about a mebibyte, and how to let it take more: a small file system where one may be mounted,
    else a limit on the size of the files of this process."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        yield disk, lambda: subprocess.check_call(["mount", "-o", "remount,size=64m", disk])
        subprocess.check_call(["umount", disk])
    else:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        yield disk, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_refuses_and_recovers(small_disk: tuple[Path, Callable[[], object]]) -> None:
    """On a full disk writes fail by name, acknowledged rows stay readable, and with room the same storage goes on."""
    folder, grow = small_disk
    url = f"sqlite:///{folder / 'kvyield.db'}"
    with opened(url) as storage:
        acknowledged = fill(storage)
        grow()
        assert not fails(storage)
        assert acknowledged < stored_ids(storage)
    with opened(url) as storage:
        assert acknowledged < stored_ids(storage)


def test_lost_sessions_are_made_anew(postgres_cluster: PostgresCluster, postgres_database: str) -> None:
    """After a failover that ends every session, reads and writes go on; what was acknowledged is there."""
    with opened(postgres_cluster.url(postgres_database)) as storage:
        observations = [start() for _ in range(300)]
        futures = [storage.write(recording(each)) for each in observations]
        futures[100].result()
        postgres_cluster.disconnect(postgres_database)
        acknowledged = {
            each.id for each, future in zip(observations, futures, strict=True) if future.exception() is None
        }
        storage.ping()
        assert not fails(storage)
        assert acknowledged <= stored_ids(storage)


def test_the_writer_outlives_its_postgresql() -> None:
    """While PostgreSQL is stopped every call fails by name and soon; once it is back, the same storage goes on."""
    cluster = PostgresCluster()
    try:
        with opened(cluster.url(cluster.create_migrated())) as storage:
            kept = start()
            storage.write(recording(kept)).result()
            cluster.stop()
            futures = [storage.write(recording(start())) for _ in range(200)]
            errors = [future.exception(timeout=30) for future in futures]
            assert all(isinstance(error, StorageUnavailableError) and error.__cause__ for error in errors)
            with pytest.raises(StorageUnavailableError):
                storage.ping()
            cluster.start()
            assert eventually(lambda: not fails(storage))
            assert kept.id in stored_ids(storage)
            assert len(stored_ids(storage)) == 2
    finally:
        cluster.close()


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "postgresql+psycopg://127.0.0.1:1/none"])
def test_a_database_that_is_not_there_is_unavailable(url: str) -> None:
    """Opening a storage whose database cannot be reached fails by name."""
    with pytest.raises(StorageUnavailableError):
        open_storage(url)


@pytest.mark.parametrize(
    "url", ["mysql://host/x", "nonsense", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=1"]
)
def test_a_url_of_another_kind_is_invalid(url: str) -> None:
    """Only files and PostgreSQL are taken; a SQLite database in memory would be a different one in each thread."""
    with pytest.raises(InvalidError):
        open_storage(url)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """A file of another kind is left as it was."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)
    with pytest.raises(StorageUnavailableError):
        open_storage(f"sqlite:///{path}")
    assert path.read_text() == "not a database " * 100


def test_settings_of_sqlite_are_in_force(sqlite_url: str) -> None:
    """Writers flush each commit to disk and check references; readers cannot write; both use the write-ahead log."""
    migrate.upgrade(sqlite_url)
    found = {}
    for use in (Use.READ, Use.WRITE):
        engine = engine_for(connections.database_url(sqlite_url), use)
        with engine.connect() as connection:
            names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "query_only")
            found[use] = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]
        engine.dispose()
    assert found == {Use.READ: ["wal", 2, 1, 5000, 1], Use.WRITE: ["wal", 2, 1, 5000, 0]}


def test_readers_of_postgresql_cannot_write(postgres_url: str) -> None:
    """A read is one snapshot and read-only, by PostgreSQL's own word."""
    engine = engine_for(connections.database_url(postgres_url), Use.READ)
    with engine.connect() as connection:
        names = ("transaction_isolation", "transaction_read_only")
        found = [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]
    engine.dispose()
    assert found == ["repeatable read", "on"]


def test_writers_of_postgresql_see_what_is_committed(postgres_url: str) -> None:
    """A write reads what others committed, whatever the database's own default is."""
    url = connections.database_url(postgres_url)
    owner = create_engine(url, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {url.database} SET default_transaction_isolation = 'serializable'")
    owner.dispose()
    found = []
    for use in (Use.WRITE, Use.MIGRATE):
        engine = engine_for(url, use)
        with engine.begin() as connection:
            found.append(connection.exec_driver_sql("SHOW transaction_isolation").scalar_one())
        engine.dispose()
    assert found == ["read committed", "read committed"]


def test_a_write_that_failed_is_tried_by_the_ping(sqlite_url: str) -> None:
    """After a failed write a ping writes by itself, and is content as soon as the database takes that."""
    parsed = connections.database_url(sqlite_url)
    migrate.upgrade(sqlite_url)
    writing = engine_for(parsed, Use.WRITE)
    is_full = [False]

    @event.listens_for(writing, "commit")
    def refuse(_: Connection) -> None:
        if is_full[0]:
            raise sqlite3.OperationalError("database or disk is full")

    with closing(Storage(engine_for(parsed, Use.READ), writing)) as storage:
        is_full[0] = True
        storage.ping()
        assert fails(storage)
        for _ in range(2):
            with pytest.raises(StorageUnavailableError):
                storage.ping()
        is_full[0] = False
        storage.ping()
        assert not fails(storage)
