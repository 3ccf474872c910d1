"""Careful file operations: content that is on disk before its name is, folders that only their owner may read."""

from __future__ import annotations

import contextlib
import os
import time
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


def own(folder: Path) -> None:
    """Refuses a folder of someone else, closes one that others may look into."""
    status = folder.stat()
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
