"""An engine that a command of the user's own restarts, after a file with its flags was written.

The file is one line of flags (``args``), a unit or drop-in of systemd, or a compose file. Flags that are not asked for,
comments and all other text stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from kvyield._disk import reason_of, remove_file, replace_file
from kvyield._errors import TuneError
from kvyield._wire import Scalar
from kvyield.processes import engine_on, pids, variable_of
from kvyield.sources import Source
from kvyield.tune import commandline, composefile, unitfile
from kvyield.tune.launchers import Snapshot, State
from kvyield.tune.splicing import Span, shell_words, spliced

Form = Literal["args", "systemd", "compose"]

VARIABLE = "KVYIELD_FLAGS"
"""What the drop-in of ``kvyield recommend --format systemd`` sets, and an ``ExecStart=`` of the user's own reads."""
COMMAND_SECONDS = 600.0
POLL_SECONDS = 0.1
MARK = "KVYIELD_TUNE_RESTART"
_SHELL = f'unset {MARK}; /bin/sh -c "$1"; exit $?'
"""Runs the restart command beneath a shell that alone keeps the mark: neither the command nor the engine that it starts
has it. ``exit`` keeps the shell from replacing itself by the command."""
LARGEST_BYTES = 1 << 20
_OPERATOR = re.compile(r"[^\s'\"\\$`]*[|&;<>]|`")
"""Unquoted, at the beginning of a word or after plain characters."""


@dataclass(frozen=True)
class _Change:
    """A file's text with other flags, and the words of the command in it."""

    text: str
    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass
class Written:
    """``engine`` is needed where the file holds flags alone. ``url`` tells whether the engine runs."""

    path: Path
    form: Form
    restart_command: str
    engine: str | None = None
    url: str | None = None
    command_seconds: float = COMMAND_SECONDS
    _pid: int | None = field(default=None, init=False)
    _is_started: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.restart_command.strip():
            raise TuneError("--restart-command is empty: give the command that starts the engine with the new file")
        self.path = Path(os.path.abspath(self.path.expanduser()))

    @property
    def name(self) -> str:
        """The file."""
        return f"the engine of {self.path}"

    @property
    def key(self) -> str:
        """The file itself, by whichever name it is reached."""
        return f"file-{hashlib.sha256(os.path.realpath(self.path).encode()).hexdigest()[:16]}"

    def learn(self, engine: str) -> None:
        """Takes the engine where the file holds flags alone and no option names it."""
        self.engine = self.engine or engine

    def snapshot(self) -> Snapshot:
        """The file's text and mode; that there is none."""
        text = self._text()
        mode = None if text is None else self.path.stat().st_mode & 0o7777
        return {"file": str(self.path), "content": text, "mode": mode}

    def describe(self, flags: Mapping[str, Scalar]) -> list[str]:
        """The command or the flags as they would be, the file and the restart."""
        change = self._changed(flags)
        return [shlex.join(change.argv), f"written to {self.path}; then: {self.restart_command}", *change.notes]

    def apply(self, flags: Mapping[str, Scalar]) -> None:
        """Writes the file."""
        change = self._changed(flags)
        if change.text != self._text():
            self._write(change.text, None)

    def stop(self) -> bool:
        """False: only the restart command can end the engine."""
        return False

    def restart(self) -> None:
        """Runs the restart command, which must return once the engine is being started.

        One that a killed run has left is waited for first: two at once may start two engines.

        Raises:
            TuneError: its status is not 0, or it does not return in time; with its own last words.
        """
        self._pid, self._is_started = None, False
        self._await_left()
        with tempfile.TemporaryFile() as output:  # a pipe would stay open in an engine that the command leaves behind
            try:
                process = subprocess.Popen(  # noqa: S603  # the user's own command
                    ["/bin/sh", "-c", _SHELL, "sh", self.restart_command],
                    env={**os.environ, MARK: self.key},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # the terminal's interrupt is not for it
                )
            except OSError as error:
                raise TuneError(f"--restart-command could not be run: {reason_of(error)}") from error
            status = _waited(process, self.command_seconds)
            output.seek(0, os.SEEK_END)
            output.seek(max(0, output.tell() - 2000))
            words = " ".join(output.read().decode(errors="replace").split())[-500:]
        if status is None:
            raise TuneError(
                f"`{self.restart_command}` did not return within {self.command_seconds:.0f} s and was ended; it must "
                "start the engine in the background"
            )
        if status != 0:
            raise TuneError(f"`{self.restart_command}` ended with status {status}: {words or 'it said nothing'}")
        self._is_started = True

    def restore(self, snapshot: Snapshot) -> None:
        """Puts the file's former content back, or removes it if there was none."""
        if snapshot.get("file") != str(self.path):
            raise TuneError(f"the snapshot is of {snapshot.get('file')}, not of {self.path}")
        if snapshot["content"] is not None:
            if self.snapshot() != snapshot:
                self._write(snapshot["content"], snapshot["mode"])
            return
        try:
            remove_file(self.path)
        except OSError as error:
            raise TuneError(f"{self.path} could not be removed: {reason_of(error)}") from error

    def restore_commands(self, snapshot: Snapshot) -> list[str]:
        """What a person would type."""
        path, content = shlex.quote(str(self.path)), snapshot["content"]
        back = f"rm -f {path}" if content is None else f"printf %s {shlex.quote(content)} > {path}"
        return [back, self.restart_command]

    def state(self) -> State:
        """Whether the engine's process runs.

        Where this host does not see it (a container's behind a proxy) it is taken for running once the restart command
        has succeeded: its log and its server tell the rest.
        """
        if self.pid() is not None:
            return "running"
        if self._pid is not None:  # it was seen, and is gone
            return "failed"
        return "running" if self._is_started or self._answers() else "stopped"

    def pid(self) -> int | None:
        """The engine's process, where it is on this host and listens on the server's port or names it."""
        port = self._port()
        found = engine_on(port) if port else None
        if found is None:
            return None
        self._pid = found.pid
        return found.pid

    def log_source(self) -> Source | None:
        """None: a file with flags does not tell where the engine logs."""
        return None

    def _await_left(self) -> None:
        """Waits for the restart commands of killed runs; ends those that do not return in time, as `restart` does."""
        ends = time.monotonic() + self.command_seconds
        while left := [pid for pid in pids() if variable_of(pid, MARK) == self.key]:
            if time.monotonic() >= ends:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)

    def _port(self) -> int | None:
        with contextlib.suppress(ValueError):
            parts = urlsplit(self.url or "")
            if parts.hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0"):  # noqa: S104  # read, not bound
                return parts.port
        return None

    def _answers(self) -> bool:
        """Whether something listens where the engine's server is."""
        with contextlib.suppress(OSError, ValueError):
            parts = urlsplit(self.url or "")
            if parts.hostname and parts.port:
                with socket.create_connection((parts.hostname, parts.port), timeout=2.0):
                    return True
        return False

    def _text(self) -> str | None:
        try:
            with self.path.open("rb") as file:
                content = file.read(LARGEST_BYTES + 1)
            if len(content) > LARGEST_BYTES:
                raise TuneError(
                    f"--write {self.path} is larger than 1 MiB: name the file that holds the engine's flags"
                )
            return content.decode()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise TuneError(f"--write {self.path} is not text in UTF-8") from error
        except OSError as error:
            raise TuneError(f"--write {self.path} cannot be read: {reason_of(error)}") from error

    def _write(self, text: str, mode: int | None) -> None:
        try:
            replace_file(self.path, text.encode(), mode=mode)
        except OSError as error:
            raise TuneError(f"--write {self.path} could not be written: {reason_of(error)}") from error

    def _changed(self, flags: Mapping[str, Scalar]) -> _Change:
        text = self._text()
        try:
            if self.form == "compose":
                return self._compose(text, flags)
            return self._systemd(text or "", flags) if self.form == "systemd" else self._args(text or "", flags)
        except TuneError as error:
            raise TuneError(f"--write {self.path}: {error}") from error

    def _compose(self, text: str | None, flags: Mapping[str, Scalar]) -> _Change:
        if text is None:
            raise TuneError("there is no such file; a compose file must hold the engine's whole command")
        return _Change(*composefile.edited(text, flags, self.restart_command))

    def _args(self, text: str, flags: Mapping[str, Scalar]) -> _Change:
        spans = shell_words(text)
        for one in spans:
            if _OPERATOR.match(text[one.begin : one.end]):
                raise TuneError(f"it holds a shell's {text[one.begin : one.end]!r}: kvyield edits flags or one command")
        argv = tuple(one.text for one in spans)
        edited = commandline.edit(argv, self._engine(argv), flags)
        new = spliced(text, spans, edited.argv, edited.origins, shlex.quote)
        return _Change(new if not new or new.endswith("\n") else f"{new}\n", edited.argv, edited.notes)

    def _engine(self, argv: tuple[str, ...]) -> str:
        engine = commandline.engine_of(argv) or self.engine
        if engine is None:
            raise TuneError("it names no engine: --engine says which it is")
        return engine

    def _systemd(self, text: str, flags: Mapping[str, Scalar]) -> _Change:
        """Edits ``ExecStart=`` where the file has the engine's, else the variable of ``recommend --format systemd``."""
        entries = [one for one in unitfile.placed_entries(text) if one.section == "Service" and one.value]
        known = dict(
            pair for one in entries if one.key == "Environment" for pair in unitfile.assignments(one.value, {})
        )
        starts = [one for one in entries if one.key == "ExecStart"]
        if len(starts) > 1:
            raise TuneError(f"it has {len(starts)} ExecStart=, where kvyield edits exactly one")
        if starts:
            command = unitfile.command(starts[0].value, known, {})
            edited = commandline.edit(command.argv, self._engine(command.argv), flags, known)
            if edited.environment != known:
                raise TuneError("variables of the engine cannot be set in it: use --unit")
            value = command.written(edited.argv, edited.origins)
            new = text if edited.argv == command.argv else _with_value(text, starts[0], f"ExecStart={value}")
            return _Change(new, edited.argv, edited.notes)
        return self._variable(text, entries, flags)

    def _variable(self, text: str, entries: list[unitfile.Entry], flags: Mapping[str, Scalar]) -> _Change:
        found: tuple[unitfile.Entry, unitfile.Word] | None = None
        for entry in entries:
            if entry.key == "Environment":
                for word in unitfile.words(entry.value):
                    found = (entry, word) if word.text.startswith(f"{VARIABLE}=") else found
        old = found[1].text.partition("=")[2].replace("%%", "%") if found else ""
        argv = tuple(word.text for word in unitfile.words(old))
        edited = commandline.edit(argv, self._engine(argv), flags)
        if found and edited.argv == argv:
            return _Change(text, argv, edited.notes)
        spans = [Span(word.text, word.begin, word.end) for word in unitfile.words(old)]
        new = spliced(old, spans, edited.argv, edited.origins, _variable_word)
        assignment = unitfile.quoted(f"{VARIABLE}={new}", has_variables=False)
        if not found:
            head = text if not text or text.endswith("\n") else f"{text}\n"
            section = "" if _last_section(head) == "Service" else "[Service]\n"
            return _Change(f"{head}{section}Environment={assignment}\n", edited.argv, edited.notes)
        entry, word = found
        value = entry.value[: word.begin] + assignment + entry.value[word.end :]
        return _Change(_with_value(text, entry, f"Environment={value}"), edited.argv, edited.notes)


def _variable_word(word: str) -> str:
    """A word inside a variable that systemd splits: quoted as there, nothing doubled."""
    return unitfile.quoted(word, has_variables=False).replace("%%", "%")


def _last_section(text: str) -> str:
    heads = [line.strip() for line in text.splitlines() if line.strip().startswith("[") and line.strip().endswith("]")]
    return heads[-1][1:-1] if heads else ""


def _with_value(text: str, entry: unitfile.Entry, line: str) -> str:
    """The text with another line for an entry; comments between the lines that it had go before it."""
    lines = text.split("\n")
    comments = [one for one in lines[entry.first : entry.last + 1] if one.lstrip().startswith(("#", ";"))]
    return "\n".join([*lines[: entry.first], *comments, line, *lines[entry.last + 1 :]])


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The status of a command, None when it had to be ended. An interruption leaves it to finish by itself."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(1.0)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None
