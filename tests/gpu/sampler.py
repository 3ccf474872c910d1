"""Free GPU memory read every 10 ms in a process of its own: what the trial compares the client's figures with.

``python sampler.py FILE`` appends lines of JSON to FILE until its standard input is closed. It shares no code with the
client, only the NVML binding. Times are ``time.monotonic()``, which all processes of a Linux host share.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERVAL_SECONDS = 0.01
BEAT_SECONDS = 1.0
START_SECONDS = 20.0
GIB = 1 << 30


class SamplerError(Exception):
    """NVML cannot be read here; the text says why."""


@dataclass(frozen=True)
class Trace:
    """What the sampler has written so far: a reading per change, in bytes free per GPU."""

    names: Sequence[str]
    totals: Sequence[int]
    times: Sequence[float]
    free: Sequence[Sequence[int]]
    readings: int
    longest_gap_seconds: float

    def at(self, moment: float) -> Sequence[int]:
        """Bytes free per GPU at a moment. Raises SamplerError before the first reading."""
        index = bisect_right(self.times, moment) - 1
        if index < 0:
            raise SamplerError("there is no reading of that time")
        return self.free[index]

    def lowest_gib(self, since: float, until: float, gpus: Sequence[int]) -> float:
        """The lowest free memory of the fullest of ``gpus`` between two moments, both included."""
        first, last = bisect_right(self.times, since), bisect_right(self.times, until)
        rows = [self.at(since), *self.free[first:last]]
        return min(row[gpu] for row in rows for gpu in gpus) / GIB

    def free_gib(self, moment: float, gpus: Sequence[int]) -> float:
        """Free memory of the fullest of ``gpus`` at a moment."""
        row = self.at(moment)
        return min(row[gpu] for gpu in gpus) / GIB


class Sampler:
    """The sampling process. Use it as a context manager; it also ends when this process does."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Sampler:
        """Starts it and waits for the first reading. Raises SamplerError when there is none."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._file)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                words = self._process.communicate()[1].strip().splitlines()
                raise SamplerError(words[-1] if words else "the sampler ended without a word")
            if self._file.is_file() and self.trace().times:
                return self
            time.sleep(0.05)
        self.__exit__()
        raise SamplerError(f"NVML gave no reading within {START_SECONDS:.0f} s")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()

    @property
    def pid(self) -> int | None:
        """The sampling process's id while it has been started."""
        return self._process.pid if self._process else None

    def trace(self) -> Trace:
        """All that was read so far."""
        return read_trace(self._file)

    def now(self) -> Sequence[int]:
        """The latest reading, in bytes free per GPU. Raises SamplerError when the sampler has died."""
        if self._process is None or self._process.poll() is not None:
            raise SamplerError("the sampler has died")
        return self.trace().free[-1]


def read_trace(file: Path) -> Trace:
    """Reads what a sampler wrote; a last line that is not whole yet is left out."""
    names: list[str] = []
    totals: list[int] = []
    times: list[float] = []
    free: list[list[int]] = []
    readings, gap = 0, 0.0
    for line in file.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        if "names" in entry:
            names, totals = entry["names"], entry["totals"]
        elif "free" in entry:
            times.append(entry["at"])
            free.append(entry["free"])
        else:
            readings, gap = entry["readings"], entry["longest_gap_seconds"]
    return Trace(names, totals, times, free, readings, gap)


def main() -> None:
    """Samples until standard input is closed."""
    import pynvml

    over = threading.Event()
    threading.Thread(target=_await_end, args=[over], daemon=True).start()
    try:
        pynvml.nvmlInit()
        handles = _handles(pynvml)
    except pynvml.NVMLError as error:
        sys.exit(f"NVML: {error}")
    if not handles:
        sys.exit("NVML lists no GPU")
    with Path(sys.argv[1]).open("a", buffering=1) as file:
        _sample(pynvml, handles, file, over)


def _await_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _sample(nvml: Any, handles: Sequence[object], file: Any, over: threading.Event) -> None:
    def write(**entry: object) -> None:
        file.write(json.dumps(entry) + "\n")

    memory = [nvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
    write(names=[_text(nvml.nvmlDeviceGetName(handle)) for handle in handles], totals=[one.total for one in memory])
    known: list[int] = []
    readings, gap, last, beat = 0, 0.0, time.monotonic(), 0.0
    due = last
    while True:
        now = time.monotonic()
        free = [nvml.nvmlDeviceGetMemoryInfo(handle).free for handle in handles]
        readings, gap, last = readings + 1, max(gap, now - last), now
        if free != known:
            write(at=now, free=free)
            known = free
        if now - beat >= BEAT_SECONDS or over.is_set():
            write(at_beat=now, readings=readings, longest_gap_seconds=round(gap, 4))
            beat = now
        if over.is_set():
            return
        due = max(due + INTERVAL_SECONDS, now)
        over.wait(max(0.0, due - time.monotonic()))


def _handles(nvml: Any) -> list[object]:
    """All GPUs, each that is split by its MIG devices."""
    found: list[object] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        found += _mig_devices(nvml, gpu) or [gpu]
    return found


def _mig_devices(nvml: Any, gpu: object) -> list[object]:
    try:
        if nvml.nvmlDeviceGetMigMode(gpu)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except nvml.NVMLError:
        return []
    found = []
    for slot in range(most):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot))
        except nvml.NVMLError:
            continue
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()
