"""Which GPUs share the host's memory, by their names."""

from __future__ import annotations

import pytest

from kvyield._unified import shares_host_memory


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA GB10", "NVIDIA DGX Spark", "Orin (nvgpu)", "NVIDIA Jetson AGX Thor", "NVIDIA Thor"),
        *("AMD Radeon 8060S Graphics", "AMD Radeon 8050S Graphics", "Radeon 890M", "AMD Radeon(TM) 780M", "gfx1151"),
        *("AMD Instinct MI300A", "AMD Ryzen AI MAX+ 395 w/ Radeon 8060S", "Strix Halo [Radeon 8060S]"),
        *("Intel(R) Arc(TM) 140V GPU (16GB)", "Intel Arc B390", "Apple M3 Ultra"),
    ],
)
def test_gpus_that_use_the_hosts_memory_are_known_by_name(name: str) -> None:
    """Spark, Jetson, Strix Halo and other APUs, however the name is written."""
    assert shares_host_memory(name)


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e", "NVIDIA GB200", "NVIDIA GB300", "NVIDIA H200"),
        *("NVIDIA GeForce GTX 780M", "NVIDIA GeForce RTX 4090", "ASUS ROG STRIX GeForce RTX 3090"),
        *("AMD Instinct MI300X", "AMD Radeon RX 7900 XTX", "Radeon PRO W7900", "gfx942", "gfx1100", "Ascend 910B2"),
        *("Intel Arc Pro B70", "Intel(R) Arc(TM) A770 Graphics", "", "unified", None),
    ],
)
def test_gpus_with_memory_of_their_own_are_not_taken_for_apus(name: str | None) -> None:
    """Grace superchips have HBM; discrete GPUs of a like number stay discrete."""
    assert not shares_host_memory(name)
