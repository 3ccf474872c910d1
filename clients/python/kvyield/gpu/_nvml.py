"""NVIDIA GPUs through NVML: a library call of about 20 microseconds per GPU, no subprocess."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvyield._unified import shares_host_memory
from kvyield.gpu._gpu import GIB, Gpu, GpuError, GpuProcess, mig_profile
from kvyield.gpu._host_memory import host_memory_gib

Nvml = Any
"""The ``pynvml`` module, or anything with its functions: it carries no types of its own."""


def load_nvml() -> Nvml:
    """The ``pynvml`` module. Raises GpuError when it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise GpuError("NVML: the package nvidia-ml-py is not installed") from error


@contextlib.contextmanager
def nvml_session(nvml: Nvml) -> Iterator[None]:
    """NVML initialised for as long as the block runs. Raises GpuError when there is no NVIDIA driver."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise GpuError(f"NVML: {error}") from error
    try:
        yield
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def nvml_gpus(nvml: Nvml | None = None) -> list[Gpu]:
    """All NVIDIA GPUs, MIG devices in place of the GPUs that are split. Raises GpuError when NVML cannot be asked."""
    nvml = load_nvml() if nvml is None else nvml
    with nvml_session(nvml):
        try:
            return [_gpu(nvml, index, handle) for index, handle in nvml_handles(nvml)]
        except nvml.NVMLError as error:
            raise GpuError(f"NVML: {error}") from error


def nvml_handles(nvml: Nvml) -> list[tuple[int, object]]:
    """Index and handle of every GPU; a GPU in MIG mode gives the handles of its MIG devices."""
    found: list[tuple[int, object]] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        found += [(index, handle) for handle in _mig_handles(nvml, device) or [device]]
    return found


def free_gib(nvml: Nvml, handle: object) -> float:
    """Free GiB of one GPU or MIG device; of the host where the GPU has no memory of its own."""
    return _memory_gib(nvml, handle)[1]


def _mig_handles(nvml: Nvml, device: object) -> list[object]:
    try:
        if nvml.nvmlDeviceGetMigMode(device)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(device)
    except nvml.NVMLError:
        return []
    handles = []
    for slot in range(count):
        with contextlib.suppress(nvml.NVMLError):
            handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, slot))
    return handles


def _gpu(nvml: Nvml, index: int, handle: object) -> Gpu:
    name = _text(nvml.nvmlDeviceGetName(handle))
    total, free, from_host = _memory_gib(nvml, handle)
    return Gpu(
        index=index,
        name=name,
        memory_gib=total,
        free_gib=free,
        unified_memory=from_host or shares_host_memory(name),
        mig=mig_profile(name),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        processes=_processes(nvml, handle),
        usable_gib=None if from_host else _usable_gib(nvml, handle),
    )


def _usable_gib(nvml: Nvml, handle: object) -> float | None:
    """The total less what the driver reserves: ``cuDeviceTotalMem`` to the byte, measured on an H200 (driver 580).

    The second version of the call, which drivers before 510 and old bindings lack, tells both.
    """
    if not hasattr(nvml, "nvmlMemory_v2"):
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        return None
    return (memory.total - memory.reserved) / GIB if memory.total else None


def _memory_gib(nvml: Nvml, handle: object) -> tuple[float, float, bool]:
    """Total, free, and whether the host's memory had to answer: NVML says "Not Supported" on GB10 and Jetson."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return (*host_memory_gib(), True)
    if not memory.total:
        return (*host_memory_gib(), True)
    return memory.total / GIB, memory.free / GIB, False


def _processes(nvml: Nvml, handle: object) -> tuple[GpuProcess, ...]:
    try:
        listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return ()
    used = {process.pid: process.usedGpuMemory for process in listed}
    return tuple(
        GpuProcess(pid, process_name(pid), None if held is None else held / GIB) for pid, held in sorted(used.items())
    )


def process_name(pid: int, proc: Path = Path("/proc")) -> str | None:
    """The short name of a process, or None when it is in another namespace or gone."""
    try:
        return (proc / str(pid) / "comm").read_text().strip() or None
    except OSError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
