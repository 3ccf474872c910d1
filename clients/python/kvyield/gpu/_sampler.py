"""Sampling free memory in a thread of its own while something else runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from kvyield.gpu._gpu import GpuError
from kvyield.gpu._readers import FreeReader

INTERVAL_SECONDS = 0.02
MAX_FAILED_READINGS = 50


@dataclass(frozen=True)
class MemorySamples:
    """What the sampler saw. Lists have one entry per GPU; the sampler's own cost is measured with it.

    ``longest_gap_seconds`` is the longest time between two readings: a shorter dip may have been missed.
    ``error`` is the last reason why a reading failed; readings that failed are not counted in ``samples``.
    """

    lowest_gib: tuple[float, ...]
    first_gib: tuple[float, ...]
    samples: int
    cpu_seconds: float
    longest_gap_seconds: float
    failed_readings: int = 0
    error: str | None = None

    @property
    def lowest_free_gib(self) -> float | None:
        """The lowest free memory of the fullest GPU, or None without a single reading."""
        return min(self.lowest_gib, default=None)

    @property
    def free_before_gib(self) -> float | None:
        """Free memory of the fullest GPU at the first reading, or None without a single reading."""
        return min(self.first_gib, default=None)


class MemorySampler:
    """Reads all GPUs every 20 ms in its own thread and keeps the lowest free memory of each.

    The first reading is made before ``start`` returns. A reading that fails is counted, never raised: after 50 in a
    row the thread stops reading. Use it as a context manager, or call ``start`` and ``stop``.
    """

    def __init__(
        self,
        reader: FreeReader,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._interval = interval_seconds
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvyield-memory-sampler", daemon=True)
        self._lowest: list[float] = []
        self._first: tuple[float, ...] = ()
        self._samples = 0
        self._failed = self._failed_in_a_row = 0
        self._error: str | None = None
        self._gap = self._cpu = 0.0
        self._last: float | None = None

    def __enter__(self) -> MemorySampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Takes the first reading and starts the thread."""
        self._sample()
        self._thread.start()

    def stop(self) -> MemorySamples:
        """Takes a last reading, ends the thread and returns what was seen. May be called again."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.seen()

    def seen(self) -> MemorySamples:
        """What was seen so far; may be called while the thread runs."""
        return MemorySamples(
            lowest_gib=tuple(self._lowest),
            first_gib=self._first,
            samples=self._samples,
            cpu_seconds=self._cpu,
            longest_gap_seconds=self._gap,
            failed_readings=self._failed,
            error=self._error,
        )

    def _run(self) -> None:
        began = time.thread_time()
        due = self._clock() + self._interval
        while not self._stopped.wait(max(0.0, due - self._clock())):
            self._sample()
            self._cpu = time.thread_time() - began
            due = max(due + self._interval, self._clock())
            if self._failed_in_a_row >= MAX_FAILED_READINGS:
                return
        self._sample()
        self._cpu = time.thread_time() - began

    def _sample(self) -> None:
        try:
            free = tuple(self._reader.read())
        except GpuError as error:
            self._failed += 1
            self._failed_in_a_row += 1
            self._error = str(error)
            return
        self._failed_in_a_row = 0
        self._keep(free)

    def _keep(self, free: Sequence[float]) -> None:
        now = self._clock()
        if self._last is not None:
            self._gap = max(self._gap, now - self._last)
        self._last = now
        self._first = self._first or tuple(free)
        self._lowest = [min(pair) for pair in zip(self._lowest, free, strict=True)] if self._lowest else list(free)
        self._samples += 1
