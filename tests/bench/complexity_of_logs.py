"""Growth of log reading: seconds and memory of a process of its own that reads a journal."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.bench_engine_log import STARTS, build
from bench.growth import CONSTANT, LINEAR, Growth
from bench.report import Report

MEGABYTES = (32, 64, 128, 256)
READ = """
import resource, sys, time
from kvyield.engines import read_starts
begin = time.process_time()
with open(sys.argv[1], "rb") as lines:
    count = sum(1 for _ in read_starts(lines))
seconds = time.process_time() - begin
print(count, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def log_bytes(report: Report) -> None:
    """Read ever longer journals that hold the same forty starts."""
    report.section("Bytes of one journal with forty starts in it, read by a process of its own")
    growth = Growth(report, "MB of log", MEGABYTES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.log"
        for size in MEGABYTES:
            build(path, size * 1_000_000)
            runs = [_read(path) for _ in range(3)]
            assert all(count == STARTS for count, _, _ in runs), runs
            growth.add("core time, s", min(seconds for _, seconds, _ in runs), LINEAR)
            growth.add("peak memory, MiB", min(memory for _, _, memory in runs), CONSTANT)
    growth.close()


def _read(path: Path) -> tuple[int, float, float]:
    words = [sys.executable, "-c", READ, str(path)]
    count, seconds, memory = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return int(count), float(seconds), float(memory)
