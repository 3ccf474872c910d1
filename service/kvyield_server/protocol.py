"""What uvicorn's HTTP lacks: a bound on the time of a head, and problem details for what is not HTTP."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvyield_server.api.problems import MalformedError, ProblemContext, problem_of
from kvyield_server.schemas.problem import PROBLEM_MEDIA_TYPE


class HttpProtocol(H11Protocol):
    """Closes a connection on which a head is awaited for ``head_seconds``, and answers what is not HTTP as a problem.

    Between two requests uvicorn's own time for keep-alive counts.
    """

    head_seconds: ClassVar[float] = 30.0
    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Await the first head."""
        super().connection_made(transport)
        self.time_head()

    def data_received(self, data: bytes) -> None:
        """Await the rest of a head that is not whole."""
        super().data_received(data)
        self.time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Await nothing more."""
        super().connection_lost(exc)
        self.time_head()

    def time_head(self) -> None:
        """Start the time of a head, or end it once the head is whole or the connection closed."""
        is_awaited = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if is_awaited and self.head_timer is None:
            self.head_timer = self.loop.call_later(self.head_seconds, self.transport.close)
        elif not is_awaited and self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, and close: there is no telling where a next request would begin."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = MalformedError(f"{msg} Nothing of it was taken.")
            body = msgspec.json.encode(problem_of(error, ProblemContext(instance="", request_id="")))
            headers = {"content-type": PROBLEM_MEDIA_TYPE, "content-length": str(len(body)), "connection": "close"}
            head = h11.Response(status_code=400, headers=list(headers.items()), reason="Bad Request")
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def http_protocol(seconds: float) -> type[HttpProtocol]:
    """Return the protocol with that bound on the time of a head."""
    return type("HttpProtocol", (HttpProtocol,), {"head_seconds": seconds})
