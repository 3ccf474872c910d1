"""What went wrong with a start, told apart from tracebacks that did not matter.

A problem is held until the start ends. Progress after it (the next milestone of the start, or served requests) shows
that it did not stop the engine, and clears it, unless the engine itself said that it was going down."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from kvyield.engines._prefix import read_line
from kvyield.engines._start import Outcome, Phase, Sourced
from kvyield.engines._text import quote, source_of
from kvyield.engines._wordings import FRAMES, WORDINGS, WRAPPERS, Wording

Cause = Literal["gpu_memory", "host_memory", "killed", "error"]

LONGEST_READ = 4000
LONGEST_FIGURES = 2000
LINES_BEFORE = 200
LAST_WORDS = 8
MILD, GENERIC, SPECIFIC = range(3)
_WEIGHTS = {"fatal": MILD, "killed": GENERIC, "host_memory": SPECIFIC, "gpu_memory": SPECIFIC}

_NEEDLES = tuple(dict.fromkeys(needle for wording in WORDINGS for needle in wording.needles))
_EXCEPTION = re.compile(r"(?:^|[\]\s:])((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)): (.{1,2000})")
_ERROR_LINE = re.compile(r"(?:Error|Exception)\b: |\bERROR\b|\[E\]|\[ERROR\]|\[FATAL\]|Traceback \(most recent")
_SIZE = r"(\d[\d,]{0,20}(?:\.\d{1,6})?) ?(bytes|[KMGT]i?B)"
_WANTED = re.compile(
    rf"[Tt]ried to allocate {_SIZE}|Out of memory allocating {_SIZE}|Requested size was {_SIZE}"
    rf"|Requested amount of GPU memory \({_SIZE}\)|Failed to CUDA (?:calloc|malloc)(?: async)? {_SIZE}"
    r"|\[size:(\d{1,18})()\]"
)
_FREE = re.compile(rf"of which {_SIZE} is free|; {_SIZE} free\b")
_CAPACITY = re.compile(rf"total capacity of {_SIZE}|(?<![\d.]){_SIZE} total capacity")
_BYTES = {"": 1, "bytes": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_RANK = re.compile(r"\[(?:rank|RANK )(\d{1,5})\]|\b(?:VllmWorker|Worker) rank=(\d{1,5})\b")
_TENSOR_RANK = re.compile(r"(?:^|[ _\[])TP(\d{1,5})\b")
_OTHER_RANK = re.compile(r"(?:^|[ _\[])(?:PP|DP)\d{1,5}\b")


@dataclass
class Problem:
    """A problem in the engine's own words. ``weight`` decides which of several is the cause; ``final`` cannot be
    cleared. ``evidence`` holds what the words tell, by the wire's names.
    """

    outcome: Outcome
    phase: Phase
    message: Sourced
    weight: int = GENERIC
    final: bool = False
    evidence: dict[str, Sourced] = field(default_factory=dict)
    cause: Cause = "error"


@dataclass(frozen=True)
class Place:
    """Where a line stands: its number, the tags before its words that may name a rank, and the lines just before it."""

    number: int
    tags: str = ""
    lines_before: Callable[[], Iterable[bytes]] = lambda: ()


class Problems:
    """The problems of one start: the weightiest, and of equals the first, is what it failed of."""

    def __init__(self) -> None:
        self.cause: Problem | None = None
        self.is_over = False  # the last words were read: nothing that explains the end comes after them
        self.last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._down: str | None = None  # the line in which the engine said that it was going down
        self._stopped = False

    def add(self, problem: Problem) -> None:
        """Hold a problem if it weighs more than the one held, or tells figures that an equal one lacks."""
        held = self.cause
        if held is not None and problem.weight == held.weight and problem.cause == held.cause:
            if _has_figures(held) or not _has_figures(problem):
                return
            problem.phase, problem.final = held.phase, held.final
        elif held is not None and problem.weight <= held.weight:
            return
        problem.final = problem.final or self._down is not None
        self.cause = problem

    def progress(self) -> None:
        """The start went on: what was not final did not stop it."""
        if self.cause is not None and not self.cause.final:
            self.cause = None

    def read(self, place: Place, text: str, phase: Phase, *, serving: bool, is_server: bool = True) -> bool:
        """Take in a line that may show a problem; True when it does.

        ``is_server`` is False for an engine inside another program, whose end is not a failure.
        """
        short = text[:LONGEST_READ]
        if _ERROR_LINE.search(short):
            self._keep_words(short)
        wording, words = wording_of(short)
        if wording is None:
            return self._exception(place, short, phase, serving=serving)
        if wording.kind == "stopped":
            self._stopped = self._stopped or serving
        if wording.kind in ("stopped", "harmless"):
            return False
        weight = _WEIGHTS[wording.kind]
        if self.cause is None or weight > self.cause.weight:
            phase = self._look_back(place.lines_before(), serving=serving) or phase
        is_ordinary = self._stopped or (wording.servers_only and not is_server)
        if serving and is_ordinary and weight < SPECIFIC:
            return False
        self._take(wording, place, words, phase, serving=serving)
        self.is_over = self.is_over or (wording.is_last and self.cause is not None and self.cause.final)
        return True

    def _take(self, wording: Wording, place: Place, words: str, phase: Phase, *, serving: bool) -> None:
        message, weight = Sourced(quote(words), source_of(place.number, words)), _WEIGHTS[wording.kind]
        if wording.kind == "gpu_memory":
            evidence = figures_of(words, message.source)
            rank = next((rank for rank in map(rank_of, (place.tags, self._down or "")) if rank is not None), None)
            if rank is not None:
                evidence["rank"] = Sourced(rank, message.source)
            outcome: Outcome = "oom_runtime" if serving else "oom_startup"
            self.add(Problem(outcome, phase, message, weight, evidence=evidence, cause="gpu_memory"))
        elif wording.kind == "host_memory":
            self.add(Problem("failed", phase, message, weight, final=wording.is_last, cause="host_memory"))
        else:
            self._goes_down(place.tags)
            self.add(Problem("failed", phase, message, weight, cause="killed" if wording.kind == "killed" else "error"))

    def _exception(self, place: Place, text: str, phase: Phase, *, serving: bool) -> bool:
        exception = _EXCEPTION.search(text)
        if exception is None or (serving and self._down is None):
            return False
        words = f"{exception[1]}: {exception[2]}"
        weight = MILD if WRAPPERS.search(words) else GENERIC
        self.add(Problem("failed", phase, Sourced(quote(words), source_of(place.number, text)), weight))
        return True

    def _look_back(self, lines: Iterable[bytes], *, serving: bool) -> Phase | None:
        """The lines just before a problem: whether the engine had said that it was going down, or had been asked to,
        and the last errors. Returns the phase that the traceback above gives for a start-up.
        """
        recent = [_plain(line) for line in list(lines)[-LINES_BEFORE:]]
        for line in recent if serving else ():
            if _ERROR_LINE.search(line):
                self._keep_words(line)
            wording, _ = wording_of(line)
            if wording is None or wording.servers_only:
                continue
            if wording.kind == "stopped":
                self._stopped = self._stopped or self._down is None
            elif wording.kind in ("killed", "fatal") and not self._stopped:
                self._goes_down(line)
        return None if serving else _phase_of(recent)

    def _keep_words(self, line: str) -> None:
        words = quote(line, 300)
        if words not in self.last_words:
            self.last_words.append(words)

    def _goes_down(self, tags: str) -> None:
        self._down = tags if self._down is None else self._down
        if self.cause is not None:
            self.cause.final = True


def wording_of(text: str) -> tuple[Wording | None, str]:
    """The row of the table that a line matches, with the words from there on; hints are cut out before."""
    if not any(map(text.__contains__, _NEEDLES)):
        return None, ""
    for wording in WORDINGS:
        if not any(map(text.__contains__, wording.needles)):
            continue
        if wording.kind == "hint":
            text = wording.pattern.sub("", text)
            continue
        match = wording.pattern.search(text)
        if match:
            exception = _EXCEPTION.search(text, 0, match.end())
            begin = min(match.start(), exception.start(1)) if exception else match.start()
            return wording, text[begin:]
    return None, ""


def _plain(raw: bytes) -> str:
    """A line as text, without its prefixes and colours where it holds words of an end."""
    text = raw[:LONGEST_READ].decode("utf-8", "replace")
    if not any(map(text.__contains__, _NEEDLES)):
        return text
    return " ".join(record.text for record in read_line(0, raw[:LONGEST_READ]))


def figures_of(words: str, source: str) -> dict[str, Sourced]:
    """GiB that an allocator wanted, had free, and has in all, as far as its words tell."""
    told = (("wanted_gib", _WANTED), ("free_gib", _FREE), ("device_memory_gib", _CAPACITY))
    sizes = {name: _gib(pattern.search(words, 0, LONGEST_FIGURES)) for name, pattern in told}
    return {name: Sourced(size, source) for name, size in sizes.items() if size is not None}


def _gib(match: re.Match[str] | None) -> float | None:
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    return float(number.replace(",", "")) * _BYTES[unit.replace("iB", "B")] / (1 << 30)


def rank_of(text: str) -> int | None:
    """The rank that a line's tags name: the tensor-parallel one where no other way of dividing is named."""
    told, tensor = _RANK.search(text), _TENSOR_RANK.search(text)
    if told:
        return int(told[1] or told[2])
    return int(tensor[1]) if tensor and not _OTHER_RANK.search(text) else None


def _phase_of(lines: list[str]) -> Phase | None:
    """By the innermost telling frame of the traceback that these lines end in."""
    for line in reversed(lines):
        if "Traceback (most recent call last)" in line:
            return None
        for phase, pattern in FRAMES:
            if pattern.search(line):
                return phase
    return None


def _has_figures(problem: Problem) -> bool:
    return not problem.evidence.keys().isdisjoint({"wanted_gib", "free_gib", "device_memory_gib"})
