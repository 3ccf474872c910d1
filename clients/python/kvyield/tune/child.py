"""``-- COMMAND``: the engine as a child of ``tune``.

The engine writes to files of its own, not to a pipe: a pipe breaks when ``tune`` is killed, and would take the engine
with it. ``tune`` passes on what comes. Each start has a folder::

    <folder>/<nanoseconds>/command.json   the command line as it was started
    <folder>/<nanoseconds>/out, err       what the engine writes
    <folder>/<nanoseconds>/out.head, ...  the beginning of a file that was emptied since it grew too large

An engine that outlives a killed ``tune`` is found by a variable of its environment, which holds that folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvyield._disk import reason_of, write_atomically
from kvyield._errors import TuneError
from kvyield._wire import Scalar
from kvyield.processes import pids, variable_of
from kvyield.sources import Source
from kvyield.tune import commandline
from kvyield.tune.launchers import Snapshot, State

MARK = "KVYIELD_TUNE_START"
PROC = Path("/proc")
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
KEPT_STARTS = 3
LARGEST_OUTPUT_BYTES = 256 * 2**20
HEAD_BYTES = 8 * 2**20
BLOCK_BYTES = 2**16
PORTS = {"sglang": 30000, "vllm": 8000, "tensorrt-llm": 8000, "lmdeploy": 23333}
"""The engines' own defaults of ``--port`` (``--server-port`` of LMDeploy)."""
STREAMS = ("out", "err")


@dataclass
class Engine:
    """A process that `Child` started, or one that an earlier run of ``tune`` started and left."""

    pid: int
    folder: Path
    began: str | None
    """Field 22 of ``/proc/PID/stat``: with the pid it names one process for good."""
    process: subprocess.Popen[bytes] | None = None
    status: int | None = None
    is_asked: bool = False
    """Whether it was asked to end."""

    def poll(self) -> int | None:
        """The exit status; None while it runs. Of a process that is not this one's child 1 stands for any."""
        if self.status is None:
            if self.process is not None:
                self.status = self.process.poll()
            elif began_of(self.pid) != self.began:
                self.status = 1
        return self.status

    def send(self, number: int, *, to_all: bool = False) -> None:
        """Sends a signal to it, or to its whole group."""
        if self.poll() is not None:
            return
        self.is_asked = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if to_all else os.kill)(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within so many seconds."""
        ends = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() >= ends:
                return False
            time.sleep(POLL_SECONDS)
        return True


@dataclass
class Child:
    """The engine as a child process. ``argv`` and ``environment`` are what the next start gets.

    ``folder`` holds the starts' output. ``streams`` are this process's own file descriptors that the engine's standard
    output and error are passed on to.
    """

    argv: list[str]
    engine: str
    folder: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    streams: tuple[int, int] = (1, 2)
    stop_seconds: float = STOP_SECONDS
    running: Engine | None = field(default=None, init=False)
    _relays: list[_Relay] = field(default_factory=list, init=False)

    @property
    def name(self) -> str:
        """The program and its subcommand."""
        return f"the command {' '.join(self.argv[:3])} ..."

    @property
    def key(self) -> str:
        """Engine and port: two engines of one host cannot share a port."""
        return f"child-{self.engine}-{self.port}"

    @property
    def port(self) -> int:
        """The port that the command line names, else the engine's own default."""
        return port_of(self.argv, self.engine)

    @property
    def url(self) -> str:
        """Where the engine answers, as seen from this host."""
        return url_of(self.argv, self.engine)

    def learn(self, engine: str) -> None:
        """Checks that the log, which an option may name, is of the engine that the command starts."""
        if engine != self.engine:
            raise TuneError(f"the log is of {engine}, and the command starts {self.engine}: --engine says which it is")

    def snapshot(self) -> Snapshot:
        """The command line, and the variables that an edit has changed."""
        changed = {name: value for name, value in self.environment.items() if os.environ.get(name) != value}
        return {"argv": list(self.argv), "environment": changed}

    def describe(self, flags: Mapping[str, Scalar]) -> list[str]:
        """The command line as it would be, and the editor's notes."""
        edited = self._edited(flags)
        return [_shell(edited.argv), *edited.notes]

    def apply(self, flags: Mapping[str, Scalar]) -> None:
        """Edits the command line of the next start."""
        edited = self._edited(flags)
        self.argv, self.environment = list(edited.argv), dict(edited.environment)

    def restore(self, snapshot: Snapshot) -> None:
        """Takes a command line back."""
        self.argv = list(snapshot["argv"])
        self.environment = {**os.environ, **snapshot.get("environment", {})}

    def restore_commands(self, snapshot: Snapshot) -> list[str]:
        """The command line for a shell."""
        variables = [f"{name}={value}" for name, value in snapshot.get("environment", {}).items()]
        return [_shell([*(["env", *variables] if variables else []), *snapshot["argv"]])]

    def restart(self) -> None:
        """Ends the engine that runs, and starts it with the present command line."""
        self.stop()
        folder = self.folder / f"{time.time_ns():020d}"
        try:
            folder.mkdir(mode=0o700, parents=True)
            write_atomically(folder / "command.json", msgspec.json.encode(self.snapshot()))
            with contextlib.ExitStack() as stack:
                out, err = (stack.enter_context(_appended(folder / name)) for name in STREAMS)
                process = subprocess.Popen(  # noqa: S603  # the user's own command, no shell
                    self.argv,
                    env={**self.environment, MARK: str(folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,  # the terminal's interrupt comes to it once, from tune
                )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise TuneError(f"{self.argv[0]} could not be started: {reason_of(error)}") from error
        self._took(Engine(process.pid, folder, began_of(process.pid), process))
        self._forget_old()

    def stop(self) -> bool:
        """Asks the engine to end, twice, then ends it and whatever it left."""
        engine = self.running
        if engine is not None and engine.poll() is None:
            if not engine.is_asked:
                engine.send(signal.SIGTERM)
            if not engine.wait(self.stop_seconds / 2):
                engine.send(signal.SIGTERM, to_all=True)  # some engines drain at the first, and end at the second
                engine.wait(self.stop_seconds / 2)
        if engine is not None:
            _end_all(engine)
        self.rest()
        return True

    def rest(self) -> None:
        """Waits until all that the engine wrote is passed on."""
        for relay in self._relays:
            relay.end()
        self._relays.clear()

    def state(self) -> State:
        """Whether the process runs; one that ended with a status other than 0 has failed."""
        status = self.running.poll() if self.running else 0
        return "running" if status is None else "failed" if status else "stopped"

    def pid(self) -> int | None:
        """The process, while it runs."""
        return self.running.pid if self.running and self.running.poll() is None else None

    def log_source(self) -> Source | None:
        """All that the present start has written so far."""
        if self.running is None:
            return None
        folder = self.running.folder
        return Source(f"the output of {self.name}", lambda: lines_of(folder))

    def tail_since_now(self) -> _Tail:
        """Reads, when called, what the present start has written since this moment."""
        return _Tail([self.running.folder / name for name in STREAMS] if self.running else [])

    def left(self) -> Engine | None:
        """An engine that an earlier run started and that runs still."""
        return max(left_in(self.folder), key=lambda one: one.folder.name, default=None)

    def adopt(self, engine: Engine) -> None:
        """Takes an engine that an earlier run started as the present one; its command line too."""
        self.restore(command_of(engine))
        self._took(engine, is_new=False)

    def _took(self, engine: Engine, *, is_new: bool = True) -> None:
        self.running = engine
        pairs = zip(STREAMS, self.streams, strict=True)
        self._relays = [_Relay(engine.folder / name, target, from_end=not is_new) for name, target in pairs]

    def _edited(self, flags: Mapping[str, Scalar]) -> commandline.Edited:
        return commandline.edit(self.argv, self.engine, dict(flags), self.environment)

    def _forget_old(self) -> None:
        for old in sorted(self.folder.iterdir())[:-KEPT_STARTS]:
            shutil.rmtree(old, ignore_errors=True)


class _Relay:
    """Passes on what is written to a file, in a thread of its own; empties the file when it has grown too large."""

    def __init__(self, path: Path, target: int, *, from_end: bool = False) -> None:
        self._path, self._target = path, target
        self._from_end = from_end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvyield-relay", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError), self._path.open("r+b", buffering=0) as file:
            if self._from_end:
                file.seek(0, os.SEEK_END)
            while True:
                is_last = self._over.is_set()
                while block := file.read(BLOCK_BYTES):
                    self._pass_on(block)
                if is_last:
                    return
                if file.tell() > LARGEST_OUTPUT_BYTES:
                    _empty(file, self._path)
                self._over.wait(POLL_SECONDS)

    def _pass_on(self, block: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads it now: the engine keeps serving
            while block:
                block = block[os.write(self._target, block) :]


def _empty(file: object, path: Path) -> None:
    """Empties a file that was passed on whole. What is written in this very moment may be lost; the start is kept."""
    head = path.with_name(f"{path.name}.head")
    if not head.exists():
        with path.open("rb") as whole:
            write_atomically(head, whole.read(HEAD_BYTES))
    os.truncate(path, 0)
    file.seek(0)  # type: ignore[attr-defined]  # a raw file


class _Tail:
    def __init__(self, paths: Sequence[Path]) -> None:
        self._sizes = {path: path.stat().st_size for path in paths if path.exists()}

    def __call__(self) -> str:
        return "\n".join(self._since(path, size) for path, size in self._sizes.items())

    def _since(self, path: Path, size: int) -> str:
        try:
            with path.open("rb") as file:
                file.seek(size if path.stat().st_size >= size else 0)
                return file.read(4 * 2**20).decode(errors="replace")
        except OSError:
            return ""


def lines_of(folder: Path) -> Iterator[bytes]:
    """The lines of one start: standard output, then standard error; engines log to one of the two."""
    for name in STREAMS:
        for path in (folder / f"{name}.head", folder / name):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                yield from file


def port_of(argv: Sequence[str], engine: str) -> int:
    """The port that a command line names, else the engine's own default. Raises `TuneError` for one that is none."""
    told = _option(argv, ("--port", "--server-port", "--server_port"))
    if told is not None and not (told.isdecimal() and 0 < int(told) < 2**16):
        raise TuneError(f"--port {told} is not a port: a number from 1 to 65535")
    return int(told) if told else PORTS[engine]


def url_of(argv: Sequence[str], engine: str) -> str:
    """Where an engine with this command line answers, as seen from this host."""
    host = _option(argv, ("--host", "--server-name", "--server_name")) or ""
    if host in ("", "0.0.0.0", "::", "localhost"):  # noqa: S104  # read, not bound
        host = "127.0.0.1"
    port = port_of(argv, engine)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def left_in(folder: Path) -> list[Engine]:
    """The engines that runs with this folder have started and that run now."""
    return [one for pid in pids() if (one := _left(pid, folder)) is not None]


def command_of(engine: Engine) -> Snapshot:
    """The command line that an engine was started with. Raises `TuneError`."""
    try:
        snapshot: Snapshot = msgspec.json.decode((engine.folder / "command.json").read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise TuneError(f"what process {engine.pid} was started with cannot be read: {error}") from error
    return snapshot


def began_of(pid: int) -> str | None:
    """When a process was started, in clock ticks since boot; None when there is none, or only its remains."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _left(pid: int, folder: Path) -> Engine | None:
    """The process, when it leads a session and its environment says that it is a start in ``folder``."""
    place = _mark_of(pid)
    if place is None or place.parent != folder:
        return None
    with contextlib.suppress(OSError):
        if os.getsid(pid) == pid:
            return Engine(pid, place, began_of(pid))
    return None


def _mark_of(pid: int) -> Path | None:
    place = variable_of(pid, MARK)
    return Path(place) if place is not None else None


def _end_all(engine: Engine) -> None:
    """Ends what an engine left: its group, and workers in sessions of their own, which hold GPU memory."""
    if engine.poll() is None:
        engine.send(signal.SIGKILL, to_all=True)
    for pid in pids():
        if pid != os.getpid() and _mark_of(pid) == engine.folder:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    engine.wait(5.0)


@contextlib.contextmanager
def _appended(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _option(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """The last value of an option, as ``--name value`` or ``--name=value``."""
    found = None
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else argv[index + 1] if index + 1 < len(argv) else None
    return found


def _shell(argv: Sequence[str]) -> str:
    import shlex

    return shlex.join(argv)
