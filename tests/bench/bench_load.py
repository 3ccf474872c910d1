"""Requests a second of the service beside a bare ASGI hello-world on the same uvicorn: 32 clients, in rotation.

Usage: PYTHONPATH=service:tests python tests/bench/bench_load.py [--rounds 15] [--seconds 1] [--database URL] [--tokens]

All servers run the whole time, each in one process; every round measures each case in turn, and a ratio is the median
over rounds of a case to the hello-world of the same round. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import httpx

from api.samples import NAMES, start
from bench.loading import Measured, load, request_bytes
from e2e.running import COMMAND, command, environment, parsed

CLIENTS, ITEMS = 32, 250
BARS = {"post": 0.12, "batch": 1.0, "recommend": 0.15}
P99_MILLISECONDS = 100.0
HELLO = """
import sys, uvicorn
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})
uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", lifespan="off", ws="none",
            access_log=False, log_level="critical")
"""
Case = Callable[[], Iterator[bytes]]


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


def questions(headers: str) -> Iterator[bytes]:
    """Yield questions on a known pair, 64 different targets in rotation."""
    for target in itertools.cycle(range(150_000, 214_000, 1_000)):
        yield request_bytes("GET", f"/recommend?{urlencode({**NAMES, 'target_tokens': target})}", b"", headers)


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
def service(database: str | None, tokens: bool) -> Iterator[tuple[str, str]]:
    """Serve kvyield over a fresh ledger with the worked case; yield its address and the headers of a caller."""
    with tempfile.TemporaryDirectory() as name:
        folder, options = Path(name), ("--database", database) if database else ()
        headers = ""
        if tokens:
            words = ("token", "create", *options, "--name", f"bench-{uuid4()}", "--role", "admin")
            headers = f"Authorization: Bearer {command(folder, *words).stdout.strip()}\r\n"
        url, process = started(folder, *options)
        with httpx.Client(base_url=url, timeout=30) as client:
            given = dict([headers.strip().split(": ")]) if headers else {}
            for number in (1, 2, 3):
                client.post("/observations", json=start(number), headers=given).raise_for_status()
        try:
            yield url, headers
        finally:
            process.terminate()
            process.wait()


def started(folder: Path, *options: str) -> tuple[str, subprocess.Popen[bytes]]:
    """Start the service, its log in a file that costs this process nothing; return its address and its process."""
    log = folder / "log"
    with log.open("wb") as out:
        words = [*COMMAND, "serve", "--port", "0", *options]
        process = subprocess.Popen(words, cwd=folder, env=environment(), stderr=out)
    for _ in range(600):
        for line in log.read_text().splitlines():
            if parsed(line).get("event") == "serving":
                return str(parsed(line)["url"]), process
        time.sleep(0.05)
    raise RuntimeError(log.read_text())


def measure(url: str, hello: str, headers: str, rounds: int, seconds: float) -> dict[str, list[Measured]]:
    """Measure all cases in rotation."""
    run = uuid4().int % 10**6 * 10**6
    singles, bulks = itertools.count(run), itertools.count(run)
    cases: dict[str, tuple[str, Case]] = {
        "hello": (hello, lambda: itertools.repeat(request_bytes("GET", "/"))),
        "post": (url, lambda: posts(headers, singles)),
        "batch": (url, lambda: batches(headers, bulks)),
        "recommend": (url, lambda: questions(headers)),
    }
    found: dict[str, list[Measured]] = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, (address, requests) in cases.items():
            found[name].append(load(address, requests, clients=CLIENTS, seconds=seconds))
    return {name: runs[1:] for name, runs in found.items()}  # the first round warms up


def ratio(found: dict[str, list[Measured]], name: str) -> float:
    """Return the median ratio of a case to the hello-world of its round; a batch counts its observations."""
    weight = ITEMS if name == "batch" else 1
    pairs = zip(found[name], found["hello"], strict=True)
    return median(weight * case.per_second / hello.per_second for case, hello in pairs)


def report(found: dict[str, list[Measured]]) -> bool:
    """Print the figures and say whether all bars are met."""
    is_met = True
    for name, runs in found.items():
        weight = ITEMS if name == "batch" else 1
        rate = weight * median(run.per_second for run in runs)
        p99 = median(run.percentile(99) for run in runs)
        errors = sum(run.errors() for run in runs)
        line: dict[str, Any] = {"case": name, "per_second": round(rate), "p99_milliseconds": round(p99, 1)}
        if name in BARS:
            line |= {"ratio": round(ratio(found, name), 3), "bar": BARS[name]}
            is_met &= line["ratio"] >= BARS[name] and (name != "post" or p99 < P99_MILLISECONDS)
        print(json.dumps(line | {"errors": errors}))
        is_met &= errors == 0
    return is_met


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--database")
    parser.add_argument("--tokens", action="store_true")
    given = parser.parse_args()
    with hello_server() as hello, service(given.database, given.tokens) as (url, headers):
        found = measure(url, hello, headers, given.rounds, given.seconds)
    return 0 if report(found) else 1


if __name__ == "__main__":
    sys.exit(main())
