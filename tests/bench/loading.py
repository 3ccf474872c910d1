"""Load over keep-alive connections, cheap enough that the server and not the client is measured."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools
import uvloop


@dataclass
class Measured:
    """What one run of load showed: seconds per request, and how many answers had each status (0: none came)."""

    elapsed_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def per_second(self) -> float:
        """Requests a second."""
        return len(self.seconds) / self.elapsed_seconds

    def percentile(self, percent: float) -> float:
        """Return the milliseconds within which that percentage of requests was answered."""
        ordered = sorted(self.seconds)
        return 1000.0 * ordered[min(len(ordered) - 1, math.ceil(len(ordered) * percent / 100.0) - 1)]

    def errors(self) -> int:
        """Return how many requests were not answered with a 2xx status."""
        return sum(count for status, count in self.statuses.items() if not 200 <= status < 300)


class Connection(asyncio.Protocol):
    """Sends one request after the other, each when the answer before has come."""

    def __init__(self, requests: Iterator[bytes], until: float, measured: Measured, done: asyncio.Future[None]) -> None:
        self._requests, self._until, self._measured, self._done = requests, until, measured, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def _next(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._begun = time.perf_counter()
        request = next(self._requests, None) if self._begun < self._until else None
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Count an answer; called by the parser."""
        self._measured.seconds.append(time.perf_counter() - self._begun)
        self._measured.statuses[self._parser.get_status_code()] += 1
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._measured.statuses[0] += 1
        if not self._done.done():
            self._done.set_result(None)


def request_bytes(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    """Return one HTTP/1.1 request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def load(urls: Sequence[str], requests: Callable[[], Iterator[bytes]], *, clients: int, seconds: float) -> Measured:
    """Send requests from that many clients, spread over the servers, for that long; one iterator feeds them all."""
    return uvloop.run(_load(urls, requests(), clients, seconds))


async def _load(urls: Sequence[str], requests: Iterator[bytes], clients: int, seconds: float) -> Measured:
    loop, measured = asyncio.get_running_loop(), Measured()
    begun = time.perf_counter()
    ends = [loop.create_future() for _ in range(clients)]
    for end, url in zip(ends, itertools.cycle(urls), strict=False):
        parts = urlsplit(url)

        def make(end: asyncio.Future[None] = end) -> Connection:
            return Connection(requests, begun + seconds, measured, end)

        await loop.create_connection(make, parts.hostname, parts.port)
    await asyncio.wait(ends, timeout=seconds + 30)
    measured.elapsed_seconds = time.perf_counter() - begun
    measured.statuses[0] += sum(1 for end in ends if not end.done())
    return measured
