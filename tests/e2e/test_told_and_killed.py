"""Starts that many tell in any order over HTTP while the server is killed: what was answered is there, once."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from uuid6 import uuid7

from api.samples import VERIFICATION, start
from e2e.running import Server, command

BEGUN = datetime(2026, 5, 1, tzinfo=UTC)
HOSTS = ("gpu-01", "gpu-02.example", "GPU-03")
MODELS = ("moonshotai/Kimi-K2.6", "Qwen/Qwen3-8B")


class Teller:
    """Tells random things of random starts to a server, again and again until each is answered, and keeps count.

    Each start has a pool of its own, so that an account without a time is of one start alone.
    """

    def __init__(self, chance: random.Random, serve: Callable[[], Server]) -> None:
        self.chance, self.serve = chance, serve
        self.server = serve()
        self.client = self.server.client()
        self.starts: list[dict[str, Any]] = []
        self.ids: dict[str, int] = {}
        self.retracted: set[int] = set()
        self.verified: dict[int, set[int]] = {}
        self.corrected: dict[int, set[str]] = {}
        self.followed: dict[str, int] = {}
        self.answers: list[str] = []

    def close(self) -> None:
        """Stop the server."""
        self.client.close()
        assert self.server.stop() == 0

    def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send a request until it is answered, over a server that may be killed meanwhile."""
        is_killed = self.chance.random() < 0.03
        while True:
            try:
                if is_killed:
                    is_killed = False
                    self.kill_during(method, path, body)
                answer = self.client.request(method, path, json=body)
            except httpx.TransportError:
                self.client.close()
                self.server.kill()
                self.server = self.serve()
                self.client = self.server.client()
                continue
            assert answer.status_code < 500, (method, path, body, answer.text)
            return answer

    def kill_during(self, method: str, path: str, body: Any) -> None:
        """Send a request and kill the server before, while or after it is taken."""
        address = httpx.URL(self.server.url)
        text = json.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection((address.host, address.port or 0), timeout=10) as connection:
            connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
            time.sleep(self.chance.choice((0, 0.002, 0.01)))
            self.server.kill()

    def account(self, number: int) -> dict[str, Any]:
        """Return what someone posts about a start: a log, a person, or an endpoint that knows no time."""
        true = self.starts[number]
        told = start(
            id=str(uuid7()),
            host=true["host"],
            observed_at=true["at"].isoformat(),
            model={"name": true["model"]},
            source=self.chance.choice(("log", "manual", "endpoint", "import")),
            log_excerpt=None,
        )
        told["flags"]["port"] = 30_000
        told["measurements"] = {"pool_tokens": true["pool"]}
        if told["source"] == "endpoint":
            told["observed_at"] = None
        elif self.chance.random() < 0.5:
            told["observed_at"] = (true["at"] + timedelta(seconds=self.chance.uniform(0, 1))).isoformat()
        if self.chance.random() < 0.3:
            told["measurements"]["free_at_ready_gib"] = 6.1
        if self.answers and self.chance.random() < 0.3:
            told["recommendation_id"] = self.chance.choice(self.answers)
        return told

    def tell(self) -> None:
        """Post a new start or a known one; sometimes the same again, sometimes in a batch."""
        if not self.starts or self.chance.random() < 0.5:
            number = len(self.starts)
            true = {"host": self.chance.choice(HOSTS), "model": self.chance.choice(MODELS), "pool": 100_000 + number}
            self.starts.append({**true, "at": BEGUN + timedelta(hours=number)})
        number = self.chance.randrange(len(self.starts))
        bodies = [self.account(number) for _ in range(self.chance.randint(1, 3))]
        if self.chance.random() < 0.5:
            items = self.send("POST", "/observations/batch", {"observations": bodies * 2}).json()["items"]
            taken = [(body, item["status"]) for body, item in zip(bodies * 2, items, strict=True)]
        else:
            taken = [(body, self.send("POST", "/observations", body).status_code) for body in bodies]
        for body, status in taken:
            named = body.get("recommendation_id")
            assert status in (200, 201) or (status == 422 and named), (body, status)
            if status in (200, 201):
                self.ids[body["id"]] = number
                if named:
                    self.followed.setdefault(named, number)

    def retract(self) -> None:
        """Retract a start by any of its ids."""
        if self.ids and self.chance.random() < 0.3:
            chosen = self.chance.choice(list(self.ids))
            assert self.send("POST", f"/observations/{chosen}/retraction", {"reason": "r"}).status_code == 200
            self.retracted.add(self.ids[chosen])

    def verify(self) -> None:
        """Verify a start by any of its ids; one that is retracted is refused."""
        if self.ids:
            chosen, tokens = self.chance.choice(list(self.ids)), self.chance.randint(1, 90_000)
            body = {**VERIFICATION, "prompt_tokens": tokens}
            status = self.send("POST", f"/observations/{chosen}/verifications", body).status_code
            number = self.ids[chosen]
            assert (status == 409) == (number in self.retracted), (status, number)
            if status != 409:
                self.verified.setdefault(number, set()).add(tokens)

    def correct(self) -> None:
        """Correct a fact of a start: its memory, its fraction, its number of GPUs."""
        if self.ids:
            chosen, reason = self.chance.choice(list(self.ids)), f"r{self.chance.random()}"
            part = self.chance.choice(
                (
                    {"hardware": {"memory_gib": self.chance.uniform(90, 100)}},
                    {"flags": {"mem_fraction_static": round(self.chance.uniform(0.5, 0.9), 3)}},
                    {"hardware": {"gpu_count": self.chance.choice((2, 4))}},
                )
            )
            answer = self.send("POST", f"/observations/{chosen}/corrections", {"reason": reason, **part})
            assert answer.status_code == 200
            if any(entry["reason"] == reason for entry in answer.json()["history"]):
                self.corrected.setdefault(self.ids[chosen], set()).add(reason)

    def advise(self) -> None:
        """Store an answer for a pair; one that is there can be followed."""
        body = {"gpu": start()["hardware"]["gpu"], "gpu_count": 8, "model": MODELS[0], "engine": "sglang"}
        answer = self.send("POST", "/recommendations", {**body, "target_tokens": 20_000})
        assert answer.status_code in (201, 404, 409), answer.text
        if answer.status_code == 201:
            self.answers.append(answer.json()["id"])

    def check(self) -> None:
        """All that was answered is in the ledger, in as many rows as there were starts."""
        rows: dict[int, dict[str, Any]] = {}
        for posted, number in self.ids.items():
            answer = self.send("GET", f"/observations/{posted}")
            assert answer.status_code == 200, (posted, number)
            rows.setdefault(number, answer.json())
            assert answer.json()["id"] == rows[number]["id"], (posted, number)
        assert len({row["id"] for row in rows.values()}) == len(rows)
        listed = self.send("GET", "/observations?page_size=500").json()["items"]
        assert {each["id"] for each in listed} == {row["id"] for row in rows.values()}
        for number, row in rows.items():
            assert row["measurements"]["pool_tokens"] == self.starts[number]["pool"]
            assert (row["retracted_at"] is not None) == (number in self.retracted)
            assert self.verified.get(number, set()) <= {each["prompt_tokens"] for each in row["verifications"]}
            assert self.corrected.get(number, set()) <= {entry["reason"] for entry in row["history"]}
        for answer_id, number in self.followed.items():
            settled_by = self.send("GET", f"/recommendations/{answer_id}").json()["observation_id"]
            assert UUID(settled_by)
            assert settled_by in {row["id"] for row in rows.values()}, number
        pairs = self.send("GET", "/pairs?page_size=500").json()["items"]
        live = sum(row["retracted_at"] is None for row in rows.values())
        assert sum(pair["observation_count"] for pair in pairs) == live


def wander(folder: Path, database: str | None, seed: int, steps: int) -> None:
    """Let one teller do that many random things, then compare the ledger, its export and the import of that."""
    options = ("--database", database) if database else ()
    teller = Teller(random.Random(seed), lambda: Server(folder, *options))
    try:
        acts = (teller.tell, teller.tell, teller.tell, teller.retract, teller.verify, teller.correct, teller.advise)
        for _ in range(steps):
            teller.chance.choice(acts)()
        teller.check()
        listed = teller.client.get("/observations?page_size=500").json()["items"]
    finally:
        teller.client.close()
        teller.server.kill()
    source, copy = folder / "all.ndjson", f"sqlite:///{folder / 'copy.db'}"
    told = command(folder, "export", *options)
    assert told.returncode == 0, told.stderr
    source.write_text(told.stdout)
    for expected in ("restored", "0 starts and 0 recommendations restored"):
        told = command(folder, "import", str(source), "--database", copy)
        assert (told.returncode, expected in told.stdout) == (0, True), told.stderr + told.stdout
    other = Server(folder, "--database", copy)
    try:
        with other.client() as client:
            again = client.get("/observations?page_size=500").json()["items"]
            assert {each["id"]: each for each in again} == {each["id"]: each for each in listed}
            for posted in teller.ids:
                assert client.get(f"/observations/{posted}").status_code == 200
    finally:
        other.kill()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_was_answered_is_there_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Posts, batches, replays, corrections, retractions, verifications and advice, kills in between."""
    database = request.getfixturevalue("postgres_url") if kind == "postgresql" else None
    wander(tmp_path, database, seed=7, steps=25)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(20))
def test_what_was_answered_is_there_once_at_length(seed: int, tmp_path: Path) -> None:
    """The same of twenty other sequences."""
    wander(tmp_path, None, seed=seed, steps=150)
