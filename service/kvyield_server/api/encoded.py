"""Answers whose bytes are ready: what the framework would work out for each of them is known here."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.types import Receive, Scope, Send

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


def encoded(content: object) -> bytes:
    """Return the JSON of a wire struct."""
    return _encoder.encode(content)


class EncodedResponse(Response[T]):
    """A body of bytes with its headers; the type parameter is what the bytes say, for the OpenAPI document.

    The framework asks it for nothing but ``to_asgi_response``; what its own ``__init__`` prepares is not needed.
    """

    def __init__(
        self,
        body: bytes,
        *,
        status_code: int = 200,
        media_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        head = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        for name, text in (headers or {}).items():
            head.append((name.lower().encode(), text.encode()))
        self._sender = Sender(body, status_code, head)

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **_: Any) -> Any:  # noqa: ARG002 - the framework's signature
        """Return what sends the answer."""
        return self._sender


class Sender:
    """Sends one answer."""

    def __init__(self, body: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._body, self._status, self._headers = body, status, headers

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the head and the body."""
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body, "more_body": False})
