"""What `kvyield watch` costs a host whose engine writes 200 lines per second: share of a core, and memory.

A log grows with the lines of a server at work after one whole start-up. Fails when the watch takes 1 % of a core or
more, more than 60 MB, or does not keep the start for the service, which is away.

Usage: PYTHONPATH=tests python tests/bench/bench_watch.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.report import Report, per_cent

LINES_A_SECOND = 200
SECONDS = 30
SETTLE_SECONDS = 4
START = Path(__file__).resolve().parents[2] / "docs/examples/kimi-k2.6/start-2.log"
BUSY = (
    "May 30 22:10:00 gpu-01 sglang[5037]: [2026-05-30 22:10:00 TP0] Decode batch. #running-req: 8, #token: 1200, "
    "token usage: 0.01, cuda graph: True, gen throughput (token/s): 410.22, #queue-req: 0, \n",
    "May 30 22:10:00 gpu-01 sglang[5037]: [2026-05-30 22:10:00] INFO:     10.0.0.1:42412 - "
    '"POST /generate HTTP/1.1" 200 OK\n',
)


def main() -> int:
    """Print what the watch cost and return 1 when a bar is missed."""
    report = Report(__doc__ or "")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "engine.log"
        log.write_bytes(START.read_bytes())
        watch = _watch(folder, log)
        try:
            share, megabytes, written = _busy(watch, log)
        finally:
            watch.terminate()
            watch.wait(timeout=30)
        kept = len(list((folder / "spool").rglob("*.json")))
    report.line(f"{written} lines in {SECONDS} s")
    report.bar("the watch takes under 1 % of a core", per_cent(share, 2), is_met=share < 0.01)
    report.bar("the watch takes at most 60 MB", f"{megabytes:.0f} MB", is_met=megabytes <= 60)
    report.bar("the start waits in the spool", str(kept), is_met=kept == 1)
    return report.close()


def _watch(folder: Path, log: Path) -> psutil.Popen:
    environment = os.environ | {
        "KVYIELD_URL": "http://127.0.0.1:9",
        "KVYIELD_SPOOL": str(folder / "spool"),
        "HOME": str(folder),
    }
    facts = ["--gpu", "NVIDIA L4", "--gpu-count", "8", "--no-gpu", "--state", str(folder / "state")]
    command = [sys.executable, "-m", "kvyield", "watch", "--log", str(log), *facts]
    return psutil.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _busy(watch: psutil.Popen, log: Path) -> tuple[float, float, int]:
    """Write at a steady pace and return the watch's share of a core, its peak memory in MB and the lines written."""
    time.sleep(SETTLE_SECONDS)
    before, began, written, peak = _cpu(watch), time.monotonic(), 0, 0.0
    with log.open("a") as out:
        while (passed := time.monotonic() - began) < SECONDS:
            due = int(passed * LINES_A_SECOND)
            out.writelines(BUSY[number % 2] for number in range(written, due))
            out.flush()
            written, peak = due, max(peak, watch.memory_info().rss / 1e6)
            time.sleep(0.02)
    return (_cpu(watch) - before) / SECONDS, peak, written


def _cpu(watch: psutil.Popen) -> float:
    times = watch.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
