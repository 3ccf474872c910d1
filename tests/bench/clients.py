"""Clients that store starts one after the other over keep-alive connections, several requests a start where needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools
import uvloop


@dataclass
class Stored:
    """What a run of clients did: seconds of each start stored, and how many were not."""

    elapsed_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.elapsed_seconds


class Connection(asyncio.Protocol):
    """One keep-alive connection: a request, then its answer."""

    def __init__(self, host: str) -> None:
        self.host = host

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body of the answer to one request; status 0 when the connection was lost."""
        self._answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._parser, self._body = httptools.HttpResponseParser(self), bytearray()
        if self._transport.is_closing():
            return 0, b""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(head.encode() + b"\r\n" + body)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the answer; called by the parser."""
        self._body += body

    def on_message_complete(self) -> None:
        """Hand the answer over; called by the parser."""
        self._answer.set_result((self._parser.get_status_code(), bytes(self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        if hasattr(self, "_answer") and not self._answer.done():
            self._answer.set_result((0, b""))

    def close(self) -> None:
        self._transport.close()


Job = Callable[[Connection, int], Awaitable[bool]]
"""Stores what the number names and tells whether the service said that it is stored."""


def store(url: str, job: Job, numbers: Iterator[int], *, clients: int, seconds: float) -> Stored:
    """Let that many clients store starts for that long."""
    return uvloop.run(_store(url, job, numbers, clients, seconds))


async def _store(url: str, job: Job, numbers: Iterator[int], clients: int, seconds: float) -> Stored:
    stored, begin = Stored(), time.perf_counter()
    await asyncio.gather(*(_client(url, job, numbers, begin + seconds, stored) for _ in range(clients)))
    stored.elapsed_seconds = time.perf_counter() - begin
    return stored


async def _client(url: str, job: Job, numbers: Iterator[int], until: float, stored: Stored) -> None:
    connection = await _connected(url)
    while time.perf_counter() < until:
        begin = time.perf_counter()
        if await job(connection, next(numbers)):
            stored.seconds.append(time.perf_counter() - begin)
            continue
        stored.failed += 1
        connection.close()
        connection = await _connected(url)
    connection.close()


async def _connected(url: str) -> Connection:
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    assert parts.port is not None
    _, connection = await loop.create_connection(lambda: Connection(parts.netloc), parts.hostname or "", parts.port)
    return connection
