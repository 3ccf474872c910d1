"""What the writer remembers of pairs never outlives what is stored: neighbours write, and jobs are undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from kvyield_server.domain.facts.observation import Engine, EngineName, Model, Observation
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.records import Pair, StoredObservation
from kvyield_server.storage.uow import Storage, UnitOfWork
from storage.samples import minutes, start


def adding(*observations: Observation) -> Callable[[UnitOfWork], list[UUID]]:
    """Record observations as ingest does, by what is known of their pairs."""

    def job(unit: UnitOfWork) -> list[UUID]:
        pairs = unit.pairs.ensure_all([(each.hardware, each.model) for each in observations])
        stored = [
            StoredObservation(
                observation=each, pair_id=pair.id, received_at=minutes(0), content_digest=str(each.id), token_id=None
            )
            for each, pair in zip(observations, pairs, strict=True)
        ]
        unit.observations.add_all(stored, pairs)
        return [pair.id for pair in pairs]

    return job


def only_pair(storage: Storage) -> Pair:
    with storage.read() as unit:
        (pair,) = unit.pairs.page(None, None, 10).items
    return pair


def test_a_pair_counts_what_two_servers_write_in_turn(sqlite_url: str) -> None:
    """Each writer sees what the other wrote since: counts, engines, the newest start and merged facts."""
    one, other = open_storage(sqlite_url), open_storage(sqlite_url)
    model = start().model
    try:
        for turn in range(4):
            one.write(adding(start(minutes(turn)))).result()
            newer = start(
                minutes(10 + turn), engine=Engine(name=EngineName.VLLM), model=replace(model, revision=f"r{turn}")
            )
            other.write(adding(newer)).result()
        pair = only_pair(one)
    finally:
        one.close()
        other.close()
    assert (pair.observation_count, pair.engines) == (8, (EngineName.SGLANG, EngineName.VLLM))
    assert (pair.last_observed_at, pair.model.revision) == (minutes(13), "r3")


def test_a_pair_made_by_a_job_that_failed_is_forgotten(storage: Storage) -> None:
    """The job after it makes the pair anew."""

    def failing(unit: UnitOfWork) -> None:
        adding(start())(unit)
        raise ZeroDivisionError

    storage.write(adding(start(model=Model(name="other")))).result()
    with pytest.raises(ZeroDivisionError):
        storage.write(failing).result()
    (pair_id,) = storage.write(adding(start())).result()
    with storage.read() as unit:
        pair = unit.pairs.get(pair_id)
    assert pair is not None
    assert pair.observation_count == 1


def test_a_retraction_is_not_undone_by_what_was_remembered(storage: Storage) -> None:
    """Counts and engines go on from what the retraction left."""
    first, second = start(minutes(0), engine=Engine(name=EngineName.VLLM)), start(minutes(1))
    storage.write(adding(first, second)).result()
    storage.write(lambda unit: unit.observations.retract(first.id, "wrong", minutes(2))).result()
    storage.write(adding(start(minutes(3)))).result()
    pair = only_pair(storage)
    assert (pair.observation_count, pair.engines, pair.last_observed_at) == (2, (EngineName.SGLANG,), minutes(3))


def test_many_pairs_in_one_job_are_each_counted(storage: Storage) -> None:
    """More pairs than one statement takes are all brought up to date."""
    many = [start(minutes(number), model=Model(name=f"model-{number % 200}")) for number in range(400)]
    storage.write(adding(*many)).result()
    storage.write(adding(*(replace(each, id=start().id) for each in many))).result()
    with storage.read() as unit:
        pairs = unit.pairs.page(None, None, 500).items
    assert {pair.observation_count for pair in pairs} == {4}
    assert sorted(pair.last_observed_at for pair in pairs if pair.last_observed_at) == [
        minutes(n) for n in range(200, 400)
    ]
