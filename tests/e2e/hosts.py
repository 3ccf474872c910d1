"""Hosts that post numbered starts until each is acknowledged, and the ledger to compare with."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from api.samples import start
from e2e.running import Server


def numbered(number: int) -> dict[str, Any]:
    """Return the start of one number."""
    return start(id=f"0197b0a0-0000-7000-8000-{number:012}", host=f"gpu-{number}", model={"name": f"m{number % 5}"})


class Hosts:
    """Eight hosts that post ever new starts; what no server acknowledged is sent again, to the next server."""

    def __init__(self, urls: Sequence[str], first: int = 0, clients: int = 8) -> None:
        self.urls = list(urls)
        self.acknowledged: set[int] = set()
        self.unexpected: list[str] = []
        self._first, self._clients = first, clients
        self._next, self._lock, self._stop = first, threading.Lock(), threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        self._posting: list[Future[None]] = []

    def start(self) -> None:
        """Begin to post."""
        self._posting = [self._pool.submit(self._post) for _ in range(self._clients)]

    def wait_for(self, more: int, seconds: float = 60) -> None:
        """Return once that many more were acknowledged."""
        wanted, end = len(self.acknowledged) + more, time.monotonic() + seconds
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < end, f"{len(self.acknowledged)} of {wanted}; {self.unexpected[:3]}"
            time.sleep(0.01)

    def stop(self) -> set[int]:
        """Finish what was begun and return the numbers of all starts, each of which was acknowledged in the end."""
        self._stop.set()
        for future in self._posting:
            future.result(60)
        self._pool.shutdown()
        return set(range(self._first, self._next))

    def _post(self) -> None:
        with httpx.Client(timeout=30) as client:
            while not self._stop.is_set():
                with self._lock:
                    number, self._next = self._next, self._next + 1
                self._send(client, number)

    def _send(self, client: httpx.Client, number: int) -> None:
        end, attempt = time.monotonic() + 50, number
        while time.monotonic() < end:
            attempt += 1
            try:
                answer = client.post(f"{self.urls[attempt % len(self.urls)]}/observations", json=numbered(number))
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            if answer.status_code in (200, 201):
                self.acknowledged.add(number)
                return
            if answer.status_code != 503:
                self.unexpected.append(answer.text)
            time.sleep(0.05)
        raise AssertionError(f"start {number} was never acknowledged")


def ledger(client: httpx.Client) -> list[int]:
    """Return the numbers of all stored starts by walking the pages."""
    numbers: list[int] = []
    query: dict[str, Any] = {"page_size": 500}
    while True:
        page = client.get("/observations", params=query).json()
        numbers += [int(item["host"].removeprefix("gpu-")) for item in page["items"]]
        if page["next_page_token"] is None:
            return numbers
        query["page_token"] = page["next_page_token"]


def assert_sound(server: Server, sent: set[int], hosts: Hosts) -> None:
    """Assert that nothing is lost, nothing is doubled, counts agree, and no answer was a 500."""
    with server.client() as client:
        stored, pairs = ledger(client), client.get("/pairs").json()["items"]
    assert sorted(stored) == sorted(sent)
    assert hosts.acknowledged == sent
    assert hosts.unexpected == []
    assert sum(pair["observation_count"] for pair in pairs) == len(sent)
    assert not [line for line in server.log if line.get("status") == 500]
