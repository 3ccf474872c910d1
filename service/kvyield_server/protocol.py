"""Uvicorn's HTTP protocol with a bound on the time that a request's head may take, which uvicorn lacks."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class PatientProtocol(HttpToolsProtocol):
    """Closes a connection whose client sends nothing, or begins a head and does not end it, for ``head_seconds``.

    Between two requests uvicorn's own time for keep-alive counts; the time of a body is the application's to bound.
    """

    head_seconds: ClassVar[float] = 30.0
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for a first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take data in; a head that is not whole with it must be so in time."""
        super().data_received(data)
        if self._is_in_head and self._timer is None:
            self._wait()

    def on_message_begin(self) -> None:
        """A head begins; called by the parser."""
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is whole; called by the parser."""
        self._is_in_head = False
        self._stop_waiting()
        super().on_headers_complete()

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
