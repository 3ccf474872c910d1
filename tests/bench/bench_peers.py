"""The service side by side with servers that people know, in one run: what it costs to keep a start, and to list them.

A bare ASGI application and a Litestar echo (both keep nothing: the floor of the same web server), kvyield on SQLite and
on PostgreSQL that flushes every commit (its processes count as the server's), and MLflow's tracking server with one
worker on SQLite, its background jobs off; there a start is one run with its tags, flags as parameters and measurements
as metrics, in two requests. Every round loads each server in turn with 32 clients. Fails when kvyield loses or refuses
a write, when its server takes more than 1/20 of MLflow's CPU time per stored start, one by one or in batches, or when
its 500th page takes more than twice the first.

Usage: PYTHONPATH=tests python tests/bench/bench_peers.py [rounds]
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.clients import Job, Stored, store
from bench.peers import PeerMissingError, peer, versions
from bench.processes import cpu_seconds, memory_mib
from bench.report import Report, percentile
from bench.rivals import (
    BARE,
    ECHO,
    MLFLOW,
    Rival,
    kvyield_on_postgres,
    kvyield_on_sqlite,
    mlflow_server,
    script,
    settle,
)
from bench.starts import ITEMS

CLIENTS, SECONDS, ROWS, FAR = 32, 3.0, 50_000, 500
SHARE_OF_MLFLOW = 1 / 20
NUMBERS = itertools.count()


@dataclass
class Load:
    """All rounds of one kind of load on one server."""

    runs: list[Stored] = field(default_factory=list)
    cpu: float = 0.0

    @property
    def stored(self) -> int:
        return sum(len(run.seconds) for run in self.runs)

    @property
    def failed(self) -> int:
        return sum(run.failed for run in self.runs)

    def cpu_milliseconds(self, weight: int = 1) -> float:
        """Return the server's CPU time per stored start."""
        return 1000.0 * self.cpu / max(1, self.stored * weight)

    def cells(self, weight: int = 1) -> tuple[str, ...]:
        """Return starts per second, latencies of a request, CPU per start and failures, as words."""
        seconds = [one for run in self.runs for one in run.seconds] or [0.0]
        rate = weight * median(run.per_second for run in self.runs)
        p50, p99 = (1000.0 * percentile(seconds, percent) for percent in (50, 99))
        cpu = self.cpu_milliseconds(weight)
        return f"{rate:,.1f}", f"{p50:,.1f}", f"{p99:,.1f}", f"{cpu:.3f}", str(self.failed)


def main() -> int:
    """Start all servers, load, list, and return 1 when a bar is missed."""
    report = Report(__doc__ or "")
    with contextlib.ExitStack() as stack:
        rivals = list(_started(report, stack))
        rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
        singles = _singles(report, rivals, rounds)
        batches = _batches(report, rivals, rounds)
        _writes(report, rivals, singles, batches)
        _cpu(report, singles, batches)
        _lists(report, rivals)
    return report.close()


def _started(report: Report, stack: contextlib.ExitStack) -> Iterator[Rival]:
    report.section("Cold start and memory")
    makers: list[Callable[[Path], AbstractContextManager[Rival]]] = [
        lambda _: script("bare ASGI (keeps nothing)", BARE),
        lambda _: script("Litestar echo (keeps nothing)", ECHO),
        kvyield_on_sqlite,
        kvyield_on_postgres,
    ]
    try:
        report.line(versions(peer("mlflow", MLFLOW), MLFLOW))
        makers.append(mlflow_server)
    except PeerMissingError as error:
        report.line(f"MLflow was NOT RUN: {error}")
    rows = []
    for maker in makers:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with maker(folder) as fresh:
            first = fresh.started_seconds
        rival = stack.enter_context(maker(folder))
        idle = settle(rival.roots)
        cells = f"{first:.2f}", f"{rival.started_seconds:.2f}", f"{memory_mib(rival.roots):.0f}", f"{idle:.2f}"
        rows.append((rival.name, *cells))
        yield rival
    report.table(("server", "first start, s", "start, s", "idle, MiB", "idle, cores"), rows)


LOAD_HEADS = ("starts/s", "p50, ms", "p99, ms", "server CPU, ms/start", "failed")


def _singles(report: Report, rivals: list[Rival], rounds: int) -> dict[str, Load]:
    report.section(f"Starts stored one by one, {rounds} rounds of {SECONDS:.0f} s")
    for rival in rivals:
        rival.warmed = len(store(rival.url, rival.job, NUMBERS, clients=1, seconds=1.0).seconds)
    alone, crowd = ({rival.name: Load() for rival in rivals} for _ in range(2))
    for _ in range(rounds):
        for rival in rivals:
            _measure(rival, rival.job, alone[rival.name], clients=1)
            _measure(rival, rival.job, crowd[rival.name], clients=CLIENTS)
    report.table(("1 client", *LOAD_HEADS), [(name, *load.cells()) for name, load in alone.items()])
    report.table((f"{CLIENTS} clients", *LOAD_HEADS), [(name, *load.cells()) for name, load in crowd.items()])
    for name, load in crowd.items():
        load.runs += alone[name].runs
        load.cpu += alone[name].cpu
    return crowd


def _measure(rival: Rival, job: Job, load: Load, *, clients: int) -> None:
    before = cpu_seconds(rival.roots)
    load.runs.append(store(rival.url, job, NUMBERS, clients=clients, seconds=SECONDS))
    load.cpu += cpu_seconds(rival.roots) - before


def _batches(report: Report, rivals: list[Rival], rounds: int) -> dict[str, Load]:
    report.section(f"Starts stored in batches of {ITEMS}, as a host imports its old logs; 4 clients")
    found = {rival.name: Load() for rival in rivals if rival.batch is not None}
    for _ in range(rounds):
        for rival in rivals:
            if rival.batch is not None:
                _measure(rival, rival.batch, found[rival.name], clients=4)
    report.table(("4 clients", *LOAD_HEADS), [(name, *load.cells(ITEMS)) for name, load in found.items()])
    report.line("MLflow has no request that stores several runs.")
    return found


def _writes(report: Report, rivals: list[Rival], singles: dict[str, Load], batches: dict[str, Load]) -> None:
    report.section("Lost or failed writes: what was answered as stored, counted in the databases")
    for rival in rivals:
        if rival.kept is None:
            continue
        said = singles[rival.name].stored + ITEMS * (batches[rival.name].stored if rival.name in batches else 0)
        failed = singles[rival.name].failed + (batches[rival.name].failed if rival.name in batches else 0)
        kept = rival.kept() - rival.warmed
        figure = f"{said:,} answered as stored, {kept:,} there, {failed} failed"
        if rival.name.startswith("kvyield"):
            report.bar(f"{rival.name}: none lost, none failed", figure, is_met=kept == said and failed == 0)
        else:
            report.line(f"{rival.name}: {figure}")


def _cpu(report: Report, singles: dict[str, Load], batches: dict[str, Load]) -> None:
    rival = next((load for name, load in singles.items() if name.startswith("MLflow")), None)
    if rival is None:
        report.line("No ratio to MLflow, which was not run.")
        return
    theirs = rival.cpu_milliseconds()
    for name, load in batches.items():
        single, batch = theirs / singles[name].cpu_milliseconds(), theirs / load.cpu_milliseconds(ITEMS)
        for how, times in (("one by one", single), ("in batches", batch)):
            met = 1.0 / times <= SHARE_OF_MLFLOW
            report.bar(f"{name}: at most 1/20 of MLflow's CPU per start, {how}", f"1/{times:.0f}", is_met=met)


def _lists(report: Report, rivals: list[Rival]) -> None:
    report.section(f"Pages of 100 out of {ROWS:,}, milliseconds, median of 15")
    rows = []
    for rival in rivals:
        if rival.listing is None or rival.kept is None:
            continue
        rival.listing.fill(rival.url, rival.kept(), ROWS)
        near, far = rival.listing.pages(rival.url, FAR)
        memory = memory_mib(rival.roots)
        rows.append(
            (
                rival.name,
                f"{rival.kept():,}",
                f"{1000 * near:.1f}",
                f"{1000 * far:.1f}",
                f"{far / near:.2f}",
                f"{memory:.0f}",
            )
        )
        if rival.name.startswith("kvyield"):
            report.bar(f"{rival.name}: page {FAR} within twice page 1", f"{far / near:.2f}", is_met=far <= 2 * near)
    report.table(("server", "rows", "page 1", f"page {FAR}", "ratio", "MiB after all"), rows)
    report.line("(MLflow's rows were copied inside its database; posting them would take an hour.)")


if __name__ == "__main__":
    sys.exit(main())
