"""Write docs/benchmarks.md from what the last run of each benchmark printed.

Usage: PYTHONPATH=tests python tests/bench/page.py
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

from bench.run import KEPT, ROOT, scripts

PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("litestar", "msgspec", "numpy", "scipy", "sqlalchemy", "psycopg", "uvicorn", "uvloop", "h11")
HEAD = """# Benchmarks

This page is written by `make benchmarks-page` from what the benchmarks printed; nothing on it is typed by hand.
`make accuracy` checks the yield model, `make bench` runs everything, `make bench-list` names the benchmarks and
`make bench-NAME` runs one, each in under ten minutes. What other tools are compared with is installed into `.bench/`,
never into the project's environment; without a package index those parts say `NOT RUN`.

**How to read it.** Times depend on the machine and on what else runs on it: this one is small and was shared while
these figures were taken. What is claimed are the bars (`[met]`, `[MISSED]`), the counts, and the ratios of things
measured side by side in one run. Errors of predictions depend on the cases alone and repeat exactly.
"""


def main() -> int:
    """Write the page; return 1 when nothing was run yet."""
    runs = [json.loads(path.read_text()) for name in scripts() if (path := KEPT / f"{name}.json").exists()]
    if not runs:
        print("nothing to write: run `make bench` first", file=sys.stderr)
        return 1
    parts = [HEAD, _machine(), _summary(runs), *(_section(run) for run in runs)]
    PAGE.write_text("\n".join(parts).rstrip() + "\n")
    print(f"wrote {PAGE.relative_to(ROOT)} from {len(runs)} runs")
    return 0


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return (
        f"## Machine\n\n{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB of memory; "
        f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}; {versions}.\n"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def _summary(runs: list[dict[str, Any]]) -> str:
    rows = [
        "## Summary",
        "",
        "| benchmark | run | seconds | result | bars met | bars missed |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        name, output = run["name"].replace("_", "-"), run["output"]
        met, missed = (len(re.findall(rf"^\[{word}\]", output, re.MULTILINE)) for word in ("met", "MISSED"))
        link = f"[{name}](#{name})"
        day = run["started"][:10]
        rows.append(f"| {link} | {day} | {run['seconds']:.0f} | {_result(run)} | {met or '-'} | {missed or '-'} |")
    return "\n".join(rows) + "\n"


def _result(run: dict[str, Any]) -> str:
    if run["status"]:
        return "**failed**"
    says_so = re.search(r"^(SKIPPED|NOT RUN)|is missing: no", run["output"], re.MULTILINE)
    return "nothing to measure on here" if says_so else "passed"


def _section(run: dict[str, Any]) -> str:
    output = run["output"].replace(str(ROOT), ".").strip()
    name = run["name"].replace("_", "-")
    return f"## {name}\n\n`{run['command']}`\n\n```text\n{output or run['promise']}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
