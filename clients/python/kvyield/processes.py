"""Which process of this host listens on a port, and when it was started: the start of an engine that told no time.

Read from ``/proc`` (proc(5)): the sockets of ``net/tcp``, the open files of processes, and ``stat``'s start time.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

PROC = Path("/proc")
_LISTENING = "0A"
_ENGINE = re.compile(r"sglang|vllm|tensorrt|trtllm|lmdeploy", re.IGNORECASE)
_PORT = re.compile(r"--(?:server[-_])?port(?:=|\0)(\d{1,5})(?:\0|$)")


@dataclass(frozen=True)
class Listener:
    """An engine's process. ``started_at`` is when it was started, in UTC, to about 10 ms."""

    pid: int
    command: tuple[str, ...]
    started_at: datetime


def engine_on(port: int, proc: Path = PROC) -> Listener | None:
    """The engine's process behind a port of this host, or None: none listens, or another program does.

    Another user's open files cannot be read; then the one engine whose command line names the port is meant.
    """
    sockets = _sockets(proc, port)
    found = [pid for pid in pids(proc) if _holds(proc / str(pid), sockets)]
    if not found:
        found = [pid for pid in pids(proc) if str(port) in _PORT.findall(_command(proc / str(pid)))]
    listeners = [one for pid in found if (one := _listener(proc, pid)) is not None]
    return min(listeners, key=lambda one: one.started_at, default=None)


def family(pid: int, proc: Path = PROC) -> frozenset[int]:
    """A process with all that descend from it, as far as their parents live."""
    parents = {one: _parent(proc, one) for one in pids(proc)}
    found, size = {pid}, 0
    while len(found) > size:
        size = len(found)
        found |= {one for one, parent in parents.items() if parent in found}
    return frozenset(found)


def pids(proc: Path = PROC) -> list[int]:
    """All processes of this host; none where there is no ``/proc``."""
    with contextlib.suppress(OSError):
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    return []


def variable_of(pid: int, name: str, proc: Path = PROC) -> str | None:
    """A variable of the environment that a process of this user was started with; None when it has none."""
    with contextlib.suppress(OSError):
        for variable in (proc / str(pid) / "environ").read_bytes().split(b"\0"):
            key, _, value = variable.partition(b"=")
            if key == name.encode():
                return os.fsdecode(value)
    return None


def _parent(proc: Path, pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return None


def _sockets(proc: Path, port: int) -> frozenset[str]:
    """What the sockets that listen on a port are called among a process's open files."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{words[9]}]")
    return frozenset(found)


def _holds(process: Path, sockets: frozenset[str]) -> bool:
    return bool(sockets) and not sockets.isdisjoint(_open_files(process))


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(process / "fd" / name)


def _command(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes().decode(errors="replace")
    return ""


def _listener(proc: Path, pid: int) -> Listener | None:
    command = _command(proc / str(pid))
    with contextlib.suppress(OSError, ValueError, IndexError):
        if _ENGINE.search(command):
            words = tuple(word for word in command.split("\0") if word)
            return Listener(pid, words, _started_at(proc, pid))
    return None


def _started_at(proc: Path, pid: int) -> datetime:
    """Now less the time since boot plus field 22 of ``stat``; the name in field 2 may hold blanks and brackets."""
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    uptime = float((proc / "uptime").read_text().split()[0])
    return datetime.now(timezone.utc) - timedelta(seconds=uptime - since_boot)
