"""Starting a stand-in engine in its own process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from standin.config import Config, Engine, Faults
from standin.memory import FreeMemoryFile

TESTS = Path(__file__).resolve().parent.parent


@dataclasses.dataclass
class Standin:
    """A running (or refused) stand-in engine. ``free`` reads its GPUs; close it, or use it as a context manager."""

    url: str
    log_path: Path
    config: Config
    process: subprocess.Popen[str]
    free: FreeMemoryFile
    folder: tempfile.TemporaryDirectory[str]

    def __enter__(self) -> Standin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self) -> Sequence[float]:
        """Free GiB of each GPU now: a stand-in is a reader of its own memory."""
        return self.free.read()

    def set_faults(self, **faults: object) -> None:
        """Replaces the faults of the running stand-in; those not named are off."""
        self._control("faults", dataclasses.asdict(dataclasses.replace(Faults(), **faults)))  # type: ignore[arg-type]  # field names are checked by replace

    def counts(self) -> dict[str, int]:
        """How many prompts and flushes there were."""
        return dict(self._control("counts", {}))

    def close(self) -> None:
        """Ends the process and removes its files."""
        self.process.kill()
        self.process.communicate()
        self.free.close()
        self.folder.cleanup()

    def _control(self, what: str, body: object) -> dict[str, int]:
        request = urllib.request.Request(f"{self.url}/standin/{what}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))


def start(
    engine: Engine = "sglang", *, faults: Faults | None = None, log_path: Path | None = None, **settings: Any
) -> Standin:
    """Starts a stand-in of ``engine`` and waits until it is ready, or until it refused to start.

    ``settings`` are fields of ``Config``. A start that the memory model refuses has an empty ``url``; its log says why.
    An existing ``log_path`` is appended to, as a journal would be.
    """
    defaults: dict[str, dict[str, object]] = {
        "vllm": {"version": "0.26.0", "speculative_algorithm": None},
        "openai": {"speculative_algorithm": None},
    }
    chosen = {**defaults.get(engine, {}), **settings}
    config = Config(engine=engine, faults=faults or Faults(), **chosen)
    folder = tempfile.TemporaryDirectory(prefix="kvyield-standin-")
    free_path = Path(folder.name) / "free"
    free = FreeMemoryFile(free_path, config.tp_size)
    log = log_path or Path(folder.name) / "engine.log"
    command = [sys.executable, "-m", "standin.server", str(log), str(free_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
    standin = Standin("", log, config, process, free, folder)
    try:
        standin.url = _address(process, config)
    except BaseException:
        standin.close()
        raise
    return standin


def _address(process: subprocess.Popen[str], config: Config) -> str:
    """Hands the configuration over and waits for the address: a line on standard output, or its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    timer = threading.Timer(30, process.kill)
    timer.start()
    try:
        process.stdin.write(json.dumps(dataclasses.asdict(config)) + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()
    finally:
        timer.cancel()
