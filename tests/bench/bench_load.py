"""What a service takes at once from 32 clients: single posts, batches and questions, each acknowledged and on disk.

SQLite with one server, and PostgreSQL (which flushes each commit) with two replicas. Beside them a bare hello-world of
the same web server shows what the machine could do in that round; all are measured in rotation. Fails under 500 durable
posts per second on SQLite or 250 on PostgreSQL, over 250 ms for the 99th percentile of posts, under 3,000 starts per
second in batches, 1,000 answers per second to one question while nothing changes or 150 to distinct ones, over 2 s from
exec to ready, or when any request fails.

Usage: PYTHONPATH=tests python tests/bench/bench_load.py [rounds]
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import httpx
import psycopg

from _postgres import PostgresCluster
from api.samples import NAMES, start
from bench.loading import Measured, load, request_bytes
from bench.report import Report
from e2e.running import COMMAND, command, environment, parsed

CLIENTS, ITEMS, SECONDS = 32, 250, 1.0
P99_MILLISECONDS, READY_SECONDS = 250.0, 2.0
BARS = {
    "posts, SQLite": 500,
    "posts, PostgreSQL, two replicas": 250,
    "starts in batches, SQLite": 3_000,
    "starts in batches, PostgreSQL, two replicas": 3_000,
    "one question, SQLite": 1_000,
    "distinct questions, SQLite": 150,
}
HELLO = """
import sys, uvicorn
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})
uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="h11", lifespan="off", ws="none",
            access_log=False, log_level="critical")
"""
Case = tuple[Sequence[str], Callable[[], Iterator[bytes]]]


def posts(headers: str, numbers: Iterator[int]) -> Iterator[bytes]:
    """Yield posts of ever new starts, spread over 16 pairs."""
    body = json.dumps(start(id=None, host="@host@", model={"name": "@model@"}))
    for number in numbers:
        own = body.replace("@host@", f"gpu-{number}").replace("@model@", f"model-{number % 16}")
        yield request_bytes("POST", "/observations", own.encode(), headers)


def batches(headers: str, numbers: Iterator[int]) -> Iterator[bytes]:
    """Yield batches of ever new starts, each of its own pair's host."""
    body = json.dumps(start(id=None, host="@host@", model={"name": "@model@"}))
    for number in numbers:
        own = body.replace("@model@", f"batched-{number % 16}")
        items = ",".join(own.replace("@host@", f"gpu-{number}-{item}") for item in range(ITEMS))
        whole = f'{{"observations":[{items}]}}'
        yield request_bytes("POST", "/observations/batch", whole.encode(), headers)


def questions(headers: str, targets: Iterator[int]) -> Iterator[bytes]:
    """Yield questions on a known pair."""
    for target in targets:
        query = urlencode({**NAMES, "target_tokens": target})
        yield request_bytes("GET", f"/recommend?{query}", b"", headers)


@contextlib.contextmanager
def hello_server() -> Iterator[str]:
    """Serve the hello-world and yield its address."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", HELLO, str(port)])
    url = f"http://127.0.0.1:{port}"
    for _ in range(200):
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(url)
            break
        time.sleep(0.05)
    try:
        yield url
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a fresh database of a PostgreSQL that flushes each commit."""
    cluster = PostgresCluster()
    try:
        url = cluster.url(cluster.create_migrated())
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = on")
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        cluster.close()


@contextlib.contextmanager
def services(database: str, count: int) -> Iterator[tuple[list[str], str, float]]:
    """Serve a fresh ledger with the worked case; yield addresses, a caller's headers, seconds until ready."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ("--database", database or f"sqlite:///{folder / 'kvyield.db'}")
        made = command(folder, "token", "create", *options, "--name", "bench", "--role", "admin")
        authorization = {"Authorization": f"Bearer {made.stdout.strip()}"}
        running, seconds = [], []
        try:
            for number in range(count):
                begun = time.perf_counter()
                running.append(started(folder, *options, log=f"log-{number}"))
                httpx.get(f"{running[-1][0]}/health/ready", timeout=30).raise_for_status()
                seconds.append(time.perf_counter() - begun)
            with httpx.Client(base_url=running[0][0], timeout=30, headers=authorization) as client:
                for which in (1, 2, 3):
                    client.post("/observations", json=start(which)).raise_for_status()
            headers = "".join(f"{key}: {value}\r\n" for key, value in authorization.items())
            yield [url for url, _ in running], headers, max(seconds)
        finally:
            for _, process in running:
                process.terminate()
            for _, process in running:
                process.wait()


def started(folder: Path, *options: str, log: str = "log") -> tuple[str, subprocess.Popen[bytes]]:
    """Start the service, its log in a file that costs this process nothing; return its address and its process."""
    path = folder / log
    with path.open("wb") as out:
        words = [*COMMAND, "serve", "--port", "0", *options]
        process = subprocess.Popen(words, cwd=folder, env=environment(), stderr=out)
    for _ in range(1_200):
        for line in path.read_text().splitlines():
            if parsed(line).get("event") == "serving":
                return str(parsed(line)["url"]), process
        time.sleep(0.025)
    raise RuntimeError(path.read_text())


def main() -> int:
    """Start all servers, measure, and return 1 when a bar is missed."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    report = Report(__doc__ or "")
    with contextlib.ExitStack() as stack:
        hello = stack.enter_context(hello_server())
        one, headers, seconds = stack.enter_context(services("", 1))
        database = stack.enter_context(postgres())
        two, others, later = stack.enter_context(services(database, 2))
        numbers, targets = itertools.count(), itertools.count(120_000)
        cases: dict[str, Case] = {
            "hello-world": ([hello], lambda: itertools.repeat(request_bytes("GET", "/"))),
            "posts, SQLite": (one, lambda: posts(headers, numbers)),
            "posts, PostgreSQL, two replicas": (two, lambda: posts(others, numbers)),
            "starts in batches, SQLite": (one, lambda: batches(headers, numbers)),
            "starts in batches, PostgreSQL, two replicas": (two, lambda: batches(others, numbers)),
            "one question, SQLite": (one, lambda: questions(headers, itertools.repeat(200_000))),
            "distinct questions, SQLite": (one, lambda: questions(headers, targets)),
        }
        found: dict[str, list[Measured]] = {name: [] for name in cases}
        for number in range(rounds + 1):
            for name, (urls, requests) in cases.items():
                run = load(urls, requests, clients=CLIENTS, seconds=SECONDS)
                if number:  # the first round warms up
                    found[name].append(run)
    told(report, found, rounds)
    for name, took in (("SQLite", seconds), ("PostgreSQL", later)):
        report.bar(f"from exec to ready, {name}", f"{took:.2f} s, bar {READY_SECONDS:.0f}", is_met=took < READY_SECONDS)
    return report.close()


def told(report: Report, found: dict[str, list[Measured]], rounds: int) -> None:
    """Print the figures of all cases and compare them with the bars."""
    report.section(f"{CLIENTS} clients, medians of {rounds} rounds of {SECONDS:.0f} s")
    rows, bars = [], []
    for name, runs in found.items():
        weight = ITEMS if "batches" in name else 1
        rate = weight * median(run.per_second for run in runs)
        p50, p99 = (median(run.percentile(percent) for run in runs) for percent in (50, 99))
        failed = sum(run.errors() for run in runs)
        rows.append((name, f"{rate:,.0f}", f"{p50:.1f}", f"{p99:.1f}", str(failed)))
        if name in BARS:
            bars.append((f"{name}: at least {BARS[name]:,} a second", f"{rate:,.0f}", rate >= BARS[name]))
        if name.startswith("posts"):
            bars.append((f"{name}: 99 % within {P99_MILLISECONDS:.0f} ms", f"{p99:.0f} ms", p99 < P99_MILLISECONDS))
        bars.append((f"{name}: none failed", str(failed), failed == 0))
    report.table(("case", "a second", "p50, ms", "p99, ms", "failed"), rows)
    for text, figure, is_met in bars:
        report.bar(text, figure, is_met=is_met)


if __name__ == "__main__":
    sys.exit(main())
