"""What is known of one GPU, and the error that says what to do when there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvyield._errors import KvyieldError

GIB = 1 << 30
MIB = 1 << 20

Tool = Literal["nvml", "nvidia-smi", "amd-smi", "rocm-smi", "npu-smi", "xpu-smi"]


class GpuError(KvyieldError):
    """No GPU could be read. The text says why, tool by tool, and what to do about it."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a GPU. ``used_gib`` is None where the driver does not say."""

    pid: int
    name: str | None
    used_gib: float | None


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG device of a GPU, as its own tool reports it.

    ``memory_gib`` is the driver's total over 2^30 and ``free_gib`` its free memory at the moment of asking.
    ``usable_gib`` is the total that a framework sees (``cuDeviceTotalMem``): the driver's less what it reserves, None
    where the tool does not tell. They are 140.40 and 139.80 on an H200.
    ``unified_memory`` is true where the host's processes and page cache live in the same memory (GB10, Jetson, APUs).
    Grace superchips are not: their GPUs have HBM of their own, which is what NVML reports.
    ``mig`` is the MIG profile ("1g.10gb"); the MIG devices of one GPU share its ``index``.
    """

    index: int
    name: str
    memory_gib: float
    free_gib: float
    unified_memory: bool = False
    mig: str | None = None
    uuid: str | None = None
    processes: tuple[GpuProcess, ...] = ()
    tool: Tool = "nvml"
    bus_id: str | None = None
    usable_gib: float | None = None


def mig_profile(name: str) -> str | None:
    """The MIG profile inside a device's name: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb`` gives ``1g.5gb``."""
    found = re.search(r"\bMIG\s+(\S+)", name)
    return found.group(1) if found else None


def hardware_name(gpus: Sequence[Gpu]) -> str:
    """The one name of these GPUs, with its MIG profile. Raises GpuError when they are of several kinds."""
    names = sorted({gpu.name for gpu in gpus})
    if len(names) != 1:
        kinds = ", ".join(names) or "none"
        raise GpuError(f"these GPUs are not of one kind ({kinds}): choose the engine's with CUDA_VISIBLE_DEVICES")
    return names[0]
