"""Lists stay fast however long the ledger is, and times keep their zone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects import sqlite

from kvyield_server.domain.facts.observation import EngineName, Hardware, Model, Outcome
from kvyield_server.errors import InvalidError
from kvyield_server.storage import migrate
from kvyield_server.storage.connections import Use, database_url, engine_for
from kvyield_server.storage.records import ObservationFilter, PageKey
from kvyield_server.storage.tables import UtcDateTime
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.storage.values import new_id
from storage.samples import NOON, minutes, recording, start


def explained(engine: Engine, beginning: str) -> list[str]:
    """Return a list that will hold the plan of each statement that begins so."""
    plans: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def explain(_: Connection, cursor: Any, statement: str, parameters: Any, *_rest: object) -> None:
        if statement.startswith(beginning):
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[3] for row in cursor.fetchall())

    return plans


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ({}, "ix_observation_observed_at_id"),
        ({"pair_id": new_id()}, "ix_observation_pair_id_observed_at_id"),
        ({"host": "gpu-01"}, "ix_observation_host_observed_at_id"),
        ({"engine": EngineName.LMDEPLOY}, "ix_observation_engine_observed_at_id"),
        ({"outcome": Outcome.OOM_RUNTIME}, "ix_observation_outcome_observed_at_id"),
        ({"since": NOON, "until": NOON}, "ix_observation_observed_at_id"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_page_is_found_by_an_index(sqlite_url: str, wanted: dict[str, Any], index: str) -> None:
    """Each list begins where its page begins and stops where it ends: it neither scans nor sorts the ledger."""
    migrate.upgrade(sqlite_url)
    engine = engine_for(database_url(sqlite_url), Use.READ)
    plans = explained(engine, "SELECT observation")

    with engine.begin() as connection:
        page_key = PageKey(NOON, new_id())
        UnitOfWork(connection).observations.page(ObservationFilter(**wanted), page_key, 50)
    engine.dispose()
    assert len(plans) == 1
    assert plans[0].startswith(f"SEARCH observation USING INDEX {index} (")
    assert "observed_at" in plans[0]


@pytest.mark.parametrize("sort", ["observed_at", "-observed_at", "received_at", "-received_at"])
def test_a_sorted_page_is_found_by_an_index(sqlite_url: str, sort: str) -> None:
    """In either order, by start or by arrival, the ledger is neither scanned nor sorted."""
    migrate.upgrade(sqlite_url)
    engine = engine_for(database_url(sqlite_url), Use.READ)
    plans = explained(engine, "SELECT observation")
    with engine.begin() as connection:
        UnitOfWork(connection).observations.page(ObservationFilter(), PageKey(NOON, new_id()), 50, sort=sort)
    engine.dispose()
    assert len(plans) == 1
    assert plans[0].startswith(f"SEARCH observation USING INDEX ix_observation_{sort.lstrip('-')}_id (")


@pytest.mark.parametrize(
    ("sort", "at", "index"),
    [
        ("-created_at", NOON, "ix_pair_created_at_id"),
        ("last_start", NOON, "ix_pair_last_observed_at_id"),
        ("-last_start", NOON, "ix_pair_last_observed_at_id"),
        ("name", "m", "sqlite_autoindex_model_2"),
        ("-name", "m", "sqlite_autoindex_model_2"),
    ],
)
def test_a_page_of_pairs_is_found_by_an_index(sqlite_url: str, sort: str, at: datetime | str, index: str) -> None:
    """A later page of pairs begins where the one before ended."""
    migrate.upgrade(sqlite_url)
    engine = engine_for(database_url(sqlite_url), Use.READ)
    plans = explained(engine, "SELECT pair")
    with engine.begin() as connection:
        UnitOfWork(connection).pairs.page(None, PageKey(at, new_id()), 50, sort=sort)
    engine.dispose()
    assert any(f"INDEX {index} (" in plan for plan in plans), plans


def test_starts_of_a_model_are_found_by_the_indexes_of_its_pairs(sqlite_url: str) -> None:
    """The newest of each pair of the model are read, however many starts other models have."""
    migrate.upgrade(sqlite_url)
    engine = engine_for(database_url(sqlite_url), Use.WRITE)
    plans = explained(engine, "SELECT observation.observed_at")

    with engine.begin() as connection:
        unit = UnitOfWork(connection)
        for number in range(4):
            recording(start(minutes(number), hardware=Hardware(gpu=f"gpu-{number % 2}", gpu_count=1)))(unit)
        page = unit.observations.page(ObservationFilter(model=start().model.name), PageKey(minutes(3), UUID(int=0)), 50)
    engine.dispose()
    assert len(page.items) == 3
    assert len(plans) == 2
    assert all("INDEX ix_observation_pair_id_observed_at_id (pair_id=? AND" in plan for plan in plans)


def test_times_of_any_zone_are_kept_as_utc(storage: Storage) -> None:
    """The same instant has the same place in the order, whatever zone it was written in."""
    tokyo = datetime(2026, 5, 30, 21, 0, 0, 123456, tzinfo=timezone(timedelta(hours=9)))
    earlier = start(tokyo - timedelta(seconds=1))
    for each in (start(tokyo), earlier):
        storage.write(recording(each)).result()
    with storage.read() as unit:
        page = unit.observations.page(ObservationFilter(), PageKey(NOON, UUID(int=0)), 10)
    assert [row.observation for row in page.items] == [earlier]


def test_a_time_without_a_zone_is_refused() -> None:
    """A naive time is never guessed at."""
    with pytest.raises(InvalidError):
        UtcDateTime().process_bind_param(NOON.replace(tzinfo=None), sqlite.dialect())


NUMBERS = {
    "whole": 1,
    "real": 1.0,
    "large": 1e22,
    "small": 1e-7,
    "negative": -0.0,
    "long": 123456789012345678,
    "third": 1 / 3,
}


def test_numbers_come_back_as_they_were_sent(storage: Storage) -> None:
    """In flags, facts and answers a float stays a float, to the last bit, and a whole number one, on both databases."""
    each = start(flags={**start().flags, **NUMBERS}, model=Model(name="org/numbers", facts=NUMBERS))
    storage.write(recording(each)).result()
    with storage.read() as unit:
        stored = unit.observations.get(each.id)
        pair = unit.pairs.find(each.hardware.gpu, each.hardware.gpu_count, "org/numbers")
    assert stored is not None
    assert pair is not None
    for found in (stored.observation.flags, stored.observation.model.facts, pair.model.facts):
        kept = {name: found[name] for name in NUMBERS}
        assert repr(kept) == repr(NUMBERS)
