"""AMD GPUs through ``amd-smi``, or ``rocm-smi`` where ROCm is older."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvyield._unified import shares_host_memory
from kvyield.gpu._gpu import GIB, MIB, Gpu, GpuError, GpuProcess
from kvyield.gpu._tools import RunTool, run_tool

_BYTES_PER_UNIT = {"B": 1, "KB": 1024, "MB": MIB, "GB": GIB}
"""``amd-smi`` divides by 1024 and prints "MB"."""


def amd_smi_gpus(run: RunTool = run_tool) -> list[Gpu]:
    """All AMD GPUs by ``amd-smi``. Raises GpuError when it cannot be run or understood."""
    static = _rows(run(["amd-smi", "static", "--asic", "--bus", "--vram", "--json"]))
    memory = {row.get("gpu"): row for row in _rows(run(["amd-smi", "metric", "--mem-usage", "--json"]))}
    listed = {row.get("gpu"): row for row in _rows(run(["amd-smi", "list", "--json"]))}
    processes = _processes(run)
    found = []
    for row in static:
        index = int(row["gpu"])
        found.append(_amd_gpu(row, memory.get(index, {}), listed.get(index, {}), processes.get(index, ())))
    return found


def rocm_smi_gpus(run: RunTool = run_tool) -> list[Gpu]:
    """All AMD GPUs by ``rocm-smi``. Raises GpuError when it cannot be run or understood."""
    command = ["rocm-smi", "--showproductname", "--showmeminfo", "vram", "gtt", "--showuniqueid", "--showbus", "--json"]
    table = _json(run(command), "rocm-smi")
    rows = sorted((int(key[4:]), row) for key, row in table.items() if re.fullmatch(r"card\d+", key))
    return [_rocm_gpu(index, {name.lower(): value for name, value in row.items()}) for index, row in rows]


def _rows(text: str) -> list[dict[str, Any]]:
    table = _json(text, "amd-smi")
    rows = table.get("gpu_data", []) if isinstance(table, Mapping) else table
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("gpu"), int)]


def _json(text: str, tool: str) -> Any:
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    try:
        return json.loads(text[start:] if start > 0 else text)
    except json.JSONDecodeError as error:
        raise GpuError(f"{tool}: its JSON cannot be read: {error}") from error


def _amd_gpu(
    row: Mapping[str, Any], metric: Mapping[str, Any], listed: Mapping[str, Any], processes: tuple[GpuProcess, ...]
) -> Gpu:
    name = str(row.get("asic", {}).get("market_name") or "AMD GPU")
    shared = shares_host_memory(f"{name} {row.get('asic', {}).get('target_graphics_version', '')}")
    usage = metric.get("mem_usage", {})
    total, used = _larger(
        (_bytes(usage.get("total_vram")) or _bytes(row.get("vram", {}).get("size")), _bytes(usage.get("used_vram"))),
        (_bytes(usage.get("total_gtt")), _bytes(usage.get("used_gtt"))) if shared else (0, 0),
    )
    return Gpu(
        index=int(row["gpu"]),
        name=name,
        memory_gib=total / GIB,
        free_gib=(total - used) / GIB,
        unified_memory=shared,
        uuid=listed.get("uuid"),
        processes=processes,
        tool="amd-smi",
        bus_id=listed.get("bdf") or row.get("bus", {}).get("bdf"),
    )


def _rocm_gpu(index: int, row: Mapping[str, str]) -> Gpu:
    name = row.get("card series") or row.get("device name") or row.get("card model") or "AMD GPU"
    shared = shares_host_memory(f"{name} {row.get('gfx version', '')}")
    total, used = _larger(
        (_count(row, "vram total memory (b)"), _count(row, "vram total used memory (b)")),
        (_count(row, "gtt total memory (b)"), _count(row, "gtt total used memory (b)")) if shared else (0, 0),
    )
    return Gpu(
        index=index,
        name=name,
        memory_gib=total / GIB,
        free_gib=(total - used) / GIB,
        unified_memory=shared,
        uuid=row.get("unique id"),
        tool="rocm-smi",
        bus_id=row.get("pci bus"),
    )


def _larger(vram: tuple[int, int], gtt: tuple[int, int]) -> tuple[int, int]:
    """An APU with a small carve-out allocates from GTT instead: its memory is the larger of the two."""
    return max(vram, gtt)


def _count(row: Mapping[str, str], key: str) -> int:
    text = str(row.get(key, "0")).strip()
    return int(text) if text.isdigit() else 0


def _bytes(value: Any) -> int:
    if isinstance(value, Mapping):
        return int(_number(value.get("value")) * _BYTES_PER_UNIT.get(str(value.get("unit", "MB")).upper(), MIB))
    if isinstance(value, str):
        amount, _, unit = value.strip().partition(" ")
        return int(_number(amount) * _BYTES_PER_UNIT.get(unit.upper() or "MB", MIB))
    return int(_number(value) * MIB)


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0


def _processes(run: RunTool) -> dict[int, tuple[GpuProcess, ...]]:
    try:
        rows = _rows(run(["amd-smi", "process", "--json"]))
    except GpuError:
        return {}
    return {int(row["gpu"]): tuple(_processes_of(row)) for row in rows}


def _processes_of(row: Mapping[str, Any]) -> Iterator[GpuProcess]:
    for entry in row.get("process_list") or []:
        info = entry.get("process_info") if isinstance(entry, Mapping) else None
        if isinstance(info, Mapping) and str(info.get("pid", "")).isdigit():
            used = _bytes(info.get("mem_usage") or info.get("mem")) / GIB
            yield GpuProcess(int(info["pid"]), str(info.get("name") or "") or None, used)
