"""Strict requests: JSON bodies say so, are decoded without guessing, and parameters are known by name."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from datetime import date, timedelta
from functools import cache
from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import InternalServerException
from msgspec.structs import FieldInfo

from kvyield_server.api.problems import MalformedError, TooSlowError, UnsupportedMediaError, raise_faults
from kvyield_server.api.services import services_of
from kvyield_server.schemas.strict import Fault, FaultyBodyError, decode, faults_of, first_faults

LARGE_BODY_BYTES = 65_536
_DIGITS = re.compile(r"-?[0-9]{1,20}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAYS = {"since": 0, "until": 1}  # days from the start of the day that is named


class StrictRequest(Request[Any, Any, Any]):
    """Decodes the body into the handler's ``data`` annotation; the framework would take "5" for 5.

    The framework bounds the size of a body, this its time.
    """

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body, once the whole has come.

        Raises:
            TooSlowError: it has not come in time.
            MalformedError: the client went away before it had sent all.
        """
        seconds = services_of(self).settings.body_seconds
        try:
            async with asyncio.timeout(seconds):
                parts = [part async for part in super().stream()]
        except TimeoutError:
            raise TooSlowError(f"The body did not arrive within {seconds} s.") from None
        except InternalServerException as error:
            raise MalformedError("The client went away before the whole body arrived.") from error
        yield b"".join(parts)

    async def body(self) -> bytes:
        """Return the body. MalformedError when a handler asks for one and there is none."""
        body = await super().body()
        if not body and self.route_handler.parsed_data_field is not None:
            raise MalformedError("The request has no body; a JSON object is needed.")
        return body

    async def json(self) -> Any:
        """Return the body as the struct that the handler asks for; a long one is decoded beside the event loop.

        Raises:
            MalformedJsonError, FaultyBodyError: as ``decode``.
        """
        body = await self.body()
        expected = self.route_handler.parsed_data_field.annotation  # type: ignore[union-attr]  # asked for by ``data``
        read = getattr(expected, "decode_body", None) or (lambda text: decode(text, expected))
        return read(body) if len(body) <= LARGE_BODY_BYTES else await asyncio.to_thread(read, body)


async def check_head(request: Request[Any, Any, Any]) -> None:
    """Look, before each request of the API, at what its head says of the parameters and the body.

    Raises:
        InvalidError: it has parameters, and the handler asks for none.
        UnsupportedMediaError: the Content-Type is not JSON, or the body is compressed.
    """
    handler = request.route_handler
    if "parameters" not in handler.parsed_fn_signature.parameters:
        unknown = (Fault(f"/{it}", f"{it} is not a parameter here; there are none.") for it in request.query_params)
        raise_faults(first_faults(unknown))
    if handler.parsed_data_field is not None:
        require_json(request)


def require_json(request: Request[Any, Any, Any]) -> None:
    """Return when a body is said to be plain JSON.

    Raises:
        UnsupportedMediaError: it is not, or is compressed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaError(f"Content-Type is {kind or 'missing'}; send application/json.")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise UnsupportedMediaError(f"Content-Encoding is {coding}; send the body as it is.")


async def parameters_of(request: Request[Any, Any, Any]) -> Any:
    """Return the query parameters as the struct that the handler asks for by its ``parameters``.

    Raises:
        InvalidError: a parameter is unknown, given twice, missing or out of bounds; all of them, by name.
    """
    expected = request.route_handler.parsed_fn_signature.parameters["parameters"].annotation
    given: dict[str, Any] = with_days(dict(request.query_params))
    times, numbers = _fields_of(expected, "datetime"), _fields_of(expected, "[int")
    faults = _repeated(request)
    faults += [  # a text that is a number would be taken for seconds since 1970
        Fault(
            f"/{name}",
            f"{name} is {given[name][:60]}: expected a day such as 2026-05-30 or a time such as 2026-05-30T22:00:23Z.",
        )
        for name in times & given.keys()
        if "T" not in given[name].upper()
    ]
    faults += [
        Fault(f"/{name}", f"{name} is {given[name][:60]}: expected a whole number in digits, such as 50.")
        for name in numbers & given.keys()
        if not _DIGITS.fullmatch(given[name])
    ]
    faults += [
        Fault(f"/{name}", f"{name} is {given[name]}: give a value, or leave it out.")
        for name in _read_as_none(expected) & given.keys()
        if given[name].lower() == "null"
    ]
    if not faults and not any("\0" in text for text in given.values()):
        try:
            return msgspec.convert(given, expected, strict=False)
        except msgspec.ValidationError:
            pass
    raise FaultyBodyError(first_faults(faults + faults_of(given, expected, strict=False)))


def _repeated(request: Request[Any, Any, Any]) -> list[Fault]:
    counts = Counter(name for name, _ in request.query_params.multi_items())
    return first_faults(
        Fault(f"/{name}", f"{name} is given more than once; give it once.")
        for name, count in counts.items()
        if count > 1
    )


@cache
def _read_as_none(expected: type[msgspec.Struct]) -> frozenset[str]:
    """Return the parameters that take ``null``, in any case, for none: where types are read loosely, all but texts."""
    return frozenset(it.encode_name for it in _fields(expected) if _is_none("null", it.type))


def _is_none(text: str, kind: Any) -> bool:
    try:
        return msgspec.convert(text, kind, strict=False) is None
    except msgspec.ValidationError:
        return False


def with_days(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with days as times: ``since`` a day begins with it, ``until`` a day ends with it, in UTC."""
    return {**given, **{name: _moment(given[name], days) for name, days in _DAYS.items() if name in given}}


def _moment(value: Any, days: int) -> Any:
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        return value
    try:
        return f"{date.fromisoformat(value) + timedelta(days)}T00:00:00Z"
    except (ValueError, OverflowError):
        return value


@cache
def _fields_of(expected: type[msgspec.Struct], kind: str) -> frozenset[str]:
    """Return the parameters whose type names a kind."""
    return frozenset(it.encode_name for it in _fields(expected) if kind in str(it.type))


@cache
def _fields(struct: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a struct: their types are texts, which are evaluated once, not with each request."""
    return msgspec.structs.fields(struct)
