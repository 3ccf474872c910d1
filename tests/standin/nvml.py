"""A stand-in for the ``pynvml`` module: GPUs in plain Python, with the real module's names and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

GIB = 1 << 30


class FakeNvmlError(Exception):
    """NVML's error, with its number."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


@dataclass
class FakeGpu:
    """One GPU or MIG device. ``total_gib`` None is a GPU without memory of its own."""

    name: str
    uuid: str
    total_gib: float | None = 80.0
    free_gib: Callable[[], float] = lambda: 70.0
    mig_devices: Sequence[FakeGpu] = ()
    processes: Sequence[tuple[int, int | None]] = ()
    reserved_gib: float = 0.5


@dataclass
class FakeNvml:
    """What ``kvyield.gpu`` uses of ``pynvml``. ``tells_reserved``: it has the second version of memory information."""

    gpus: Sequence[FakeGpu] = ()
    driver: bool = True
    sessions: int = 0
    lost: bool = False
    tells_reserved: bool = False

    NVMLError = FakeNvmlError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_ERROR_NOT_SUPPORTED = 3

    def __post_init__(self) -> None:
        if self.tells_reserved:
            self.nvmlMemory_v2 = 0x02000028  # the real module's name and value

    def nvmlInit(self) -> None:  # noqa: N802 - the real module's name
        if not self.driver:
            raise FakeNvmlError(9, "Driver Not Loaded")
        self.sessions += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - the real module's name
        self.sessions -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the real module's name
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802 - the real module's name
        return self.gpus[index]

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802 - the real module's name
        if not gpu.mig_devices:
            raise FakeNvmlError(3, "Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802 - the real module's name
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, slot: int) -> FakeGpu:  # noqa: N802 - ditto
        if slot >= len(gpu.mig_devices):
            raise FakeNvmlError(6, "Not Found")
        return gpu.mig_devices[slot]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802 - the real module's name
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802 - the real module's name
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> SimpleNamespace:  # noqa: N802 - ditto
        if self.lost:
            raise FakeNvmlError(15, "GPU is lost")
        if gpu.total_gib is None:
            raise FakeNvmlError(3, "Not Supported")
        told = SimpleNamespace(total=int(gpu.total_gib * GIB), free=int(gpu.free_gib() * GIB))
        if version is not None:
            told.reserved = int(gpu.reserved_gib * GIB)
        return told

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:  # noqa: N802 - ditto
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes]
