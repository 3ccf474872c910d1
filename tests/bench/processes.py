"""What processes take, read from /proc: CPU seconds and memory of a process with all its children."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """Return a process and all its descendants that live now."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _fields(int(folder.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, ahead = [], [root]
    while ahead:
        one = ahead.pop()
        found.append(one)
        ahead += parents.get(one, [])
    return found


def parent(pid: int) -> int:
    """Return the process that started this one."""
    return int(_fields(pid)[1])


def cpu_seconds(roots: Iterable[int]) -> float:
    """Return user and system time of some processes and their descendants, those that ended included."""
    total = 0
    for root in roots:
        for pid in family(root):
            fields = _fields(pid)
            total += sum(int(field) for field in fields[11:15]) if fields else 0
    return total / TICKS


def memory_mib(roots: Iterable[int]) -> float:
    """Return the memory of some processes and their descendants, shared pages counted by share."""
    total = 0
    for root in roots:
        for pid in family(root):
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _fields(pid: int) -> list[str]:
    """Return the fields of a process's stat after its name, none when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(") ")[2].split()
