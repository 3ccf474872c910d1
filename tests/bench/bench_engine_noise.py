"""A million damaged real log lines: no crash, no figure that its line does not hold, and the time a line takes.

Usage: bench_engine_noise.py [lines].
"""

from __future__ import annotations

import importlib.util
import random
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

from kvyield.engines import read_starts

TESTS = Path(__file__).parents[1] / "clients" / "engines"
LINES_A_ROUND = 50_000


def main() -> None:
    total = int(sys.argv[1] if len(sys.argv) > 1 else "1000000")
    noise, pool = noise_test(), real_lines()
    dice, seconds, outcomes = random.Random(29), 0.0, Counter[str]()
    for done in range(0, total, LINES_A_ROUND):
        count = min(LINES_A_ROUND, total - done)
        lines = [noise.damaged(dice.choice(pool), dice).replace(b"\n", b" ") for _ in range(count)]
        texts = [line.decode("utf-8", "replace") for line in lines]
        begin = time.perf_counter()
        starts = list(read_starts(line + b"\n" for line in lines))
        seconds += time.perf_counter() - begin
        for start in starts:
            noise.check_sources(start, texts)
            outcomes[start.outcome] += 1
    print(
        f"{total} damaged lines in {seconds:.1f} s, {seconds / total * 1e6:.0f} µs per line; starts: {dict(outcomes)}"
    )


def noise_test() -> ModuleType:
    """The suite's own damage and check."""
    spec = importlib.util.spec_from_file_location("engine_noise", TESTS / "test_noise.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def real_lines() -> list[bytes]:
    """Every line of the real logs that the suite reads."""
    found: list[bytes] = []
    for name in ("h200_logs.tar.xz", "public_logs.tar.gz", "report_logs.tar.gz"):
        with tarfile.open(TESTS / "data" / name) as archive:
            files = [archive.extractfile(member) for member in archive.getmembers()]
            found += [line for file in files if file is not None for line in file.read().splitlines() if line]
    return found


if __name__ == "__main__":
    main()
