"""GPUs that several stand-in engines of a test share, one after the other: what NVML would report about them.

A folder holds ``free`` (GiB of each GPU, mapped by the engine that runs), ``owner`` (its process) and ``released``
(when the memory of an owner that died is free again). The memory of a dead owner stays held for ``release_seconds``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from standin.memory import FreeMemoryFile


class Gpus:
    """GPUs of ``total_gib`` each; the last one has a little more free than the others while an engine runs."""

    def __init__(self, folder: Path, count: int = 8, total_gib: float = 95.0, release_seconds: float = 0.0) -> None:
        self.folder, self.count, self.total_gib, self.release_seconds = folder, count, total_gib, release_seconds
        folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> Sequence[float]:
        """Free GiB of each GPU now."""
        try:
            owner = int((self.folder / "owner").read_text())
        except (FileNotFoundError, ValueError):
            return [self.total_gib] * self.count
        held = self._held()
        if _runs(owner):
            return held
        moment = self.folder / "released"
        if not moment.exists() or moment.read_text().partition(" ")[0] != str(owner):
            _write(moment, f"{owner} {time.time() + self.release_seconds}")
        free_at = float(moment.read_text().partition(" ")[2])
        return held if time.time() < free_at else [self.total_gib] * self.count

    def take(self) -> FreeMemoryFile:
        """Makes this process the owner. Returns what it writes its free memory to, as it is now."""
        now = self.read()
        path = self.folder / "free"
        file = FreeMemoryFile(path, self.count)
        file.write(min(now))
        _write(self.folder / "owner", str(os.getpid()))
        return file

    def _held(self) -> Sequence[float]:
        try:
            file = FreeMemoryFile(self.folder / "free")
        except (OSError, ValueError):
            return [self.total_gib] * self.count
        try:
            return file.read()
        finally:
            file.close()


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.rename(path)


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
