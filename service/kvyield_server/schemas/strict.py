"""Strict decoding of request bodies: one pass when all is well, every fault by its pointer when not.

msgspec stops at the first fault and lets a duplicate key win; people who post want all faults at once, by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from kvyield_server.schemas.secrets import looks_secret

T = TypeVar("T")
MAX_FAULTS = 50
_KEY_END = b'":'
_SPACED_KEY_END = re.compile(rb'"\s+:')
_plain = msgspec.json.Decoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_BLANK_RULE = 'str matching regex "\\\\S"'


class Fault(NamedTuple):
    """One thing wrong with a request: where (a JSON pointer) and what would be right."""

    pointer: str
    detail: str


class MalformedJsonError(ValueError):
    """The body is not JSON; the message says where it stops being so."""


class FaultyBodyError(ValueError):
    """The body is JSON, and not what was asked for."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(fault.detail for fault in faults))
        self.faults = faults


class _Object(dict[str, Any]):
    duplicates: tuple[str, ...] = ()


def decode(body: bytes, expected: type[T]) -> T:
    """Decode a JSON body strictly.

    Raises:
        MalformedJsonError: not JSON (with the byte, line and column), or nested too deeply.
        FaultyBodyError: unknown, missing, mistyped, out-of-bounds or duplicate fields, all of them.
    """
    try:
        value: T = _decoder(expected).decode(body)
        is_plain = keys_are_unique(body)
    except msgspec.ValidationError as error:
        faults = faults_of(parse(body), expected)
        raise FaultyBodyError(faults or [Fault("", str(error))]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        parse(body)
        raise MalformedJsonError(f"The body is not valid JSON: {error}.") from None
    if not is_plain and (faults := list(_text_faults(parse(body), ""))):
        raise FaultyBodyError(faults[:MAX_FAULTS])
    return value


def keys_are_unique(body: bytes) -> bool:
    """Say whether valid JSON certainly holds no key twice and no escaped character; False means: look closely.

    Decoding merges equal keys, so the text written anew then has fewer ends of keys than the body.
    """
    if b"\\u" in body or _SPACED_KEY_END.search(body):
        return False
    return body.count(_KEY_END) == msgspec.json.encode(_plain.decode(body)).count(_KEY_END)


def _decoder(expected: Any) -> msgspec.json.Decoder[Any]:
    if expected not in _decoders:
        _decoders[expected] = msgspec.json.Decoder(expected)
    return _decoders[expected]


def parse(body: bytes) -> Any:
    """Parse JSON into plain values that remember duplicate keys.

    Raises:
        MalformedJsonError: not JSON, or nested too deeply.
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise MalformedJsonError("The body is not valid JSON: it holds half of a surrogate pair.") from None
    except UnicodeDecodeError as error:
        raise MalformedJsonError(f"The body is not UTF-8: byte {error.start} starts no character.") from None
    except json.JSONDecodeError as error:
        at = f"character {error.pos} (line {error.lineno}, column {error.colno})"
        raise MalformedJsonError(f"The body is not valid JSON at {at}: {error.msg}.") from None
    except RecursionError:
        raise MalformedJsonError("The body is nested too deeply.") from None
    except ValueError as error:
        raise MalformedJsonError(f"The body is not valid JSON: {error}.") from None


def faults_of(value: Any, expected: Any, *, strict: bool = True) -> list[Fault]:
    """Return all faults of a parsed value against a wire type, at most ``MAX_FAULTS``; texts may stand for numbers
    when not ``strict``."""
    found = [*_text_faults(value, ""), *_faults(value, expected, "", strict)]
    return found[:MAX_FAULTS]


def pointer_to(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) to a nested field."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def shown(value: object, name: str = "") -> str:
    """Return a value as a person may read it: short, and hidden when its name looks like a secret."""
    if looks_secret(name):
        return "hidden"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        result.duplicates = tuple(sorted({key for key in keys if keys.count(key) > 1}))
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _text_faults(value: Any, pointer: str) -> Iterator[Fault]:
    """Yield duplicate keys and NUL characters, which no database column keeps."""
    if isinstance(value, dict):
        for key in getattr(value, "duplicates", ()):
            yield Fault(pointer + pointer_to(key), f"The key {key} occurs more than once; give it once.")
        for key, item in value.items():
            if "\0" in key:
                yield Fault(pointer, "A key holds a NUL character.")
            yield from _text_faults(item, pointer + pointer_to(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _text_faults(item, pointer + pointer_to(index))
    elif isinstance(value, str) and "\0" in value:
        yield Fault(pointer, f"{_last(pointer)} holds a NUL character; leave it out.")


def _faults(value: Any, expected: Any, pointer: str, strict: bool) -> Iterator[Fault]:
    inner = list(_inner_faults(value, expected, pointer, strict))
    yield from inner
    if inner:
        return
    try:
        msgspec.convert(value, expected, strict=strict)
    except (msgspec.ValidationError, RecursionError) as error:
        yield Fault(pointer, _sentence(value, _wanted(expected) or str(error), pointer))


def _inner_faults(value: Any, expected: Any, pointer: str, strict: bool) -> Iterator[Fault]:
    for option in _options(expected):
        if isinstance(value, dict) and isinstance(option, type) and issubclass(option, msgspec.Struct):
            yield from _struct_faults(value, option, pointer, strict)
        elif isinstance(value, dict) and get_origin(option) is dict:
            for key, item in value.items():
                yield from _faults(item, get_args(option)[1], pointer + pointer_to(key), strict)
        elif isinstance(value, list) and get_origin(option) is list:
            for index, item in enumerate(value):
                yield from _faults(item, get_args(option)[0], pointer + pointer_to(index), strict)


def _options(expected: Any) -> tuple[Any, ...]:
    if hasattr(expected, "__metadata__"):
        return _options(expected.__origin__)
    if get_origin(expected) in (Union, UnionType):
        return tuple(option for member in get_args(expected) for option in _options(member))
    return (expected,)


def _struct_faults(value: dict[str, Any], struct: type[msgspec.Struct], pointer: str, strict: bool) -> Iterator[Fault]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    for key in value:
        if key not in fields:
            yield Fault(pointer + pointer_to(key), f"{key} is not known here; known are {', '.join(fields)}.")
    for name, field in fields.items():
        if name in value:
            yield from _faults(value[name], field.type, pointer + pointer_to(name), strict)
        elif field.required:
            yield Fault(pointer + pointer_to(name), f"{name} is needed and missing.")


def _sentence(value: Any, message: str, pointer: str) -> str:
    name = _last(pointer)
    expected = (
        message.split(" - at ", maxsplit=1)[0]
        .replace("`", "")
        .replace('str matching regex "\\\\S"', "text, not only blanks")
    )
    return f"{name} is {shown(value, name)}: {expected[0].lower()}{expected[1:]}."


def _wanted(expected: Any) -> str | None:
    """Return the values that are allowed, where the type lists them."""
    allowed = [value for option in _options(expected) for value in _listed(option)]
    return f"Expected one of {', '.join(allowed)}" if allowed else None


def _listed(option: Any) -> list[str]:
    if get_origin(option) is Literal:
        return [str(value) for value in get_args(option)]
    return [str(member) for member in option] if isinstance(option, type) and issubclass(option, StrEnum) else []


def _last(pointer: str) -> str:
    return pointer.rsplit("/", 1)[-1] or "The body"
