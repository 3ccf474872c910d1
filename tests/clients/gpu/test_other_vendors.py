"""Ascend NPUs and Intel GPUs, by what their tools really print."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from kvyield.gpu import Gpu, GpuError
from kvyield.gpu._ascend import npu_smi_gpus
from kvyield.gpu._intel import xpu_smi_gpus
from kvyield.gpu._visible import visible

NPU_910B3 = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc1.b030            Version: 24.1.rc1.b030                                        |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 90.7        37                0    / 0             |
| 0                         | 0000:C1:00.0  | 7           0    / 0          53984/ 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 96.9        36                0    / 0             |
| 0                         | 0000:C2:00.0  | 42          0    / 0          3314 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 1712733       | sglangschedul            | 48954                   |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
"""
NPU_TWO_CHIPS = """
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
| 0     Ascend910           | OK            | 178.1                39                      0    / 0                |
| 0     0                   | 0000:9D:00.0  | 0                    0    / 0                3150 / 65536            |
| 0     Ascend910           | OK            | -                    39                      0    / 0                |
| 1     1                   | 0000:9F:00.0  | 0                    0    / 0                2890 / 65536            |
"""
NPU_310P = """
| 2     310P3               | OK            | NA          45                0    / 0             |
| 0                         | 0000:01:00.0  | 0           1720 / 21534                           |
"""

DISCOVERY = {
    "device_list": [
        {
            "device_function_type": "physical",
            "device_id": 0,
            "device_name": "Intel(R) Arc(TM) Pro B70 Graphics",
            "device_type": "GPU",
            "drm_device": "/dev/dri/card3",
            "pci_bdf_address": "0000:23:00.0",
            "uuid": "00000000-0000-0023-0000-0000e2118086",
            "vendor_name": "Intel(R) Corporation",
        }
    ]
}
DETAILS = {"device_id": 0, "memory_physical_size_byte": "34242297856", "memory_free_size_byte": "33285996544"}
STATS = {"device_level": [{"metrics_type": "XPUM_STATS_POWER", "value": 31.5},
                          {"metrics_type": "XPUM_STATS_MEMORY_USED", "value": 1024.5}], "device_id": 0}  # fmt: skip
TILES = {"device_id": 0, "tile_level": [{"tile_id": tile, "data_list": [
    {"metrics_type": "XPUM_STATS_MEMORY_USED", "value": 512.0}]} for tile in (0, 1)]}  # fmt: skip


def npu(output: str) -> Callable[[Sequence[str]], str]:
    return lambda command: output if list(command) == ["npu-smi", "info"] else ""


def xpu(details: object = DETAILS, stats: object = STATS, found: object = DISCOVERY) -> Callable[[Sequence[str]], str]:
    def run(command: Sequence[str]) -> str:
        words = list(command)[1:]
        if words == ["discovery", "-j"]:
            return json.dumps(found)
        return json.dumps(details if words == ["discovery", "-d", "0", "-j"] else stats)

    return run


def test_npu_smi_lists_chips_with_memory_and_processes() -> None:
    """Name, HBM and processes of each NPU are read from the table."""
    first, second = npu_smi_gpus(npu(NPU_910B3))
    assert (first.name, first.memory_gib, first.free_gib) == ("Ascend 910B3", 64.0, (65536 - 53984) / 1024)
    assert (second.index, second.free_gib, second.processes) == (1, (65536 - 3314) / 1024, ())
    assert [(held.pid, held.name, held.used_gib) for held in first.processes] == [
        (1712733, "sglangschedul", 48954 / 1024)
    ]
    assert (first.tool, first.bus_id, first.unified_memory, first.usable_gib) == (
        "npu-smi",
        "0000:C1:00.0",
        False,
        None,
    )


def test_an_npu_of_two_chips_is_two_gpus() -> None:
    """Each chip has memory of its own, and is what an engine's rank uses."""
    found = npu_smi_gpus(npu(NPU_TWO_CHIPS))
    assert [(gpu.index, gpu.name, gpu.bus_id) for gpu in found] == [
        (0, "Ascend910", "0000:9D:00.0"),
        (1, "Ascend910", "0000:9F:00.0"),
    ]


def test_an_npu_without_hbm_has_its_ddr_as_memory() -> None:
    """A 310P's table has one pair of used and total."""
    (gpu,) = npu_smi_gpus(npu(NPU_310P))
    assert (gpu.name, gpu.memory_gib, gpu.free_gib) == ("Ascend 310P3", 21534 / 1024, (21534 - 1720) / 1024)


@pytest.mark.parametrize("output", ["", "DrvMngGetConsoleLogLevel failed", NPU_310P.replace("1720 / 21534", "0 / 0")])
def test_a_table_without_memory_is_a_gpu_error(output: str) -> None:
    """What cannot be read is said, and nothing is made up."""
    with pytest.raises(GpuError, match="npu-smi"):
        npu_smi_gpus(npu(output))


def test_xpu_smi_tells_name_total_and_what_is_used() -> None:
    """Free memory is the total less what the statistics say is used, of the device or summed over its tiles."""
    (gpu,) = xpu_smi_gpus(xpu())
    assert (gpu.index, gpu.name, gpu.tool) == (0, "Intel(R) Arc(TM) Pro B70 Graphics", "xpu-smi")
    assert (round(gpu.memory_gib, 2), round(gpu.free_gib, 2)) == (31.89, 30.89)
    assert (gpu.bus_id, gpu.unified_memory) == ("0000:23:00.0", False)
    (tiles,) = xpu_smi_gpus(xpu(stats=TILES))
    assert round(tiles.free_gib, 2) == 30.89
    (no_statistics,) = xpu_smi_gpus(xpu(stats={"error": "not supported"}))
    assert round(no_statistics.free_gib, 2) == 31.0


@pytest.mark.parametrize(
    ("details", "stats", "found"),
    [
        ({}, STATS, DISCOVERY),
        ({"memory_physical_size_byte": "34242297856"}, {}, DISCOVERY),
        ([], STATS, DISCOVERY),
        (DETAILS, STATS, []),
    ],
)
def test_xpu_smi_without_figures_is_a_gpu_error(details: object, stats: object, found: object) -> None:
    """A total or free memory that is not told is an error, not zero."""
    with pytest.raises(GpuError, match="xpu-smi"):
        xpu_smi_gpus(xpu(details, stats, found))


def test_xpu_smi_that_lists_nothing_lists_nothing() -> None:
    """No device, or none that is a GPU, is an empty list, so that the reason names the tool."""
    assert xpu_smi_gpus(xpu(found={"device_list": []})) == []
    assert xpu_smi_gpus(xpu(found={"device_list": [{"device_id": 0, "device_type": "CPU"}]})) == []
    assert xpu_smi_gpus(xpu(found={})) == []


def test_each_vendors_variable_hides_its_own_gpus() -> None:
    """ASCEND_RT_VISIBLE_DEVICES counts chips, ZE_AFFINITY_MASK GPUs and tiles; neither says anything of others."""
    npus = [Gpu(n, "Ascend 910B3", 64.0, 60.0, tool="npu-smi") for n in range(4)]
    intel = [Gpu(n, "Intel Arc Pro B70", 32.0, 30.0, tool="xpu-smi") for n in range(4)]
    environ = {"ASCEND_RT_VISIBLE_DEVICES": "2,3", "ZE_AFFINITY_MASK": "1.0,1.1,3", "CUDA_VISIBLE_DEVICES": "0"}
    assert [gpu.index for gpu in visible(npus, environ)] == [2, 3]
    assert [gpu.index for gpu in visible(intel, environ)] == [1, 3]
    with pytest.raises(GpuError, match="ZE_AFFINITY_MASK"):
        visible(intel, {"ZE_AFFINITY_MASK": ""})
