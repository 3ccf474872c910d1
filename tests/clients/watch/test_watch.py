"""``kvyield watch``: every start is posted once, through rotation, deaths and restarts of the watch itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import standin
from e2e.running import Server
from kvyield import Client, _wire
from kvyield.assemble import Extras
from kvyield.cli.watch import unit_text
from kvyield.engines import Sourced
from kvyield.watching import BookmarkFile, Watch, follow_file
from standin import Config
from standin.logs import oom_lines
from standin.logs_sglang import sglang_lines
from standin.memory import plan

EXTRAS = Extras(options={"gpu": Sourced("NVIDIA L4", "option"), "gpu_count": Sourced(8, "option")})
READY = datetime(2026, 5, 30, 22, 0, tzinfo=UTC)


def start(minutes: int = 0, fraction: float = 0.94, *, dies: bool = False) -> list[bytes]:
    """The log of one start that was ready ``minutes`` after the first."""
    config = Config(fraction=fraction, tp_size=2)
    lines = [*sglang_lines(config, plan(config), READY + timedelta(minutes=minutes))]
    return [f"{line}\n".encode() for line in [*lines, *(oom_lines(config) if dies else [])]]


class Kept:
    """What a watch brought, in a bookmark file that outlives it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state" / "watch.json"
        self.brought: list[_wire.Observation] = []
        self.said: list[str] = []
        self.kept = True

    def watch(self) -> Watch:
        """A watch as after a restart."""
        return Watch(BookmarkFile(self.path), EXTRAS, self._bring, self.said.append)

    def pools(self) -> list[tuple[str, int | None]]:
        """Outcome and pool tokens of what was brought."""
        return [(one.outcome, one.measurements.pool_tokens) for one in self.brought]

    def _bring(self, observation: _wire.Observation) -> tuple[bool, str]:
        if self.kept:
            self.brought.append(observation)
        return self.kept, "stored"


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Nothing brought yet."""
    return Kept(tmp_path)


def test_a_start_is_brought_as_soon_as_it_is_ready(kept: Kept) -> None:
    """Nothing more has to be logged, and the source need not end."""

    def lines() -> Iterator[bytes]:
        yield from start()
        assert kept.pools() == [("ready", 218_484)]

    kept.watch().follow(lines())
    assert len(kept.brought) == 1


LISTEN = (
    "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
    "print(s.getsockname()[1], flush=True); time.sleep(60)"
)


def test_the_time_of_a_start_begins_with_its_process(kept: Kept) -> None:
    """Where the engine's process is on this host, the seconds before its first log line count."""
    command = [sys.executable, "-c", LISTEN, "sglang.launch_server", Config().model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        config = Config(fraction=0.94, tp_size=2, port=int(process.stdout.readline()))
        ready = datetime.now(UTC) + timedelta(seconds=380)
        lines = [f"{line}\n".encode() for line in sglang_lines(config, plan(config), ready)]
        kept.watch().follow(iter(lines))
        alone = Kept(kept.path.parent / "elsewhere")
        elsewhere = alone.watch()
        elsewhere.is_local = False
        elsewhere.follow(iter(lines))
        process.kill()
    (here,), (there,) = kept.brought, alone.brought
    assert here.id == there.id
    assert there.measurements.startup_seconds == 360
    assert here.measurements.startup_seconds == pytest.approx(380, abs=3)


def test_a_start_that_crashes_later_is_posted_once_more(kept: Kept) -> None:
    """A run-time OOM is evidence of its own."""
    kept.watch().follow(iter(start(dies=True)))
    assert kept.pools() == [("ready", 218_484), ("oom_runtime", 218_484)]


def test_a_refused_start_is_brought_too(kept: Kept) -> None:
    """Failures are in the ledger like successes."""
    kept.watch().follow(iter([*start(fraction=0.75), *start(10)]))
    assert kept.pools() == [("refused", None), ("ready", 218_484)]


def test_a_log_that_is_read_again_brings_nothing_twice(kept: Kept) -> None:
    """A watch that was stopped and started knows what it has brought, and goes on with what is new."""
    kept.watch().follow(iter([*start(), *start(20, 0.92)]))
    kept.watch().follow(iter([*start(), *start(20, 0.92), *start(40, 0.85)]))
    assert [tokens for _, tokens in kept.pools()] == [218_484, 192_406, 101_131 + 3]


def test_the_bookmark_is_just_before_the_last_start(kept: Kept) -> None:
    """A journal is read again from there, so that a start that was under way is seen whole."""
    kept.watch().follow(iter(start()))
    since = BookmarkFile(kept.path).mark.since
    assert since == READY - timedelta(seconds=362)


def test_what_could_not_be_kept_is_brought_again(kept: Kept) -> None:
    """An observation that reached neither service nor disk is not marked as done."""
    kept.kept = False
    kept.watch().follow(iter(start()))
    kept.kept = True
    kept.watch().follow(iter(start()))
    assert len(kept.brought) == 1


def test_a_damaged_bookmark_is_as_none(kept: Kept) -> None:
    """Reading begins anew; the service knows by content what it has."""
    kept.path.parent.mkdir()
    kept.path.write_bytes(b"\x00{")
    kept.watch().follow(iter(start()))
    assert len(kept.brought) == 1


def test_a_disk_that_takes_no_bookmark_is_said_and_survived(kept: Kept) -> None:
    """The watch goes on."""
    kept.path.parent.write_text("a file where the folder should be")
    kept.watch().follow(iter(start()))
    assert len(kept.brought) == 1
    assert any("could not be written" in line for line in kept.said)


class Follower:
    """Follows a file in a thread and keeps its lines."""

    def __init__(self, path: Path, bookmark: BookmarkFile) -> None:
        self.lines: list[bytes] = []
        self.stopped = threading.Event()
        self._source = follow_file(path, bookmark, self.stopped, poll_seconds=0.01)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for(self, *lines: bytes) -> None:
        """Waits until exactly these lines have come."""
        ends = time.monotonic() + 60
        while self.lines != list(lines) and time.monotonic() < ends:
            time.sleep(0.005)
        assert self.lines == list(lines)

    def end(self) -> None:
        """Stops following."""
        self.stopped.set()
        self._thread.join()

    def _run(self) -> None:
        for line in self._source:
            self.lines.append(line)


@contextmanager
def following(path: Path) -> Iterator[Follower]:
    follower = Follower(path, BookmarkFile(path.parent / "state.json"))
    try:
        yield follower
    finally:
        follower.end()


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_a_file_is_followed_from_before_it_exists_through_rotation(tmp_path: Path) -> None:
    """Lines come whole and in order when the file appears, grows, is renamed and begins anew."""
    log = tmp_path / "engine.log"
    with following(log) as follower:
        append(log, b"a\nb")
        follower.wait_for(b"a\n")
        append(log, b"c\n")
        follower.wait_for(b"a\n", b"bc\n")
        log.rename(tmp_path / "engine.log.1")
        append(tmp_path / "engine.log.1", b"late\n")
        append(log, b"new\n")
        follower.wait_for(b"a\n", b"bc\n", b"late\n", b"new\n")


def test_a_file_that_is_emptied_in_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Rotation by copy and truncation is followed too."""
    log = tmp_path / "engine.log"
    append(log, b"a long first line\n")
    with following(log) as follower:
        follower.wait_for(b"a long first line\n")
        os.truncate(log, 0)
        time.sleep(0.05)
        append(log, b"b\n")
        follower.wait_for(b"a long first line\n", b"b\n")


def test_a_file_that_was_rotated_while_nobody_watched_is_read_first(tmp_path: Path) -> None:
    """A start that was logged between two watches is not lost with the rotation."""
    log = tmp_path / "engine.log"
    append(log, b"a\n")
    with following(log) as follower:
        follower.wait_for(b"a\n")
    append(log, b"b\n")
    log.rename(tmp_path / "engine.log-20260530")
    append(log, b"c\n")
    with following(log) as follower:
        follower.wait_for(b"a\n", b"b\n", b"c\n")


@contextmanager
def watching(log: Path, service: Server, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``kvyield watch`` in a process of its own, killed without warning at the end."""
    command = [sys.executable, "-m", "kvyield", "watch", "--log", str(log), "--gpu", "NVIDIA L4", "--no-gpu"]
    environ = {**os.environ, "HOME": str(home), "KVYIELD_URL": service.url, "KVYIELD_SPOOL": str(home / "spool")}
    process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends, "it never held"
        time.sleep(0.05)


def test_two_starts_and_a_killed_watch_are_two_rows(tmp_path: Path) -> None:
    """Real engines write one log, the watch is killed between them, and the ledger has each start once."""
    log, service = tmp_path / "engine.log", Server(tmp_path)
    with Client(service.url) as client:

        def pools() -> list[int | None]:
            return [row.measurements.pool_tokens for row in client.observations()]

        with watching(log, service, tmp_path), standin.start(log_path=log, startup_seconds=900):
            wait_until(lambda: pools() == [218_484])
        with standin.start(log_path=log, fraction=0.92), watching(log, service, tmp_path):
            wait_until(lambda: pools() == [192_406, 218_484])
        with watching(log, service, tmp_path), standin.start(log_path=log, fraction=0.75, startup_seconds=10):
            wait_until(lambda: len(pools()) == 3)
        assert pools() == [None, 192_406, 218_484]
    service.stop()


def test_a_journal_that_ends_is_opened_again_from_the_last_start(tmp_path: Path) -> None:
    """``journalctl`` is asked for everything once, then only for what is since just before the last start."""
    journal, asked = tmp_path / "journal", tmp_path / "asked"
    prefix = b"2026-05-30T22:00:00.000000+00:00 gpu-01 sglang[7]: "
    journal.write_bytes(b"".join(prefix + line for line in start()))
    tool = tmp_path / "journalctl"
    tool.write_text(f'#!/bin/sh\necho "$*" >> {asked}\ncat {journal}\n')
    tool.chmod(0o755)
    service = Server(tmp_path)
    environ = {**os.environ, "HOME": str(tmp_path), "KVYIELD_URL": service.url}
    environ |= {"KVYIELD_SPOOL": str(tmp_path / "spool"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [
        sys.executable,
        "-m",
        "kvyield",
        "watch",
        "--journal",
        "sglang.service",
        "--gpu",
        "NVIDIA L4",
        "--no-gpu",
    ]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: asked.exists() and len(asked.read_text().splitlines()) >= 2)
        first, second = asked.read_text().splitlines()[:2]
        assert "--follow" in first
        assert "--since" not in first
        assert second.partition("--since ")[2].startswith("2026-05-30 21:59:58 UTC")
        with Client(service.url) as client:
            assert len(list(client.observations())) == 1
    finally:
        process.kill()
        process.wait()
        service.stop()


def test_the_unit_runs_this_very_watch_and_holds_no_token() -> None:
    """The command line is kept, with blanks and percent signs as systemd wants them; the secret is not."""
    given = {"journal": "sglang.service", "log_file": None, "docker": None, "kubernetes": None}
    words = [
        "watch",
        "--journal",
        "sglang.service",
        "--token",
        "s3cret",
        "--token=s3cret",
        "--gpu",
        "L4 100%",
        "--unit",
    ]
    text = unit_text(words, given)
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert line.startswith("ExecStart=/")
    assert line.endswith('kvyield watch --journal sglang.service --gpu "L4 100%%"')
    assert "s3cret" not in text
    assert "Restart=always" in text


def test_a_users_own_unit_is_watched_by_a_unit_of_that_user(tmp_path: Path) -> None:
    """For a unit of the user's own the watch runs as that user, with nothing that only the system may ask for."""
    given = {"journal": "user:sglang.service", "log_file": None, "docker": None, "kubernetes": None}
    text = unit_text(["watch", "--journal", "user:sglang.service"], given)
    assert "--journal user:sglang.service\n" in text
    assert "WantedBy=default.target" in text
    assert not {"DynamicUser", "SupplementaryGroups", "ProtectSystem"} & {
        line.split("=")[0] for line in text.splitlines()
    }
    (tmp_path / "kvyield-watch.service").write_text(text)
    if shutil.which("systemd-analyze"):
        command = ["systemd-analyze", "--user", "verify", "--man=no", str(tmp_path / "kvyield-watch.service")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert "kvyield-watch.service:" not in done.stderr, done.stderr


def test_a_log_file_is_absolute_in_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit has no working directory of the person who asked for it."""
    monkeypatch.chdir(tmp_path)
    given = {"journal": None, "log_file": "engine.log", "docker": None, "kubernetes": None}
    assert f"--log {tmp_path / 'engine.log'}\n" in unit_text(["watch", "--log", "engine.log"], given)
