"""A real server process on a free port, as an operator starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

COMMAND = [sys.executable, "-m", "kvyield_server"]


class Server:
    """``kvyield-server serve`` in a process of its own; its log lines are kept."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.log: list[dict[str, object]] = []
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", *options],
            cwd=folder,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._serving = threading.Event()
        self.url = ""
        self._reader.start()
        if not self._serving.wait(60) or not self.url:
            raise RuntimeError(f"the server did not start: {self.log}")

    def client(self) -> httpx.Client:
        """Return an HTTP client of the server."""
        return httpx.Client(base_url=self.url, timeout=30)

    def kill(self) -> None:
        """End the process at once, as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask the process to stop and return its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(60)
        self._reader.join(10)
        if self.process.stderr:
            self.process.stderr.close()
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            entry = parsed(line)
            self.log.append(entry)
            if entry.get("event") == "serving":
                self.url = str(entry["url"])
                self._serving.set()
        self._serving.set()


def parsed(line: str) -> dict[str, object]:
    """Return a log line, as an object also when it is plain text."""
    try:
        entry: dict[str, object] = json.loads(line)
    except json.JSONDecodeError:
        return {"text": line.rstrip()}
    return entry


def environment() -> dict[str, str]:
    """Return this process's environment without settings of kvyield."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KVYIELD_")}


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run another command of ``kvyield-server`` in a folder."""
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
