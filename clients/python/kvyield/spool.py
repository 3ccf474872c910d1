"""The disk queue: one file per observation or verification, written before the first attempt to send it.

::

    <spool>/                         0700
        lock                         held while sending; the kernel releases it when a process dies
        pending/<time>-<id>.json     0600, the observation as it is posted, or {"observation_id", "verification"};
                                     the name sorts oldest first
        refused/<time>-<id>.json     {"reason", "refused_at", "observation" or "addition"}, set aside for a person

A file appears under its name only when its whole content is on disk: it is written under another name, flushed to the
disk, renamed, and the directory is flushed too. A file disappears only after the service has said that it has the
observation. A kill in between means that it is sent again, which the service knows by the id and by the content.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from uuid import UUID

import msgspec

from kvyield import _wire
from kvyield._disk import foreign, own, reason_of, sweep, write_atomically
from kvyield._errors import NotAllowedError, RefusedError, ServiceError, SpoolError, is_own_fault
from kvyield._ids import start_id, verification_id

LONGEST_FILE_BYTES = 16 * 2**20
MOST_HELD = 3
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, SpoolError)


class Addition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A verification of a start that the service has, by the id under which it has it."""

    observation_id: UUID
    verification: _wire.Verification


Post = Callable[[_wire.Observation], _wire.Receipt]
Add = Callable[[Addition], _wire.Receipt]


@dataclass(frozen=True)
class Item:
    """One observation or verification in the queue; neither when its file is damaged.

    ``reason`` is set when the service refused it, or its file is damaged.
    """

    path: Path
    spooled_at: datetime
    observation: _wire.Observation | None
    reason: str | None = None
    addition: Addition | None = None

    @property
    def name(self) -> str:
        """What ``spool drop`` takes."""
        return self.path.stem


@dataclass
class Outcome:
    """What became of one round of sending.

    ``held`` holds what the service failed on (500) while it answers others: it waits, and does not hold up the rest.
    After three such the round ends.
    """

    sent: list[_wire.Receipt] = field(default_factory=list)
    refused: list[Item] = field(default_factory=list)
    held: list[tuple[Item, ServiceError]] = field(default_factory=list)
    pending: int = 0
    stopped_by: ServiceError | None = None


class Spool:
    """A queue in a directory, safe for several processes at once. All methods raise `SpoolError` on disk trouble."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._pending = root / "pending"
        self._refused = root / "refused"
        self._by_id: dict[str, Path] = {}
        self._is_listed = False

    def add(self, observation: _wire.Observation) -> Path:
        """Put an observation on disk and return its file; one that waits already is not written twice.

        Without an ``id`` it gets its `start_id`. When this returns, a power cut cannot lose it.
        """
        whole = observation if observation.id else msgspec.structs.replace(observation, id=start_id(observation))
        content = msgspec.json.encode(whole)
        waiting = self._known(str(whole.id))
        if waiting is not None and _bytes(waiting) == content:
            return waiting
        path = self._write(self._pending / f"{time.time_ns():020d}-{whole.id}.json", content)
        self._by_id[str(whole.id)] = path
        return path

    def add_verification(self, observation_id: UUID, verification: _wire.Verification) -> Path:
        """Put a verification of a stored start on disk and return its file; see `add`."""
        key = verification_id(observation_id, verification)
        waiting = self._known(str(key))
        if waiting is not None and waiting.exists():
            return waiting
        content = msgspec.json.encode(Addition(observation_id=observation_id, verification=verification))
        path = self._write(self._pending / f"{time.time_ns():020d}-{key}.json", content)
        self._by_id[str(key)] = path
        return path

    def withdraw(self, path: Path) -> None:
        """Delete a file that waits, when another one holds all that it does."""
        _unlink(path)

    def has(self, observation_id: UUID) -> bool:
        """Whether an observation of this id waits to be sent."""
        return any(_id_of(path) == str(observation_id) for path in _files(self._pending))

    def _known(self, observation_id: str) -> Path | None:
        """The file that waits under this id; the folder is listed once, since listing it for each would be slow."""
        if not self._is_listed:
            self.prepare()
            self._by_id = {_id_of(path): path for path in _files(self._pending)}
            self._is_listed = True
        return self._by_id.get(observation_id)

    def items(self) -> list[Item]:
        """All that waits and all that was refused, oldest first."""
        self._check_root()
        waiting = [_read(path) for path in _files(self._pending)]
        return waiting + [_read_refused(path) for path in _files(self._refused)]

    def pending_count(self) -> int:
        """How many items wait to be sent."""
        return len(_files(self._pending))

    def send(
        self,
        post: Post,
        *,
        add: Add | None = None,
        wait_seconds: float = 10.0,
        report: Callable[[Outcome], None] = lambda _: None,
    ) -> Outcome:
        """Send what waits, oldest first, until none is left or the service cannot be reached.

        Without ``add`` verifications wait. One process sends at a time; the others wait ``wait_seconds`` for their
        turn, then leave it to the first.
        """
        outcome = Outcome()
        seen: set[Path] = set()
        with self._locked(wait_seconds) as has_turn:
            while has_turn and (paths := [path for path in _files(self._pending) if path not in seen]):
                if not all(self._send_one(path, (post, add), outcome, report) for path in paths):
                    break
                seen.update(paths)
        outcome.pending = self.pending_count()
        return outcome

    def drop(self, name: str) -> bool:
        """Delete one item by its name, or by any beginning of its id that is unique; False when there is none."""
        self._check_root()
        paths = [*_files(self._pending), *_files(self._refused)]
        found = [path for path in paths if path.stem == name or _id_of(path).startswith(name)]
        if len({path.stem for path in found}) > 1:
            raise SpoolError(f"{name!r} fits {len(found)} items; give more of the name")
        for path in found:
            _unlink(path)
        return bool(found)

    def drop_refused(self) -> int:
        """Delete all items that were refused and return how many."""
        self._check_root()
        paths = _files(self._refused)
        for path in paths:
            _unlink(path)
        return len(paths)

    def retry_refused(self) -> int:
        """Put refused items back into the queue and return how many; damaged ones stay."""
        moved = 0
        for item in map(_read_refused, _files(self._refused)):
            if item.observation is not None:
                self.add(item.observation)
            elif item.addition is not None:
                self.add_verification(item.addition.observation_id, item.addition.verification)
            else:
                continue
            _unlink(item.path)
            moved += 1
        return moved

    def _send_one(
        self, path: Path, ways: tuple[Post, Add | None], outcome: Outcome, report: Callable[[Outcome], None]
    ) -> bool:
        """Whether to go on with the next one."""
        item, (post, add) = _read(path), ways
        try:
            if item.observation is not None:
                outcome.sent.append(post(item.observation))
                _unlink(path)
            elif item.addition is not None:
                if add is not None:
                    outcome.sent.append(add(item.addition))
                    _unlink(path)
            elif os.path.lexists(path):
                outcome.refused.append(self._set_aside_damaged(item))
        except NotAllowedError as error:
            outcome.stopped_by = error
        except RefusedError as error:
            outcome.refused.append(self._set_aside(item, str(error)))
        except ServiceError as error:
            outcome.held += [(item, error)] if is_own_fault(error) else []
            if not is_own_fault(error) or len(outcome.held) == MOST_HELD:
                outcome.stopped_by = error
        report(outcome)
        return outcome.stopped_by is None

    def _set_aside(self, item: Item, reason: str) -> Item:
        now = datetime.now(timezone.utc)
        whole = {"observation": item.observation} if item.addition is None else {"addition": item.addition}
        content = msgspec.json.encode({"reason": reason, "refused_at": now, **whole})
        try:
            path = self._write(self._refused / item.path.name, content)
        except SpoolError:
            return self._set_aside_damaged(item)  # a full disk still lets a file move, without the reason
        for older in _files(self._refused):
            if older != path and _id_of(older) == _id_of(path):
                _unlink(older)
        _unlink(item.path)
        return Item(path, item.spooled_at, item.observation, reason, item.addition)

    def _set_aside_damaged(self, item: Item) -> Item:
        path = self._refused / item.path.name
        try:
            item.path.rename(path)
        except OSError as error:
            raise SpoolError(f"{item.path} cannot be set aside: {reason_of(error)}") from error
        return Item(path, item.spooled_at, item.observation, item.reason)

    def prepare(self) -> None:
        """Make the folders, owner-only, and remove what killed processes left.

        Raises `SpoolError` for a root that is a link, another user's, open to writing, or full of other things.
        """
        self._check_root()
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._pending, self._refused):
                folder.mkdir(mode=0o700, exist_ok=True)
                own(folder)
            sweep(self._pending)
            sweep(self._refused)
        except OSError as error:
            raise SpoolError(f"the spool {self.root} cannot be used: {reason_of(error)}") from error

    def _check_root(self) -> None:
        """Whether the root may be a spool; nothing there is changed."""
        try:
            fault = foreign(self.root, ("pending", "refused"))
        except OSError as error:
            fault = reason_of(error)
        if fault:
            raise SpoolError(f"the spool {self.root} cannot be used: {fault}")

    def _write(self, path: Path, content: bytes) -> Path:
        try:
            write_atomically(path, content)
        except OSError as error:
            raise SpoolError(f"{path} could not be written: {reason_of(error)}") from error
        return path

    @contextlib.contextmanager
    def _locked(self, wait_seconds: float) -> Iterator[bool]:
        self.prepare()
        try:
            handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise SpoolError(f"the spool {self.root} cannot be locked: {reason_of(error)}") from error
        try:
            yield _take(handle, time.monotonic() + wait_seconds)
        finally:
            os.close(handle)


def _take(handle: int, ends: float) -> bool:
    while not _try_lock(handle):
        if time.monotonic() >= ends:
            return False
        time.sleep(0.05)
    return True


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise SpoolError(f"the spool's lock cannot be taken: {reason_of(error)}") from error
    return True


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SpoolError(f"{folder} cannot be read: {reason_of(error)}") from error


def _id_of(path: Path) -> str:
    return path.stem.partition("-")[2]


def _bytes(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SpoolError(f"{path} is not a regular file")
        with path.open("rb") as file:
            return file.read(LONGEST_FILE_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SpoolError(f"{path} cannot be read: {reason_of(error)}") from error


def _read(path: Path) -> Item:
    try:
        content = _bytes(path)
        with contextlib.suppress(msgspec.ValidationError):
            return Item(path, _spooled_at(path), None, addition=msgspec.json.decode(content, type=Addition))
        observation = msgspec.json.decode(content, type=_wire.Observation)
    except _UNREADABLE as error:
        return Item(path, _spooled_at(path), None, f"the file is damaged: {error}")
    return Item(path, _spooled_at(path), observation)


def _read_refused(path: Path) -> Item:
    try:
        content = msgspec.json.decode(_bytes(path), type=_Refused)
    except _UNREADABLE as error:
        bare = _read(path)
        return Item(path, bare.spooled_at, bare.observation, f"set aside without a reason, or damaged: {error}")
    return Item(path, _spooled_at(path), content.observation, content.reason, content.addition)


class _Refused(msgspec.Struct):
    reason: str
    observation: _wire.Observation | None = None
    addition: Addition | None = None


def _spooled_at(path: Path) -> datetime:
    text = path.name.partition("-")[0]
    seconds = int(text) / 1e9 if text.isdigit() and len(text) <= 20 else 0.0
    return datetime.fromtimestamp(min(seconds, 4e9), timezone.utc)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SpoolError(f"{path} cannot be deleted: {reason_of(error)}") from error
