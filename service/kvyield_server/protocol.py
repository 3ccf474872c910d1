"""Uvicorn's HTTP protocol with what it lacks: bounds on time, and problem details for what is no HTTP."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvyield_server.api.encoded import encoded
from kvyield_server.api.problems import MalformedError, ProblemContext, problem_of
from kvyield_server.schemas.problem import PROBLEM_MEDIA_TYPE


class PatientProtocol(HttpToolsProtocol):
    """Closes a connection whose client sends nothing, or begins a head and does not end it, for ``head_seconds``.

    Between two requests uvicorn's own time for keep-alive counts; the time of a body is the application's to bound, and
    ours again once the application has answered without waiting for it.
    """

    head_seconds: ClassVar[float] = 30.0
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = _is_in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for a first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take data in; a head that is not whole with it, or a body that nobody waits for, must be so in time."""
        super().data_received(data)
        # there is no cycle when the first request names no URL
        is_unheard = self._is_in_body and getattr(self.cycle, "response_complete", False)
        if self._timer is None and (self._is_in_head or is_unheard):
            self._wait()

    def on_message_begin(self) -> None:
        """A head begins; called by the parser."""
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is whole; called by the parser."""
        self._is_in_head, self._is_in_body = False, True
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is whole; called by the parser."""
        self._is_in_body = False
        self._stop_waiting()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and hang up: there is no telling where a next request would begin."""
        error = MalformedError(f"{msg} Nothing of it was taken.")
        body = encoded(problem_of(error, ProblemContext(instance="", request_id="")))
        head = f"content-type: {PROBLEM_MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


def patient_for(seconds: float) -> type[PatientProtocol]:
    """Return the protocol with that bound."""
    return type("PatientProtocol", (PatientProtocol,), {"head_seconds": seconds})
