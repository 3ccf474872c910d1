"""How answers are sent: not again to who has them, and so that they arrive before the request has."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from hashlib import blake2b
from urllib.parse import unquote

from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, HTTPResponseStartEvent, Message, Receive, ReceiveMessage, Scope, Send

_ABSOLUTE = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE)


class EntityTags(ASGIMiddleware):
    """Tags each 200 answer to GET with a digest of its body, and answers 304 without it to a caller that names the tag.

    What is streamed passes untouched.
    """

    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Hold the head of an answer back until its whole body is there."""
        named = ",".join(Headers.from_scope(scope).getall("if-none-match", []))
        held: HTTPResponseStartEvent | None = None

        async def tagged(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and message["status"] == 200:
                held = message
                return
            if held is not None and message["type"] == "http.response.body":
                head, held = held, None
                if not message["more_body"]:
                    tag = f'"{blake2b(message["body"], digest_size=15).hexdigest()}"'
                    headers = MutableScopeHeaders.from_message(head)
                    headers["etag"], headers["cache-control"] = tag, "private, no-cache"
                    if _names(named, tag):
                        head["status"], message["body"] = 304, b""
                        del headers["content-length"], headers["content-type"]
                await send(head)
            await send(message)

        await next_app(scope, receive, tagged if scope.get("method") == "GET" else send)


class EarlyAnswers:
    """Wraps an application so that an answer that comes before the whole body of its request reaches the client.

    Such an answer says that the connection ends. What the client still sends is read and dropped, for ``seconds`` at
    most: a connection that is closed over unread data is reset, and the answer is lost with it.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != ScopeType.HTTP or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        is_whole = is_early = False

        async def received() -> ReceiveMessage:
            nonlocal is_whole
            message = await receive()
            is_whole = is_whole or message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            nonlocal is_early
            if message["type"] == "http.response.start" and not is_whole:
                is_early = True
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            if not (is_early and message["type"] == "http.response.body") or message.get("more_body", False):
                await send(message)
                return
            await send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    while not is_whole:
                        await received()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app(scope, received, sent)


class OriginForm:
    """Wraps an application so that a request whose target is a whole URI, as a proxy's client sends it, is taken for
    the path of that URI at that URI's host, whatever the Host header says (RFC 9112, 3.2.2).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == ScopeType.HTTP and (target := _ABSOLUTE.fullmatch(scope["raw_path"])):
            path = target[2] or b"/"
            scope["raw_path"], scope["path"] = path, unquote(path.decode("ascii"))
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope["headers"] = [(b"host", target[1]), *others]
        await self._app(scope, receive, send)


def _names(header: str, tag: str) -> bool:
    named = [part.strip().removeprefix("W/") for part in header.split(",")]
    return tag in named or "*" in named


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )
