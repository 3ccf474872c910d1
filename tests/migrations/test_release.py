"""A database of the last release, with data, is read whole by this version: nothing is lost, nothing is doubled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import JSON, Boolean, Column, DateTime, MetaData, String, Table, Uuid, select, update

from kvyield_server.domain.answers import Prefer
from kvyield_server.domain.facts.accounts import host_key
from kvyield_server.domain.facts.observation import Outcome
from kvyield_server.storage import migrate, tables
from kvyield_server.storage.connections import Use, database_url, engine_for
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.records import ObservationFilter, Role
from kvyield_server.storage.uow import UnitOfWork

RELEASE = json.loads((Path(__file__).parent / "data" / "release_0_1_0.json").read_text())
TABLES = ("hardware", "model", "pair", "api_token", "observation", "verification", "fit", "recommendation", "audit")
TOKEN_OF_THE_RELEASE = Table(
    "api_token",
    MetaData(),
    Column("id", Uuid),
    Column("created_at", DateTime(timezone=True)),
    *(Column(name, String) for name in ("name", "role", "token_hash")),
)
STARTS = {row["id"]: row for row in RELEASE["observation"]}


def value(kind: Any, stored: Any) -> Any:
    """Return a value of the release's SQLite file as any database takes it."""
    if stored is None:
        return None
    if isinstance(kind, Uuid):
        return UUID(stored)
    if isinstance(kind, DateTime):
        return datetime.fromisoformat(stored).replace(tzinfo=UTC)
    if isinstance(kind, JSON):
        return json.loads(stored)
    return bool(stored) if isinstance(kind, Boolean) else stored


def fill(url: str) -> None:
    """Make a database as the release left it: its schema, its rows."""
    migrate.upgrade(url, "0001")
    engine = engine_for(database_url(url), Use.MIGRATE)
    with engine.begin() as connection:
        for name in TABLES:
            table = Table(name, MetaData(), autoload_with=connection)
            types = {column.name: column.type for column in table.columns}
            if connection.dialect.name == "sqlite":  # which does not tell what a text column holds
                connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
                for row in RELEASE[name]:
                    places = ", ".join("?" * len(row))
                    connection.exec_driver_sql(
                        f"INSERT INTO {name} ({', '.join(row)}) VALUES ({places})", tuple(row.values())
                    )
                continue
            rows = [{key: value(types[key], stored) for key, stored in row.items()} for row in RELEASE[name]]
            if rows:
                connection.execute(table.insert(), rows)
    engine.dispose()


@pytest.fixture
def upgraded(empty_url: str) -> Iterator[UnitOfWork]:
    """A unit of work on the release's database after the upgrade."""
    fill(empty_url)
    migrate.upgrade(empty_url)
    assert migrate.check(empty_url) == []
    storage = open_storage(empty_url)
    with storage.read() as uow:
        yield uow
    storage.close()


def test_every_start_is_read_as_it_was_stored(upgraded: UnitOfWork) -> None:
    """All starts are there with their flags, figures, verifications, retractions and digests."""
    found = {each.observation.id.hex: each for each in upgraded.observations.page(ObservationFilter(), None, 100).items}
    assert found.keys() == STARTS.keys()
    for key, row in STARTS.items():
        stored, start = found[key], found[key].observation
        assert stored.content_digest == row["content_digest"]
        assert dict(start.flags) == json.loads(row["flags"])
        assert dict(start.model.facts) == json.loads(row["facts"])
        assert (start.host, start.source, start.log_excerpt) == (row["host"], row["source"], row["log_excerpt"])
        assert (start.outcome, start.measurements.pool_tokens) == (Outcome(row["outcome"]), row["pool_tokens"])
        assert start.hardware.memory_gib == row["memory_gib"]
        assert start.hardware.driver_memory_gib is None
        assert (stored.retracted_at is None, stored.retraction_reason) == (
            row["retracted_at"] is None,
            row["retraction_reason"],
        )
        own = [each for each in RELEASE["verification"] if each["observation_id"] == key]
        assert [each.answer_received for each in start.verifications] == [each["answer_received"] for each in own]
        assert all(each.answer is None for each in start.verifications)
        assert stored.is_timed is (row["observed_at"] != row["received_at"])
    assert [each.is_timed for each in found.values()].count(False) == 1


def test_hosts_are_known_by_what_their_names_share(empty_url: str) -> None:
    """A start of the release is found by each name of its host, which the domain says."""
    fill(empty_url)
    names = ["GPU-9.example", "10.0.0.7", "fe80::7", "node-7", None]
    engine = engine_for(database_url(empty_url), Use.MIGRATE)
    with engine.begin() as connection:
        for host, key in zip(names, STARTS, strict=False):
            row = update(tables.observation).where(tables.observation.c.id == UUID(key))
            connection.execute(row.values(host=host))
    engine.dispose()
    migrate.upgrade(empty_url)
    with closing(open_storage(empty_url)) as storage, storage.read() as uow:
        told = dict(uow.connection.execute(select(tables.observation.c.host, tables.observation.c.host_key)).all())
        starts = uow.observations.page(ObservationFilter(), None, 100).items
    assert told.keys() >= set(names)
    assert told == {each.observation.host: host_key(each.observation) for each in starts}


def test_answers_tokens_and_the_audit_are_kept(upgraded: UnitOfWork) -> None:
    """Recommendations read with defaults for what is new, and old tokens open what they opened."""
    for row in RELEASE["recommendation"]:
        stored = upgraded.recommendations.get(UUID(row["id"]))
        assert stored is not None
        assert stored.question.prefer is Prefer.KEEP
        assert stored.advice.headline is None
        assert stored.advice.prediction.quantiles == {}
        assert stored.advice.explanation == json.loads(row["advice"])["explanation"]
        assert (stored.observation_id and stored.observation_id.hex) == row["observation_id"]
    for row in RELEASE["api_token"]:
        token = upgraded.tokens.by_hash(row["token_hash"])
        assert token is not None
        assert token.roles == {Role(row["role"])}
        assert (token.revoked_at is None) == (row["revoked_at"] is None)
    assert len(upgraded.audit.page(None, 100).items) == len(RELEASE["audit"])


def test_replicas_of_the_release_go_on_beside_new_ones(empty_url: str) -> None:
    """What the release before reads and writes of tokens is still there: it finds a role, and makes tokens with one."""
    fill(empty_url)
    migrate.upgrade(empty_url)
    engine = engine_for(database_url(empty_url), Use.MIGRATE)
    with engine.begin() as connection:
        old = connection.exec_driver_sql("SELECT token_hash, role FROM api_token").all()
        made = {
            "id": UUID(int=7),
            "name": "old",
            "role": "read",
            "token_hash": "h" * 64,
            "created_at": datetime.now(UTC),
        }
        connection.execute(TOKEN_OF_THE_RELEASE.insert().values(made))
    engine.dispose()
    assert {row.token_hash: row.role for row in old} == {row["token_hash"]: row["role"] for row in RELEASE["api_token"]}
    with closing(open_storage(empty_url)) as storage, storage.read() as uow:
        token = uow.tokens.by_hash("h" * 64)
    assert token is not None
    assert token.roles == {Role.READ}


def test_going_back_keeps_the_rows(empty_url: str) -> None:
    """A downgrade leaves the release's schema with its rows; a token keeps its role."""
    fill(empty_url)
    migrate.upgrade(empty_url)
    migrate.downgrade(empty_url, "0001")
    engine = engine_for(database_url(empty_url), Use.READ)
    with engine.connect() as connection:
        counts = {name: connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar() for name in TABLES}
        roles = connection.exec_driver_sql("SELECT role FROM api_token").scalars().all()
    engine.dispose()
    assert counts == {name: len(RELEASE[name]) for name in TABLES}
    assert sorted(roles) == sorted(row["role"] for row in RELEASE["api_token"])
