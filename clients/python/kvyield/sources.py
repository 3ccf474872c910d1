"""Where logs come from, each as lines of bytes read lazily: files, compressed ones too, stdin, journald, containers.

Of a line longer than `LONGEST_LINE_BYTES` only the head comes (and what a progress bar left on the terminal last), so
that a binary file by mistake does not fill the memory; of one source at most `MOST_BYTES` are read.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import os
import re
import selectors
import shutil
import stat
import subprocess
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from glob import glob
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from kvyield import _bounded
from kvyield._bounded import LONGEST_LINE_BYTES, MOST_BYTES, PIECE_BYTES, Bounded, PatientPipe, pieces
from kvyield._errors import SourceError

_LOG_NAME = re.compile(r"^[^.].*\.(log|txt|out|err)\b|^(stdout|stderr|syslog|messages)\b")
USER_UNIT = "user:"
ANY_ZONE = timedelta(days=1)
EXIT_SECONDS = 5.0
UTF8_MARK, UTF16_MARKS = codecs.BOM_UTF8, (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _zstd(file: BinaryIO) -> IO[bytes]:
    """A zstd file by the standard library (Python 3.14) or the package zstandard. Raises `SourceError` with neither."""
    openers: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("compression.zstd", lambda zstd: zstd.ZstdFile(file)),
        ("zstandard", lambda zstd: zstd.ZstdDecompressor().stream_reader(file, read_across_frames=True)),
    )
    for module, opened in openers:
        with suppress(ImportError):
            return io.BufferedReader(opened(importlib.import_module(module)))
    raise SourceError(
        "the log is compressed with zstd, which needs the package zstandard: pip install 'kvyield[zstd]', or "
        "`zstd -dc FILE | kvyield observe -`"
    )


_OPENERS: dict[bytes, Callable[[BinaryIO], IO[bytes]]] = {
    b"\x1f\x8b": lambda file: cast("IO[bytes]", gzip.GzipFile(fileobj=file)),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _zstd,
}
_BROKEN = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)


class _AsUtf8(io.RawIOBase):
    """A file in UTF-16, as Windows' shells write it, read as UTF-8."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)("replace")
        self._text = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            raw = self._file.read(PIECE_BYTES)
            self._text = self._decoder.decode(raw, final=not raw).encode("utf-8", "replace")
            if not raw:
                break
        taken = self._text[: len(buffer)]
        buffer[: len(taken)] = taken
        self._text = self._text[len(taken) :]
        return len(taken)


@dataclass
class Source:
    """A log by name. ``lines`` may be called once; ``notes`` holds what a person should know after reading.

    ``written_until`` is a time after the log's last line, in whatever zone its stamps are: it gives those without a
    year theirs.
    """

    name: str
    lines: Callable[[], Iterator[bytes]]
    is_local: bool = True
    notes: list[str] = field(default_factory=list)
    written_until: datetime = field(default_factory=lambda: datetime.now(timezone.utc) + ANY_ZONE)


def file_source(path: str | Path, *, most_bytes: int = MOST_BYTES) -> Source:
    """A plain or compressed file (.gz, .bz2, .xz, .zst, told by its content), or a pipe that somebody writes to."""
    notes: list[str] = []
    source = Source(str(path), lambda: _file_lines(Path(path), notes, most_bytes), notes=notes)
    with suppress(OSError):  # a file that is not there is an error when its lines are read
        source.written_until = datetime.fromtimestamp(Path(path).stat().st_mtime, timezone.utc) + ANY_ZONE
    return source


def stdin_source(*, most_bytes: int = MOST_BYTES) -> Source:
    """Standard input, plain or compressed."""
    notes: list[str] = []
    name = "standard input"
    return Source(name, lambda: _opened_lines(sys.stdin.buffer, name, notes, most_bytes), notes=notes)


def journal_source(unit: str, *, since: str | None = None, follow: bool = False) -> Source:
    """The journal of a systemd unit, ``user:UNIT`` for one of this user's own, with full times in UTC.

    Progress bars are included, which journalctl hides else.
    """
    owner, _, own = unit.partition(USER_UNIT)
    chosen = ["--unit", unit] if owner else ["--user-unit", own]
    command = ["journalctl", *chosen, "--output", "short-iso-precise", "--utc", "--all", "--no-pager", "--quiet"]
    command += ["--since", since] if since else []
    command += ["--follow", "--lines", "all"] if follow else []
    hint = "is systemd running here, and may this user read the journal (group systemd-journal)?"
    return _command_source(f"journal of {unit}", command, hint, follow=follow)


def missing_unit(unit: str) -> str | None:
    """A sentence when systemd knows no such unit; None when it does, or cannot be asked."""
    owner, _, own = unit.partition(USER_UNIT)
    chosen = [unit] if owner else ["--user", own]
    command = ["systemctl", "show", "--property", "LoadState", *chosen]
    try:
        told = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=EXIT_SECONDS, check=True)  # noqa: S603  # no shell, a fixed program
    except (OSError, subprocess.SubprocessError):
        return None
    return (
        f"systemd knows no unit {own or unit} on this host" if told.stdout.strip() == b"LoadState=not-found" else None
    )


def docker_source(name: str, *, since: str | None = None, follow: bool = False) -> Source:
    """What a container wrote to both its outputs, with times (``docker logs``; podman's when docker is absent)."""
    tool = "docker" if shutil.which("docker") or not shutil.which("podman") else "podman"
    command = [tool, "logs", "--timestamps", *(["--since", since] if since else []), *(["--follow"] if follow else [])]
    hint = f"does `{tool} ps -a` list it, and may this user ask (group docker)?"
    return _command_source(f"container {name}", [*command, name], hint, follow=follow)


def kubernetes_source(
    pod: str,
    *,
    namespace: str | None = None,
    container: str | None = None,
    previous: bool = False,
    since: str | None = None,
    follow: bool = False,
) -> Source:
    """What a pod wrote, with times (``kubectl logs``); ``previous`` asks for the container that crashed before."""
    command = ["kubectl", "logs", "--timestamps", *(["--namespace", namespace] if namespace else [])]
    command += ["--container", container] if container else []
    command += ["--previous"] if previous else []
    command += [f"--since={since}"] if since else []
    command += ["--follow"] if follow else []
    hint = "does `kubectl get pods` list it? --namespace and --container choose one"
    source = _command_source(f"pod {pod}", [*command, pod], hint, follow=follow)
    source.is_local = False
    return source


def expand(names: Sequence[str]) -> list[Path]:
    """The files that names stand for: files, folders with their logs, globs. Raises when one stands for nothing."""
    found: dict[Path, None] = {}
    for name in names:
        matches = (
            [Path(name)] if os.path.lexists(name) else [Path(match) for match in sorted(glob(name, recursive=True))]
        )
        files = [file for match in matches for file in _files_below(match)]
        if not files:
            raise SourceError(_nothing(name))
        found |= dict.fromkeys(files)
    return list(found)


def _files_below(path: Path) -> list[Path]:
    if path.exists() and not path.is_dir() and not path.is_file():
        raise SourceError(f"{path} is not a regular file; `kvyield observe -` reads a pipe")
    if not path.is_dir():
        return [path]
    found = (Path(folder) / name for folder, _, names in os.walk(path) for name in names if _LOG_NAME.search(name))
    return sorted(file for file in found if file.is_file())


def _nothing(name: str) -> str:
    if Path(name).is_dir():
        return f"the folder {name} holds no *.log*, *.txt, *.out or *.err; name other files yourself"
    if any(sign in name for sign in "*?["):
        return f"no file fits {name}"
    return _missing(Path(name))


def _missing(path: Path) -> str:
    parent = next((folder for folder in path.absolute().parents if folder.exists()), Path("/"))
    where = f"the folder {parent} holds no {path.name}" if parent == path.absolute().parent else f"{parent} exists"
    return f"there is no file {path} ({where}); give the engine's log file, or - for standard input"


def _file_lines(path: Path, notes: list[str], most_bytes: int) -> Iterator[bytes]:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise SourceError(f"{path} is a folder; give one log file, or `kvyield import {path}` for all below it")
        with PatientPipe(path) if stat.S_ISFIFO(mode) else path.open("rb") as file:
            yield from _opened_lines(cast("BinaryIO", file), str(path), notes, most_bytes)
    except FileNotFoundError:
        raise SourceError(_missing(path)) from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error


def _opened_lines(file: BinaryIO, name: str, notes: list[str], most_bytes: int) -> Iterator[bytes]:
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", file))
    head = buffered.peek(8)
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    try:
        text = _plain(opener(buffered) if opener else buffered)
        yield from pieces(Bounded(text, name, notes, most_bytes, buffered if opener else None))
    except Exception as error:
        if not isinstance(error, _BROKEN) and type(error).__name__ != "ZstdError":  # of whichever module there is
            raise
        notes.append(f"{name} ends in the middle or is damaged ({error}); what came before was read")


def _plain(file: IO[bytes]) -> IO[bytes]:
    """The text as UTF-8 without its byte order mark."""
    text = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", file))
    head = text.peek(4)[:4]
    if head.startswith(UTF8_MARK):
        text.read(len(UTF8_MARK))
    elif head.startswith(UTF16_MARKS):
        return io.BufferedReader(_AsUtf8(text, "utf-16"))
    elif len(head) == 4 and head[1::2] == b"\0\0" and b"\0" not in head[::2]:
        return io.BufferedReader(_AsUtf8(text, "utf-16-le"))
    return text


def _command_source(name: str, command: list[str], hint: str, *, follow: bool) -> Source:
    silence = None if follow else _bounded.SILENCE_SECONDS
    return Source(name, lambda: _command_lines(name, command, hint, silence))


def _command_lines(name: str, command: list[str], hint: str, silence: float | None) -> Iterator[bytes]:
    if not shutil.which(command[0]):
        raise SourceError(
            f"the {name} cannot be read: there is no {command[0]} on this host; --log FILE or - reads text"
        )
    last: deque[bytes] = deque(maxlen=3)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # noqa: S603  # no shell, and the program is one of three
    except OSError as error:
        raise SourceError(f"the {name} cannot be read: {error}") from error
    with process:
        try:
            for line in _split(_chunks(process, name, silence)):
                last.append(line)
                yield line
            process.wait(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        finally:
            _stop(process)
    if process.returncode != 0:
        words = b" ".join(line.strip() for line in last).decode(errors="replace")[-500:]
        raise SourceError(f"the {name} cannot be read: {command[0]} says {words!r}; {hint}")


def _chunks(process: subprocess.Popen[bytes], name: str, silence: float | None) -> Iterator[bytes]:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(silence):
                raise SourceError(f"the {name} was silent for {silence:.0f} s without coming to its end")
            chunk = os.read(process.stdout.fileno(), 2**16)
            if not chunk:
                return
            yield chunk


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(rest) > 2 * LONGEST_LINE_BYTES:
            rest = rest[:LONGEST_LINE_BYTES] + rest[-PIECE_BYTES:]
    if rest:
        yield rest


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
