"""NVIDIA GPUs through ``nvidia-smi``, for hosts where Python cannot load NVML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from kvyield._unified import shares_host_memory
from kvyield.gpu._gpu import GIB, MIB, Gpu, GpuError, GpuProcess
from kvyield.gpu._host_memory import host_memory_gib
from kvyield.gpu._tools import RunTool, run_tool

_MIG_LINE = re.compile(r"^\s+MIG\s+(\S+)\s+Device\s+\d+:\s+\(UUID:\s*([^)]+)\)", re.MULTILINE)


def nvidia_smi_gpus(run: RunTool = run_tool) -> list[Gpu]:
    """All NVIDIA GPUs by ``nvidia-smi -q -x``. Raises GpuError when it cannot be run or understood."""
    text = run(["nvidia-smi", "-q", "-x"])
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - the local driver's own tool wrote it
    except ElementTree.ParseError as error:
        raise GpuError(f"nvidia-smi: its XML cannot be read: {error}") from error
    gpus = root.findall("gpu")
    split = any(gpu.find("mig_devices/mig_device") is not None for gpu in gpus)
    profiles = iter(_MIG_LINE.findall(run(["nvidia-smi", "-L"])) if split else [])
    return [found for index, gpu in enumerate(gpus) for found in _gpus_of(index, gpu, profiles)]


def _gpus_of(index: int, gpu: ElementTree.Element, profiles: Iterator[tuple[str, str]]) -> list[Gpu]:
    devices = gpu.findall("mig_devices/mig_device")
    if not devices:
        return [_gpu_of(index, gpu, gpu, None, None)]
    return [_gpu_of(index, gpu, device, *next(profiles, (None, None))) for device in devices]


def _gpu_of(
    index: int, gpu: ElementTree.Element, device: ElementTree.Element, profile: str | None, uuid: str | None
) -> Gpu:
    name = gpu.findtext("product_name", "").strip()
    total, free, reserved = (_mib(device, field) for field in ("total", "free", "reserved"))
    unreadable = total is None or free is None
    memory = host_memory_gib() if total is None or free is None else (total * MIB / GIB, free * MIB / GIB)
    return Gpu(
        index=index,
        name=f"{name} MIG {profile}" if profile else name,
        memory_gib=memory[0],
        free_gib=memory[1],
        unified_memory=unreadable or shares_host_memory(name),
        mig=profile,
        uuid=uuid or gpu.findtext("uuid"),
        processes=_processes(gpu),
        tool="nvidia-smi",
        usable_gib=None if total is None or reserved is None else (total - reserved) * MIB / GIB,
    )


def _mib(device: ElementTree.Element, field: str) -> float | None:
    found = re.match(r"\s*(\d+) MiB", device.findtext(f"fb_memory_usage/{field}", ""))
    return float(found.group(1)) if found else None


def _processes(gpu: ElementTree.Element) -> tuple[GpuProcess, ...]:
    found = []
    for process in gpu.findall("processes/process_info"):
        held = re.match(r"\s*(\d+) MiB", process.findtext("used_memory", ""))
        pid = process.findtext("pid", "")
        if pid.isdigit():
            used = float(held.group(1)) * MIB / GIB if held else None
            found.append(GpuProcess(int(pid), process.findtext("process_name"), used))
    return tuple(found)
