"""Many starts in one write: each is answered as if it came alone, in the order given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from uuid6 import uuid7

from _storages import fresh_storage
from kvyield_server.domain.facts.observation import Model
from kvyield_server.errors import ConflictError, InvalidError
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.record import Arrival, Recorded, record
from storage.samples import start

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    """An empty storage of each kind."""
    is_file = request.param == "sqlite"
    with closing(fresh_storage() if is_file else open_storage(request.getfixturevalue("postgres_url"))) as storage:
        yield storage


def test_each_start_is_answered_as_if_it_came_alone(storage: Storage) -> None:
    """New, known by id, known by content, the same twice in one call, other content under one id, unknown advice."""
    known, twice = start(), start()
    other = replace(known, model=Model(name="org/other"))
    another = replace(twice, flags={"mem_fraction_static": 0.5})
    storage.write(record([Arrival(known, "known", None, NOW, "loopback")])).result()
    arrivals = [
        Arrival(known, "known", None, NOW, "loopback"),
        Arrival(replace(known, id=uuid7()), "known", None, NOW, "loopback"),
        Arrival(other, "other", None, NOW, "loopback"),
        Arrival(twice, "twice", None, NOW, "loopback"),
        Arrival(twice, "twice", None, NOW, "loopback"),
        Arrival(replace(twice, id=uuid7()), "twice", None, NOW, "loopback"),
        Arrival(another, "more", None, NOW, "loopback"),
        Arrival(start(recommendation_id=uuid7()), "settlement", None, NOW, "loopback"),
        Arrival(start(), "new", None, NOW, "loopback"),
    ]
    outcomes = storage.write(record(arrivals)).result()
    kinds = [outcome.is_new if isinstance(outcome, Recorded) else type(outcome) for outcome in outcomes]
    assert kinds == [False, False, ConflictError, True, False, False, ConflictError, InvalidError, True]
    kept = [outcome.stored.observation.id for outcome in outcomes if isinstance(outcome, Recorded)]
    assert kept[:5] == [known.id, known.id, twice.id, twice.id, twice.id]
    with storage.read() as uow:
        assert sum(pair.observation_count for pair in uow.pairs.page(None, None, 10).items) == 3


def test_news_of_one_pair_reach_the_others_in_the_same_write(storage: Storage) -> None:
    """A fact that the first start gives about a model is kept when the second, on other hardware, tells another."""
    first = start()
    facts = [replace(first.model, facts={"a": 1}), replace(first.model, facts={"b": 2})]
    hardware = [replace(first.hardware, gpu=name) for name in ("A", "B")]
    known = [replace(start(), hardware=each, model=replace(first.model, facts={})) for each in hardware]
    storage.write(record([Arrival(each, str(each.id), None, NOW, "loopback") for each in known])).result()
    news = [replace(start(), hardware=each, model=model) for each, model in zip(hardware, facts, strict=True)]
    storage.write(record([Arrival(each, str(each.id), None, NOW, "loopback") for each in news])).result()
    with storage.read() as uow:
        pairs = uow.pairs.of_model(first.model.name)
    assert [dict(pair.model.facts) for pair in pairs] == [{"a": 1, "b": 2}] * 2


def test_an_id_that_was_only_named_finds_the_row(storage: Storage) -> None:
    """Content that came under another id keeps that one: the id that named it again finds the same row."""
    first, second = start(), start()
    arrivals = [
        Arrival(first, "a", None, NOW, "loopback"),
        Arrival(second, "a", None, NOW, "loopback"),
        Arrival(second, "b", None, NOW, "loopback"),
    ]
    outcomes = storage.write(record(arrivals)).result()
    told = [(it.stored.observation.id, it.is_new) for it in outcomes if isinstance(it, Recorded)]
    assert told == [(first.id, True), (first.id, False), (first.id, False)]
    with storage.read() as uow:
        found = uow.observations.get(second.id)
    assert found is not None
    assert found.observation.id == first.id


def test_a_start_that_is_stored_is_new_to_one_of_those_who_posted_it(storage: Storage) -> None:
    """A conflict over the id does not count as the answer that the content was stored."""
    known, other = start(), start()
    storage.write(record([Arrival(known, "known", None, NOW, "loopback")])).result()
    taken = replace(other, id=known.id, model=Model(name="org/other"))
    other = replace(taken, id=other.id)
    arrivals = [
        Arrival(taken, "new", None, NOW, "loopback"),
        Arrival(other, "new", None, NOW, "loopback"),
        Arrival(other, "new", None, NOW, "loopback"),
    ]
    conflict, new, again = storage.write(record(arrivals)).result()
    assert isinstance(conflict, ConflictError)
    assert isinstance(new, Recorded)
    assert isinstance(again, Recorded)
    assert (new.is_new, again.is_new) == (True, False)


def test_news_later_in_a_write_do_not_undo_older_ones(storage: Storage) -> None:
    """What one start says about shared hardware or a model holds for all its pairs, in this write and the next."""
    shared = start().hardware

    def post(*told: tuple[str, float]) -> None:
        made = [
            start(model=Model(name=name, facts={"of": gib}), hardware=replace(shared, memory_gib=gib))
            for name, gib in told
        ]
        storage.write(record([Arrival(each, str(each.id), None, NOW, "loopback") for each in made])).result()

    def known() -> dict[str, tuple[float | None, int]]:
        with storage.read() as uow:
            pairs = uow.pairs.page(None, None, 10).items
        return {pair.model.name: (pair.hardware.memory_gib, pair.revision) for pair in pairs}

    post(("one", 80.0))
    post(("two", 80.0))
    before = known()
    post(("one", 80.0), ("two", 79.0))
    assert {gib for gib, _ in known().values()} == {79.0}
    post(("one", 80.0))
    assert {gib for gib, _ in known().values()} == {80.0}
    assert all(known()[name][1] > before[name][1] for name in before)
