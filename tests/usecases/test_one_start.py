"""One start is one row, whoever tells it, in whatever order, and two starts are two."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from uuid6 import uuid7

from _storages import fresh_storage
from kvyield_server.domain.facts.accounts import AT_ONCE, LARGEST_SHIFT, Account, FieldChange, host_key
from kvyield_server.domain.facts.observation import (
    Cause,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Phase,
    Verification,
)
from kvyield_server.domain.records import StoredObservation
from kvyield_server.errors import ConflictError
from kvyield_server.storage import tables
from kvyield_server.storage.candidates import TOGETHER, queries_near
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.records import ObservationFilter
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.correct import correct
from kvyield_server.usecases.record import Arrival, Recorded, record

BEGUN = datetime(2026, 5, 30, 22, 0, 23, tzinfo=UTC)
NOW = datetime(2026, 6, 1, tzinfo=UTC)
GPU = Hardware(gpu="NVIDIA H200", gpu_count=8, memory_gib=139.8)
LINES = "[2026-05-30 22:00:23] Load weight begin. avail mem=138.00 GB\n[2026-05-30 22:06:11] The server is fired up"
FIGURES = {
    "free_at_ready_gib": 6.1,
    "free_before_load_gib": 138.0,
    "free_after_load_gib": 70.5,
    "startup_seconds": 348.0,
}


def log(at: datetime = BEGUN, **fields: Any) -> Observation:
    """Return a start as a log tells it."""
    flags = {"mem_fraction_static": 0.92, "port": 30000, "kv_cache_dtype": "bfloat16", "tp_size": 8}
    return Observation(
        **{
            "id": uuid7(),
            "observed_at": at,
            "hardware": GPU,
            "model": Model(name="moonshotai/Kimi-K2.6", facts={"num_hidden_layers": 61}),
            "engine": Engine(name=EngineName.SGLANG, version="0.5.12"),
            "outcome": Outcome.READY,
            "flags": flags,
            "measurements": Measurements(pool_tokens=192406, **FIGURES),
            "host": "gpu-01",
            "source": "log",
            **fields,
        }
    )


def endpoint(at: datetime = NOW, **fields: Any) -> Observation:
    """Return the same start as its endpoint tells it: no time, no figures but the pool, the type not resolved."""
    flags = {"mem_fraction_static": 0.92, "port": 30000, "kv_cache_dtype": "auto", "context_length": 200000}
    model, figures = Model(name="/models/Kimi-K2.6"), Measurements(pool_tokens=192406)
    return log(at, **{"flags": flags, "measurements": figures, "model": model, "source": "endpoint", **fields})


def manual(**fields: Any) -> Observation:
    """Return the same start as a person remembers it."""
    figures = Measurements(pool_tokens=192400, free_at_ready_gib=6.0, graph_gib=1.2)
    return log(
        **{"measurements": figures, "flags": {"mem_fraction_static": 0.92, "port": 30000}, "source": "manual", **fields}
    )


def died(**fields: Any) -> Observation:
    """Return the same start as a watch tells it after its death."""
    failure = Failure(phase=Phase.SERVING, message="CUDA out of memory.", cause=Cause.GPU_MEMORY, prompt_tokens=150000)
    return log(**{"outcome": Outcome.OOM_RUNTIME, "failure": failure, **fields})


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    """An empty storage of each kind."""
    is_file = request.param == "sqlite"
    with closing(fresh_storage() if is_file else open_storage(request.getfixturevalue("postgres_url"))) as storage:
        yield storage


def arrival(start: Observation, now: datetime = NOW) -> Arrival:
    return Arrival(start, repr(replace(start, id=BEGUN)), None, now, "gpu-01", is_timed=start.observed_at != now)


def post(storage: Storage, *starts: Observation, now: datetime = NOW) -> list[Any]:
    """Post starts one by one; return what became of each."""
    return [storage.write(record([arrival(each, now)])).result()[0] for each in starts]


def rows(storage: Storage) -> list[StoredObservation]:
    with storage.read() as uow:
        return list(uow.observations.page(ObservationFilter(), None, 500).items)


ACCOUNTS = {
    "log and endpoint": [log(), endpoint()],
    "log, endpoint and person": [log(), endpoint(), manual()],
    "ready, then dead": [log(), died()],
    "ready twice and dead": [log(), endpoint(), died(measurements=Measurements(pool_tokens=192406))],
    "two seconds apart": [log(), log(BEGUN + timedelta(seconds=2), source="import")],
    "verified in both": [
        log(verifications=(Verification(prompt_tokens=60010, passed=True),)),
        endpoint(
            verifications=(Verification(prompt_tokens=60010, passed=True), Verification(prompt_tokens=9, passed=True))
        ),
    ],
    "unfinished": [log(outcome=Outcome.FAILED, measurements=Measurements(pool_tokens=192406), failure=None), log()],
    "a death at the graphs that was taken for ready": [
        log(measurements=Measurements(pool_tokens=192406, free_at_ready_gib=10.37)),
        log(
            outcome=Outcome.OOM_STARTUP,
            failure=Failure(phase=Phase.GRAPH_CAPTURE, message="CUDA out of memory."),
            measurements=Measurements(pool_tokens=192406),
        ),
    ],
}


@pytest.mark.parametrize("name", ACCOUNTS)
def test_the_order_of_accounts_does_not_matter(storage: Storage, name: str) -> None:
    """In every order the accounts make one row, and the same row; replays change nothing."""
    made: list[tuple[Any, ...]] = []
    for number, order in enumerate(permutations(ACCOUNTS[name])):
        host = f"gpu-{number}"
        own = [replace(each, id=uuid7(), host=host) for each in order]
        first = post(storage, *own)
        again = post(storage, *own)
        assert first[0].is_new
        assert not any(each.is_new for each in again)
        assert len({each.stored.observation.id for each in again}) == 1
        with storage.read() as uow:
            (stored,) = uow.observations.page(ObservationFilter(host=host), None, 10).items
            for each in own:
                found = uow.observations.get(each.id)
                assert found is not None
                assert found.observation.id == stored.observation.id
        start = stored.observation
        made.append((replace(start, id=BEGUN, host=None), stored.is_timed))  # type: ignore[arg-type]
    assert all(each == made[0] for each in made)


HOSTS = {
    "with and without its domain": ("node-7", "node-7.example"),
    "in two domains": ("node-7.example", "node-7.example.org"),
    "in capitals": ("NODE-7", "node-7.example"),
    "by an address": ("10.0.0.7", "10.0.0.7"),
}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("accounts", ["log and endpoint", "ready, then dead", "two seconds apart"])
def test_a_host_is_known_by_each_of_its_names(storage: Storage, accounts: str, name: str) -> None:
    """Whichever name came first, the second account finds the row, with or without a time; another host's does not."""
    for order in permutations(HOSTS[name]):
        for told in permutations(ACCOUNTS[accounts]):
            before = len(rows(storage))
            at = timedelta(days=before)
            own = [replace(each, id=uuid7(), host=host) for each, host in zip(told, order, strict=True)]
            own = [
                each if each.observed_at == NOW else replace(each, observed_at=each.observed_at - at) for each in own
            ]
            own = [replace(each, measurements=replace(each.measurements, pool_tokens=1000 + before)) for each in own]
            assert [each.is_new for each in post(storage, *own)] == [True, False]
            assert post(storage, replace(own[0], id=uuid7(), host="10.0.0.8"))[0].is_new
            assert len(rows(storage)) == before + 2


def forget_host_keys(storage: Storage) -> None:
    """Leave rows as replicas of release 0.1 write them."""
    nothing = update(tables.observation).values(host_key=None)
    storage.write(lambda uow: uow.connection.execute(nothing) and None).result()


def test_a_start_of_a_replica_of_the_release_before_is_known_at_its_time(storage: Storage) -> None:
    """Before its host has a key, a second account of the same time finds the row, and another host's does not."""
    post(storage, log())
    forget_host_keys(storage)
    assert not post(storage, died())[0].is_new
    forget_host_keys(storage)
    assert post(storage, log(host="gpu-02"))[0].is_new
    assert len(rows(storage)) == 2


@pytest.mark.parametrize("name", HOSTS)
def test_a_start_of_a_replica_of_the_release_before_gets_its_key(storage: Storage, name: str) -> None:
    """Once a server has begun, accounts without a time or a zone apart find the row by any name of its host."""
    first, second = HOSTS[name]
    post(storage, log(host=first, log_excerpt=LINES), log(BEGUN - timedelta(days=9), host=None))
    forget_host_keys(storage)
    storage.write(lambda uow: uow.observations.complete_host_keys()).result()
    assert not post(storage, endpoint(host=second))[0].is_new
    assert not post(storage, log(BEGUN + timedelta(hours=2), host=second, log_excerpt=LINES))[0].is_new
    assert len(rows(storage)) == 2


def may_be_of_one_start(row: StoredObservation, account: Account) -> bool:
    """Say what the queries for candidates promise to find."""
    told, start = row.observation, account.observation
    gap = abs(told.observed_at - start.observed_at)
    if account.is_timed and gap <= AT_ONCE and (None in (told.host, start.host) or host_key(told) == host_key(start)):
        return True
    if start.host is None or host_key(told) != host_key(start):
        return False
    around = LARGEST_SHIFT + AT_ONCE
    pool, is_near = start.measurements.pool_tokens, gap <= around
    if pool is not None and told.measurements.pool_tokens == pool:
        return not row.is_timed or (is_near if account.is_timed else told.observed_at <= start.observed_at + around)
    if pool is not None or told.measurements.pool_tokens is not None or not account.is_timed:
        return False
    return is_near and told.log_excerpt is not None and start.log_excerpt is not None


@pytest.mark.parametrize("seed", range(3))
def test_candidates_of_many_accounts_are_those_of_each(storage: Storage, seed: int) -> None:
    """However many are looked for at once, exactly the rows that may be of one of them are found."""
    chance = random.Random(seed)

    def told() -> Observation:
        at = (
            NOW if chance.random() < 0.2 else BEGUN + timedelta(seconds=chance.choice((0, 1, 2, 3, 3600, 50402, 90000)))
        )
        return log(
            at + timedelta(days=chance.randrange(3)) if at != NOW else at,
            host=chance.choice(("a", "A.example", "b", "c", None)),
            measurements=Measurements(pool_tokens=chance.choice((None, 1, 2))),
            outcome=Outcome.FAILED,
            log_excerpt=chance.choice((None, LINES)),
        )

    stored = [replace(told(), id=UUID(int=number)) for number in range(120)]
    with storage.read() as uow:
        assert uow.observations.near([]) == set()
    post(storage, *stored)
    kept = rows(storage)
    accounts = [arrival(told()).account for _ in range(2 * TOGETHER + 3)]
    with storage.read() as uow:
        for some in (accounts, *([each] for each in accounts)):
            wanted = {row.observation.id for row in kept for each in some if may_be_of_one_start(row, each)}
            assert uow.observations.near(some) == wanted


def test_a_log_is_believed_and_nulls_are_filled(storage: Storage) -> None:
    """What the log says stands, what it lacks comes from the endpoint, then from the person; the rest is kept."""
    post(storage, manual(), endpoint(), log())
    (stored,) = rows(storage)
    start = stored.observation
    assert start.measurements.pool_tokens == 192406
    assert (start.measurements.free_at_ready_gib, start.measurements.graph_gib) == (6.1, 1.2)
    assert start.flags["kv_cache_dtype"] == "bfloat16"
    assert start.flags["context_length"] == 200000
    assert start.model.name == "moonshotai/Kimi-K2.6"
    assert (start.observed_at, start.source) == (BEGUN, "log")
    changes = {each.field: (each.before, each.after) for entry in stored.history for each in entry.changes}
    assert changes["measurements.pool_tokens"] == (192400, 192406)
    assert {entry.actor for entry in stored.history} == {"gpu-01"}
    with storage.read() as uow:
        (pair,) = uow.pairs.page(None, None, 10).items
    assert (pair.model.name, pair.observation_count, pair.last_observed_at) == ("moonshotai/Kimi-K2.6", 1, BEGUN)


def test_a_death_keeps_the_pool_and_is_not_taken_back(storage: Storage) -> None:
    """Ready becomes dead with phase serving; another ready account does not revive it."""
    vague = died(failure=Failure(message="CUDA out of memory."), measurements=Measurements(), outcome=Outcome.FAILED)
    post(storage, log(), vague, endpoint(BEGUN))
    (stored,) = rows(storage)
    assert stored.observation.outcome is Outcome.FAILED
    assert stored.observation.failure is not None
    assert stored.observation.failure.phase is Phase.SERVING
    assert stored.observation.measurements.pool_tokens == 192406


def test_a_figure_of_a_start_that_was_not_ready_is_not_free_at_ready(storage: Storage) -> None:
    """The bound that an unfinished reading took for free memory at ready goes when the start failed before."""
    post(storage, *ACCOUNTS["a death at the graphs that was taken for ready"])
    (stored,) = rows(storage)
    assert stored.observation.outcome is Outcome.OOM_STARTUP
    assert stored.observation.measurements.free_at_ready_gib is None
    assert stored.observation.measurements.pool_tokens == 192406


def forget_zones(storage: Storage) -> None:
    """Make the stored rows such as release 0.1 left them, which took times without a zone for UTC."""
    query = update(tables.observation).values(is_zoned=None)
    storage.write(lambda uow: uow.connection.execute(query)).result()


@pytest.mark.parametrize("hours", [2, -5, 5.5, 9])
@pytest.mark.parametrize("kept", ["lines", "figures"])
def test_a_log_that_was_read_in_another_zone_is_known(storage: Storage, hours: float, kept: str) -> None:
    """A row of before zones were known is found by its log's lines, or by every figure with the time to start up; a
    reader that took another zone for the host's is known by the lines."""
    excerpt = LINES if kept == "lines" else None
    old = log(BEGUN + timedelta(hours=hours), log_excerpt=excerpt)
    post(storage, old, now=BEGUN + timedelta(days=1))
    if kept == "figures":
        forget_zones(storage)
    (again,) = post(storage, log(log_excerpt=excerpt))
    assert not again.is_new
    (stored,) = rows(storage)
    assert stored.observation.observed_at == BEGUN
    assert stored.is_zoned
    (third,) = post(storage, log(BEGUN + timedelta(hours=hours, seconds=1), log_excerpt=excerpt))
    assert third.is_new is (kept == "figures")


@pytest.mark.parametrize("excerpt", [None, "loaded in 00:05:10"], ids=["no lines", "a duration"])
def test_a_restart_every_hour_is_a_start_each(storage: Storage, excerpt: str | None) -> None:
    """Two starts whose every figure is equal and that are a zone apart are two: a timer restarts engines too."""
    for hours in (0.25, 1, -5, 5.5, 14):
        both = [log(log_excerpt=excerpt), log(BEGUN + timedelta(hours=hours, seconds=1), log_excerpt=excerpt)]
        told = post(storage, *(replace(each, host=f"gpu{hours}") for each in both), now=BEGUN + timedelta(days=1))
        assert [each.is_new for each in told] == [True, True]
    assert len(rows(storage)) == 10


def process(seconds: float, **fields: Any) -> Observation:
    """Return what an endpoint tells whose process began that long before the log's first line."""
    return endpoint(BEGUN - timedelta(seconds=seconds), **fields)


def in_both_orders(storage: Storage, *posts: tuple[Observation, datetime]) -> list[list[Any]]:
    """Post starts at their times on one host, and backwards on another; return what became of each."""
    told = []
    for host, order in (("gpu-01", posts), ("gpu-02", posts[::-1])):
        own = [(replace(each, id=uuid7(), host=host), now) for each, now in order]
        told.append([post(storage, each, now=now)[0] for each, now in own])
    return told


def test_an_endpoint_with_the_start_of_its_process_and_the_log_are_one(storage: Storage) -> None:
    """A process imports for up to ten minutes before its first line; the row has the log's time."""
    for number, seconds in enumerate((0, 1, 17, 599)):
        at = BEGUN - timedelta(days=number)
        posts = [(log(at, log_excerpt=LINES), NOW), (endpoint(at - timedelta(seconds=seconds)), NOW)]
        assert [[each.is_new for each in order] for order in in_both_orders(storage, *posts)] == [[True, False]] * 2
        assert [each.observation.observed_at for each in rows(storage)[-2:]] == [at] * 2
        assert [each.observation.source for each in rows(storage)[-2:]] == ["log", "log"]


OTHER_PROCESSES = {
    "after the first line": (process(-30), NOW),
    "too long before": (process(601), NOW),
    "before the log says ready": (process(200), BEGUN + timedelta(seconds=100)),
    "another pool": (process(17, measurements=Measurements(pool_tokens=192_000)), NOW),
    "another port": (process(17, flags={"mem_fraction_static": 0.92, "port": 30001}), NOW),
    "another version": (process(17, engine=Engine(name=EngineName.SGLANG, version="0.5.13")), NOW),
}


@pytest.mark.parametrize("name", OTHER_PROCESSES)
def test_an_endpoint_of_another_process_is_another_start(storage: Storage, name: str) -> None:
    """What answered before the log's server was ready, or differs, is of the start before or after."""
    told = in_both_orders(storage, (log(log_excerpt=LINES), NOW), OTHER_PROCESSES[name])
    assert [[each.is_new for each in order] for order in told] == [[True, True]] * 2


def test_a_corrected_start_is_known_by_what_was_told(storage: Storage) -> None:
    """A further account finds the row by what its accounts say, whatever a correction made of its facts."""
    first = log()
    post(storage, first)
    wanted = [
        FieldChange("flags.mem_fraction_static", None, 0.5),
        FieldChange("hardware.gpu_count", None, 4),
        FieldChange("model.name", None, "Qwen/Qwen3-8B"),
    ]
    storage.write(correct(first.id, wanted, "wrong log", actor="a", token_id=None, now=NOW)).result()
    told = post(storage, manual(), endpoint(), died())
    assert [each.is_new for each in told] == [False, False, False]
    (stored,) = rows(storage)
    start = stored.observation
    assert (start.fraction, start.hardware.gpu_count, start.model.name) == (0.5, 4, "Qwen/Qwen3-8B")
    assert start.outcome is Outcome.OOM_RUNTIME


def test_an_endpoint_is_asked_again_after_a_restart(storage: Storage) -> None:
    """Equal flags and an equal pool: the process tells that it is another start."""
    first = post(storage, endpoint(BEGUN), endpoint(BEGUN + timedelta(seconds=1)), now=NOW)
    (second,) = post(storage, endpoint(BEGUN + timedelta(minutes=9)), now=NOW)
    assert [each.is_new for each in (*first, second)] == [True, False, True]


OTHERS = {
    "three minutes later": log(BEGUN + timedelta(minutes=3)),
    "an hour later, other lines": log(
        BEGUN + timedelta(hours=1),
        log_excerpt=LINES.replace("22:0", "23:0"),
        measurements=Measurements(pool_tokens=192406),
    ),
    "an hour later, another time to start up": log(
        BEGUN + timedelta(hours=1),
        measurements=Measurements(pool_tokens=192406, **{**FIGURES, "startup_seconds": 351.0}),
    ),
    "another port": log(flags={"mem_fraction_static": 0.92, "port": 30001}),
    "another fraction": log(flags={"mem_fraction_static": 0.9}),
    "another host": log(host="gpu-02"),
    "other GPUs": log(hardware=Hardware(gpu="NVIDIA H200", gpu_count=4)),
    "another engine": log(engine=Engine(name=EngineName.VLLM), flags={"gpu_memory_utilization": 0.92}),
    "another half, ports unknown": log(
        flags={"mem_fraction_static": 0.92}, measurements=Measurements(pool_tokens=192000, **FIGURES)
    ),
    "another model, ports unknown": log(flags={"mem_fraction_static": 0.92}, model=Model(name="Qwen/Qwen3-8B")),
    "died before its pool a second earlier": log(
        BEGUN - timedelta(seconds=1),
        outcome=Outcome.REFUSED,
        measurements=Measurements(),
        failure=Failure(phase=Phase.POOL),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("is_first", [False, True], ids=["second", "first"])
def test_two_starts_are_two_rows(storage: Storage, name: str, is_first: bool) -> None:
    """What differs by more than an account can is another start, in either order."""
    both = [log(log_excerpt=LINES), replace(OTHERS[name], id=uuid7())]
    told = post(storage, *(reversed(both) if is_first else both))
    assert [each.is_new for each in told] == [True, True]
    assert len(rows(storage)) == 2


def test_an_endpoint_without_a_time_tells_the_newest_start_before_it(storage: Storage) -> None:
    """Of two starts with the same pool the endpoint tells the newer one, and never one that came later."""
    post(storage, log(), log(BEGUN + timedelta(hours=3)))
    (told,) = post(storage, endpoint())
    assert told.stored.observation.observed_at == BEGUN + timedelta(hours=3)
    late = BEGUN + timedelta(days=10)
    (new,) = post(storage, log(late), now=late + timedelta(hours=1))
    assert new.is_new


def test_an_endpoint_after_a_death_is_another_start(storage: Storage) -> None:
    """A server that answers after its start is known to have died was started again."""
    post(storage, log(), died())
    (told,) = post(storage, endpoint(NOW + timedelta(hours=1)), now=NOW + timedelta(hours=1))
    assert told.is_new


def test_two_rows_that_turn_out_to_be_one_start_become_one(storage: Storage) -> None:
    """The endpoint's row and the row of a log without a pool are joined by the whole log; both ids find it."""
    poor = log(measurements=Measurements(), outcome=Outcome.FAILED)
    asked, whole = endpoint(), log()
    assert [each.is_new for each in post(storage, asked, poor)] == [True, True]
    verification = Verification(prompt_tokens=60010, passed=True)
    storage.write(lambda uow: uow.observations.add_verification(asked.id, verification)).result()
    (told,) = post(storage, whole)
    assert not told.is_new
    (stored,) = rows(storage)
    assert stored.observation.verifications == (verification,)
    with storage.read() as uow:
        assert [uow.observations.get(each.id) for each in (asked, poor, whole)] == [stored] * 3
        (pair,) = uow.pairs.page(None, None, 10).items
    assert pair.observation_count == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"model": Model(name="Qwen/Qwen3-8B")},
        {"hardware": Hardware(gpu="NVIDIA H100", gpu_count=8)},
        {"engine": Engine(name=EngineName.VLLM), "flags": {"gpu_memory_utilization": 0.92}},
        {"flags": {"mem_fraction_static": 0.9}},
        {"host": "gpu-02"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_one_id_is_never_of_two_starts(storage: Storage, changes: dict[str, Any]) -> None:
    """The same id with another GPU, model, engine, fraction or host is a conflict that names the field."""
    first = log()
    post(storage, first)
    (conflict,) = post(storage, replace(first, **changes))
    assert isinstance(conflict, ConflictError)
    assert len(rows(storage)) == 1
    with storage.read() as uow:
        assert len(uow.pairs.names()) == 1


def test_one_id_with_more_to_say_is_a_further_account(storage: Storage) -> None:
    """The same id with other figures is merged, not refused."""
    first = manual()
    (new, more) = post(storage, first, replace(first, source="log", measurements=log().measurements))
    assert (new.is_new, more.is_new) == (True, False)
    assert more.stored.observation.measurements.pool_tokens == 192406


def test_accounts_within_one_write_are_merged_too(storage: Storage) -> None:
    """A batch that holds several accounts of a start, and a second start, makes two rows."""
    starts = [log(), endpoint(), manual(), log(host="gpu-02"), died()]
    told = storage.write(record([arrival(each) for each in starts])).result()
    assert all(isinstance(each, Recorded) for each in told)
    assert [each.is_new for each in told] == [True, False, False, True, False]
    assert {each.observation.outcome for each in rows(storage)} == {Outcome.OOM_RUNTIME, Outcome.READY}


def shuffled(starts: Sequence[Observation], seed: int) -> list[Observation]:
    chosen = list(starts)
    random.Random(seed).shuffle(chosen)
    return chosen


def test_two_replicas_tell_one_start_at_once(postgres_url: str) -> None:
    """Several accounts of many starts, posted to two services at the same time in any order, make one row each."""
    told = [
        replace(each, host=f"gpu-{number}", id=uuid7())
        for number in range(12)
        for each in (log(), endpoint(), manual(), died(), log())
    ]
    with closing(open_storage(postgres_url)) as one, closing(open_storage(postgres_url)) as two:
        with ThreadPoolExecutor(8) as pool:
            jobs = [
                pool.submit(lambda storage=storage, each=each: storage.write(record([arrival(each)])).result())
                for seed, storage in enumerate((one, two))
                for each in shuffled(told, seed)
            ]
            assert all(isinstance(job.result()[0], Recorded) for job in jobs)
        assert sorted(each.observation.host or "" for each in rows(one)) == sorted(
            f"gpu-{number}" for number in range(12)
        )
        assert {each.observation.outcome for each in rows(two)} == {Outcome.OOM_RUNTIME}
        with one.read() as uow:
            assert [pair.observation_count for pair in uow.pairs.page(None, None, 10).items] == [12]


READY_AFTER = timedelta(seconds=FIGURES["startup_seconds"])
GAPS = st.sampled_from((7 * 60, 15 * 60, 3600, 2 * 3600, 5.5 * 3600, 14 * 3600, 86_400)) | st.integers(400, 90_000)


def tellings(
    begun: datetime, imports: float, zone: float, delays: Sequence[float]
) -> list[tuple[datetime, Observation]]:
    """Return how one start is told: by its log, by the log in another zone, by its endpoint; each when it is posted."""
    clock, stop = begun.strftime("%m-%d %H:%M:%S"), (begun + READY_AFTER).strftime("%m-%d %H:%M:%S")
    lines = f"INFO {clock} [config.py:1] begin\nINFO {stop} [api_server.py:9] ready in 00:05:48"
    told = [
        log(begun, log_excerpt=lines),
        log(begun + timedelta(hours=zone), log_excerpt=lines, source="import"),
        endpoint(begun - timedelta(seconds=imports)),
    ]
    return [(begun + READY_AFTER + timedelta(seconds=delay), each) for each, delay in zip(told, delays, strict=True)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_as_many_rows_as_starts(data: st.DataObject) -> None:
    """Starts of one host with equal flags and figures, each told by its log, perhaps in two zones and by its endpoint:
    one row each, whatever is posted late."""
    begun, posts = BEGUN, []
    count = data.draw(st.integers(1, 4))
    for _ in range(count):
        gap = data.draw(GAPS)
        begun += timedelta(seconds=gap)
        imports = data.draw(st.integers(0, 30))
        late = data.draw(st.tuples(st.integers(0, 90_000), st.integers(0, 90_000), st.integers(0, 40)))
        mine = tellings(begun, imports, data.draw(st.sampled_from((-5, 2, 5.5, 9))), late)
        posts += [each for each in mine if each is mine[0] or data.draw(st.booleans())]
    with closing(fresh_storage()) as storage:
        for now, each in sorted(posts, key=lambda one: one[0]):
            post(storage, each, now=now)
        assert len(rows(storage)) == count


@pytest.mark.parametrize(
    "later", [(0,), (0, 2), (2, 0), (2,)], ids=["log", "log, endpoint", "endpoint, log", "endpoint"]
)
def test_a_log_read_in_another_zone_is_not_the_next_start(storage: Storage, later: tuple[int, ...]) -> None:
    """A start 5.5 h before another, told in a zone 5.5 h away, bears the other's time; its lines tell them apart, and
    that it was posted before the other's process began."""
    next_begun = BEGUN + timedelta(hours=5.5)
    following = tellings(next_begun, 0, -5, (0, 0, 0))
    for now, each in [*tellings(BEGUN, 0, 5.5, (0, 0, 0))[:2], *(following[number] for number in later)]:
        post(storage, each, now=now)
    assert len(rows(storage)) == 2


def test_two_statements_look_up_any_number_of_accounts() -> None:
    """SQLAlchemy keeps each statement that it compiles: there is one for one account and one for more."""
    accounts = [arrival(replace(log(), id=UUID(int=number), host=f"gpu-{number}")).account for number in range(45)]
    queries = {count: {str(query) for query, _ in queries_near(accounts[:count])} for count in range(1, 46)}
    assert len(set().union(*queries.values())) == 2
    assert [len(list(queries_near(accounts[:count]))) for count in (1, TOGETHER, TOGETHER + 1, 45)] == [1, 1, 2, 3]
