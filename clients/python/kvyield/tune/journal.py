"""What ``tune`` is about to do, on the disk before it does it, so that whoever comes next can put things back.

::

    <state>/                         0700
        <key>.lock                   held while tune works on this engine; the kernel releases it when tune dies
        <key>.json                   0600, a `Record`, replaced whole

A record with an ``intent`` is one of a run that did not end by itself: the flags in ``good`` are to be put back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvyield._disk import own, reason_of, sweep, write_atomically
from kvyield._errors import TuneError
from kvyield._wire import Scalar
from kvyield.tune.launchers import Snapshot

Step = Literal["start", "apply", "restart", "restore"]
VERSION = 1


class Good(msgspec.Struct, kw_only=True):
    """Flags to go back to: the newest that passed the verification asked for, else those that ran before ``tune``."""

    snapshot: Snapshot
    flags: dict[str, Scalar] = msgspec.field(default_factory=dict)
    """As the engine resolved them, of what is known to matter to memory."""
    verified_tokens: int | None = None
    concurrent: int = 1
    startup_seconds: float | None = None
    """What a start with these flags took, where that is known: it bounds the wait when they are put back."""


class Intent(msgspec.Struct, kw_only=True):
    """What was about to be done. ``apply`` has written flags at most; from ``restart`` on the engine may run them."""

    step: Step
    flags: dict[str, Scalar] = msgspec.field(default_factory=dict)
    at: datetime = msgspec.field(default_factory=lambda: datetime.now(timezone.utc))


class Record(msgspec.Struct, kw_only=True):
    """The state of one engine's tuning. ``options`` is what ``--undo`` needs to find the launcher again.

    ``before`` is what was there before ``tune`` ever changed anything.
    """

    version: int = VERSION
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    before: Snapshot = msgspec.field(default_factory=dict)
    good: Good | None = None
    intent: Intent | None = None


class Journal:
    """The record of one engine, for one process at a time. Use it as a context manager, which takes the lock."""

    def __init__(self, folder: Path, key: str) -> None:
        name = "".join(sign if sign.isalnum() or sign in "-_.@" else "_" for sign in key)[:200]
        self._folder = folder
        self.path = folder / f"{name}.json"
        self._lock_path = folder / f"{name}.lock"
        self._stack = contextlib.ExitStack()
        self.record = Record()

    def __enter__(self) -> Journal:
        """Raises `TuneError` when another run works on this engine, or the folder cannot be written."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            own(self._folder)
            sweep(self._folder)
            self._stack.enter_context(_locked(self._lock_path))
        except OSError as error:
            raise TuneError(f"the journal {self.path} cannot be used: {reason_of(error)}") from error
        self.record = read(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def intend(self, step: Step, flags: dict[str, Scalar] | None = None) -> None:
        """Writes down what is to be done next. Raises `TuneError`: then it must not be done."""
        self.record.intent = Intent(step=step, flags=flags or {})
        self.save()

    def settle(self) -> None:
        """Writes down that what runs is what is to run."""
        self.record.intent = None
        self.save()

    def save(self) -> None:
        """Raises `TuneError` when the disk does not take it; the former record is kept then."""
        try:
            write_atomically(self.path, msgspec.json.encode(self.record))
        except OSError as error:
            raise TuneError(f"the journal {self.path} could not be written: {reason_of(error)}") from error

    def forget(self) -> None:
        """Removes the record: nothing is left of ``tune``."""
        self.record = Record()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise TuneError(f"the journal {self.path} could not be removed: {reason_of(error)}") from error


def read(path: Path) -> Record:
    """The record in a file, an empty one where there is none. Raises `TuneError` for one that cannot be understood."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return Record()
    except OSError as error:
        raise TuneError(f"the journal {path} cannot be read: {reason_of(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        told = "correct the engine's flags by hand, then delete the file"
        raise TuneError(f"the journal {path} is damaged: {error}; {told}") from error
    if record.version != VERSION:
        raise TuneError(f"the journal {path} is of another version of kvyield ({record.version}); use that one")
    return record


def records(folder: Path) -> Iterator[tuple[Path, Record]]:
    """All that can be read in a folder of journals."""
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        with contextlib.suppress(TuneError):
            yield path, read(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode(errors="replace").strip() or "?"
            raise TuneError(f"another kvyield tune (process {holder}) works on this engine") from None
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
