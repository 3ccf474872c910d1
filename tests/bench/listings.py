"""The first and the five-hundredth page of a long list, as each service pages."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Protocol
from uuid import uuid4

import httpx

from bench.starts import ITEMS, body

PAGE, TIMES = 100, 15


class Listing(Protocol):
    """How one service is filled and paged."""

    def fill(self, url: str, have: int, count: int) -> None:
        """Add entries until there are ``count``."""

    def pages(self, url: str, number: int) -> tuple[float, float]:
        """Return the median seconds of the first page and of page ``number``, each checked to be full."""


class Pages:
    """kvyield's list of observations: the token of a page names where the one before ended."""

    def fill(self, url: str, have: int, count: int) -> None:
        """Post batches."""
        with httpx.Client(base_url=url, timeout=60, headers={"content-type": "application/json"}) as client:
            for begin in range(have, count, ITEMS):
                items = b",".join(body(number, prefix="filled") for number in range(begin, min(count, begin + ITEMS)))
                client.post("/observations/batch", content=b'{"observations":[' + items + b"]}").raise_for_status()

    def pages(self, url: str, number: int) -> tuple[float, float]:
        """Walk to the page once, then ask for it again and again."""
        with httpx.Client(base_url=url, timeout=60) as client:
            token: str | None = None
            for _ in range(number - 1):
                token = self._page(client, token)["next_page_token"]
            return timed(lambda: self._page(client, None)), timed(lambda: self._page(client, token))

    @staticmethod
    def _page(client: httpx.Client, token: str | None) -> dict[str, Any]:
        words: dict[str, str | int] = {"page_size": PAGE}
        answer = client.get("/observations", params=words if token is None else {**words, "page_token": token})
        page: dict[str, Any] = answer.raise_for_status().json()
        assert len(page["items"]) == PAGE
        return page


class Runs:
    """MLflow's search of runs: the token of a page is how many runs came before."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self, url: str, have: int, count: int) -> None:
        """Copy one stored run inside the database, since posting as many would take an hour."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
            one = connection.execute("SELECT run_uuid FROM latest_metrics LIMIT 1").fetchone()[0]
            copies = [(uuid4().hex,) for _ in range(count - have)]
            for table in ("runs", "tags", "params", "metrics", "latest_metrics"):
                columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                chosen = ", ".join("?" if name == "run_uuid" else name for name in columns)
                names = ", ".join(columns)
                statement = f"INSERT INTO {table} ({names}) SELECT {chosen} FROM {table} WHERE run_uuid = '{one}'"
                connection.executemany(statement, copies)

    def pages(self, url: str, number: int) -> tuple[float, float]:
        """Ask for the first page, and for the later one by a token made as the service makes them."""
        with httpx.Client(base_url=url, timeout=120) as client:
            first = self._page(client, None)
            assert first["next_page_token"] == self._token(PAGE)
            token = self._token(PAGE * (number - 1))
            return timed(lambda: self._page(client, None)), timed(lambda: self._page(client, token))

    @staticmethod
    def _token(offset: int) -> str:
        return base64.b64encode(json.dumps({"offset": offset}).encode()).decode()

    @staticmethod
    def _page(client: httpx.Client, token: str | None) -> dict[str, Any]:
        asked = {"experiment_ids": ["0"], "max_results": PAGE} | ({"page_token": token} if token else {})
        page: dict[str, Any] = client.post("/api/2.0/mlflow/runs/search", json=asked).raise_for_status().json()
        assert len(page["runs"]) == PAGE
        return page


def timed(job: Callable[[], object]) -> float:
    """Return the median seconds of a job."""
    times = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        job()
        times.append(time.perf_counter() - begin)
    return median(times)
