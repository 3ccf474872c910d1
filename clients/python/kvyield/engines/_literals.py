"""Reads Python reprs that engines print (``ServerArgs(...)``, dicts, nested configs) without ever evaluating them.

A small recursive-descent reader: linear in the text, bounded in depth, and content with a text that was cut off: what
was complete before the cut is kept."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kvyield.engines._start import Scalar

DEEPEST = 24
LONGEST_TEXT = 1 << 18
DIGITS_OF_FLOAT32 = 9
LENGTH_OF_WIDENED = 15
"""A float32 that was widened prints more digits than anybody writes."""

_STRING = re.compile(r"[rbuf]{0,2}(?:'([^'\\]*(?:\\.[^'\\]*)*)'|\"([^\"\\]*(?:\\.[^\"\\]*)*)\")", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|.)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?=\s*[,)\]}:]|\s*$)")
_NAME = re.compile(r"[A-Za-z_./~][^\s,()\[\]{}=<>'\":]*")
_BARE = re.compile(r"[^()\[\]{}'\"]*?(?=, [A-Za-z_]\w*=)")
_FIELD = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_SPACE = re.compile(r"\s*")
_WORDS = {"None": None, "True": True, "False": False}
_CLOSERS = {"(": ")", "[": "]"}
_SURROGATES = range(0xD800, 0xE000)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]


class _CutOffError(Exception):
    """The text ends, or stops being a repr, inside a value."""


@dataclass(frozen=True)
class Fields:
    """Top-level fields of one repr; ``complete`` says that its closing bracket was seen."""

    values: dict[str, Value]
    complete: bool


def call_fields(text: str, begin: int = 0) -> Fields:
    """Fields of ``a=1, b='x', ...`` from ``begin`` to the closing parenthesis or the end of the text."""
    return _collect(_keyword_fields(_Reader(text[:LONGEST_TEXT], begin)))


def dict_fields(text: str, begin: int = 0) -> Fields:
    """Fields of the dict whose opening brace is at ``begin``."""
    return _collect(_dict_items(_Reader(text[:LONGEST_TEXT], begin + 1)))


def scalar(value: Value) -> Scalar:
    """A JSON scalar: nested values become compact JSON text."""
    if isinstance(value, list | dict):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return value


def shortest_float32(value: float) -> float:
    """The shortest decimal that is the same float32, for a number that was printed from one (0.8999999761581421)."""
    if len(repr(value)) < LENGTH_OF_WIDENED:
        return value
    try:
        single = struct.pack("f", value)
    except OverflowError:
        return value
    if struct.unpack("f", single)[0] != value:
        return value
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, DIGITS_OF_FLOAT32))
    return next((number for number in shorter if struct.pack("f", number) == single), value)


def _collect(items: Iterator[tuple[str, Value]]) -> Fields:
    values: dict[str, Value] = {}
    try:
        values.update(items)
    except (_CutOffError, RecursionError):
        return Fields(values, complete=False)
    return Fields(values, complete=True)


@dataclass
class _Reader:
    text: str
    at: int
    depth: int = 0

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def peek(self) -> str:
        self.skip_space()
        return self.text[self.at : self.at + 1]

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def expect(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise _CutOffError
        self.at += 1

    def ends_with(self, closer: str) -> bool:
        """After a value: a comma goes on, the closer ends, anything else is a cut."""
        found = self.peek()
        if found not in (",", closer) or not found:
            raise _CutOffError
        self.at += 1
        return found == closer


def _keyword_fields(reader: _Reader, closer: str = ")") -> Iterator[tuple[str, Value]]:
    while reader.peek() != closer:
        name = reader.take(_FIELD)
        if name is None:
            raise _CutOffError
        value = _keyword_value(reader, closer)
        last = reader.ends_with(closer)
        yield name[1], value
        if last:
            return
    reader.at += 1


def _keyword_value(reader: _Reader, closer: str) -> Value:
    """A value, or the bare text up to the next ``, name=``: some fields are printed with ``str`` rather than
    ``repr``.
    """
    begin = reader.at
    bare = reader.take(_BARE)
    reader.at = begin
    try:
        value = _value(reader)
        if reader.peek() in (",", closer) or bare is None:
            return value
    except _CutOffError:
        if bare is None:
            raise
    reader.at = bare.end()
    return bare[0].strip()


def _dict_items(reader: _Reader) -> Iterator[tuple[str, Value]]:
    while reader.peek() != "}":
        name = _value(reader)
        reader.expect(":")
        value = _value(reader)
        last = reader.ends_with("}")
        yield str(name), value
        if last:
            return
    reader.at += 1


def _value(reader: _Reader) -> Value:
    reader.depth += 1
    if reader.depth > DEEPEST:
        raise _CutOffError
    try:
        return _value_here(reader, reader.peek())
    finally:
        reader.depth -= 1


def _value_here(reader: _Reader, first: str) -> Value:
    if first in _CLOSERS:
        reader.at += 1
        return _items(reader, _CLOSERS[first])
    if first == "{":
        reader.at += 1
        return _braces(reader)
    if first == "<":
        return _angle(reader)
    string = reader.take(_STRING)
    if string:
        return _ESCAPE.sub(_unescape, string[1] if string[1] is not None else string[2])
    number = reader.take(_NUMBER)
    return _number(number[0]) if number else _named(reader)


def _braces(reader: _Reader) -> Value:
    """A dict, or a set, which reads as a list."""
    if reader.peek() == "}":
        reader.at += 1
        return {}
    first = _value(reader)
    if reader.peek() != ":":
        return [first] if reader.ends_with("}") else [first, *_items(reader, "}")]
    reader.at += 1
    pairs = {str(first): _value(reader)}
    return pairs if reader.ends_with("}") else pairs | dict(_dict_items(reader))


def _items(reader: _Reader, closer: str) -> list[Value]:
    items: list[Value] = []
    while reader.peek() != closer:
        items.append(_value(reader))
        if reader.ends_with(closer):
            return items
    reader.at += 1
    return items


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1]
    if len(code) == 1:
        return _ESCAPES.get(code, code)
    number = int(code[1:], 16)
    return "\ufffd" if number in _SURROGATES else chr(number)


def _number(text: str) -> Value:
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else text


def _named(reader: _Reader) -> Value:
    """A bare word, a dotted name, or a call such as ``PhaseConfig(backend='full')``, which reads as its fields."""
    name = reader.take(_NAME)
    if name is None:
        raise _CutOffError
    if reader.peek() == "(":
        reader.at += 1
        return _call_arguments(reader)
    return _WORDS.get(name[0], name[0])


def _call_arguments(reader: _Reader) -> Value:
    before = reader.at
    if _FIELD.match(reader.text, reader.at) or reader.peek() == ")":
        return dict(_keyword_fields(reader))
    reader.at = before
    items = _items(reader, ")")
    return items[0] if len(items) == 1 else items


def _angle(reader: _Reader) -> Value:
    """``<CUDAGraphMode.NONE: 0>`` reads as its name, ``NONE``."""
    end = reader.text.find(">", reader.at)
    if end < 0:
        raise _CutOffError
    inside = reader.text[reader.at + 1 : end]
    reader.at = end + 1
    name = _NAME.match(inside)
    return name[0].rpartition(".")[2] if name else inside
