"""Intel GPUs through ``xpu-smi``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvyield._unified import shares_host_memory
from kvyield.gpu._gpu import GIB, MIB, Gpu, GpuError
from kvyield.gpu._tools import RunTool, run_tool

MEMORY_USED = "XPUM_STATS_MEMORY_USED"


def xpu_smi_gpus(run: RunTool = run_tool) -> list[Gpu]:
    """All Intel GPUs by ``xpu-smi``. Raises GpuError when it cannot be run or understood."""
    listed = _table(run(["xpu-smi", "discovery", "-j"])).get("device_list")
    devices = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    gpus = [row for row in devices if row.get("device_type", "GPU") == "GPU" and isinstance(row.get("device_id"), int)]
    return [_gpu(row, run) for row in gpus]


def _gpu(row: Mapping[str, Any], run: RunTool) -> Gpu:
    number = int(row["device_id"])
    details = _table(run(["xpu-smi", "discovery", "-d", str(number), "-j"]))
    total = _count(details.get("memory_physical_size_byte"))
    if not total:
        raise GpuError(f"xpu-smi: GPU {number} shows no memory_physical_size_byte")
    used = _used_mib(_table(run(["xpu-smi", "stats", "-d", str(number), "-j"])))
    free = _count(details.get("memory_free_size_byte")) if used is None else total - used * MIB
    if free is None:
        raise GpuError(f"xpu-smi: GPU {number} shows neither {MEMORY_USED} nor memory_free_size_byte")
    name = str(row.get("device_name") or details.get("device_name") or "Intel GPU")
    return Gpu(
        index=number,
        name=name,
        memory_gib=total / GIB,
        free_gib=free / GIB,
        unified_memory=shares_host_memory(name),
        uuid=row.get("uuid") or details.get("uuid"),
        tool="xpu-smi",
        bus_id=row.get("pci_bdf_address"),
    )


def _used_mib(stats: Mapping[str, Any]) -> float | None:
    """MiB in use of the device, else the sum over its tiles."""
    whole = list(_values(stats.get("device_level")))
    tiles = stats.get("tile_level")
    parts = (
        [value for tile in tiles if isinstance(tile, dict) for value in _values(tile.get("data_list"))]
        if (isinstance(tiles, list))
        else []
    )
    if whole:
        return whole[0]
    return sum(parts) if parts else None


def _values(metrics: object) -> Iterator[float]:
    for metric in metrics if isinstance(metrics, list) else []:
        value = metric.get("value") if isinstance(metric, dict) and metric.get("metrics_type") == MEMORY_USED else None
        if isinstance(value, int | float):
            yield float(value)


def _count(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if text.isdigit() else None


def _table(text: str) -> Mapping[str, Any]:
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise GpuError(f"xpu-smi: its JSON cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise GpuError("xpu-smi: its JSON is not an object")
    return table
