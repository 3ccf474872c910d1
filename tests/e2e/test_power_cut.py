"""A server killed in the middle of 2,000 posts: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from api.samples import start
from e2e.running import Server

POSTS, CLIENTS = 2_000, 8


def body(number: int) -> dict[str, Any]:
    """Return the start of one number."""
    return start(id=f"0197b0a0-0000-7000-8000-{number:012}", host=f"gpu-{number}")


def post_all(server: Server, numbers: range, acknowledged: list[int], enough: threading.Event) -> None:
    """Post starts one after the other until the server is gone; tell when many were acknowledged."""
    with server.client() as client:
        for number in numbers:
            try:
                answer = client.post("/observations", json=body(number))
            except httpx.HTTPError:
                return
            if answer.status_code == 201:
                acknowledged.append(number)
            if len(acknowledged) >= POSTS // 3:
                enough.set()


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


def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(tmp_path: Path) -> None:
    """After kill -9 all acknowledged starts are there, and sending all again completes the ledger, once each."""
    server, acknowledged, enough = Server(tmp_path), list[int](), threading.Event()
    size = POSTS // CLIENTS
    with ThreadPoolExecutor(CLIENTS) as pool:
        for index in range(CLIENTS):
            pool.submit(post_all, server, range(index * size, (index + 1) * size), acknowledged, enough)
        assert enough.wait(120)
        server.kill()
    assert POSTS // 3 <= len(acknowledged) < POSTS

    restarted = Server(tmp_path)
    with restarted.client() as client:
        stored = ledger(client)
        assert set(acknowledged) <= set(stored)
        assert max(Counter(stored).values()) == 1
        for first in range(0, POSTS, 500):
            items = [body(number) for number in range(first, first + 500)]
            answer = client.post("/observations/batch", json={"observations": items}).json()
            assert {item["status"] for item in answer["items"]} <= {200, 201}
        assert sorted(ledger(client)) == list(range(POSTS))
    assert restarted.stop() == 0
