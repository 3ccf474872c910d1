"""The storages under test: one suite, two databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from _storages import fresh_storage
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.uow import Storage


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'kvyield.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh database, once on SQLite and once on PostgreSQL."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    """A fresh storage, once on a SQLite file and once on PostgreSQL."""
    is_file = request.param == "sqlite"
    opened = fresh_storage() if is_file else open_storage(request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()
