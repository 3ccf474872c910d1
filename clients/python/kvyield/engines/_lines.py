"""From any source of lines to the few lines that can matter, at the speed of ``bytes.find``.

A log of gigabytes holds a few hundred lines about starts. Chunks are searched for key strings as a whole, and only
lines that hold one are cut out, so that the cost of an ordinary request line is a fraction of a microsecond."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

CHUNK_BYTES = 1 << 18
LINES_A_BATCH = 1024
BATCH_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 22
LOOK_BACK_BYTES = 1 << 20
MANY_HOOKS = 40
LEAST_TO_SIFT = 1 << 14
DIGITS = b"0123456789"

Hooks = tuple[bytes, ...] | None
"""Strings of which a line must hold one; None lets every line through."""


class Line(NamedTuple):
    """One line as bytes. ``cut`` says that the source ended inside it, so that a number at its end may lack digits."""

    number: int
    raw: bytes
    cut: bool


class Scanner:
    """Walks chunks and yields the lines that hold one of the wanted strings; keeps the last bytes for looking back.

    ``hooks`` is asked again after every line yielded, since a line may open a start and with it make others matter.
    """

    def __init__(self, hooks: Callable[[], Hooks]) -> None:
        self._hooks = hooks
        self._number = 1
        self._before: deque[bytes] = deque()
        self._chunk = b""
        self._at = 0
        self._past = 0  # bytes of the chunks before

    @property
    def lines_read(self) -> int:
        """How many lines were scanned."""
        return self._number - 1

    def scan(self, chunk: bytes) -> Iterator[Line]:
        """Yield the lines of ``chunk`` that matter. A chunk begins at a line's start."""
        self._chunk, self._at = chunk, 0
        while self._at < len(chunk):
            hooks = self._hooks()
            for start in _line_starts(chunk, self._at, hooks):
                self._number += chunk.count(b"\n", self._at, start)
                end = chunk.find(b"\n", start) + 1 or len(chunk)
                self._at = end
                yield Line(self._number, chunk[start:end], cut=not chunk.endswith(b"\n", start, end))
                self._number += 1
                if self._hooks() is not hooks:
                    break
            else:
                if hooks is not None:
                    self._number += chunk.count(b"\n", self._at)
                    self._at = len(chunk)
        self._remember(chunk)

    @property
    def position(self) -> int:
        """Bytes up to the end of the line yielded last, or of the last chunk."""
        return self._past + self._at

    def last(self, most_bytes: int, hooks: Hooks = None) -> Iterator[Line]:
        """The lines just read, as many as those bytes hold, up to the one yielded last or to the end of the chunk; with
        ``hooks`` only those that hold one.
        """
        block = self._last(most_bytes)
        end = self._number + 1 if self._chunk else self._number
        number, at = end - block.count(b"\n") - (not block.endswith(b"\n") and bool(block)), 0
        starts = _line_starts(block, 0, hooks) if hooks is not None else _all_starts(block)
        for start in starts:
            number += block.count(b"\n", at, start)
            at = start
            yield Line(number, block[start : block.find(b"\n", start) + 1 or len(block)], cut=False)

    def _last(self, most_bytes: int) -> bytes:
        pieces = [self._chunk[max(0, self._at - most_bytes) : self._at]]
        missing = most_bytes - len(pieces[0])
        for chunk in reversed(self._before):
            if missing <= 0:
                break
            pieces.append(chunk[-missing:])
            missing -= len(chunk)
        joined = b"".join(reversed(pieces))
        return joined[joined.find(b"\n") + 1 :] if missing <= 0 else joined

    def _remember(self, chunk: bytes) -> None:
        self._before.append(chunk[-LOOK_BACK_BYTES:])
        self._chunk, self._at, self._past = b"", 0, self._past + len(chunk)
        while len(self._before) > 1 and sum(map(len, self._before)) - len(self._before[0]) >= LOOK_BACK_BYTES:
            self._before.popleft()


def _all_starts(block: bytes) -> Iterator[int]:
    at = 0
    while at < len(block):
        yield at
        at = block.find(b"\n", at) + 1 or len(block)


def _line_starts(chunk: bytes, begin: int, hooks: Hooks) -> list[int]:
    if hooks is None:
        return [begin]
    found: set[int] = set()
    for hook in _possible(hooks, chunk, begin):
        at = chunk.find(hook, begin)
        while at >= 0:
            found.add(chunk.rfind(b"\n", begin, at) + 1 or begin)
            end = chunk.find(b"\n", at)
            at = chunk.find(hook, end) if end >= 0 else -1
    return sorted(found)


def _possible(hooks: tuple[bytes, ...], chunk: bytes, begin: int) -> tuple[bytes, ...]:
    """The hooks that may be in ``chunk``.

    Lines of a serving engine differ in their digits alone: a hook that is in none of the distinct lines, all without
    digits, is in no line.
    """
    if len(hooks) < MANY_HOOKS or len(chunk) - begin < LEAST_TO_SIFT:
        return hooks
    lines = b"\n".join(set(chunk[begin:].translate(None, DIGITS).split(b"\n")))
    if 2 * len(lines) > len(chunk) - begin:
        return hooks
    return tuple(hook for hook in hooks if hook.translate(None, DIGITS) in lines)


def chunks(lines: Iterable[bytes | str], *, follow: bool) -> Iterator[bytes]:
    """Yield the source in pieces that end at a line's end, but perhaps the last. ``follow`` never waits for a second
    line.
    """
    reader: Any = getattr(lines, "read", None)
    if reader is not None and not follow and not hasattr(lines, "encoding"):
        yield from _whole_lines(iter(lambda: reader(CHUNK_BYTES), b""))
        return
    source, size = iter(lines), 1 if follow else LINES_A_BATCH
    joiner = _Joiner()
    yield from _whole_lines(iter(lambda: joiner.join(list(_batch(source, size))), b""))


def _batch(source: Iterator[bytes | str], size: int) -> Iterator[bytes | str]:
    """At most so many lines, fewer when they are long."""
    taken = 0
    for line in islice(source, size):
        yield line
        taken += len(line)
        if taken >= BATCH_BYTES:
            return


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
        if len(rest) > LONGEST_LINE_BYTES:
            yield rest + b"\n"
            rest = b""
    if rest:
        yield rest


class _Joiner:
    """Joins lines of one source. Lines either all end in a newline, but perhaps the last, or none does."""

    def __init__(self) -> None:
        self._newlines_given = False

    def join(self, items: list[bytes | str]) -> bytes:
        raw = [item if isinstance(item, bytes) else item.encode("utf-8", "replace") for item in items]
        joined = b"".join(raw)
        if raw and raw[0].endswith(b"\n"):
            self._newlines_given = True
        if self._newlines_given or not raw:
            return joined
        return b"\n".join(raw) + b"\n"
