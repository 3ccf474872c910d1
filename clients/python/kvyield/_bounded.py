"""Reading within bounds: the head of a line that is too long, so much of a file, and pipes that may stay silent."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from kvyield._errors import SourceError

LONGEST_LINE_BYTES = 2**18
PIECE_BYTES = 2**16
MOST_BYTES = 16 * 2**30
MOST_OF_A_BOMB_BYTES = 2**28
LARGEST_RATIO = 1000
SILENCE_SECONDS = 60.0


def pieces(file: Bounded) -> Iterator[bytes]:
    """The lines, each shortened to its head when it is too long."""
    while line := file.readline(LONGEST_LINE_BYTES):
        if len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
            yield _shortened(line, iter(lambda: file.readline(PIECE_BYTES), b""))
        else:
            yield line


def _shortened(head: bytes, rest: Iterator[bytes]) -> bytes:
    """The head of a line up to its last blank, and what a progress bar wrote over it last; reads to the line's end."""
    before = last = b""
    for piece in rest:
        before, last = last, piece
        if piece.endswith(b"\n"):
            break
    end = head.rfind(b" ") + 1 or len(head)
    tail = (before + last).rstrip(b"\r\n")
    return head[:end] + (b"\r" + tail[tail.rfind(b"\r") + 1 :] if b"\r" in tail else b"") + b"\n"


class Bounded:
    """Lines of a file up to a size, and only the beginning of one that unpacks to a thousand times its size."""

    def __init__(self, file: IO[bytes], name: str, notes: list[str], most_bytes: int, packed: BinaryIO | None) -> None:
        self._file, self._name, self._notes, self._most_bytes = file, name, notes, most_bytes
        self._packed = packed if packed is not None and packed.seekable() else None
        self._taken = 0
        self._is_over = False

    def readline(self, longest: int) -> bytes:
        """The next line, or so much of it; nothing once a bound is reached, which is noted."""
        if self._is_over:
            return b""
        line = self._file.readline(longest)
        self._taken += len(line)
        self._is_over = self._is_too_much()
        return line

    def _is_too_much(self) -> bool:
        if self._taken >= self._most_bytes:
            self._notes.append(
                f"{self._name}: only the first {self._most_bytes:,} bytes were read; --max-bytes allows more"
            )
            return True
        if self._packed is None or self._taken < MOST_OF_A_BOMB_BYTES:
            return False
        if self._taken > LARGEST_RATIO * max(self._packed.tell(), 1):
            self._notes.append(f"{self._name} unpacks to over {LARGEST_RATIO:,} times its size, as no log does; left")
            return True
        return False


class PatientPipe(io.RawIOBase):
    """A named pipe, read until its writers close it; one that nobody writes to for `SILENCE_SECONDS` is an error."""

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if not select.select([self._handle], [], [], SILENCE_SECONDS)[0]:
                raise SourceError(
                    f"the pipe {self._name} was silent for {SILENCE_SECONDS:.0f} s without coming to its end"
                )
            with suppress(BlockingIOError):
                return os.readv(self._handle, [buffer])

    def close(self) -> None:
        if not self.closed:
            os.close(self._handle)
        super().close()
