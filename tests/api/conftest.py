"""The application in process, over a storage in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from litestar import Litestar
from litestar.testing import TestClient

from _storages import fresh_storage
from kvyield_server.app import create_app
from kvyield_server.settings import Settings
from kvyield_server.storage.uow import Storage

Client = TestClient[Any]


@pytest.fixture(autouse=True, scope="session")
def silent_logs() -> None:
    """Keep the request log out of the test report, where it can be captured."""
    structlog.configure(processors=[structlog.dev.ConsoleRenderer()], logger_factory=structlog.ReturnLoggerFactory())


@pytest.fixture
def storage() -> Storage:
    """An empty storage."""
    return fresh_storage()


@pytest.fixture
def app(storage: Storage) -> Litestar:
    """The application over that storage, without tokens."""
    return create_app(Settings(), storage)


@pytest.fixture
def client(app: Litestar) -> Iterator[Client]:
    """A client of that application."""
    with TestClient(app, raise_server_exceptions=True) as client:
        yield client
