"""Growth of the embedded database: rows of the ledger, and pairs."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from uuid import UUID, uuid4

from bench.growth import CONSTANT, LINEAR, Growth, milliseconds
from bench.processes import memory_mib
from bench.report import Report
from kvyield_server.domain.facts.observation import EngineName, Hardware, Model
from kvyield_server.domain.records import StoredObservation
from kvyield_server.errors import NotFoundError
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.records import ObservationFilter, PageKey
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.usecases.select import Selector, find_pair
from storage.samples import HARDWARE, minutes, start

ROWS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PAIRS = (100, 1_000, 10_000)
WRITTEN_AT_MOST = 100_000
COPYING_MIB = 2_048
OWN = 100
ANY = ObservationFilter()
COPIED = {
    "id": "printf('%016x', rowid + :shift) || lower(hex(randomblob(8)))",
    "content_digest": "printf('%012x', strftime('%s', observed_at) * 1000 + :shift * 60000)"
    " || lower(hex(randomblob(20)))",
    "observed_at": "strftime('%Y-%m-%d %H:%M:%f', observed_at, :shift || ' minutes') || '000'",
}
"""What a copied row has of its own: later times and ids that rise with them, as rows arrive."""
NUMBERS = itertools.count()


@contextlib.contextmanager
def opened() -> Iterator[tuple[Storage, Path]]:
    """Open a fresh embedded database in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kvyield.db"
        storage = open_storage(f"sqlite:///{path}")
        try:
            yield storage, path
        finally:
            storage.close()


def rows(report: Report) -> None:
    """Grow the ledger to a million rows and time what hosts and people do with it."""
    report.section("Rows of the ledger on SQLite: ms")
    growth = Growth(report, "rows", ROWS)
    with opened() as (storage, path):
        add(storage, "own", OWN)
        with storage.read() as unit:
            own = unit.pairs.names()[0].id
        for count in ROWS:
            _grow(storage, path, count)
            growth.add("add 1, on disk", milliseconds(lambda: add(storage, "other", 1)), CONSTANT)
            growth.add("add 250, on disk", milliseconds(lambda: add(storage, "other", 250)), CONSTANT)
            _read(growth, storage, path, own)
            growth.add("database, MiB", path.stat().st_size / 2**20, LINEAR)
            growth.add("process, MiB", memory_mib([os.getpid()]), CONSTANT)
    growth.close()


def add(storage: Storage, model: str, count: int) -> None:
    """Store new starts of a model in one transaction and wait until they are on disk."""

    def job(unit: UnitOfWork) -> None:
        pair = unit.pairs.ensure(HARDWARE, Model(name=model))
        unit.observations.add([_stored(pair.id, next(NUMBERS)) for _ in range(count)], [pair])

    storage.write(job).result()


def _stored(pair_id: UUID, number: int) -> StoredObservation:
    observation = start(minutes(number), host=f"gpu-{number % 20}")
    begun = int(observation.observed_at.timestamp() * 1000)
    return StoredObservation(
        observation=observation,
        pair_id=pair_id,
        received_at=minutes(number),
        content_digest=f"{begun:012x}{uuid4().hex}{uuid4().hex[:8]}",
    )


def _grow(storage: Storage, path: Path, count: int) -> None:
    """Bring the ledger to a number of rows: written up to a hundred thousand, copied inside the database beyond."""
    have = _count(path)
    while have < min(count, WRITTEN_AT_MOST):
        add(storage, "other", min(500, count - have))
        have = _count(path)
    if have < count:  # in a process of its own, whose memory is not this one's
        copying = get_context("spawn").Process(target=_copy, args=(path, have, count))
        copying.start()
        copying.join()
        assert _count(path) == count
        os.sync()  # else what is measured next waits for the disk to take the copies


def _copy(path: Path, have: int, count: int) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA cache_size = {-(COPYING_MIB << 10)}")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(observation)")]
        chosen = ", ".join(COPIED.get(name, name) for name in columns)
        copied = (
            f"INSERT INTO observation SELECT {chosen} FROM observation WHERE rowid > {OWN} AND rowid <= {OWN} + :most"
        )
        while have < count:
            with connection:
                connection.execute(copied, {"shift": have, "most": min(have - OWN, count - have)})
            have = _count(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _count(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM observation").fetchone()[0])


def _read(growth: Growth, storage: Storage, path: Path, pair_id: UUID) -> None:
    middle = _middle(path)
    with storage.read() as unit:
        page = unit.observations.page
        items = page(ANY, middle, 50).items
        assert len(items) == 50, len(items)
        assert len(unit.observations.of_pair(pair_id)) == OWN
        one = items[0]
        growth.add("first page of 50", milliseconds(lambda: page(ANY, None, 50)), CONSTANT)
        growth.add("page in the middle", milliseconds(lambda: page(ANY, middle, 50)), CONSTANT)
        growth.add("by id", milliseconds(lambda: unit.observations.get(one.observation.id)), CONSTANT)
        growth.add("by content", milliseconds(lambda: unit.observations.known([], [one.content_digest])), CONSTANT)
        growth.add("a pair of 100", milliseconds(lambda: unit.observations.of_pair(pair_id)), CONSTANT)
        growth.add(
            "page of one host of 20", milliseconds(lambda: page(ObservationFilter(host="gpu-7"), None, 50)), CONSTANT
        )
        rare = ObservationFilter(engine=EngineName.LMDEPLOY)
        growth.add("page of an engine with none", milliseconds(lambda: page(rare, None, 50), 3), LINEAR)


def _middle(path: Path) -> PageKey:
    """Return the key of the row amid the ledger."""
    query = "SELECT observed_at, id FROM observation ORDER BY observed_at DESC, id DESC LIMIT 1 OFFSET ?"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        at, identifier = connection.execute(query, (_count(path) // 2,)).fetchone()
    return PageKey(datetime.fromisoformat(at).replace(tzinfo=UTC), UUID(identifier))


def pairs(report: Report) -> None:
    """Time how a pair is found among ever more pairs."""
    report.section("Pairs on SQLite: ms")
    growth = Growth(report, "pairs", PAIRS)
    with opened() as (storage, _):
        have = 0
        for count in PAIRS:
            _more_pairs(storage, have, count)
            have = count
            with storage.read() as unit:
                _find(growth, unit, count)
    growth.close()


def _more_pairs(storage: Storage, have: int, count: int) -> None:
    for begin in range(have, count, 500):
        wanted = [(HARDWARE, Model(name=f"org/model-{number}")) for number in range(begin, min(count, begin + 500))]
        _ensure(storage, wanted)


def _ensure(storage: Storage, wanted: list[tuple[Hardware, Model]]) -> None:
    """Make pairs with one start each: a pair without any gives way to others of its names."""

    def job(unit: UnitOfWork) -> None:
        found = unit.pairs.ensure_all(wanted)
        unit.observations.add([_stored(pair.id, next(NUMBERS)) for pair in found], found)

    storage.write(job).result()


def _find(growth: Growth, unit: UnitOfWork, count: int) -> None:
    exact = Selector(gpu=HARDWARE.gpu, gpu_count=8, model=f"org/model-{count // 2}")
    loose, unknown = replace(exact, model=f"MODEL {count // 2}"), replace(exact, model="nothing like it")
    assert find_pair(unit, exact) == find_pair(unit, loose)
    growth.add("by exact names", milliseconds(lambda: find_pair(unit, exact)), CONSTANT)
    growth.add("by loose names", milliseconds(lambda: find_pair(unit, loose), 3), LINEAR)
    growth.add("names of nothing", milliseconds(lambda: _nothing(unit, unknown), 3), LINEAR)
    growth.add("first page of 50", milliseconds(lambda: unit.pairs.page(None, None, 50)), CONSTANT)
    growth.add("page by a word", milliseconds(lambda: unit.pairs.page("model-7", None, 50), 3), LINEAR)


def _nothing(unit: UnitOfWork, selector: Selector) -> None:
    try:
        find_pair(unit, selector)
    except NotFoundError:
        return
    raise AssertionError("a pair was found that is not there")
