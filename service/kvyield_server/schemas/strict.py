"""Strict decoding of request bodies: one pass when all is well, every fault by its pointer when not.

msgspec stops at the first fault and lets a duplicate key win; people who post want all faults at once, by name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain, islice
from math import isfinite
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from kvyield_server.schemas.secrets import looks_secret

T = TypeVar("T")
MAX_FAULTS = 50
MAX_DEPTH = 32
MAX_SHOWN = 60
MAX_KEY = 200
_BACKSLASH = ord("\\")
_STRING_OR_BRACKET = re.compile(r'"[^"]*"?|[\[\]{}]')
_plain = msgspec.json.Decoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_LONGEST_INT = 308  # digits; Python itself reads 4,300
_LONG_INT = re.compile(rf"\d{{{_LONGEST_INT + 1}}}")
_BEYOND_RULE = "; a number must be under 1e308."


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


class _Beyond(float):
    """A number that is too large for a float, as it was written."""

    text: str


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
        if faults := first_faults(_text_faults(parse(body), "")):
            raise FaultyBodyError(faults) from None
        raise MalformedJsonError(f"The body is not valid JSON: {error}.") from None
    if not is_plain and (faults := first_faults(_text_faults(parse(body), ""))):
        raise FaultyBodyError(faults)
    return value


def keys_are_unique(body: bytes) -> bool:
    """Say whether valid JSON certainly holds no key twice and no escaped character; False means: look closely.

    Each key brings a colon, and decoding merges equal keys: the text written anew then has fewer colons than the body.
    """
    if _BACKSLASH in body and b"\\u" in body:
        return False
    return body.count(b":") == msgspec.json.encode(_plain.decode(body)).count(b":")


def _decoder(expected: Any) -> msgspec.json.Decoder[Any]:
    if expected not in _decoders:
        _decoders[expected] = msgspec.json.Decoder(expected)
    return _decoders[expected]


def parse(body: bytes) -> Any:
    """Parse JSON into plain values that remember duplicate keys.

    Raises:
        MalformedJsonError: not JSON, or nested more than ``MAX_DEPTH`` deep.
    """
    try:
        text = body.decode()
        _refuse_depth(text)
        value = _loaded(text)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except MalformedJsonError:
        raise
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
    told = first_faults(_text_faults(value, ""))
    beyond = {fault.pointer for fault in told if fault.detail.endswith(_BEYOND_RULE)}
    others = (fault for fault in _faults(value, expected, "", strict) if fault.pointer not in beyond)
    return first_faults(chain(told, others))


def first_faults(faults: Iterable[Fault]) -> list[Fault]:
    """Return the first ``MAX_FAULTS`` faults and look for no more."""
    return list(islice(faults, MAX_FAULTS))


def pointer_to(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) to a nested field; of endless keys only the beginning."""
    return "".join("/" + str(part)[:MAX_KEY].replace("~", "~0").replace("/", "~1") for part in parts)


def shown(value: object, name: str = "") -> str:
    """Return a value as a person may read it: short, and hidden when its name looks like a secret."""
    if looks_secret(name):
        return "hidden"
    begun = value[: MAX_SHOWN + 1] if isinstance(value, str) else value
    text = ""
    for piece in _showing.iterencode(begun):
        text += piece[: MAX_SHOWN + 1]
        if len(text) > MAX_SHOWN:
            return text[: MAX_SHOWN - 3] + "..."
    return text


_showing = json.JSONEncoder(
    ensure_ascii=False, default=str, check_circular=False
)  # what is left half way holds no cycle


def _loaded(text: str) -> Any:
    try:
        return _strict(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        if not _LONG_INT.search(text):
            raise
        return _strict(text, parse_int=_int_or_beyond)


def _strict(text: str, **hooks: Any) -> Any:
    return json.loads(
        text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float_or_beyond, **hooks
    )


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        result.duplicates = tuple(sorted(key for key, count in counts.items() if count > 1))
    return result


def _float_or_beyond(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _beyond(number, text)


def _int_or_beyond(text: str) -> int | _Beyond:
    return int(text) if len(text) <= _LONGEST_INT else _beyond(float(text), text)


def _beyond(number: float, text: str) -> _Beyond:
    beyond = _Beyond(number)
    beyond.text = text
    return beyond


def _refuse_depth(text: str) -> None:
    """Look at brackets alone, so that no nesting is too deep to be looked at."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text.replace("\\\\", "__").replace('\\"', "__")):
        sign = found[0]
        depth += (sign in "[{") - (sign in "]}")
        if depth > MAX_DEPTH:
            at = found.start()
            line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
            place = f"at character {at} (line {line}, column {column})"
            raise MalformedJsonError(f"The body is nested more than {MAX_DEPTH} deep {place}.")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _text_faults(value: Any, pointer: str) -> Iterator[Fault]:
    """Yield duplicate keys, and what no database column keeps: NUL characters, numbers beyond all floats."""
    if isinstance(value, dict):
        for key in getattr(value, "duplicates", ()):
            yield Fault(pointer + pointer_to(key), f"The key {key[:MAX_KEY]} occurs more than once; give it once.")
        for key, item in value.items():
            if "\0" in key:
                yield Fault(pointer, "A key holds a NUL character.")
            if _is_suspect(item):
                yield from _text_faults(item, pointer + pointer_to(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if _is_suspect(item):
                yield from _text_faults(item, pointer + pointer_to(index))
    elif isinstance(value, _Beyond):
        yield Fault(pointer, f"{_last(pointer)} is {value.text[:MAX_SHOWN]}{_BEYOND_RULE}")
    elif isinstance(value, str) and "\0" in value:
        yield Fault(pointer, f"{_last(pointer)} holds a NUL character; leave it out.")


_HOLDERS = (dict, list, _Beyond)  # a union written in place would be made anew for each of millions of values


def _is_suspect(value: Any) -> bool:
    return isinstance(value, _HOLDERS) or (isinstance(value, str) and "\0" in value)


def _faults(value: Any, expected: Any, pointer: str, strict: bool) -> Iterator[Fault]:
    try:
        msgspec.convert(value, expected, strict=strict)
    except msgspec.ValidationError as error:
        inner = _inner_faults(value, expected, pointer, strict)
        own = Fault(pointer, _sentence(value, _wanted(expected) or str(error), pointer))
        yield next(inner, own)
        yield from inner


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
            yield Fault(pointer + pointer_to(key), f"{key[:MAX_KEY]} is not known here; known are {', '.join(fields)}.")
    for name, field in fields.items():
        if name in value:
            yield from _faults(value[name], field.type, pointer + pointer_to(name), strict)
        elif field.required:
            yield Fault(pointer + pointer_to(name), f"{name} is needed and missing.")


_WORDINGS = {
    'str matching regex "\\\\S"': "text, not only blanks",
    "Invalid RFC3339 encoded datetime": "Expected a time with its zone, such as 2026-05-30T22:00:00Z",
    "datetime with a timezone component": "a time with its zone, such as 2026-05-30T22:00:00Z",
    "Invalid UUID": "Expected a UUID",
}
"""What msgspec says of a value, and what to write instead."""


def _sentence(value: Any, message: str, pointer: str) -> str:
    name = _last(pointer)
    expected = message.split(" - at ", maxsplit=1)[0].replace("`", "")
    for theirs, ours in _WORDINGS.items():
        expected = expected.replace(theirs, ours)
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
