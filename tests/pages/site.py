"""The service on a real port, over a storage in memory, for a browser to visit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import uvicorn

from _storages import fresh_storage
from kvyield_server.app import create_app
from kvyield_server.settings import Settings
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.records import Role
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.tokens import new_token

BATCH = 500


@dataclass(frozen=True)
class Site:
    """A running service: where it is, and what a host would send it."""

    url: str
    storage: Storage

    def post(self, bodies: Iterable[dict[str, Any]], token: str | None = None) -> list[str]:
        """Record starts and return their ids; any refusal fails the test."""
        items, ids = list(bodies), []
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=self.url, timeout=60, headers=headers) as client:
            for at in range(0, len(items), BATCH):
                answer = client.post("/observations/batch", json={"observations": items[at : at + BATCH]})
                results = answer.raise_for_status().json()["items"]
                ids += [item["id"] for item in results]
        return ids

    def pair(self, model: str | None = None) -> str:
        """Return the id of the pair of a model, or of the only pair."""
        with self.storage.read() as unit:
            names = unit.pairs.names()
        return str(next(name.id for name in names if model in (None, name.model)))

    def token(self, role: Role, name: str = "somebody") -> str:
        """Make a token and return its text."""
        token, text = new_token(name, [role], now=datetime.now(UTC), expires_at=None)
        self.storage.write(lambda unit: unit.tokens.add(token)).result()
        return text


@contextmanager
def serving(database: str | None = None) -> Iterator[Site]:
    """Serve on a free port of the loopback address until the block ends, from memory unless a database is named."""
    storage = open_storage(database) if database else fresh_storage()
    config = uvicorn.Config(create_app(Settings(), storage), port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield Site(f"http://127.0.0.1:{_port(server, thread)}", storage)
    finally:
        server.should_exit = True
        thread.join(20)


def _port(server: uvicorn.Server, thread: threading.Thread) -> int:
    until = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < until, "the service did not start"
        time.sleep(0.01)
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port
