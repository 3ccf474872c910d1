"""Measured growth: medians at rising sizes, and the exponent with which they rise."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from math import log
from statistics import median

from bench.report import Report

CONSTANT, LINEAR = 0.0, 1.0
SLACK = 0.25
"""What noise adds to an exponent on a shared machine: a factor of 1.8 over ten times the size."""


def milliseconds(job: Callable[[], object], runs: int = 7) -> float:
    """Return the median time of a job."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        job()
        times.append(time.perf_counter() - begin)
    return 1000.0 * median(times)


def core_milliseconds(job: Callable[[], object], runs: int = 5) -> float:
    """Return the median time that one core spent on a job in this thread; what lived before is not collected in it."""
    times = []
    gc.collect()
    gc.freeze()
    for _ in range(runs):
        begin = time.thread_time()
        job()
        times.append(time.thread_time() - begin)
    gc.unfreeze()
    return 1000.0 * median(times)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the power of the size with which values rise, by least squares on the logarithms."""
    xs, ys = [log(size) for size in sizes], [log(max(value, 1e-6)) for value in values]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


class Growth:
    """A table of medians by size, with an exponent and a bar for each row."""

    def __init__(self, report: Report, what: str, sizes: Sequence[int]) -> None:
        self._report, self._what, self._sizes = report, what, sizes
        self._values: dict[str, list[float]] = {}
        self._bars: dict[str, float | None] = {}

    def add(self, name: str, value: float, most: float | None) -> None:
        """Note one figure at the next size; ``most`` is the exponent allowed, None for a figure without a bar."""
        self._values.setdefault(name, []).append(value)
        self._bars[name] = most

    def close(self) -> None:
        """Print the table and hold each exponent, over all sizes and over the last step, against its bar."""
        rows, late = [], []
        for name, values in self._values.items():
            whole, last = exponent(self._sizes, values), exponent(self._sizes[-2:], values[-2:])
            most = self._bars[name]
            rows.append((name, *(f"{value:,.3g}" for value in values), f"{whole:.2f}", f"{last:.2f}", _word(most)))
            if most is not None and max(whole, last) > most + SLACK:
                late.append(f"{name} grows by {whole:.2f}, at last by {last:.2f}")
        heads = (self._what, *(f"{size:,}" for size in self._sizes), "exponent", "last step", "allowed")
        self._report.table(heads, rows)
        name = f"nothing grows faster than its input: {self._what}"
        self._report.bar(name, "; ".join(late) or f"{len(rows)} measures", is_met=not late)


def _word(most: float | None) -> str:
    return "-" if most is None else f"{most:.0f} + {SLACK}"
