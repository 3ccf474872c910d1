"""What went wrong with a start, told apart from tracebacks that did not matter.

A problem is held until the start ends. Progress after it (the next milestone of the start, or served requests) shows
that it did not stop the engine, and clears it, unless the engine itself said that it was going down."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvyield.engines._start import Outcome, Phase, Sourced
from kvyield.engines._text import any_of, quote, source_of

OUT_OF_MEMORY = re.compile(
    r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError\b.{0,2000}|(?:CUDA|HIP|NPU|XPU|MUSA) out of memory.{0,2000}"
    r"|(?:CUDA|HIP) error: out of memory.{0,200}|cudaErrorMemoryAllocation.{0,200}|CUDA_ERROR_OUT_OF_MEMORY.{0,200}"
    r"|HSA_STATUS_ERROR_OUT_OF_RESOURCES.{0,200}"
)
_EXCEPTION = re.compile(r"(?:^|[\]\s:])((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)): (.{1,2000})")
_DOWN = any_of(
    r"Scheduler hit an exception",
    r"EngineCore (?:failed to start|encountered a fatal error)",
    r"WorkerProc (?:hit an exception|failed to start|initialization failed)",
    r"Engine core (?:initialization failed|proc .{0,60} died)",
    r"EngineDeadError",
    r"Fatal Python error",
    r"Received sigquit from a child process",
    r"Capture (?:cuda|CUDA|piecewise|draft|target).{0,60} failed",
)
_WRAPPER = any_of(
    r"Engine core initialization failed",
    r"Worker failed with error",
    r"WorkerProc initialization failed",
    r"EngineDeadError",
    r"See root cause",
)
_CAPACITY = re.compile(r"total capacity of (\d+(?:\.\d+)?) GiB|(?<![\d.])(\d+(?:\.\d+)?) GiB total capacity")

LINES_BEFORE = 200
MILD, GENERIC, SPECIFIC = range(3)


@dataclass
class Problem:
    """A problem in the engine's own words. ``weight`` decides which of several is the cause; ``final`` cannot be
    cleared.
    """

    outcome: Outcome
    phase: Phase
    message: Sourced
    weight: int = GENERIC
    final: bool = False
    evidence: dict[str, Sourced] = field(default_factory=dict)


class Problems:
    """The problems of one start: the weightiest, and of equals the first, is what it failed of."""

    def __init__(self) -> None:
        self.cause: Problem | None = None
        self._down = False

    def add(self, problem: Problem) -> None:
        """Hold a problem if it weighs more than the one held."""
        if self._down:
            problem.final = True
        if self.cause is None or problem.weight > self.cause.weight:
            self.cause = problem

    def progress(self) -> None:
        """The start went on: what was not final did not stop it."""
        if self.cause is not None and not self.cause.final:
            self.cause = None

    def read(self, number: int, text: str, phase: Phase, *, serving: bool) -> bool:
        """Take in a line that may tell of a problem common to engines; True when it does."""
        short = text[:4000]
        if _DOWN.search(short):
            self._going_down()
        memory = OUT_OF_MEMORY.search(short)
        if memory and "Prefill out of memory" not in short:
            self.add(out_of_memory(number, memory[0], phase, serving=serving))
            return True
        exception = _EXCEPTION.search(short)
        if exception is None or serving:
            return False
        words = f"{exception[1]}: {exception[2]}"
        weight = MILD if _WRAPPER.search(words) else GENERIC
        self.add(Problem("failed", phase, Sourced(quote(words), source_of(number, text)), weight))
        return True

    def look_back(self, lines: Iterable[bytes]) -> None:
        """Lines just before a problem at run time, where the engine may have said that it was going down."""
        recent = list(lines)[-LINES_BEFORE:]
        if any(_DOWN.search(line.decode("utf-8", "replace"), 0, 4000) for line in recent):
            self._going_down()

    def _going_down(self) -> None:
        self._down = True
        if self.cause is not None:
            self.cause.final = True


def out_of_memory(number: int, words: str, phase: Phase, *, serving: bool) -> Problem:
    """A device ran out of memory: at start-up, or at run time once the engine was serving."""
    source = source_of(number, words)
    evidence = {}
    capacity = _CAPACITY.search(words)
    if capacity:
        evidence["device_memory_gib"] = Sourced(float(capacity[1] or capacity[2]), source)
    return Problem(
        "oom_runtime" if serving else "oom_startup", phase, Sourced(quote(words), source), SPECIFIC, evidence=evidence
    )
