"""Strict requests: JSON bodies say so, are decoded without guessing, and parameters are known by name."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.types import Scope

from kvyield_server.api.problems import (
    MalformedError,
    TooLargeError,
    TooSlowError,
    UnsupportedMediaError,
    raise_faults,
)
from kvyield_server.api.services import services_of
from kvyield_server.schemas.strict import Fault, FaultyBodyError, decode, faults_of, first_faults

T = TypeVar("T")
_DIGITS = re.compile(r"-?[0-9]{1,20}")
_TOO_LARGE = "The body is longer than this service reads; send observations in smaller batches."
QUERY = "query"
MEDIA = "media"
JSON_OR_TEXT = {MEDIA: ("application/json", "text/plain")}


def header_of(scope: Scope, name: bytes) -> str | None:
    """Return the first header of that name in small letters; the framework would sort all headers out for it."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return None


class StrictRequest(Request[Any, Any, Any]):
    """Decodes the body into the handler's ``data`` annotation; the framework would take "5" for 5."""

    _read: bytes | None = None

    async def body(self) -> bytes:
        """Return the body. UnsupportedMediaError unless it is said to be JSON, MalformedError when it is empty."""
        if not self._expects_json():
            return await self._whole()
        kind = (header_of(self.scope, b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise UnsupportedMediaError(f"Content-Type is {kind or 'missing'}; send application/json.")
        if (coding := header_of(self.scope, b"content-encoding") or "identity").strip().lower() != "identity":
            raise UnsupportedMediaError(f"Content-Encoding is {coding}; send the body as it is.")
        body = await self._whole()
        if not body:
            raise MalformedError("The request has no body; a JSON object is needed.")
        return body

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body, which is read as a whole: so it has its bounds of size and time here too."""
        yield await self._whole()

    async def json(self) -> Any:
        """Return the body as the struct that the handler asks for."""
        expected = self.route_handler.parsed_data_field.annotation  # type: ignore[union-attr]
        body = await self.body()
        decoder = getattr(expected, "decode_body", None)
        return await services_of(self).decoded(len(body), lambda: decoder(body) if decoder else decode(body, expected))

    def _expects_json(self) -> bool:
        return getattr(self.route_handler, "parsed_data_field", None) is not None

    async def _whole(self) -> bytes:
        if self._read is None:
            self._read = await self._receive()
        return self._read

    async def _receive(self) -> bytes:
        settings = services_of(self).settings
        announced = header_of(self.scope, b"content-length") or ""
        if announced.isdecimal() and int(announced) > settings.max_body_bytes:
            raise TooLargeError(_TOO_LARGE)
        deadline = _Deadline(settings.body_seconds)
        try:
            return await self._received(settings.max_body_bytes)
        except asyncio.CancelledError:
            if deadline.is_over():
                raise TooSlowError(f"The body did not arrive within {settings.body_seconds} s.") from None
            raise
        finally:
            deadline.lift()

    async def _received(self, most_bytes: int) -> bytes:
        """Return the body as it comes in; the framework does the same at ten times the price."""
        parts: list[bytes] = []
        size, is_whole = 0, False
        while not is_whole:
            message: Any = await self.receive()
            if message["type"] == "http.disconnect":
                raise MalformedError("The client went away before the whole body arrived.")
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > most_bytes:
                raise TooLargeError(_TOO_LARGE)
            is_whole = not message.get("more_body", False)
        return b"".join(parts)


class _Deadline:
    """Cancels the current task after some seconds, at a third of the cost of ``asyncio.timeout``."""

    def __init__(self, seconds: float) -> None:
        self._task = asyncio.current_task()
        self._has_struck = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self._strike)

    def _strike(self) -> None:
        self._has_struck = True
        if self._task is not None:
            self._task.cancel()

    def is_over(self) -> bool:
        """Tell whether this cancelled the task, and nobody else did; the task then goes on."""
        return self._has_struck and self._task is not None and self._task.uncancel() == 0

    def lift(self) -> None:
        """Let the task be."""
        self._timer.cancel()


def query_of(request: Request[Any, Any, Any], expected: type[T]) -> T:
    """Return the query parameters as a struct.

    Raises:
        InvalidError: a parameter is unknown, given twice, missing or out of bounds; all of them, by name.
    """
    pairs = list(request.query_params.multi_items())
    given = dict(pairs)
    faults = [
        Fault(f"/{name}", f"{name} is given more than once; give it once.")
        for name, count in Counter(name for name, _ in pairs).items()
        if count > 1
    ]
    faults += [
        Fault(f"/{name}", f"{name} is {given[name][:60]}: expected a time such as 2026-05-30T22:00:23Z.")
        for name in times_of(expected) & given.keys()
        if "T" not in given[name].upper()
    ]
    faults += [
        Fault(f"/{name}", f"{name} is {given[name][:60]}: expected a whole number in digits, such as 50.")
        for name in _whole_numbers_of(expected) & given.keys()
        if not _DIGITS.fullmatch(given[name])
    ]
    try:
        return _converted(given, expected, faults)
    except FaultyBodyError as error:
        raise_faults(error.faults)
        raise


def refuse_parameters(request: Request[Any, Any, Any]) -> None:
    """Refuse all query parameters of a handler that declares none."""
    if request.scope["query_string"] and QUERY not in request.route_handler.opt:
        raise_faults(
            first_faults(
                Fault(f"/{name}", f"{name} is not a parameter here; there are none.") for name in request.query_params
            )
        )


def times_of(expected: type[Any]) -> frozenset[str]:
    """Return the parameters that are times: a text that is a number would be taken for seconds since 1970."""
    fields = msgspec.structs.fields(expected)
    return frozenset(field.encode_name for field in fields if "datetime" in str(field.type))


def _whole_numbers_of(expected: type[Any]) -> frozenset[str]:
    fields = msgspec.structs.fields(expected)
    return frozenset(field.encode_name for field in fields if "[int" in str(field.type))


def _converted(given: dict[str, str], expected: type[T], faults: list[Fault]) -> T:
    if not faults and not any("\0" in text for text in given.values()):
        try:
            return msgspec.convert(given, expected, strict=False)
        except msgspec.ValidationError:
            pass
    raise FaultyBodyError(first_faults(faults + faults_of(given, expected, strict=False)))
