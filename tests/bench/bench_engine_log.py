"""A gigabyte of journal with forty starts in it: time against `grep -cE` for the same key strings, and peak memory.

Usage: bench_engine_log.py [gigabytes]. Both read the same file in one run, after one pass that warms the page cache.
"""

from __future__ import annotations

import random
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from kvyield.engines import read_starts
from kvyield.engines._engines import ENGINES
from kvyield.engines._segment import ARRAY_MESSAGE, DEATH_HOOKS

DATA = Path(__file__).parents[1] / "clients" / "engines" / "data"
KEYS = (*(key for engine in ENGINES for key in (*engine.openers, *engine.ready)), *DEATH_HOOKS, ARRAY_MESSAGE)
STARTS = 40
SLOWEST_SHARE_OF_GREP = 1 / 8
MOST_MEMORY_MIB = 150
SERVED = (
    '[2026-11-29 12:19:{second:02d}] INFO:     10.0.0.{host}:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "[2026-11-29 12:19:{second:02d} TP0] Prefill batch, #new-seq: 1, #new-token: {port}, #cached-token: {host}, "
    "token usage: 0.41, "
    "#running-req: 7, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 622.09",
    "[2026-11-29 12:19:{second:02d} TP0] Decode batch, #running-req: 8, #token: {port}, token usage: 0.44, cuda "
    "graph: True, "
    "gen throughput (token/s): 311.12, #queue-req: 0",
    "INFO 11-29 12:19:{second:02d} [loggers.py:259] Engine 000: Avg prompt throughput: {port}.1 tokens/s, Avg "
    "generation throughput: "
    "{host}.7 tokens/s, Running: 7 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.3%, Prefix cache hit rate: 41.0%",
)


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else "1") * 1e9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.log"
        build(path, size)
        keys = "|".join(re.escape(key.decode()) for key in KEYS)
        grep_seconds = min(grep(path, keys) for _ in range(2))
        begin = time.perf_counter()
        with path.open("rb") as lines:
            starts = list(read_starts(lines))
        seconds = time.perf_counter() - begin
        with path.open("rb") as lines:
            begin = time.perf_counter()
            again = sum(1 for _ in read_starts(line for line in lines))
        by_line = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report(size, grep_seconds, seconds, by_line, memory)
    assert len(starts) == again == STARTS, f"{len(starts)} and {again} starts found"
    assert max(seconds, by_line) <= grep_seconds / SLOWEST_SHARE_OF_GREP
    assert memory <= MOST_MEMORY_MIB


def build(path: Path, size: int) -> None:
    """Forty real starts, and between them what servers print while they serve, all with a journal's prefix."""
    with tarfile.open(DATA / "h200_logs.tar.xz") as archive:
        logs = [archive.extractfile(member).read() for member in archive.getmembers()]  # type: ignore[union-attr]  # all are files
    logs = [log for log in logs if b"#tokens:" in log or b"KV cache size" in log][:STARTS]
    dice = random.Random(7)
    served = [
        dice.choice(SERVED).format(second=dice.randrange(60), host=dice.randrange(255), port=dice.randrange(10**5))
        for _ in range(20000)
    ]
    filler = b"".join(prefixed(text.encode(), 4709) for text in served)
    with path.open("wb") as out:
        for number, log in enumerate(logs):
            out.write(b"".join(prefixed(line, 1000 + number) for line in log.splitlines()))
            while out.tell() < size * (number + 1) / STARTS:
                out.write(filler.replace(b"[4709]", f"[{1000 + number}]".encode()))


def prefixed(line: bytes, pid: int) -> bytes:
    return b"Nov 29 12:19:17 gpu-01 engine[" + str(pid).encode() + b"]: " + line + b"\n"


def grep(path: Path, keys: str) -> float:
    begin = time.perf_counter()
    subprocess.run([str(shutil.which("grep")), "-cE", keys, str(path)], check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - begin


def report(size: int, grep_seconds: float, seconds: float, by_line: float, memory: float) -> None:
    print(f"{size / 1e9:.2f} GB of journal with {STARTS} starts; grep looks for the reader's {len(KEYS)} key strings")
    for name, took in (("grep -cE", grep_seconds), ("read_starts, file", seconds), ("read_starts, lines", by_line)):
        print(f"{name:20s} {took:6.2f} s  {size / took / 1e6:6.0f} MB/s  {grep_seconds / took:.3f} of grep's speed")
    print(f"slowest allowed: {SLOWEST_SHARE_OF_GREP}")
    print(f"peak memory {memory:.0f} MiB, most allowed {MOST_MEMORY_MIB}")


if __name__ == "__main__":
    main()
