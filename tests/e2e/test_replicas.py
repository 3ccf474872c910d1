"""Several servers on one database: none answers from what another has changed, and one may die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.samples import NAMES, start
from e2e.hosts import Hosts, assert_sound
from e2e.running import Server, command

ASKED = {**NAMES, "target_tokens": 200000}


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh database."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'shared.db'}"


@pytest.fixture
def two(tmp_path: Path, database: str) -> Iterator[tuple[Server, Server]]:
    """Two servers on that database."""
    servers = [Server(tmp_path, "--database", database) for _ in range(2)]
    yield servers[0], servers[1]
    for server in servers:
        server.stop()


@pytest.mark.slow
def test_an_answer_is_never_older_than_what_another_server_took(two: tuple[Server, Server]) -> None:
    """Advice and lists asked of one server follow at once what was posted to, and retracted at, the other; a start on
    other hardware counts too; unchanged answers are not sent again."""
    with two[0].client() as writer, two[1].client() as reader:
        for number in (1, 2):
            writer.post("/observations", json=start(number)).raise_for_status()
            ids = reader.get("/recommend", params=ASKED).json()["basis"]["observation_ids"]
            assert start(number)["id"] in ids
        before = reader.get("/recommend", params=ASKED)
        assert (
            reader.get("/recommend", params=ASKED, headers={"If-None-Match": before.headers["etag"]}).status_code == 304
        )
        pair = reader.get("/pairs").json()["items"][0]["id"]
        fits = reader.get(f"/pairs/{pair}/fits")
        writer.post("/observations", json=start(3)).raise_for_status()
        after = reader.get("/recommend", params=ASKED, headers={"If-None-Match": before.headers["etag"]})
        assert (after.status_code, after.json()["basis"] != before.json()["basis"]) == (200, True)
        again = reader.get(f"/pairs/{pair}/fits", headers={"If-None-Match": fits.headers["etag"]})
        assert again.status_code == 200
        writer.post(f"/observations/{start(3)['id']}/retraction", json={"reason": "r"}).raise_for_status()
        assert start(3)["id"] not in reader.get("/recommend", params=ASKED).json()["basis"]["observation_ids"]
        assert len(reader.get("/observations").json()["items"]) == 3


@pytest.mark.slow
def test_a_revoked_token_opens_nothing_on_any_server(tmp_path: Path, postgres_url: str) -> None:
    """A token that two servers have just accepted is refused by both in the request after its revocation."""
    made = command(tmp_path, "token", "create", "--database", postgres_url, "--name", "ann", "--role", "read")
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    servers = [Server(tmp_path, "--database", postgres_url) for _ in range(2)]
    try:
        for _ in range(3):
            assert [httpx.get(f"{it.url}/pairs", headers=headers).status_code for it in servers] == [200, 200]
        assert command(tmp_path, "token", "revoke", "--database", postgres_url, "ann").returncode == 0
        assert [httpx.get(f"{it.url}/pairs", headers=headers).status_code for it in servers] == [401, 401]
    finally:
        for server in servers:
            server.stop()


@pytest.mark.slow
def test_four_servers_of_which_one_is_killed_under_load(tmp_path: Path, postgres_url: str) -> None:
    """Hosts that post to four servers on one PostgreSQL lose nothing and double nothing when one is killed."""
    servers = [Server(tmp_path, "--database", postgres_url) for _ in range(4)]
    hosts = Hosts([server.url for server in servers])
    try:
        hosts.start()
        hosts.wait_for(150)
        servers[0].kill()
        hosts.wait_for(250)
        sent = hosts.stop()
        for server in servers[1:]:
            assert_sound(server, sent, hosts)
        assert [server.stop() for server in servers[1:]] == [0, 0, 0]
    finally:
        for server in servers:
            server.kill()
