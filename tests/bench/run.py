"""Run benchmarks, each in a process of its own, and keep what they print for docs/benchmarks.md.

Usage: PYTHONPATH=tests python tests/bench/run.py [--list] [name ...]; without a name, all of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

BENCH = Path(__file__).parent
ROOT = BENCH.parents[1]
KEPT = ROOT / ".bench" / "output"
LIMIT_SECONDS = 600
TIMED_OUT = 124
MODEL = "yield_model"
"""The accuracy of the yield model alone, which `make accuracy` runs."""


def scripts() -> dict[str, list[str]]:
    """Return how each benchmark is run, by name."""
    found = {path.stem.removeprefix("bench_"): [str(path.relative_to(ROOT))] for path in BENCH.glob("bench_*.py")}
    return {MODEL: ["-m", "bench.accuracy"], **dict(sorted(found.items()))}


def promise(name: str) -> str:
    """Return what a benchmark says that it checks: the first paragraph of its docstring."""
    path = BENCH / "accuracy" / "__main__.py" if name == MODEL else BENCH / f"bench_{name}.py"
    return path.read_text().split('"""')[1].split("\n\n")[0].strip()


def run(name: str) -> int:
    """Run one benchmark, print and keep its output, and return its exit status; 124 when it ran too long."""
    begin, started = time.perf_counter(), datetime.now(UTC)
    print(f"\n=== {name}: {promise(name)}\n", flush=True)
    words = [sys.executable, *scripts()[name]]
    with subprocess.Popen(
        words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        output, in_time = followed(process)
    seconds = time.perf_counter() - begin
    status = process.returncode if in_time else TIMED_OUT
    late = f"FAILED: longer than {LIMIT_SECONDS} s"
    verdict = {0: "passed", TIMED_OUT: late}.get(status, f"FAILED with exit status {status}")
    print(f"=== {name}: {verdict}, {seconds:.0f} s", flush=True)
    keep(name, {"output": output, "status": status, "seconds": seconds, "started": started.isoformat()})
    return status


def followed(process: subprocess.Popen[str]) -> tuple[str, bool]:
    """Print what a process prints as it comes; return it, and whether the process ended by itself within the limit."""
    assert process.stdout is not None
    late = threading.Event()

    def end() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer, lines = threading.Timer(LIMIT_SECONDS, end), []
    timer.start()
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    process.wait()
    timer.cancel()
    return "".join(lines), not late.is_set()


def environment() -> dict[str, str]:
    """Return this process's environment, with the tests' modules and without settings of kvyield."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("KVYIELD_")}
    return own | {"PYTHONPATH": str(ROOT / "tests"), "PYTHONUNBUFFERED": "1"}


def keep(name: str, found: dict[str, object]) -> None:
    """Keep one run's output, under the command that anyone repeats it with."""
    command = "make accuracy" if name == MODEL else f"make bench-{name.replace('_', '-')}"
    KEPT.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"name": name, "command": command, "promise": promise(name), **found})
    (KEPT / f"{name}.json").write_text(text)


def main(words: list[str]) -> int:
    """Run the benchmarks named, or all; return 1 when one failed."""
    if words == ["--list"]:
        for name in scripts():
            print(f"{name.replace('_', '-'):16s} {' '.join(promise(name).split())}")
        return 0
    wanted = [word.replace("-", "_") for word in words] or list(scripts())
    unknown = [name for name in wanted if name not in scripts()]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(scripts())}", file=sys.stderr)
        return 2
    failed = [name for name in wanted if run(name) != 0]
    if len(wanted) > 1:
        print(
            f"\n{len(wanted) - len(failed)} of {len(wanted)} benchmarks passed; failed: {', '.join(failed) or 'none'}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
