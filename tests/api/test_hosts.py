"""A browser that another site's name leads to this machine gets nothing from an open service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from litestar.testing import TestClient

from api.conftest import Client
from api.samples import start
from kvyield_server.app import create_app
from kvyield_server.settings import Settings
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.tokens import create


@pytest.fixture
def client(storage: Storage) -> Iterator[Client]:
    """A client that reaches the service at a loopback address."""
    with TestClient(create_app(Settings(), storage), base_url="http://127.0.0.1:8321") as client:
        yield client


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8321", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:80", "localhost:evil.com"),
        *(
            "[::1]evil.com",
            "[::1].evil.com:80",
            "[::1%25evil.com]",
            "127.0.0.1]",
            "localhost..",
            "",
            "a" * 300,
        ),
    ],
)
def test_other_hosts_are_refused_while_the_service_is_open(client: Client, host: str) -> None:
    """Reads, posts and pages answer 403 to a Host that is not this machine's; probes are answered."""
    headers = {"host": host}
    assert client.get("/observations", headers=headers).json()["type"] == "/problems/forbidden"
    assert client.post("/observations", json=start(), headers=headers).status_code == 403
    assert client.get("/ui", headers=headers).status_code == 403
    assert client.get("/health/ready", headers=headers).status_code == 200
    assert client.get("/observations").json()["items"] == []


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "localhost.:80", "127.0.0.1:80", "127.9.9.9", "[::1]:8321"]
)
def test_this_machine_is_answered_by_any_of_its_names(client: Client, host: str) -> None:
    """localhost, 127.0.0.0/8 and ::1 are answered at any port."""
    assert client.get("/observations", headers={"host": host}).status_code == 200


def test_with_tokens_the_token_decides(client: Client, storage: Storage) -> None:
    """Once a token exists, a proxy may pass any Host on: no page of another site knows the token."""
    _, text = create(storage, "reader", ["read"], "1d")
    headers = {"host": "kv.example", "authorization": f"Bearer {text}"}
    assert client.get("/observations", headers=headers).status_code == 200
