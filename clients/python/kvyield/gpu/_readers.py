"""Readers of free memory, made to be called fifty times a second."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kvyield.gpu._find import FINDER_OF
from kvyield.gpu._gpu import GIB, Gpu, GpuError
from kvyield.gpu._nvml import Nvml, free_gib, load_nvml, nvml_handles, nvml_session

SYSFS = Path("/sys")


class FreeReader(Protocol):
    """Reads free memory of a fixed list of GPUs, in their order."""

    def read(self) -> Sequence[float]:
        """Free GiB of each GPU now. Raises GpuError when a GPU cannot be read."""
        ...


@contextlib.contextmanager
def open_reader(gpus: Sequence[Gpu], *, nvml: Nvml | None = None, sysfs: Path = SYSFS) -> Iterator[FreeReader]:
    """The cheapest reader for these GPUs: NVML, sysfs for AMD, otherwise the vendor's tool at each reading."""
    if not gpus:
        raise GpuError("there is no GPU to read")
    tool = gpus[0].tool
    if tool == "nvml":
        nvml = load_nvml() if nvml is None else nvml
        with nvml_session(nvml):
            yield _NvmlReader(nvml, gpus)
        return
    directories = [sysfs / "bus/pci/devices" / (gpu.bus_id or "-").lower() for gpu in gpus]
    if all((directory / "mem_info_vram_total").exists() for directory in directories):
        yield _SysfsReader(directories, gtt=[gpu.unified_memory for gpu in gpus])
    else:
        yield _ToolReader(gpus)


class _NvmlReader:
    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu]) -> None:
        wanted = {gpu.uuid: position for position, gpu in enumerate(gpus)}
        handles: dict[int, object] = {}
        for _, handle in nvml_handles(nvml):
            uuid = nvml.nvmlDeviceGetUUID(handle)
            position = wanted.get(uuid.decode() if isinstance(uuid, bytes) else uuid)
            if position is not None:
                handles[position] = handle
        if len(handles) != len(gpus):
            raise GpuError("NVML no longer lists all the GPUs that it listed before")
        self._nvml = nvml
        self._handles = [handles[position] for position in range(len(gpus))]

    def read(self) -> Sequence[float]:
        """Free GiB of each GPU by NVML."""
        try:
            return [free_gib(self._nvml, handle) for handle in self._handles]
        except self._nvml.NVMLError as error:
            raise GpuError(f"NVML: {error}") from error


class _SysfsReader:
    def __init__(self, directories: Sequence[Path], gtt: Sequence[bool]) -> None:
        self._pools = [
            [directory / f"mem_info_{kind}_" for kind in (("vram", "gtt") if shared else ("vram",))]
            for directory, shared in zip(directories, gtt, strict=True)
        ]

    def read(self) -> Sequence[float]:
        """Free GiB of each GPU by the amdgpu driver's files."""
        return [max(_sysfs_pool(pool) for pool in pools)[1] for pools in self._pools]


def _sysfs_pool(stem: Path) -> tuple[float, float]:
    try:
        total, used = (int(Path(f"{stem}{field}").read_text()) for field in ("total", "used"))
    except (OSError, ValueError) as error:
        raise GpuError(f"{stem}total and {stem}used cannot be read: {error}") from error
    return total / GIB, (total - used) / GIB


class _ToolReader:
    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._find = FINDER_OF[gpus[0].tool]
        self._keys = [(gpu.index, gpu.uuid) for gpu in gpus]

    def read(self) -> Sequence[float]:
        """Free GiB of each GPU by the vendor's tool: tenths of a second per reading."""
        free = {(gpu.index, gpu.uuid): gpu.free_gib for gpu in self._find()}
        try:
            return [free[key] for key in self._keys]
        except KeyError as error:
            raise GpuError(f"the tool no longer lists GPU {error}") from error
