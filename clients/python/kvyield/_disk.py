"""Careful file operations: content that is on disk before its name is, folders that only their owner may read."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path

STALE_SECONDS = 3600.0


def write_atomically(path: Path, content: bytes) -> None:
    """Raises `OSError`, and leaves nothing behind, when the content cannot be brought to the disk whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        _write_through(draft, content)
        draft.rename(path)
        _flush_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Writes a file of other people's as `write_atomically` does; its owner, mode and attributes stay.

    A link is followed. ``mode`` is that of the file from now on, None the one it has. One caller at a time: drafts that
    a killed one left behind are removed.

    Raises:
        OSError: it cannot be brought to the disk whole, or not with the owner that it has. What was there is there.
    """
    place = Path(os.path.realpath(path))
    draft = place.with_name(f".{place.name}.{os.getpid()}.{time.monotonic_ns()}")
    for left in place.parent.glob(f".{glob.escape(place.name)}.*[0-9].*[0-9]"):
        left.unlink(missing_ok=True)
    try:
        _write_through(draft, content)
        if place.exists():
            before = place.stat()
            shutil.copystat(place, draft)
            os.utime(draft)
            if (before.st_uid, before.st_gid) != (draft.stat().st_uid, draft.stat().st_gid):
                os.chown(draft, before.st_uid, before.st_gid)
            mode = before.st_mode if mode is None else mode
        draft.chmod(stat.S_IMODE(0o644 if mode is None else mode))
        draft.rename(place)
        _flush_folder(place.parent)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def remove_file(path: Path) -> None:
    """Removes a file, if there is one, and brings that to the disk. Raises `OSError`."""
    path.unlink(missing_ok=True)
    if path.parent.exists():
        _flush_folder(path.parent)


def foreign(folder: Path, parts: Sequence[str]) -> str | None:
    """Why a folder cannot be taken for one's own, with what to do; None when it can, or is not there yet.

    It must hold one of ``parts`` or nothing. It is never changed: whoever made it may have meant it for others too.
    """
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no folder"
        return f"it is {what}; name a folder with KVYIELD_SPOOL"
    if status.st_uid != os.geteuid():
        return f"it belongs to another user (uid {status.st_uid}); name another folder with KVYIELD_SPOOL"
    if status.st_mode & 0o022:
        return f"others may write into it; chmod 700 {folder}, or name another folder with KVYIELD_SPOOL"
    names = os.listdir(folder)
    if names and not set(parts).intersection(names):
        return "it holds other things and no spool; name an empty or a new folder with KVYIELD_SPOOL"
    return None


def own(folder: Path) -> None:
    """Refuses a link and a folder of someone else, closes one that others may look into."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def sweep(folder: Path) -> None:
    """Removes drafts that a killed process left behind; a living one's is younger."""
    for path in folder.glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()


def _write_through(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reason_of(error: OSError) -> str:
    return error.strerror or str(error)
