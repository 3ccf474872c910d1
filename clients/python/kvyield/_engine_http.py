"""Talking to an inference engine: JSON requests and streamed events, every wait and every body bounded."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvyield._errors import KvyieldError

if TYPE_CHECKING:
    from types import TracebackType

    from kvyield._client import OpenHttp

BODY_BYTES = 64 * 2**20
LINE_BYTES = 4 * 2**20
ASK_SECONDS = 10.0


class EngineError(KvyieldError):
    """The engine did not do what was asked."""


class EngineUnreachableError(EngineError):
    """No connection, or it broke before the answer was whole."""


class EngineTimeoutError(EngineError):
    """The answer was not whole within the time allowed."""


class EngineAnswerError(EngineError):
    """The answer is too large or cannot be read: something else may listen there."""


class EngineRefusedError(EngineError):
    """The engine answered with an error; ``status`` is the HTTP status, the text its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Reply:
    """A whole answer, whatever its status."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    def table(self) -> dict[str, Any]:
        """The body as a JSON object; empty when it is something else."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


def open_engine(url: str, api_key: str | None = None) -> EngineHttp:
    """An engine at ``url``, with or without ``/v1`` at its end. Raises ConfigError when that is not an address."""
    from kvyield._client import open_http  # the HTTP library is loaded only when it is used

    return EngineHttp(open_http(url.rstrip("/").removesuffix("/v1"), api_key, connections=1024))


class EngineHttp:
    """One engine's HTTP side. Safe to share between threads; close it, or use it as a context manager.

    Waits are bounded by ``timeout_seconds`` of each call for the connection, for each piece and for the whole (a
    whole may take one piece's time longer); whole bodies by 64 MiB, a line of a stream by 4 MiB.
    """

    def __init__(self, http: OpenHttp) -> None:
        self._http = http

    def __enter__(self) -> EngineHttp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.client.close()

    def get(self, path: str, *, timeout_seconds: float = ASK_SECONDS) -> Reply:
        """GETs ``path``. Raises EngineUnreachableError, EngineTimeoutError or EngineAnswerError."""
        return self._ask("GET", path, None, timeout_seconds)

    def post(self, path: str, body: Mapping[str, Any] | None, *, timeout_seconds: float = ASK_SECONDS) -> Reply:
        """POSTs JSON to ``path``. Raises EngineUnreachableError, EngineTimeoutError or EngineAnswerError."""
        return self._ask("POST", path, body, timeout_seconds)

    def events(self, path: str, body: Mapping[str, Any], *, timeout_seconds: float) -> Iterator[dict[str, Any]]:
        """POSTs JSON and yields the events of the streamed answer (a whole JSON answer is one event).

        Raises EngineRefusedError for an error status and for an error that comes as an event, else as `post` does.
        """
        ends = time.monotonic() + timeout_seconds
        with (
            self._translated(timeout_seconds),
            self._http.client.stream("POST", path, json=body, timeout=timeout_seconds) as response,
        ):
            pieces = _within(response.iter_bytes(), ends, timeout_seconds)
            streamed = response.headers.get("content-type", "").startswith("text/event-stream")
            if response.status_code >= 400 or not streamed:
                yield _whole(Reply(response.status_code, _joined(pieces)))
                return
            for line in _lines(pieces):
                if line.startswith(b"data:") and line[5:].strip() not in (b"", b"[DONE]"):
                    yield _event(line[5:])

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Reply:
        ends = time.monotonic() + seconds
        with (
            self._translated(seconds),
            self._http.client.stream(method, path, json=body, timeout=seconds) as response,
        ):
            return Reply(response.status_code, _joined(_within(response.iter_bytes(), ends, seconds)))

    @contextlib.contextmanager
    def _translated(self, seconds: float) -> Iterator[None]:
        try:
            yield
        except self._http.late as error:
            raise EngineTimeoutError(f"no answer within {seconds:.0f} s ({type(error).__name__})") from error
        except self._http.failed as error:
            raise EngineUnreachableError(str(error) or type(error).__name__) from error


def _within(pieces: Iterable[bytes], ends: float, seconds: float) -> Iterator[bytes]:
    for piece in pieces:
        if time.monotonic() > ends:
            raise EngineTimeoutError(f"no whole answer within {seconds:.0f} s")
        yield piece


def _joined(pieces: Iterable[bytes]) -> bytes:
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > BODY_BYTES:
            raise EngineAnswerError(f"the answer is larger than {BODY_BYTES // 2**20} MiB; it was not read to its end")
    return bytes(body)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.rstrip(b"\r") for line in lines)
        if len(rest) > LINE_BYTES:
            raise EngineAnswerError(f"a line of the stream is longer than {LINE_BYTES // 2**20} MiB")
    yield rest


def _event(data: bytes) -> dict[str, Any]:
    table = Reply(200, data).table()
    if not table:
        raise EngineAnswerError(f"an event of the stream is not a JSON object: {data[:80].decode(errors='replace')!r}")
    if "error" in table:
        raise _refusal(500, table)
    return table


def _whole(reply: Reply) -> dict[str, Any]:
    table = reply.table()
    if not reply.is_success:
        raise _refusal(reply.status, table or {"message": reply.body[:300].decode(errors="replace").strip()})
    return _event(reply.body)


def _refusal(status: int, table: Mapping[str, Any]) -> EngineRefusedError:
    """Reads what engines send: ``{"error": {"message", "code"}}``, ``{"message"}`` or ``{"detail"}``."""
    inner = table.get("error", table)
    if not isinstance(inner, Mapping):
        inner = {"message": inner}
    message = inner.get("message") or inner.get("detail") or "the engine gave no reason"
    code = inner.get("code")
    return EngineRefusedError(code if isinstance(code, int) and 400 <= code < 600 else status, str(message))
