"""Sampling free memory while something else runs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from kvyield.gpu import GpuError, MemorySampler


class Readings:
    """A reader that gives each reading of a list in turn, the last one without end; an error is raised."""

    def __init__(self, *readings: Sequence[float] | GpuError) -> None:
        self._next: Callable[[], Sequence[float] | GpuError] = itertools.chain(
            readings, itertools.repeat(readings[-1])
        ).__next__

    def read(self) -> Sequence[float]:
        reading = self._next()
        if isinstance(reading, GpuError):
            raise reading
        return reading


def test_the_lowest_free_memory_of_each_gpu_is_kept() -> None:
    """A dip on one GPU between two readings of another is not mixed with it."""
    with MemorySampler(Readings([9, 8], [2, 7], [6, 1.5], [9, 8]), interval_seconds=0.001) as sampler:
        while sampler.seen().samples < 5:
            time.sleep(0.001)
    seen = sampler.stop()
    assert (seen.lowest_gib, seen.first_gib) == ((2, 1.5), (9, 8))
    assert (seen.lowest_free_gib, seen.free_before_gib) == (1.5, 8)


def test_a_reading_is_made_before_and_after_however_short_the_work_is() -> None:
    """Even work of no length has two readings: one before it begins, one after it ends."""
    with MemorySampler(Readings([9], [3]), interval_seconds=60) as sampler:
        pass
    assert (sampler.stop().samples, sampler.stop().lowest_free_gib) == (2, 3)


def test_fifty_readings_a_second_cost_little_and_the_cost_is_told() -> None:
    """At 20 ms the sampler's thread uses under 5 % of a core, and says how much and its longest gap."""
    began = time.monotonic()
    with MemorySampler(Readings([9.0] * 8)) as sampler:
        while sampler.seen().samples < 25:
            time.sleep(0.02)
    seen, elapsed = sampler.stop(), time.monotonic() - began
    assert seen.samples <= elapsed / 0.02 + 2
    assert 0.02 <= seen.longest_gap_seconds <= elapsed
    assert 0 < seen.cpu_seconds < 0.05 * 0.02 * seen.samples


def test_readings_that_fail_are_counted_and_never_raised() -> None:
    """A GPU that is lost midway leaves what was seen before, with the reason."""
    with MemorySampler(Readings([9], [4], GpuError("GPU is lost")), interval_seconds=0.001) as sampler:
        while sampler.seen().failed_readings < 50:
            time.sleep(0.001)
    seen = sampler.stop()
    assert (seen.samples, seen.lowest_free_gib, seen.error) == (2, 4, "GPU is lost")


def test_a_reader_that_never_works_gives_no_figure() -> None:
    """Without one good reading the lowest is None, not zero."""
    with MemorySampler(Readings(GpuError("no permission")), interval_seconds=0.001) as sampler:
        pass
    seen = sampler.stop()
    assert (seen.lowest_free_gib, seen.free_before_gib, seen.samples) == (None, None, 0)
