"""What the memory sampler itself costs a host, without a GPU: eight stand-in GPUs behind NVML's names.

Ten seconds of sampling every 20 ms while a known dip of 100 ms is made on one GPU each second. Fails when a dip is
missed or when the sampler takes more than 5 % of a core. Real GPUs: bench_memory_sampler.py.

Usage: PYTHONPATH=tests python tests/bench/bench_standin_sampler.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace

from bench.report import Report, per_cent
from kvyield.gpu import MemorySampler, MemorySamples, open_reader
from kvyield.gpu._nvml import nvml_gpus
from standin.nvml import FakeGpu, FakeNvml

SECONDS = 10


def main() -> int:
    """Print what the sampler saw and cost, and return 1 when a bar is missed."""
    report = Report(__doc__ or "")
    begin = time.monotonic()

    def free() -> float:
        return 2.0 if (time.monotonic() - begin) % 1.0 > 0.9 else 70.0

    nvml = FakeNvml([FakeGpu(f"GPU {number}", f"GPU-{number}", free_gib=_of(number, free)) for number in range(8)])
    seen, dips = _sampled(nvml)
    report.line(
        f"{seen.samples} readings of 8 GPUs in {SECONDS} s, longest gap {1000 * seen.longest_gap_seconds:.1f} ms"
    )
    report.bar("every dip of 100 ms is seen", f"{dips} of {SECONDS}", is_met=dips == SECONDS)
    share = seen.cpu_seconds / SECONDS
    report.bar("the sampler takes under 5 % of a core", per_cent(share, 2), is_met=share < 0.05)
    return report.close()


def _of(number: int, free: Callable[[], float]) -> Callable[[], float]:
    return free if number == 3 else lambda: 70.0


def _sampled(nvml: FakeNvml) -> tuple[MemorySamples, int]:
    """Sample for ten seconds, counting the seconds whose own samples showed the dip."""
    dips, samples, cpu, gap = 0, 0, 0.0, 0.0
    with open_reader(nvml_gpus(nvml), nvml=nvml) as reader:
        for _ in range(SECONDS):
            with MemorySampler(reader) as sampler:
                time.sleep(1.0)
                seen = sampler.stop()
            dips += seen.lowest_free_gib == 2.0
            samples, cpu, gap = samples + seen.samples, cpu + seen.cpu_seconds, max(gap, seen.longest_gap_seconds)
    return replace(seen, samples=samples, cpu_seconds=cpu, longest_gap_seconds=gap), dips


if __name__ == "__main__":
    sys.exit(main())
