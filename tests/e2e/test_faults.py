"""What goes wrong in production, through HTTP: no acknowledged start is lost or doubled, and the service recovers."""

from __future__ import annotations

import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from litestar.testing import TestClient

from _postgres import PostgresCluster
from api.samples import start
from e2e.hosts import Hosts, assert_sound, ledger, numbered
from e2e.running import Server, command
from kvyield_server.api import observations
from kvyield_server.app import create_app
from kvyield_server.settings import Settings

KILLS = 4


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Say whether something becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def is_ready(server: Server) -> bool:
    """Say whether a server calls itself ready."""
    return httpx.get(f"{server.url}/health/ready", timeout=30).status_code == 200


def kill_again_and_again(folder: Path, database: str, kills: int, seed: int) -> int:
    """Kill a server at random moments under load, start it anew each time, and return how many starts it kept."""
    moments = random.Random(seed)
    server = Server(folder, "--database", database)
    hosts = Hosts([server.url])
    hosts.start()
    for _ in range(kills):
        hosts.wait_for(5)
        time.sleep(moments.uniform(0.0, 0.3))
        server.kill()
        assert not [line for line in server.log if line.get("status") == 500]
        server = Server(folder, "--database", database)
        hosts.urls[0] = server.url
    hosts.wait_for(20)
    sent = hosts.stop()
    assert_sound(server, sent, hosts)
    assert server.stop() == 0
    return len(sent)


@pytest.mark.slow
def test_a_server_killed_at_random_moments(tmp_path: Path) -> None:
    """After each kill -9 the next server finds the ledger whole; what was sent again is there once."""
    assert kill_again_and_again(tmp_path, f"sqlite:///{tmp_path / 'kvyield.db'}", KILLS, seed=7) > KILLS * 5


@pytest.mark.slow
def test_two_servers_on_one_file(tmp_path: Path) -> None:
    """Two servers that share one SQLite file take posts at once, and each sees all."""
    database = f"sqlite:///{tmp_path / 'kvyield.db'}"
    servers = [Server(tmp_path, "--database", database) for _ in range(2)]
    hosts = Hosts([server.url for server in servers])
    hosts.start()
    hosts.wait_for(150)
    sent = hosts.stop()
    for server in servers:
        assert_sound(server, sent, hosts)
        assert server.stop() == 0


@pytest.mark.slow
def test_postgresql_that_is_stopped_started_and_cut_off(tmp_path: Path) -> None:
    """While PostgreSQL is away posts answer 503 with a Retry-After and the service is alive, not ready; once it is
    back, and after all its sessions were ended, the same server goes on by itself."""
    cluster = PostgresCluster()
    try:
        name = cluster.create_migrated()
        server = Server(tmp_path, "--database", cluster.url(name))
        hosts = Hosts([server.url], clients=4)
        hosts.start()
        hosts.wait_for(30)
        cluster.stop()
        answer = httpx.post(f"{server.url}/observations", json=start(), timeout=30)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/storage_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert not is_ready(server)
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        cluster.start()
        assert eventually(lambda: is_ready(server))
        for _ in range(3):
            hosts.wait_for(20)
            cluster.disconnect(name)
        hosts.wait_for(20)
        assert_sound(server, hosts.stop(), hosts)
        assert server.stop() == 0
    finally:
        cluster.close()


@pytest.mark.slow
def test_metrics_tell_that_postgresql_is_away(tmp_path: Path) -> None:
    """A scrape with a token that was used before is answered while PostgreSQL is away, and says so until it is back."""
    cluster = PostgresCluster()
    try:
        database = cluster.url(cluster.create_migrated())
        made = command(tmp_path, "token", "create", "--database", database, "--name", "prometheus", "--role", "read")
        server = Server(tmp_path, "--database", database)
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}

        def is_up(wanted: bool) -> bool:
            answer = httpx.get(f"{server.url}/metrics", headers=headers, timeout=30)
            assert answer.status_code == 200
            return f"kvyield_database_up {float(wanted)}" in answer.text

        assert is_up(True)
        cluster.stop()
        assert is_up(False)
        assert httpx.get(f"{server.url}/pairs", headers=headers, timeout=30).status_code == 503
        assert httpx.get(f"{server.url}/metrics", headers={"Authorization": "Bearer x"}, timeout=30).status_code == 503
        cluster.start()
        assert eventually(lambda: is_up(True))
        assert httpx.get(f"{server.url}/pairs", headers=headers, timeout=30).status_code == 200
        assert server.stop() == 0
    finally:
        cluster.close()


class Disk:
    """A folder with little room: a small file system where one may be mounted, else a limit on a server's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1536k", "none", str(folder)]
        self._is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0

    def shrink(self, server: Server) -> None:
        """Leave a server little room."""
        if not self._is_mounted:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))

    def grow(self, server: Server) -> None:
        """Give it more."""
        if self._is_mounted:
            subprocess.check_call(["mount", "-o", "remount,size=64m", str(self.folder)])
        else:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    def close(self) -> None:
        """Take the file system away."""
        if self._is_mounted:
            subprocess.check_call(["umount", "-l", str(self.folder)])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Such a folder."""
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.close()


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    """On a full disk posts answer 503, what was acknowledged is still listed, and with room the server goes on."""
    server = Server(tmp_path, "--database", f"sqlite:///{disk.folder / 'kvyield.db'}")
    disk.shrink(server)
    acknowledged: list[int] = []
    with server.client() as client:
        for number in range(2_000):
            answer = client.post("/observations", json=numbered(number) | {"log_excerpt": "x" * 5_000})
            if answer.status_code != 201:
                break
            acknowledged.append(number)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/storage_unavailable")
        assert sorted(ledger(client)) == acknowledged
        disk.grow(server)
        assert client.post("/observations", json=numbered(len(acknowledged))).status_code in (200, 201)
        assert sorted(ledger(client)) == [*acknowledged, len(acknowledged)]
    assert server.stop() == 0
    (refused,) = [line for line in server.log if line.get("event") == "storage_unavailable"]
    assert refused["cause"]
    assert refused["request_id"] == answer.json()["request_id"]


def test_a_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the clock jumps back a day, posts without a time go on, ids stay apart, and nothing stored moves."""
    now, later = observations.utc_now(), time.time_ns()
    day = 86_400
    with TestClient(create_app(Settings(database=f"sqlite:///{tmp_path / 'kvyield.db'}"))) as client:
        bodies = [start(id=None, observed_at=None, host=f"gpu-{number}") for number in range(20)]
        first = [client.post("/observations", json=body).json() for body in bodies[:10]]
        monkeypatch.setattr(observations, "utc_now", lambda: now.replace(year=now.year - 1))
        monkeypatch.setattr(time, "time_ns", lambda: later - day * 10**9)
        second = [client.post("/observations", json=body).json() for body in bodies[10:]]
        items = client.get("/observations").json()["items"]
    assert len({item["id"] for item in first + second}) == 20
    assert [item["id"] for item in items[:10]] == [item["id"] for item in reversed(first)]
    assert {item["id"] for item in items[10:]} == {item["id"] for item in second}
