"""A host for ``tune``: a home, GPUs, a port, a stand-in engine's command line, and a ledger that real HTTP serves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvyield import Client, StoredObservation
from kvyield.tune.child import began_of, left_in

TESTS = Path(__file__).resolve().parent
BASE = ("--mem-fraction-static", "0.85", "--max-running-requests", "64", "--context-length", "32768")
TARGET = "200k"


class Host:
    """One GPU host with the worked case's hardware. ``standin`` says how its next engine starts behave."""

    def __init__(self, folder: Path, url: str, *, release_seconds: float = 0.0) -> None:
        self.folder, self.url = folder, url
        self.port = free_port()
        self.model = f"moonshotai/Kimi-K2.6-{folder.name}-{self.port}"
        self.standin: dict[str, Any] = {}
        self._runs: list[Running] = []
        gpus = {"folder": str(folder / "gpus"), "count": 8, "total_gib": 95.0, "release_seconds": release_seconds}
        (folder / "home").mkdir(parents=True, exist_ok=True)
        paths = [str(TESTS), str(TESTS / "standin" / "engines")]
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("KVYIELD_")}
        self.environ |= {"HOME": str(folder / "home"), "KVYIELD_URL": url, "PYTHONPATH": os.pathsep.join(paths)}
        self.environ |= {"STANDIN_GPUS": json.dumps(gpus), "PYTHONUNBUFFERED": "1"}
        self.environ["PATH"] = os.pathsep.join([str(TESTS / "standin" / "engines" / "bin"), self.environ["PATH"]])
        self.environ.pop("XDG_STATE_HOME", None)

    @property
    def engine(self) -> list[str]:
        """The command line before tune."""
        return [sys.executable, "-m", "sglang.launch_server", "--model-path", self.model, "--port", str(self.port)]

    @property
    def server(self) -> str:
        """Where the engine answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> Path:
        """The folder of the journals."""
        return self.folder / "home" / ".local" / "state" / "kvyield" / "tune"

    def tune(self, *options: str, engine: list[str] | None = None, flags: tuple[str, ...] = BASE) -> Running:
        """Starts ``kvyield tune`` with an engine's command line."""
        command = ["--target-tokens", TARGET, "--stop-timeout", "4", *options, "--", *(engine or self.engine), *flags]
        return self.run(*command)

    def run(self, *words: str) -> Running:
        """Starts ``kvyield tune`` with these words."""
        environ = {**self.environ, "STANDIN": json.dumps(self.standin)}
        running = Running([sys.executable, "-m", "kvyield", "tune", *words], environ, self.folder)
        self._runs.append(running)
        return running

    def rows(self) -> list[StoredObservation]:
        """The ledger's starts of this host's model, oldest first."""
        with Client(self.url) as client:
            return list(client.observations(model=self.model))[::-1]

    def flags_running(self) -> dict[str, Any] | None:
        """What the engine that answers runs with, by its own words; None when none answers."""
        import urllib.request
        from http.client import HTTPException

        try:
            with urllib.request.urlopen(f"{self.server}/server_info", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, HTTPException):  # it may end in the middle of its answer
            return None
        return found

    def engines(self) -> list[int]:
        """Engines that run now, whoever started them."""
        return [one.pid for one in left_in(self.state / f"starts-sglang-{self.port}")]

    def clean(self) -> None:
        """Ends whatever was left, also by a test that failed: runs of ``tune`` first, which would start engines."""
        for running in self._runs:
            running.kill()
        for pid in self.engines():
            os.kill(pid, signal.SIGKILL)


class Running:
    """A ``tune`` that runs. Its output goes to files, as a service's does."""

    def __init__(self, command: list[str], environ: dict[str, str], folder: Path) -> None:
        stem = folder / f"tune-{time.monotonic_ns()}"
        self._out, self._err = stem.with_suffix(".out"), stem.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._err.read_text(errors="replace")

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of ``--json``: all that is on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]

    def wait_for(self, text: str, seconds: float = 180.0) -> None:
        """Waits until it said something."""
        until(lambda: text in self.err or self.process.poll() is not None, seconds)
        assert text in self.err, self.err

    def end(self, number: int = signal.SIGTERM, seconds: float = 120.0) -> int:
        """Sends a signal and waits for the end."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """As a power cut would."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def code(self, seconds: float = 240.0) -> int:
        """Waits for it to end by itself."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds:.0f} s: {self.err}") from None


def until(holds: Callable[[], object], seconds: float = 180.0) -> None:
    """Waits until something holds."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it never held"
        time.sleep(0.02)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    return began_of(pid) is None
