"""Migrations go up and down on both databases, all or nothing, and end at the schema that the code has."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import inspect, select
from sqlalchemy.exc import SQLAlchemyError

from kvyield_server.errors import KvyieldError, MigrationNeededError
from kvyield_server.storage import migrate, tables
from kvyield_server.storage.connections import Use, database_url, engine_for
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.uow import UnitOfWork
from storage.samples import recording, start

HEADER = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"
branch_labels = None
depends_on = None

"""
WIDENS = """
def upgrade():
    with op.batch_alter_table("pair") as batch:
        batch.add_column(sa.Column("note", sa.String(), server_default="none", nullable=False))
        batch.alter_column("revision", existing_type=sa.BigInteger(), nullable=False, server_default="0")


def downgrade():
    with op.batch_alter_table("pair") as batch:
        batch.drop_column("note")
"""
FAILS = """
def upgrade():
    op.create_table("half", sa.Column("id", sa.Integer()))
    op.execute("INSERT INTO no_such_table VALUES (1)")
"""
ORPHANS = """
def upgrade():
    op.execute("DELETE FROM pair")
"""


@pytest.fixture
def next_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a migration after the newest one goes, in a copy of the migrations."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.scripts(), folder)
    monkeypatch.setattr(migrate, "scripts", lambda: folder)
    return folder / "versions" / "next.py"


def add(path: Path, text: str) -> None:
    path.write_text(HEADER.format(head=migrate.head()) + text)


def table_names(url: str) -> set[str]:
    engine = engine_for(database_url(url), Use.MIGRATE)
    with engine.connect() as connection:
        names = set(inspect(connection).get_table_names())
    engine.dispose()
    return names


def fill(url: str) -> None:
    """Put one observation and its pair into a database."""
    engine = engine_for(database_url(url), Use.WRITE)
    with engine.begin() as connection:
        recording(start())(UnitOfWork(connection))
    engine.dispose()


def test_up_and_down(empty_url: str) -> None:
    """Going up makes every table, going down to the base removes each, and going up again works."""
    assert migrate.current(empty_url) is None
    for _ in range(2):
        migrate.upgrade(empty_url)
        assert table_names(empty_url) == {*tables.metadata.tables, "alembic_version"}
        assert migrate.current(empty_url) == migrate.head()
        migrate.downgrade(empty_url, "base")
        assert table_names(empty_url) == {"alembic_version"}
        assert migrate.current(empty_url) is None


def test_the_newest_schema_is_the_one_in_the_code(empty_url: str) -> None:
    """After all migrations nothing is left that the tables in the code have otherwise: types, indexes, constraints."""
    (wrong,) = migrate.check(empty_url)
    assert wrong.startswith(("The schema is at revision None", "There is no database file"))
    migrate.upgrade(empty_url)
    assert migrate.check(empty_url) == []


def test_the_alembic_command_agrees(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alembic command finds the same database by KVYIELD_DATABASE, migrates it, and its own check is clean."""
    monkeypatch.setenv("KVYIELD_DATABASE", empty_url)
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts()))
    command.upgrade(config, "head")
    command.check(config)
    assert migrate.check(empty_url) == []


def test_a_difference_is_named(empty_url: str) -> None:
    """A check of a schema that someone changed by hand says what differs."""
    migrate.upgrade(empty_url)
    engine = engine_for(database_url(empty_url), Use.MIGRATE)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_observation_observed_at_id")
    engine.dispose()
    (difference,) = migrate.check(empty_url)
    assert "ix_observation_observed_at_id" in difference


def test_migrating_twice_changes_nothing(empty_url: str) -> None:
    """An upgrade of a database that is current leaves its rows alone."""
    migrate.upgrade(empty_url)
    fill(empty_url)
    migrate.upgrade(empty_url)
    with_rows = engine_for(database_url(empty_url), Use.READ)
    with with_rows.connect() as connection:
        assert len(connection.execute(select(tables.observation)).all()) == 1
    with_rows.dispose()


def test_eight_upgrades_at_once(empty_url: str) -> None:
    """Services that start together migrate once: the others wait and find it done."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(migrate.upgrade, [empty_url] * 8))
    assert migrate.check(empty_url) == []


def test_a_migration_keeps_rows_and_their_references(empty_url: str, next_migration: Path) -> None:
    """A table that others refer to can be altered, up and down, without losing a row or a reference."""
    migrate.upgrade(empty_url)
    fill(empty_url)
    add(next_migration, WIDENS)
    migrate.upgrade(empty_url)
    migrate.downgrade(empty_url, migrate.head())
    engine = engine_for(database_url(empty_url), Use.READ)
    with engine.connect() as connection:
        joined = select(tables.pair.c.id, tables.observation.c.id).join_from(tables.observation, tables.pair)
        assert len(connection.execute(joined).all()) == 1
    engine.dispose()


def test_a_failed_migration_leaves_nothing_behind(empty_url: str, next_migration: Path) -> None:
    """When a migration fails in the middle, the schema is exactly the one from before, and the service still opens."""
    migrate.upgrade(empty_url)
    before = table_names(empty_url)
    add(next_migration, FAILS)
    with pytest.raises((KvyieldError, SQLAlchemyError)):
        migrate.upgrade(empty_url)
    assert table_names(empty_url) == before
    assert migrate.check(empty_url) == []


def test_a_migration_that_would_orphan_rows_is_undone(empty_url: str, next_migration: Path) -> None:
    """Rows never lose what they refer to, though SQLite does not check references while it migrates."""
    migrate.upgrade(empty_url)
    fill(empty_url)
    add(next_migration, ORPHANS)
    with pytest.raises(KvyieldError):
        migrate.upgrade(empty_url)
    assert migrate.current(empty_url) == migrate.head()


def test_a_database_of_a_newer_version_is_refused(empty_url: str) -> None:
    """A service that was downgraded names the unknown revision instead of guessing at the schema."""
    migrate.upgrade(empty_url)
    engine = engine_for(database_url(empty_url), Use.MIGRATE)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'future'")
    engine.dispose()
    for attempt in (migrate.upgrade, open_storage):
        with pytest.raises(MigrationNeededError, match="future"):
            attempt(empty_url)


def test_postgresql_is_migrated_by_hand_alone(empty_postgres_url: str) -> None:
    """Opening a PostgreSQL database that was never migrated fails with the command to run, and makes no table."""
    with pytest.raises(MigrationNeededError, match="kvyield-server db upgrade"):
        open_storage(empty_postgres_url)
    assert table_names(empty_postgres_url) == set()
    migrate.upgrade(empty_postgres_url)
    open_storage(empty_postgres_url).close()


def test_every_constraint_has_a_name() -> None:
    """A migration can drop any constraint by name, which SQLite needs."""
    unnamed = [
        f"{table.name}: {constraint}"
        for table in tables.metadata.tables.values()
        for constraint in (*table.constraints, *table.indexes)
        if not getattr(constraint, "name", None)
    ]
    assert unnamed == []
