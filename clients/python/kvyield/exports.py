"""Exports of a ledger, one observation per line: reading them, so that another ledger may have them."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from kvyield import _wire
from kvyield._errors import SourceError

LONGEST_LINE_BYTES = 16 * 2**20
_TELLING = frozenset({"hardware", "model", "engine", "outcome"})
_PACKED: Mapping[str, Callable[[Path], Any]] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
_PARTIAL = (OSError, EOFError, lzma.LZMAError)


@dataclass(frozen=True)
class Line:
    """One line of an export: an observation to post, or why there is none.

    ``retraction`` is the reason for which the exported start was retracted; an empty one is a reason too. ``unknown``
    are fields that this version of kvyield does not know, and therefore leaves out.
    """

    number: int
    observation: _wire.Observation | None
    fault: str | None = None
    retraction: str | None = None
    unknown: tuple[str, ...] = ()


def is_export(path: Path) -> bool:
    """Whether a file's first line is one that an export of a ledger has."""
    with suppress(*_PARTIAL), _opened(path) as file:
        first = file.readline(LONGEST_LINE_BYTES)
        return _is_of_answers(first) or _table(first).keys() >= _TELLING
    return False


def read_export(path: Path) -> Iterator[Line]:
    """The starts of an export, in constant memory. Raises `SourceError` when the file cannot be read to its end."""
    try:
        with _opened(path) as file:
            number = 0
            while text := file.readline(LONGEST_LINE_BYTES):
                number += 1
                if text.strip() and not _is_of_answers(text):
                    yield _line(number, text)
    except _PARTIAL as error:
        raise SourceError(f"{path} cannot be read to its end: {error}") from None


def lines_of(chunks: Iterable[bytes]) -> Iterator[Line]:
    """The lines of an export as a service streams it."""
    rest, number = b"", 0
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for text in whole:
            number += 1
            if text.strip() and not _is_of_answers(text):
                yield _line(number, text)
    if rest.strip():
        yield _line(number + 1, rest)


def _opened(path: Path) -> IO[bytes]:
    opener = _PACKED.get(path.suffix)
    return cast("IO[bytes]", opener(path)) if opener else path.open("rb")


def _table(text: bytes) -> dict[str, Any]:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = msgspec.json.decode(text)
        return value if isinstance(value, dict) else {}
    return {}


def _is_of_answers(text: bytes) -> bool:
    """Whether a line holds stored recommendations alone, which `kvyield-server import` restores and no client posts."""
    return text.startswith(b'{"archive":') and _table(text).keys() == {"archive"}


def _line(number: int, text: bytes) -> Line:
    try:
        stored = msgspec.json.decode(text, type=_wire.StoredObservation)
        fields = {name: msgspec.to_builtins(getattr(stored, name)) for name in _wire.Observation.__struct_fields__}
        whole = msgspec.convert(fields, _wire.Observation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Line(number, None, f"is not an observation of an export: {error}")
    retraction = (stored.retraction_reason or "") if stored.retracted_at is not None else None
    unknown = sorted(_table(text).keys() - set(_wire.StoredObservation.__struct_fields__))
    return Line(number, whole, retraction=retraction, unknown=tuple(unknown))
