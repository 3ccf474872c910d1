"""Real memory of common GPUs, for when a start does not say, and which of them share memory with the host.

``reported_gib`` is what ``nvidia-smi`` or ``amd-smi`` reports; ``usable_gib`` is the total that the framework sees,
which vLLM's fraction multiplies. Marketing gigabytes are neither. Both are as printed by real starts of these GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from kvyield_server.domain.facts.observation import Hardware


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU model's memory in GiB."""

    reported_gib: float
    usable_gib: float
    is_unified: bool = False


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """GiB with a relative standard deviation."""

    gib: float
    relative_sd: float


_DEVICES: dict[str, Device] = {
    "rtx pro 6000 blackwell": Device(95.59, 94.97),
    "rtx pro 6000": Device(95.59, 94.97),
    "rtx 6000 ada": Device(47.99, 47.50),
    "rtx 5090": Device(31.84, 31.36),
    "rtx 5080": Device(15.92, 15.48),
    "rtx 5070 ti": Device(15.92, 15.48),
    "rtx 5060 ti 16gb": Device(15.92, 15.48),
    "rtx 4090": Device(23.99, 23.64),
    "rtx 4080": Device(15.99, 15.70),
    "rtx 3090": Device(24.00, 23.60),
    "rtx a6000": Device(47.99, 47.50),
    "a6000": Device(47.99, 47.50),
    "gb200": Device(184.00, 184.00),
    "b200": Device(179.06, 178.36),
    "h200": Device(140.40, 139.80),
    "h20": Device(95.58, 95.08),
    "h100 nvl": Device(93.58, 93.09),
    "h100 pcie": Device(79.65, 79.19),
    "h100": Device(79.65, 79.19),
    "h800": Device(79.65, 79.19),
    "gh200": Device(95.58, 95.00),
    "a100 40gb": Device(40.00, 39.49),
    "a100": Device(80.00, 79.25),
    "a800": Device(80.00, 79.25),
    "l40s": Device(44.99, 44.40),
    "l40": Device(44.99, 44.40),
    "a40": Device(44.99, 44.42),
    "a10": Device(22.49, 22.06),
    "l4": Device(22.49, 22.06),
    "t4": Device(15.00, 14.57),
    "v100 32gb": Device(32.00, 31.74),
    "v100": Device(16.00, 15.77),
    "mi300x": Device(191.98, 191.98),
    "mi325x": Device(255.98, 255.98),
    "mi355x": Device(287.98, 287.98),
    "gb10": Device(121.69, 121.69, is_unified=True),
    "dgx spark": Device(121.69, 121.69, is_unified=True),
    "thor": Device(122.8, 122.8, is_unified=True),
    "agx orin 64gb": Device(61.4, 61.4, is_unified=True),
}
_SHARED_WORDS = (
    *("unified", "shared memory", "uma", "jetson", "tegra", "orin", "apu", "xpu", "strix halo", "gb10", "dgx spark"),
)
_VIRTUAL = re.compile(r"\b(mig|vgpu|grid)\b|\b\d+g\.\d+gb\b|\b[a-z]\d+-\d+[a-z]\b")
_CONTEXT_GIB = 0.6
_COMMUNICATION_GIB = 0.7
TABLE_SD = 0.015
SMALLEST_GIB, LARGEST_GIB = 0.1, 1e5
"""No GPU has less or more memory than this: a figure outside is a mistake, as good as none."""
LOGGED_SD = 0.0006


def _words(name: str) -> str:
    return " " + re.sub(r"[^a-z0-9.\-]+", " ", name.lower()).replace("-", " ").strip() + " "


@lru_cache(maxsize=1024)
def find_device(gpu: str) -> Device | None:
    """Return the device whose whole name stands in ``gpu``, the longest first; a MIG slice is not the whole GPU."""
    if _VIRTUAL.search(gpu.lower()):
        return None
    words = _words(gpu)
    matches = [name for name in _DEVICES if f" {name} " in words]
    return _DEVICES[max(matches, key=len)] if matches else None


@lru_cache(maxsize=1024)
def _is_named_unified(gpu: str) -> bool:
    words = _words(gpu)
    device = find_device(gpu)
    return any(f" {word} " in words for word in _SHARED_WORDS) or (device is not None and device.is_unified)


def has_unified_memory(hardware: Hardware) -> bool:
    """Tell whether the GPU shares its memory with the host, which makes repeated starts differ by per cents."""
    if hardware.unified_memory is not None:
        return hardware.unified_memory
    return _is_named_unified(hardware.gpu)


def stated_memory(hardware: Hardware) -> float | None:
    """Return the memory of one GPU that was told, GiB, or None where none or an impossible one was."""
    stated = hardware.memory_gib
    return stated if stated is not None and SMALLEST_GIB <= stated <= LARGEST_GIB else None


def usable_memory(hardware: Hardware) -> MemoryFigure | None:
    """Return the total that the framework sees on one GPU, or None for an unknown GPU of unknown size."""
    device = find_device(hardware.gpu)
    stated = stated_memory(hardware)
    if device is None:
        return None if stated is None else _stated_alone(stated)
    if stated is None:
        return MemoryFigure(device.usable_gib, TABLE_SD)
    for figure in (device.usable_gib, device.reported_gib):
        if abs(stated - figure) <= 0.0025 * figure:
            return MemoryFigure(device.usable_gib, 0.003)
    if abs(stated - device.reported_gib) <= 0.1 * device.reported_gib:
        return MemoryFigure(device.usable_gib, TABLE_SD)
    return MemoryFigure(stated * 0.9975, TABLE_SD)


def _stated_alone(stated: float) -> MemoryFigure:
    """Return what is seen of an unknown GPU: a whole number is what it is sold as, 93 to 100.5 % of which is there."""
    if stated == round(stated):
        return MemoryFigure(stated * 0.9675, 0.02)
    return MemoryFigure(stated * 0.9975, 0.004)


def free_before_load(hardware: Hardware, *, is_spread: bool) -> MemoryFigure | None:
    """Return what an engine finds free before it loads weights on an otherwise empty GPU.

    The GPU's usable total less the process's own context and, over several GPUs, communication buffers.
    """
    total = usable_memory(hardware)
    if total is None:
        return None
    taken = _CONTEXT_GIB + (_COMMUNICATION_GIB if is_spread else 0.0)
    return MemoryFigure(max(0.1 * total.gib, total.gib - taken), TABLE_SD)
