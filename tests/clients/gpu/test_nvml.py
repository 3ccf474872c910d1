"""GPUs as NVML reports them."""

from __future__ import annotations

import os
from functools import partial

import pytest

from kvyield.gpu import GpuError, find_gpus, hardware_name, open_reader
from kvyield.gpu._nvml import nvml_gpus
from standin.nvml import GIB, FakeGpu, FakeNvml

BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def test_a_gpu_carries_the_tools_own_total_in_gib() -> None:
    """The total is the tool's own number over 2^30, so nvidia-smi's 97,887 MiB is 95.59 GiB."""
    nvml = FakeNvml([FakeGpu(BLACKWELL, "GPU-1", total_gib=97887 / 1024, free_gib=lambda: 4.25)])
    (gpu,) = nvml_gpus(nvml)
    assert (gpu.name, round(gpu.memory_gib, 2), gpu.free_gib) == (BLACKWELL, 95.59, 4.25)
    assert (gpu.unified_memory, gpu.mig, nvml.sessions) == (False, None, 0)


def test_a_split_gpu_is_listed_as_its_mig_devices() -> None:
    """A GPU in MIG mode gives one entry per MIG device, with the profile, and none for itself."""
    slices = [
        FakeGpu(f"NVIDIA H100 80GB HBM3 MIG {p}", f"MIG-{p}", total_gib=g)
        for p, g in (("1g.10gb", 10), ("2g.20gb", 20))
    ]
    whole = FakeGpu("NVIDIA H100 80GB HBM3", "GPU-2")
    found = nvml_gpus(FakeNvml([FakeGpu("NVIDIA H100 80GB HBM3", "GPU-1", mig_devices=slices), whole]))
    assert [(gpu.index, gpu.mig, gpu.memory_gib) for gpu in found] == [
        (0, "1g.10gb", 10),
        (0, "2g.20gb", 20),
        (1, None, 80),
    ]


def test_a_gpu_without_memory_of_its_own_answers_with_the_hosts() -> None:
    """GB10 says "Not Supported" for memory: the host's total and available memory are its memory."""
    (gpu,) = nvml_gpus(FakeNvml([FakeGpu("NVIDIA GB10", "GPU-1", total_gib=None)]))
    assert gpu.unified_memory
    assert (
        0
        < gpu.free_gib
        <= gpu.memory_gib
        == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB, rel=0.2)
    )


@pytest.mark.parametrize(
    ("name", "unified"),
    [
        ("NVIDIA GB10", True),
        ("NVIDIA Jetson AGX Orin", True),
        ("Orin (nvgpu)", True),
        ("NVIDIA Thor", True),
        ("NVIDIA GH200 480GB", False),
        ("NVIDIA GB200", False),
        ("NVIDIA GB300", False),
        ("NVIDIA GeForce GTX 780M", False),
        ("NVIDIA H200", False),
    ],
)
def test_gpus_that_share_the_hosts_memory_are_recognised_by_name(name: str, unified: bool) -> None:
    """GB10 and Jetson are unified memory even where NVML gives figures; Grace superchips have HBM of their own."""
    (gpu,) = nvml_gpus(FakeNvml([FakeGpu(name, "GPU-1")]))
    assert gpu.unified_memory is unified


def test_other_processes_on_a_gpu_are_listed_with_it() -> None:
    """Every process on the GPU is listed with its memory, except those that the caller calls its own."""
    nvml = FakeNvml([FakeGpu("NVIDIA L4", "GPU-1", processes=[(4000001, 2 * GIB), (4000002, None), (4000003, GIB)])])
    (gpu,) = find_gpus(environ={}, finders=[lambda: nvml_gpus(nvml)], except_pids=frozenset({4000003}))
    assert [(n.pid, n.name, n.used_gib) for n in gpu.processes] == [(4000001, None, 2.0), (4000002, None, None)]


def test_a_driver_that_is_not_loaded_is_a_gpu_error() -> None:
    """NVML's own words are in the error."""
    with pytest.raises(GpuError, match="Driver Not Loaded"):
        nvml_gpus(FakeNvml(driver=False))


def test_a_reader_reads_the_gpus_in_their_order_and_ends_its_session() -> None:
    """Free memory comes back in the order of the GPUs given, whatever NVML's order is."""
    nvml = FakeNvml([FakeGpu("NVIDIA L4", f"GPU-{n}", free_gib=partial(float, n)) for n in range(3)])
    listed = nvml_gpus(nvml)
    with open_reader([listed[2], listed[0]], nvml=nvml) as reader:
        assert (list(reader.read()), nvml.sessions) == ([2.0, 0.0], 1)
        nvml.lost = True
        with pytest.raises(GpuError, match="GPU is lost"):
            reader.read()
    assert nvml.sessions == 0


def test_a_reader_refuses_gpus_that_are_gone() -> None:
    """A GPU that NVML no longer lists is an error at opening, not a shorter list of readings."""
    listed = nvml_gpus(FakeNvml([FakeGpu("NVIDIA L4", "GPU-1")]))
    with pytest.raises(GpuError, match="no longer"), open_reader(listed, nvml=FakeNvml([])):
        pass


def test_hardware_of_several_kinds_has_no_one_name() -> None:
    """GPUs of two kinds are refused by name with the way to choose."""
    mixed = nvml_gpus(FakeNvml([FakeGpu("NVIDIA L4", "GPU-1"), FakeGpu("NVIDIA T4", "GPU-2")]))
    assert hardware_name(mixed[:1]) == "NVIDIA L4"
    with pytest.raises(GpuError, match=r"NVIDIA L4, NVIDIA T4.*CUDA_VISIBLE_DEVICES"):
        hardware_name(mixed)
