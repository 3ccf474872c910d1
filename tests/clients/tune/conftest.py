"""Fixtures of the tests of ``tune``: a host with a ledger; a ``systemctl`` on PATH, for hosts without systemd."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from _standin_hosts import Host
from e2e.running import Server

_TOLD = pytest.StashKey[bool]()
FAKE = Path(__file__).parents[2] / "_fake_systemctl.py"
ENGINE = """#!/bin/sh
printf '%s\\n' "$@" > "{place}.tmp" && mv "{place}.tmp" "{place}"
trap 'exit 0' TERM
[ -e "{place}.dies" ] && exit 1
while :; do sleep 0.02; done
"""


@dataclass
class Manager:
    """A user's systemd, faked, and an engine called ``vllm`` that keeps what it was started with."""

    folder: Path
    units: Path
    arguments: Path

    def write(self, unit: str, text: str) -> Path:
        """Make a unit, and have it read."""
        path = self.units / unit
        path.write_text(text)
        self.systemctl("daemon-reload")
        return path

    def systemctl(self, *words: str) -> str:
        """Run the fake."""
        told = subprocess.run(["systemctl", "--user", *words], capture_output=True, check=True, text=True)
        return told.stdout

    def calls(self) -> list[str]:
        """Verbs that changed something."""
        lines = (self.folder / "calls").read_text().splitlines()
        verbs = [next(word for word in shlex.split(line) if not word.startswith("-")) for line in lines]
        return [verb for verb in verbs if verb != "show"]

    def started_with(self) -> list[str]:
        """Words of the engine's last start."""
        ends = time.monotonic() + 60
        while not self.arguments.exists() and time.monotonic() < ends:
            time.sleep(0.01)
        words = self.arguments.read_text().splitlines()
        self.arguments.unlink()
        return words


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Manager]:
    """Nothing is running yet; what runs at the end is killed."""
    request.config.stash[_TOLD] = True
    state, programs, units = tmp_path / "state", tmp_path / "bin", tmp_path / "config" / "systemd" / "user"
    for folder in (state, programs, units):
        folder.mkdir(parents=True)
    found = Manager(state, units, tmp_path / "arguments")
    script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(str(FAKE))} "$@"\n'
    for name, text in (("systemctl", script), ("vllm", ENGINE.format(place=found.arguments))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FAKE_SYSTEMCTL_STATE", str(state))
    yield found
    for path in state.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(path.read_text()), signal.SIGKILL)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service that the tests of a module share; each has a model of its own in it."""
    server = Server(tmp_path_factory.mktemp("ledger"))
    yield server
    server.stop()


@pytest.fixture
def host(tmp_path: Path, ledger: Server) -> Iterator[Host]:
    """A host whose engines end with the test."""
    found = Host(tmp_path, ledger.url)
    yield found
    found.clean()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say that the unit was not systemd's."""
    if config.stash.get(_TOLD, False):
        terminalreporter.section("systemd")
        terminalreporter.line(f"tests of `--unit` ran against a FAKE systemctl, {FAKE.name}: no systemd was restarted")
