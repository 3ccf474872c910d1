"""Which tool answers, and which GPUs the environment leaves visible."""

from __future__ import annotations

import pytest

from kvyield.gpu import Gpu, GpuError, find_gpus
from kvyield.gpu._gpu import Tool
from kvyield.gpu._visible import visible


def boxes(count: int, tool: Tool = "nvml") -> list[Gpu]:
    return [Gpu(n, "GPU", 80.0, 70.0, uuid=f"GPU-{n}{n}aa-{n}", tool=tool) for n in range(count)]


def missing() -> list[Gpu]:
    raise GpuError("x-smi is not on PATH")


def test_the_first_tool_that_lists_a_gpu_answers() -> None:
    """A tool that fails or lists nothing is passed over."""
    assert find_gpus(environ={}, finders=[missing, list, lambda: boxes(2)]) == boxes(2)


def test_no_gpu_says_every_reason_and_what_to_do() -> None:
    """The error names what each tool said and the options that replace a GPU."""
    with pytest.raises(GpuError, match=r"x-smi is not on PATH.*--gpus all.*--gpu-memory-gib"):
        find_gpus(environ={}, finders=[missing])


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("0,9,1", [0]),
        ("1,1", [1]),
        ("GPU-22aa-2,GPU-00aa-0", [2, 0]),
        ("GPU-33", [3]),
        ("gpu-11AA", [1]),
    ],
)
def test_cuda_visible_devices_chooses_and_orders(value: str, chosen: list[int]) -> None:
    """Indices and UUIDs or their beginnings count, in their order, up to the first that names no GPU."""
    assert [gpu.index for gpu in visible(boxes(4), {"CUDA_VISIBLE_DEVICES": value})] == chosen


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "GPU-", "GPU-7"])
def test_an_environment_that_hides_all_gpus_is_an_error(value: str) -> None:
    """Hiding all GPUs says which variable did it."""
    with pytest.raises(GpuError, match=r"CUDA_VISIBLE_DEVICES.*hides all 4 GPUs"):
        visible(boxes(4), {"CUDA_VISIBLE_DEVICES": value})


def test_mig_devices_are_chosen_by_uuid_and_a_number_means_the_gpus_first() -> None:
    """MIG UUIDs choose one device; a GPU's number chooses its first MIG device, as CUDA does."""
    slices = [Gpu(n // 2, "GPU MIG 1g.10gb", 10, 9, mig="1g.10gb", uuid=f"MIG-{n}") for n in range(4)]
    assert visible(slices, {"CUDA_VISIBLE_DEVICES": "MIG-3,MIG-0"}) == [slices[3], slices[0]]
    assert visible(slices, {"CUDA_VISIBLE_DEVICES": "1"}) == [slices[2]]


def test_amd_numbers_count_within_what_is_left() -> None:
    """ROCR_VISIBLE_DEVICES is applied first; HIP_VISIBLE_DEVICES counts within what it leaves."""
    environ = {"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert [gpu.index for gpu in visible(boxes(4, "amd-smi"), environ)] == [1]
    assert [gpu.index for gpu in visible(boxes(4, "amd-smi"), {"CUDA_VISIBLE_DEVICES": "2"})] == [2]


def test_nvidia_gpus_ignore_amds_variables() -> None:
    """HIP_VISIBLE_DEVICES says nothing about NVIDIA GPUs."""
    assert len(visible(boxes(4), {"HIP_VISIBLE_DEVICES": "0"})) == 4
