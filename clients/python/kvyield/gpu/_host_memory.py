"""The host's memory, for GPUs that have none of their own."""

from __future__ import annotations

from pathlib import Path

from kvyield.gpu._gpu import GIB, GpuError

MEMINFO = Path("/proc/meminfo")


def host_memory_gib(meminfo: Path = MEMINFO) -> tuple[float, float]:
    """Total and available GiB of the host (``MemTotal``, ``MemAvailable``). Raises GpuError when unreadable."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        kib = [int(rows[key].split()[0]) for key in ("MemTotal", "MemAvailable")]
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise GpuError(f"the GPU shares the host's memory, and {meminfo} does not say how much: {error}") from error
    return kib[0] * 1024 / GIB, kib[1] * 1024 / GIB
