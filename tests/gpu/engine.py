"""The engine under trial: its command line, its process, its log, and when it is ready."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvyield._errors import TuneError
from kvyield.tune.commandline import edit, engine_of

PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000, "lmdeploy": 23333}
"""The ports that the engines' own documentation gives as defaults."""
STOP_SECONDS = 60.0
POLL_SECONDS = 0.25
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class EngineError(Exception):
    """The engine could not be started or stopped; the text says why."""


def command_of(text: str) -> tuple[dict[str, str], list[str]]:
    """The environment and the words of an engine command, as a shell would take them. Raises EngineError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise EngineError(f"the engine command cannot be read as a shell would: {error}") from None
    environment = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if not words:
        raise EngineError("give the command that starts the engine, such as 'vllm serve MODEL --port 8000'")
    return environment, words


def address_of(words: Sequence[str]) -> str:
    """The address on this host that a command line serves at: its --port, else the engine's default. EngineError."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--port":
            port = value if equals else following
            if not port.isdecimal():
                raise EngineError(f"--port of the engine command is {port!r}; expected a number")
            return f"http://127.0.0.1:{port}"
    for engine, number in PORTS.items():
        if any(engine in word for word in words):
            return f"http://127.0.0.1:{number}"
    raise EngineError("which port does the engine serve at? give --server http://127.0.0.1:PORT")


def with_advice(
    environment: Mapping[str, str], words: Sequence[str], changes: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, str], list[str]]:
    """The command with the flags that an advice changes, edited as ``kvyield tune`` does. Raises EngineError."""
    try:
        engine = engine_of(words)
        if engine is None:
            raise EngineError(f"which engine does this start? {shlex.join(words)}")
        edited = edit(words, engine, {change["flag"]: change["to"] for change in changes}, environment)
    except TuneError as error:
        raise EngineError(f"the advice cannot be put into the engine command: {error}") from None
    return edited.environment, list(edited.argv)


class Engine:
    """One start of the engine in a process group of its own, everything it prints in ``log``."""

    def __init__(self, environment: Mapping[str, str], words: Sequence[str], server: str, log: Path) -> None:
        self.words = list(words)
        self.log = log
        self.seconds_to_ready: float | None = None
        self._server = server
        if _answers(f"{server}/v1/models"):
            raise EngineError(f"something serves at {server} already: stop it, or give the engine another --port")
        with log.open("wb") as output:
            self._began = time.monotonic()
            try:
                self._process = subprocess.Popen(
                    self.words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(f"{self.words[0]} cannot be started: {error.strerror or error}") from None

    def wait(self, seconds: float) -> bool:
        """Waits until the engine answers. False when it ended first. Raises EngineError after ``seconds``."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._process.poll() is not None:
                return False
            if _answers(f"{self._server}/health") and _answers(f"{self._server}/v1/models"):
                self.seconds_to_ready = time.monotonic() - self._began
                return True
            time.sleep(POLL_SECONDS)
        raise EngineError(f"the engine did not answer at {self._server} within {seconds:.0f} s; its log: {self.log}")

    def stop(self) -> float:
        """Ends the engine and all that it started, and returns how long that took."""
        began = time.monotonic()
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        return time.monotonic() - began

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _answers(url: str) -> bool:
    """Whether the address answers; an engine that wants its key does too."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(200 <= reply.status < 300)
    except urllib.error.HTTPError as error:
        return error.code in (401, 403, 404)
    except (OSError, ValueError):
        return False
