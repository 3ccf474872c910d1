"""Bad days of a host, against the real service: killed clients, a full disk, a service away for a day."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from _samples_client import sample
from _soak import soak
from e2e.running import Server
from kvyield import Client, SpoolError
from kvyield._disk import write_atomically
from kvyield._transfer import Limits
from kvyield.cli import main
from kvyield.cli import spooling as command
from kvyield.delivery import spool_observations
from kvyield.spool import Spool

DAY_SECONDS = 86_400.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on a disk that holds a few observations: a real one of 64 KB where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    is_real = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    if not is_real:
        monkeypatch.setattr("kvyield.spool.write_atomically", _until_full(write_atomically))
    yield folder
    if is_real:
        subprocess.run(["umount", str(folder)], check=True)


def _until_full(write: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    def limited(path: Path, content: bytes) -> None:
        if len(list(path.parent.glob("*.json"))) >= 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    return limited


def test_clients_killed_at_random_moments_lose_and_double_nothing(server: Server, tmp_path: Path) -> None:
    """Twelve clients of one spool, killed one after the other, leave every promised start in the ledger once."""
    told = soak(server.url, tmp_path / "spool", kills=12, seed=3)
    assert (told.kills, told.lost, told.doubled) == (12, set(), [])
    assert len(told.promised) >= 12


def test_a_full_disk_loses_nothing_that_was_promised(server: Server, small_disk: Path) -> None:
    """What fitted on the disk is whole, what did not goes to the service directly, and once there is room all is."""
    spool = Spool(small_disk / "spool")
    promised = 0
    while promised < 1000:
        try:
            spool.add(sample(promised))
        except SpoolError:
            break
        promised += 1
    assert 0 < promised < 1000
    assert [item.observation for item in spool.items()] == [sample(number) for number in range(promised)]
    with Client(server.url) as client:
        assert [one.result for one in spool_observations([sample(5000)], spool).send(client)] == ["stored"]
        assert spool.items() == []
        assert [one.result for one in spool_observations([sample(5001)], spool).send(client)] == ["stored"]
        assert len(list(client.observations())) == promised + 2


class Clock:
    """A clock that sleeping moves on at once; ``pauses`` keeps what was slept."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._then = then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        was, self.now = self.now, self.now + seconds
        if was < DAY_SECONDS <= self.now:
            self._then()


def test_a_service_away_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of waiting costs a try a minute or less, jittered; when the service is back everything arrives, once."""
    spool = Spool(tmp_path / "spool")
    for number in range(50):
        spool.add(sample(number))
    first = Server(tmp_path)
    url, port = first.url, first.url.rpartition(":")[2]
    first.stop()
    back: list[Server] = []
    clock = Clock(lambda: back.append(Server(tmp_path, "--port", port)))
    monkeypatch.setattr(command, "time", clock)
    monkeypatch.setenv("KVYIELD_SPOOL", str(spool.root))
    monkeypatch.setattr(command, "client_of", lambda _: Client(url, limits=Limits(retries=0)))
    result = CliRunner().invoke(main, ["spool", "send", "--wait", str(int(2 * DAY_SECONDS))])
    try:
        assert (result.exit_code, result.stdout) == (0, "sent 50, refused 0, waiting 0\n"), result.output
        assert 1400 < len(clock.pauses) < 3000
        assert max(clock.pauses) <= 60.0
        assert len(set(clock.pauses[10:])) > 1000
        with Client(url) as client:
            assert len(list(client.observations())) == 50
    finally:
        for server in back:
            server.stop()
