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

from bench.clients import store
from bench.complexity_of_domain import deployments, starts_of_one_deployment
from bench.complexity_of_logs import log_bytes
from bench.complexity_of_storage import pairs, rows
from bench.growth import CONSTANT, LINEAR, Growth
from bench.processes import memory_mib
from bench.report import Report, percentile
from bench.rivals import kvyield_on_sqlite, settle

CLIENTS = (1, 4, 16, 64, 256)


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
    report.section("Clients that post at the same time to one server over SQLite, 2 s each")
    growth, numbers = Growth(report, "clients", CLIENTS), itertools.count()
    with tempfile.TemporaryDirectory() as folder, kvyield_on_sqlite(Path(folder)) as server:
        store(server.url, server.job, numbers, clients=4, seconds=1.0)
        settle(server.roots)
        for count in CLIENTS:
            stored = store(server.url, server.job, numbers, clients=count, seconds=2.0)
            assert not stored.failed, f"{stored.failed} posts of {count} clients failed"
            growth.add("starts a second", stored.per_second, None)
            growth.add("p50, ms", 1000 * percentile(stored.seconds, 50), LINEAR)
            growth.add("p99, ms", 1000 * percentile(stored.seconds, 99), LINEAR)
            growth.add("server, MiB", memory_mib(server.roots), CONSTANT)
    growth.close()


if __name__ == "__main__":
    sys.exit(main())
