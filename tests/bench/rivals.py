"""Servers that can keep a start, side by side: each says how a start is stored and what it costs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg

from _postgres import PostgresCluster
from bench.clients import Job
from bench.listings import Listing, Pages, Runs
from bench.peers import peer
from bench.processes import cpu_seconds, parent
from bench.starts import log_run, post_batch, post_one
from e2e.running import Server

MLFLOW = ("mlflow",)
BARE = """
import sys, uvicorn
async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})
uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", lifespan="off", ws="none",
            access_log=False, log_level="critical")
"""
ECHO = """
import sys, msgspec, uvicorn
from typing import Any
from litestar import Litestar, post
class Start(msgspec.Struct):
    hardware: dict[str, Any]
    model: dict[str, Any]
    engine: dict[str, Any]
    flags: dict[str, Any]
    measurements: dict[str, Any]
    outcome: str
@post("/observations")
async def echo(data: Start) -> Start:
    return data
uvicorn.run(Litestar([echo], openapi_config=None), port=int(sys.argv[1]), loop="uvloop", http="httptools",
            lifespan="off", ws="none", access_log=False, log_level="critical")
"""


def settle(roots: list[int], seconds: float = 90.0) -> float:
    """Wait until a server has nothing left to do and return the share of a core that it takes while idle."""
    until = time.perf_counter() + seconds
    while True:
        before = cpu_seconds(roots)
        time.sleep(1.0)
        share = cpu_seconds(roots) - before
        if share < 0.05 or time.perf_counter() > until:
            return share


@dataclass
class Rival:
    """A running server. ``kept`` counts what it holds in its own database; None where it keeps nothing."""

    name: str
    url: str
    roots: list[int]
    job: Job
    started_seconds: float
    kept: Callable[[], int] | None = None
    batch: Job | None = None
    listing: Listing | None = None
    warmed: int = 0


def free_port() -> int:
    """Return a port that nothing listens on."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def script(name: str, code: str) -> Iterator[Rival]:
    """Serve a few lines of Python that keep nothing."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", code, str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        yield Rival(name, url, [process.pid], post_one, answers(url, 60))
    finally:
        process.terminate()
        process.wait()


def answers(url: str, seconds: float) -> float:
    """Wait until a server answers anything at all and return how long that took."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(url, timeout=5)
            return time.perf_counter() - begin
        time.sleep(0.02)
    raise RuntimeError(f"{url} did not answer within {seconds} s")


@contextlib.contextmanager
def kvyield_on_sqlite(folder: Path) -> Iterator[Rival]:
    """Serve kvyield over its embedded database."""
    begin, path = time.perf_counter(), folder / "kvyield.db"
    server = Server(folder)
    seconds = time.perf_counter() - begin
    try:
        roots, name = [server.process.pid], "kvyield, SQLite"
        yield Rival(name, server.url, roots, post_one, seconds, lambda: rows(path, "observation"), post_batch, Pages())
    finally:
        server.stop()


@contextlib.contextmanager
def kvyield_on_postgres(folder: Path) -> Iterator[Rival]:
    """Serve kvyield over a PostgreSQL that flushes every commit; the database's processes count as the server's."""
    cluster = PostgresCluster()
    try:
        url = cluster.url(cluster.create_migrated())
        plain = url.replace("postgresql+psycopg://", "postgresql://")
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = on")
            connection.execute("SELECT pg_reload_conf()")
            time.sleep(0.2)
            found = connection.execute("SHOW fsync").fetchone()
            assert found == ("on",), found
            postmaster = parent(connection.info.backend_pid)
        yield from _served(folder, url, plain, postmaster)
    finally:
        cluster.close()


def _served(folder: Path, url: str, plain: str, postmaster: int) -> Iterator[Rival]:
    def kept() -> int:
        with psycopg.connect(plain) as connection:
            row = connection.execute("SELECT count(*) FROM observation").fetchone()
            return int(row[0]) if row else 0

    begin = time.perf_counter()
    server = Server(folder, "--database", url)
    seconds = time.perf_counter() - begin
    try:
        roots, name = [server.process.pid, postmaster], "kvyield, PostgreSQL"
        yield Rival(name, server.url, roots, post_one, seconds, kept, post_batch, Pages())
    finally:
        server.stop()


def rows(path: Path, table: str) -> int:
    """Return how many rows an SQLite table holds."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[Rival]:
    """Serve MLflow's tracking server with one worker over SQLite, its background jobs and its telemetry off."""
    python = peer("mlflow", MLFLOW)
    port, path = free_port(), folder / "mlflow.db"
    words = [str(python.parent / "mlflow"), "server", "--backend-store-uri", f"sqlite:///{path}", "--workers", "1"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--artifacts-destination", str(folder / "artifacts")]
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = (folder / "mlflow.log").open("ab")
    process = subprocess.Popen(words, cwd=folder, env=quiet, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        seconds, name = answers(f"{url}/health", 180), "MLflow, SQLite"
        yield Rival(name, url, [process.pid], log_run, seconds, lambda: rows(path, "runs"), None, Runs(path))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        log.close()
