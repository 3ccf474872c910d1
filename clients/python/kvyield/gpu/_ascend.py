"""Ascend NPUs through ``npu-smi info``, whose table has two rows per chip."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvyield.gpu._gpu import GIB, MIB, Gpu, GpuError, GpuProcess
from kvyield.gpu._tools import RunTool, run_tool

_UNIT = re.compile(r"\|\s*(\d+)\s+([A-Za-z0-9][\w.\-]{0,60})\s*\|\s*\w+\s*\|")
_CHIP = re.compile(
    r"\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|NA)\s*\|(.*)\|\s*$"
)
_PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
_PROCESS = re.compile(r"\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|\s*(\S[^|]*?)\s*\|\s*(\d+)\s*\|")


def npu_smi_gpus(run: RunTool = run_tool) -> list[Gpu]:
    """All NPUs by ``npu-smi info``, one per chip. Raises GpuError when it cannot be run or understood."""
    rows = run(["npu-smi", "info"]).splitlines()
    processes = list(_processes(rows))
    found: list[Gpu] = []
    unit: tuple[int, str] | None = None
    for row in rows:
        if match := _UNIT.match(row):
            unit = int(match[1]), match[2]
        elif unit is not None and (match := _CHIP.match(row)):
            found.append(_gpu(unit, match, len(found), processes))
    if not found:
        raise GpuError("npu-smi: its table lists no chip that can be read")
    return found


def _gpu(unit: tuple[int, str], chip: re.Match[str], index: int, processes: list[tuple[int, int, GpuProcess]]) -> Gpu:
    """A chip; its memory is the last pair of used and total that is not zero: HBM, or the DDR of a 310P."""
    pairs = [(int(used), int(total)) for used, total in _PAIR.findall(chip[4])]
    used, total = next((pair for pair in reversed(pairs) if pair[1]), (0, 0))
    if not total:
        raise GpuError(f"npu-smi: NPU {unit[0]} shows no memory")
    number, name = unit
    return Gpu(
        index=index,
        name=name if name.lower().startswith("ascend") else f"Ascend {name}",
        memory_gib=total * MIB / GIB,
        free_gib=(total - used) * MIB / GIB,
        processes=tuple(held for npu, at, held in processes if (npu, at) == (number, int(chip[1]))),
        tool="npu-smi",
        bus_id=None if chip[3] == "NA" else chip[3],
    )


def _processes(rows: list[str]) -> Iterator[tuple[int, int, GpuProcess]]:
    for row in rows:
        if match := _PROCESS.match(row):
            yield int(match[1]), int(match[2]), GpuProcess(int(match[3]), match[4], int(match[5]) * MIB / GIB)
