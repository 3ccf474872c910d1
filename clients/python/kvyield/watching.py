"""Following an engine's log without end: one observation as each start becomes ready, and one more if it crashes later.

Nothing is lost and nothing doubled over restarts of the watch itself: what was brought to the spool is remembered in a
small file, and reading goes on from the beginning of the last start that was seen.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvyield import _wire
from kvyield._disk import reason_of, write_atomically
from kvyield._errors import IncompleteError
from kvyield._ids import told_apart_id
from kvyield.assemble import Extras
from kvyield.engines import Sourced, Start, read_starts
from kvyield.intake import completed, process_of, timed_from_process, without_free_memory

POLL_SECONDS = 0.5
REMEMBERED = 500
LONGEST_LINE_BYTES = 2**20
BLOCK_BYTES = 2**16
BEFORE_A_START = timedelta(seconds=2)
JUST_READY = timedelta(seconds=15)


class Bookmark(msgspec.Struct, kw_only=True):
    """Where a watch stands. ``since`` is just before the last start seen; ``inode`` is the file's that was followed."""

    since: datetime | None = None
    inode: int | None = None
    seen: list[str] = msgspec.field(default_factory=list)


class BookmarkFile:
    """A bookmark on disk, replaced whole or not at all. A damaged one counts as none: reading begins anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.mark = self._read()

    def save(self) -> str | None:
        """Returns why the disk did not take it, or None; what is not saved may be read, not posted, twice."""
        self.mark.seen = self.mark.seen[-REMEMBERED:]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._path, msgspec.json.encode(self.mark))
        except OSError as error:
            return f"{self._path} could not be written: {reason_of(error)}"
        return None

    def _read(self) -> Bookmark:
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(self._path.read_bytes(), type=Bookmark)
        return Bookmark()


@dataclass
class Watch:
    """Takes starts out of lines as they come.

    ``bring`` brings an observation to the spool and the service; it says what came of it, and whether it is kept.
    ``zone`` is that of stamps without one, None this host's. ``detect`` reads this host's GPUs, when an engine just
    became ready.
    """

    bookmark: BookmarkFile
    extras: Extras
    bring: Callable[[_wire.Observation], tuple[bool, str]]
    say: Callable[[str], None]
    engine: str | None = None
    is_local: bool = True
    zone: tzinfo | None = None
    detect: Callable[[], Mapping[str, Sourced]] = dict
    brought: int = field(default=0, init=False)

    def follow(self, lines: Iterable[bytes]) -> None:
        """Reads lines until they end, and brings every start that was not brought before."""
        for start in read_starts(lines, engine=self.engine, follow=True, zone=self.zone):
            if start.outcome != "unfinished":
                self._take(start)

    def _take(self, start: Start) -> None:
        extras = without_free_memory(self.extras)
        if self.is_local and became_ready_now(start):
            extras = replace(extras, detected=self.detect() or extras.detected)
        if self.is_local:
            start = timed_from_process(start, process_of(start))
        found = completed(start, extras, is_local=self.is_local)
        try:
            observation = found.observation()
        except IncompleteError as error:
            self.say(f"a start that cannot be posted: {error}")
            return
        key = _key(observation)
        mark = self.bookmark.mark
        if key in mark.seen:
            return
        kept, result = self.bring(observation)
        self.say(f"{observation.outcome}: {_words(observation)}: {result}")
        if not kept:
            return
        self.brought += 1
        mark.seen.append(key)
        if observation.observed_at is not None:
            mark.since = max(filter(None, (mark.since, observation.observed_at - BEFORE_A_START)))
        fault = self.bookmark.save()
        if fault:
            self.say(fault)


def became_ready_now(start: Start) -> bool:
    """Whether the engine said that it was ready moments ago: the memory that is free now is what was free then."""
    seconds = start.measurements.get("startup_seconds")
    if start.outcome != "ready" or start.observed_at is None or seconds is None:
        return False
    ready = start.observed_at + timedelta(seconds=float(str(seconds.value)))
    return abs(datetime.now(timezone.utc) - ready) <= JUST_READY


def _key(observation: _wire.Observation) -> str:
    """The same start read again has the same key, also by a later version of kvyield that finds more in its log."""
    return str(observation.id if observation.observed_at is None else told_apart_id(observation))


def _words(observation: _wire.Observation) -> str:
    pool = observation.measurements.pool_tokens
    return f"{observation.model.name}" + (f", pool of {pool:,} tokens" if pool else "")


def follow_file(
    path: Path, bookmark: BookmarkFile, stopped: threading.Event, *, poll_seconds: float = POLL_SECONDS
) -> Iterator[bytes]:
    """The lines of a log file as they come, several at once, through rotation, until ``stopped`` is set.

    A file that was rotated away while nobody watched is found again beside the new one by its inode and read first.
    A file that is not there yet is waited for.
    """
    before = rotated(path, bookmark.mark.inode)
    if before is not None:
        with before.open("rb") as file:
            yield from _lines(file)
    while not stopped.is_set():
        try:
            file = path.open("rb")
        except FileNotFoundError:
            stopped.wait(poll_seconds)
            continue
        with file:
            bookmark.mark.inode = os.fstat(file.fileno()).st_ino
            bookmark.save()
            yield from _until_rotated(file, path, stopped, poll_seconds)


def _until_rotated(file: BinaryIO, path: Path, stopped: threading.Event, poll_seconds: float) -> Iterator[bytes]:
    rest = b""
    while True:
        gone = stopped.is_set() or _is_replaced(path, file)
        while block := file.read(BLOCK_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield whole + newline
            elif len(rest) >= LONGEST_LINE_BYTES:
                yield rest
                rest = b""
        if gone:
            if rest:
                yield rest
            return
        if os.fstat(file.fileno()).st_size < file.tell():
            file.seek(0)
            continue
        stopped.wait(poll_seconds)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE_BYTES):
        yield line


def _is_replaced(path: Path, file: BinaryIO) -> bool:
    """Whether the name now leads to another file. A name that leads nowhere for a moment is being rotated."""
    try:
        return path.stat().st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def rotated(path: Path, inode: int | None) -> Path | None:
    """The file that was followed last, under the name that a rotation gave it."""
    with contextlib.suppress(OSError):
        if inode is None or (path.exists() and path.stat().st_ino == inode):
            return None
        for sibling in path.parent.glob(f"{path.name}?*"):
            if sibling.stat().st_ino == inode:
                return sibling
    return None
