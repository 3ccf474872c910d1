"""An engine that systemd starts: its flags are changed by a drop-in of kvyield's own, and by nothing else.

The unit's own files are read and never written. ``NAME.service.d/zz-kvyield-tune.conf`` clears ``ExecStart=`` and sets
it anew; removing the file puts back what was there.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvyield._disk import reason_of, remove_file, replace_file
from kvyield._errors import TuneError
from kvyield._wire import Scalar
from kvyield.sources import USER_UNIT, Source, file_source, journal_source
from kvyield.tune import commandline, unitfile
from kvyield.tune.launchers import Snapshot, State

DROP_IN = "zz-kvyield-tune.conf"
MARK = "# Written by kvyield tune. `kvyield tune --undo` removes it."
ASK_SECONDS = 30.0
CHANGE_SECONDS = 600.0
"""systemd itself bounds a stop by TimeoutStopSec, 90 s by default, and the start of a simple service at once."""

_NAME = re.compile(r"(?!\.)[A-Za-z0-9:_.\\@-]{1,255}")
_SUFFIXES = frozenset(
    ["service", "socket", "target", "timer", "mount", "automount", "swap", "path", "slice", "scope", "device"]
)
_WAITS_FOR_READY = frozenset(("notify", "notify-reload", "dbus", "forking", "oneshot"))
_DEPENDANTS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf")
_FILES = ("Id", "LoadState", "UnitFileState", "FragmentPath", "DropInPaths", "NeedDaemonReload")
_NAMED = re.compile(r"\$\{?(\w+)")
_NOTE = re.compile(r"^# It replaces this ExecStart= of the unit: sha256 ([0-9a-f]{16})$", re.MULTILINE)
_FILE_OUTPUT = re.compile(r"(?:file|append|truncate):(.+)")


@dataclass(frozen=True)
class _Service:
    """What the unit's files say.

    ``environment`` is what they set, ``unit_environment`` without the drop-in of kvyield. ``is_private``: a word of the
    command comes from a file, or one of the files is not for all to read. ``last_file`` sets ``ExecStart=``. ``base``
    stands for the ``ExecStart=`` that the drop-in replaces, ``noted`` for the one that it was made of, if there is one.
    """

    command: unitfile.Command
    environment: dict[str, str]
    unit_environment: dict[str, str]
    is_private: bool
    output: str | None
    last_file: str
    base: str
    noted: str | None


@dataclass
class Unit:
    """A service of systemd, of the system or (``is_user``) of the user who runs this."""

    unit: str
    is_user: bool = False
    _restarts: int | None = field(default=None, init=False)
    _restarted_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        given = self.unit
        if given.rpartition(".")[2] not in _SUFFIXES:
            self.unit = f"{given}.service"
        if not _NAME.fullmatch(self.unit) or not self.unit.endswith(".service"):
            raise TuneError(f"--unit {given}: give the name of a service, for example sglang.service")
        if self.unit.endswith("@.service"):
            raise TuneError(f"--unit {given} is a template: name an instance, for example {given[:-8]}0.service")

    @property
    def name(self) -> str:
        """The unit's name."""
        return f"the {'user ' if self.is_user else ''}unit {self.unit}"

    @property
    def key(self) -> str:
        """The unit's name, with its manager."""
        return f"{'user-' if self.is_user else ''}unit-{self.unit}"

    @property
    def drop_in(self) -> Path:
        """The one file that is written."""
        return self._folder / f"{self.unit}.d" / DROP_IN

    @property
    def engine(self) -> str:
        """The engine that the unit starts.

        Raises:
            TuneError: it starts none that kvyield knows.
        """
        return self._engine_of(self._service())

    @property
    def argv(self) -> tuple[str, ...]:
        """The words that the engine is started with, variables replaced where they are known."""
        return self._service().command.argv

    def learn(self, engine: str) -> None:
        """Checks that the log is of the engine that the unit starts."""
        if engine != self.engine:
            raise TuneError(f"the log is of {engine}, and {self.unit} starts {self.engine}: name the unit's own log")

    def snapshot(self) -> Snapshot:
        """The drop-in as it is; that there is none."""
        self._engine_of(self._service())
        return {"drop_in": str(self.drop_in), "content": self._own_content()}

    def describe(self, flags: Mapping[str, Scalar]) -> list[str]:
        """The command as it would be, and the file."""
        service = self._service()
        edited = self._edited(service, flags)
        return [shlex.join(edited.argv), f"written as {self.drop_in}", *edited.notes]

    def apply(self, flags: Mapping[str, Scalar]) -> None:
        """Writes the drop-in and has systemd read it.

        Raises:
            TuneError: the unit cannot be changed so that it can be put back, or systemd did not take the drop-in.
        """
        service = self._service()
        edited = self._edited(service, flags)
        if edited.argv == service.command.argv and edited.environment == service.environment:
            return
        note = f"# It replaces this ExecStart= of the unit: sha256 {service.base}"
        lines = [
            MARK,
            note,
            "[Service]",
            "ExecStart=",
            f"ExecStart={service.command.written(edited.argv, edited.origins)}",
        ]
        own = service.unit_environment
        for name in sorted({*edited.environment, *own}):
            value, before = edited.environment.get(name), own.get(name)
            if value is None:
                lines.append(f"UnsetEnvironment={name}")
            elif value != before:
                lines.append(f"Environment={unitfile.quoted(f'{name}={value}', has_variables=False)}")
        self._write("\n".join([*lines, ""]), mode=0o600 if service.is_private else 0o644)
        self._reload()
        taken = self._service()
        if taken.last_file != str(self.drop_in) or taken.command.argv != edited.argv:
            raise TuneError(
                f"{self.unit} would not start with the new flags: {taken.last_file} has the last word on ExecStart="
            )

    def stop(self) -> bool:
        """Ends the service, unless that would end others with it which a restart would start again."""
        if any(self._show(*_DEPENDANTS).values()):
            return False
        self._control("stop")
        return True

    def restart(self) -> None:
        """Starts the service anew by ``systemctl restart``; what has failed before does not count against it."""
        shown = self._show("Type", "MainPID")
        with contextlib.suppress(TuneError):
            self._control("reset-failed")  # StartLimitBurst counts the starts that tune makes
        if shown.get("Type") in _WAITS_FOR_READY:
            self._control("--no-block", "restart")
            self._await_another(shown.get("MainPID", "0"))
        else:
            self._control("restart")
        self._restarts = _number(self._show("NRestarts").get("NRestarts"))
        self._restarted_at = time.time()

    def restore(self, snapshot: Snapshot) -> None:
        """Puts the drop-in back, or removes it with the folder that was made for it."""
        path, content = self._checked_place(snapshot), snapshot["content"]
        if content is None:
            self._own_content()
            try:
                remove_file(path)
                with contextlib.suppress(OSError):  # other drop-ins are in it
                    path.parent.rmdir()
            except OSError as error:
                raise TuneError(f"{path} could not be removed: {reason_of(error)}{self._hint(error)}") from error
        elif self._own_content() != content:
            self._write(content, mode=None)
        self._reload()

    def restore_commands(self, snapshot: Snapshot) -> list[str]:
        """What a person would type."""
        path, content = shlex.quote(str(snapshot["drop_in"])), snapshot["content"]
        systemctl = shlex.join(self._systemctl())
        back = f"rm -f {path}" if content is None else f"printf %s {shlex.quote(content)} > {path}"
        return [back, f"{systemctl} daemon-reload", f"{systemctl} restart {shlex.quote(self.unit)}"]

    def state(self) -> State:
        """Whether the service runs; one that systemd has started again by itself since `restart` has failed."""
        shown = self._show("ActiveState", "SubState", "NRestarts")
        state, restarts = shown.get("ActiveState", ""), _number(shown.get("NRestarts"))
        if self._restarts is None:
            self._restarts = restarts
        if state == "failed" or "auto-restart" in shown.get("SubState", "") or restarts > self._restarts:
            return "failed"
        return "running" if state in ("active", "reloading", "activating", "deactivating") else "stopped"

    def pid(self) -> int | None:
        """The service's main process."""
        return _number(self._show("MainPID").get("MainPID")) or None

    def log_source(self) -> Source | None:
        """The file that the service writes to, else its journal since the last restart."""
        output = _FILE_OUTPUT.fullmatch(self._service().output or "")
        if output:
            return file_source(output[1])
        since = None if self._restarted_at is None else f"@{self._restarted_at - 1:.0f}"
        return journal_source(f"{USER_UNIT if self.is_user else ''}{self.unit}", since=since, follow=True)

    @property
    def _folder(self) -> Path:
        if not self.is_user:
            return Path("/etc/systemd/system")
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"

    def _edited(self, service: _Service, flags: Mapping[str, Scalar]) -> commandline.Edited:
        engine = self._engine_of(service)
        if service.noted not in (None, service.base):
            raise TuneError(
                f"ExecStart= of {self.unit} was changed since {self.drop_in} was written, which hides the change: "
                "remove that file (kvyield tune --undo), then run again"
            )
        return commandline.edit(service.command.argv, engine, flags, service.environment)

    def _engine_of(self, service: _Service) -> str:
        try:
            engine = commandline.engine_of(service.command.argv)
        except TuneError as error:
            raise TuneError(f"{self.unit}: {error}") from error
        if engine is None:
            raise TuneError(
                f"{self.unit} starts {shlex.join(service.command.argv[:4])}, which is not an engine that kvyield knows"
            )
        return engine

    def _service(self) -> _Service:
        """What the unit's files say, checked against what systemd says of them."""
        shown = self._show(*_FILES)
        self._refuse(shown)
        paths = [path for path in [shown.get("FragmentPath", ""), *shlex.split(shown.get("DropInPaths", ""))] if path]
        texts = {path: self._text(path) for path in paths}
        own = str(self.drop_in)
        if shown.get("NeedDaemonReload") == "yes" and own not in paths and not self.drop_in.exists():
            raise TuneError(f"the files of {self.unit} were changed and not read: run systemctl daemon-reload first")
        return _read(self.unit, texts, own, is_user=self.is_user)

    def _refuse(self, shown: Mapping[str, str]) -> None:
        """Raise for a unit that could not be put back."""
        load, file = shown.get("LoadState"), shown.get("UnitFileState")
        where = f"systemctl {'--user ' if self.is_user else ''}status {self.unit}"
        other = "without" if self.is_user else "with"
        if load == "not-found":
            raise TuneError(f"systemd knows no unit {self.unit}; is it meant {other} --user?")
        if load == "masked" or file in ("masked", "masked-runtime"):
            raise TuneError(f"{self.unit} is masked: systemctl unmask it first")
        if load != "loaded":
            raise TuneError(f"systemd could not load {self.unit} ({load}): see {where}")
        if file == "transient":
            raise TuneError(f"{self.unit} is transient (systemd-run): it is gone when it stops and cannot be put back")
        if shown.get("Id", self.unit) != self.unit:
            raise TuneError(f"{self.unit} is another name of {shown['Id']}: give --unit {shown['Id']}")

    def _text(self, path: str) -> str:
        try:
            return Path(path).read_bytes().decode()
        except UnicodeDecodeError as error:
            raise TuneError(f"{path} is not text in UTF-8") from error
        except OSError as error:
            raise TuneError(f"{path} could not be read: {reason_of(error)}{self._hint(error)}") from error

    def _own_content(self) -> str | None:
        """The drop-in's text, None where there is none.

        Raises:
            TuneError: there is one that kvyield did not write.
        """
        if not self.drop_in.exists():
            return None
        content = self._text(str(self.drop_in))
        if not content.startswith(MARK):
            raise TuneError(f"{self.drop_in} was not written by kvyield: move it away, it is not overwritten")
        return content

    def _checked_place(self, snapshot: Snapshot) -> Path:
        if snapshot.get("drop_in") != str(self.drop_in):
            raise TuneError(f"the snapshot is of {snapshot.get('drop_in')}, not of {self.drop_in}")
        return self.drop_in

    def _write(self, content: str, mode: int | None) -> None:
        self._own_content()
        try:
            self.drop_in.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.drop_in, content.encode(), mode=mode)
        except OSError as error:
            raise TuneError(f"{self.drop_in} could not be written: {reason_of(error)}{self._hint(error)}") from error

    def _hint(self, error: OSError) -> str:
        return "; run it as root (sudo)" if isinstance(error, PermissionError) and not self.is_user else ""

    def _systemctl(self) -> list[str]:
        return ["systemctl", *(["--user"] if self.is_user else [])]

    def _reload(self) -> None:
        self._run("--no-ask-password", "daemon-reload", seconds=CHANGE_SECONDS)

    def _control(self, *words: str) -> None:
        self._run("--no-ask-password", *words, "--", self.unit, seconds=CHANGE_SECONDS)

    def _show(self, *properties: str) -> dict[str, str]:
        told = self._run("show", f"--property={','.join(properties)}", "--", self.unit, seconds=ASK_SECONDS)
        return dict(line.split("=", 1) for line in told.splitlines() if "=" in line)

    def _run(self, *words: str, seconds: float) -> str:
        command = [*self._systemctl(), *words]
        if not shutil.which(command[0]):
            raise TuneError("there is no systemctl on this host: start the engine with `kvyield tune -- COMMAND`")
        try:
            told = subprocess.run(  # noqa: S603  # no shell, a fixed program
                command,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=seconds,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            raise TuneError(f"`{shlex.join(command)}` did not end within {seconds:.0f} s") from error
        except OSError as error:
            raise TuneError(f"`{shlex.join(command)}` could not be run: {reason_of(error)}") from error
        if told.returncode != 0:
            said = " ".join((told.stderr or told.stdout).split())[-500:]
            raise TuneError(f"`{shlex.join(command)}` says: {said or f'status {told.returncode}'}")
        return told.stdout

    def _await_another(self, before: str) -> None:
        """Returns when the old process is gone and the service starts, or has failed to."""
        ends = time.monotonic() + CHANGE_SECONDS
        while time.monotonic() < ends:
            shown = self._show("ActiveState", "MainPID")
            if shown.get("ActiveState") == "failed" or shown.get("MainPID", "0") not in ("0", before):
                return
            time.sleep(0.1)
        raise TuneError(f"systemd did not restart {self.unit} within {CHANGE_SECONDS:.0f} s")


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _read(unit: str, texts: Mapping[str, str], own: str, *, is_user: bool) -> _Service:
    """The service as its files say, a later file over an earlier one."""
    found = _settings(texts)
    if len(found["ExecStart"]) != 1:
        number = len(found["ExecStart"]) or "no"
        raise TuneError(f"{unit} has {number} ExecStart=, where kvyield edits exactly one")
    value, last = found["ExecStart"][0]
    specifiers = _specifiers(unit, is_user=is_user)
    try:
        environment, from_files = _environment(found, specifiers)
        of_others = _settings({path: text for path, text in texts.items() if path != own})
        unit_environment, _ = _environment(of_others, specifiers)
        command = unitfile.command(value, environment, specifiers)
    except TuneError as error:
        raise TuneError(f"ExecStart= of {unit} ({last}) cannot be edited: {error}") from error
    expanded = {name for word in command.words for name in _NAMED.findall(word.text)}
    is_private = bool(expanded & from_files) or any(Path(path).stat().st_mode & 0o004 == 0 for path in texts)
    output = found["StandardOutput"][-1][0] if found["StandardOutput"] else None
    base = hashlib.sha256("\n".join(value for value, _ in of_others["ExecStart"]).encode()).hexdigest()[:16]
    note = _NOTE.search(texts.get(own, ""))
    return _Service(command, environment, unit_environment, is_private, output, last, base, note[1] if note else None)


def _settings(texts: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Values of the entries that matter here, with their files; an empty one clears those before it."""
    found: dict[str, list[tuple[str, str]]] = {
        key: [] for key in ("ExecStart", "Environment", "EnvironmentFile", "StandardOutput")
    }
    for path, text in texts.items():
        for section, key, value in unitfile.entries(text):
            if section == "Service" and key in found:
                found[key] = [*found[key], (value, path)] if value else []
    return found


def _environment(
    found: Mapping[str, Sequence[tuple[str, str]]], specifiers: Mapping[str, str]
) -> tuple[dict[str, str], frozenset[str]]:
    """Variables with their values, and the names of those that come from files, which win."""
    known = dict(pair for line, _ in found["Environment"] for pair in unitfile.assignments(line, specifiers))
    from_files = dict(_of_files([value for value, _ in found["EnvironmentFile"]], specifiers))
    return {**known, **from_files}, frozenset(from_files)


def _of_files(files: Sequence[str], specifiers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables of ``EnvironmentFile=``; a file that cannot be read leaves its variables unknown."""
    for given in files:
        pattern, _ = unitfile.specified(given.removeprefix("-").strip('"'), specifiers)
        for path in sorted(glob.glob(pattern)):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                yield from unitfile.environment_file(Path(path).read_bytes().decode())


def _specifiers(unit: str, *, is_user: bool) -> dict[str, str]:
    """Those of a unit's name, and its manager's home."""
    name = unit.removesuffix(".service")
    prefix, _, instance = name.partition("@")
    home = str(Path.home()) if is_user else "/root"
    plain = {"n": unit, "N": name, "p": prefix, "i": instance, "h": home, "j": prefix.rpartition("-")[2]}
    return plain | ({"I": instance, "P": prefix} if "\\" not in unit and "-" not in name else {})
