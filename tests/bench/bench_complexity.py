"""Growth: time and memory against rows, pairs, starts, deployments, clients and bytes of log; nothing grows faster.

On one embedded database that is grown to ten million rows (beyond a hundred thousand copied inside it): adding, pages,
look-ups, filters. In the domain: fits and advice against starts of one deployment, and against deployments of one pair.
A served ledger against clients, and log reading against bytes. Exponents are fitted to medians: 0 is constant, 1 grows
as the input does. Fails when an answer is wrong at any size, or an exponent is more than 0.25 above what is allowed.

Usage: PYTHONPATH=tests python tests/bench/bench_complexity.py
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.clients import store
from bench.complexity_of_domain import deployments, starts_of_one_deployment
from bench.complexity_of_logs import log_bytes
from bench.complexity_of_storage import pairs, rows
from bench.growth import CONSTANT, LINEAR, Growth
from bench.processes import memory_mib
from bench.report import Report, percentile
from bench.rivals import kvyield_on_sqlite, settle

CLIENTS = (1, 4, 16, 64, 256)
RUNS = 3  # one stall of the disk holds up all clients at once: with many it is over a hundredth of a short run


def main() -> int:
    """Print one table per kind of growth and return 1 when a bar is missed."""
    report = Report(__doc__ or "")
    starts_of_one_deployment(report)
    deployments(report)
    rows(report)
    pairs(report)
    _clients(report)
    log_bytes(report)
    return report.close()


def _clients(report: Report) -> None:
    report.section("Clients that post at the same time to one server over SQLite, medians of three times 2 s")
    growth, numbers = Growth(report, "clients", CLIENTS), itertools.count()
    with tempfile.TemporaryDirectory() as folder, kvyield_on_sqlite(Path(folder)) as server:
        store(server.url, server.job, numbers, clients=4, seconds=1.0)
        settle(server.roots)
        for count in CLIENTS:
            runs = [store(server.url, server.job, numbers, clients=count, seconds=2.0) for _ in range(RUNS)]
            failed = sum(run.failed for run in runs)
            assert not failed, f"{failed} posts of {count} clients failed"
            growth.add("starts per second", median(run.per_second for run in runs), None)
            for percent in (50, 99):
                found = median(1000 * percentile(run.seconds, percent) for run in runs)
                growth.add(f"p{percent}, ms", found, LINEAR)
            growth.add("server, MiB", memory_mib(server.roots), CONSTANT)
    growth.close()


if __name__ == "__main__":
    sys.exit(main())
