"""Reads that are asked again and again: made once per state of the database, and not sent twice to who has them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any

from litestar import MediaType, Request, Response
from litestar.connection import ASGIConnection

from kvyield_server.api.encoded import EncodedResponse, encoded
from kvyield_server.api.kept import Answer
from kvyield_server.api.request import header_of
from kvyield_server.api.services import services_of
from kvyield_server.usecases.ports import UnitOfWork

STAMP = "kvyield_stamp"
_TEXT = "text/plain; charset=utf-8"


async def stamp_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Hashable:
    """Return a stamp of the database that was read after the request came."""
    state = connection.scope["state"]
    if STAMP not in state:
        state[STAMP] = await services_of(connection).stamp()
    stamp: Hashable = state[STAMP]
    return stamp


async def answered(
    request: Request[Any, Any, Any], make: Callable[[UnitOfWork], Any], *, seen_by: object = None
) -> Response[Any]:
    """Answer a GET with what ``make`` returns, a text or what becomes JSON; 304 without it when the caller has it.

    ``seen_by`` tells callers apart who see different things at the same address.
    """
    answer = await answer_to(request, lambda uow: answer_of(make(uow)), seen_by=seen_by)
    return conditional(request, answer)


async def answer_to(
    request: Request[Any, Any, Any], make: Callable[[UnitOfWork], Answer], *, seen_by: object = None
) -> Answer:
    """Return the answer to a GET, made anew only when the database changed since it was made."""
    services = services_of(request)
    scope = request.scope
    key = (await stamp_of(request), scope["path"], scope["query_string"], seen_by)
    kept: Answer | None = services.kept.get(key)
    if kept is None:
        kept = await services.read(make)
        services.kept.keep(key, kept)
    return kept


def answer_of(content: Any, label: str = "") -> Answer:
    """Return a text as it is, and anything else as JSON."""
    is_text = isinstance(content, str)
    body = content.encode() if is_text else encoded(content)
    etag = f'"{blake2b(body, digest_size=15).hexdigest()}"'
    return Answer(body, _TEXT if is_text else MediaType.JSON, etag, label)


def conditional(request: Request[Any, Any, Any], answer: Answer) -> Response[Any]:
    """Return an answer, or 304 when ``If-None-Match`` names it."""
    headers = {"ETag": answer.etag, "Cache-Control": "private, no-cache"}
    if _has(header_of(request.scope, b"if-none-match"), answer.etag):
        return Response(None, status_code=304, headers=headers)
    return EncodedResponse(answer.body, media_type=answer.media_type, headers=headers)


def _has(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    named = [part.strip().removeprefix("W/") for part in header.split(",")]
    return etag in named or "*" in named
