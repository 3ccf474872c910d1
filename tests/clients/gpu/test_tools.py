"""GPUs as the vendors' command-line tools print them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvyield.gpu import Gpu, GpuError, open_reader
from kvyield.gpu._amd import amd_smi_gpus, rocm_smi_gpus
from kvyield.gpu._gpu import GIB
from kvyield.gpu._nvidia_smi import nvidia_smi_gpus
from kvyield.gpu._tools import run_tool

GPU = """<gpu id="00000000:01:00.0"><product_name>{name}</product_name><uuid>GPU-1</uuid>{mig}
<fb_memory_usage><total>{total}</total><reserved>500 MiB</reserved><used>2000 MiB</used><free>{free}</free>
</fb_memory_usage><processes><process_info><pid>77</pid><type>C</type><process_name>python3</process_name>
<used_memory>1536 MiB</used_memory></process_info></processes></gpu>"""
MIG = """<mig_devices><mig_device><index>0</index><fb_memory_usage><total>9728 MiB</total><free>9000 MiB</free>
</fb_memory_usage></mig_device></mig_devices>"""


def prints(outputs: dict[str, str]) -> Callable[[Sequence[str]], str]:
    def run(command: Sequence[str]) -> str:
        for words, output in outputs.items():
            if words in " ".join(command):
                return output
        raise GpuError(f"unexpected {command}")

    return run


def nvidia(name: str, total: str, free: str, mig: str = "") -> dict[str, str]:
    log = f"<nvidia_smi_log>{GPU.format(name=name, total=total, free=free, mig=mig)}</nvidia_smi_log>"
    return {"-q -x": log, "-L": f"GPU 0: {name} (UUID: GPU-1)\n  MIG 1g.10gb     Device  0: (UUID: MIG-9)\n"}


def test_nvidia_smi_gives_the_same_gpu_as_nvml_would() -> None:
    """Name, total, free and processes are read from the XML."""
    (gpu,) = nvidia_smi_gpus(prints(nvidia("NVIDIA H200", "143771 MiB", "141000 MiB")))
    assert (gpu.name, gpu.memory_gib, gpu.free_gib) == ("NVIDIA H200", 143771 / 1024, 141000 / 1024)
    assert [(n.pid, n.name, n.used_gib) for n in gpu.processes] == [(77, "python3", 1.5)]


def test_nvidia_smi_names_mig_devices_by_profile() -> None:
    """MIG devices carry their own memory, profile and UUID."""
    (gpu,) = nvidia_smi_gpus(prints(nvidia("NVIDIA H100", "81559 MiB", "80000 MiB", MIG)))
    assert (gpu.name, gpu.mig, gpu.uuid, gpu.memory_gib) == ("NVIDIA H100 MIG 1g.10gb", "1g.10gb", "MIG-9", 9.5)


def test_nvidia_smi_without_memory_figures_means_the_hosts_memory() -> None:
    """``N/A`` on GB10 is answered by the host."""
    (gpu,) = nvidia_smi_gpus(prints(nvidia("NVIDIA GB10", "N/A", "N/A")))
    assert gpu.unified_memory
    assert gpu.memory_gib > 0


def test_broken_output_is_a_gpu_error() -> None:
    """Neither tool's garbage escapes as another exception."""
    with pytest.raises(GpuError, match="XML"):
        nvidia_smi_gpus(prints({"-q -x": "Failed to initialize"}))
    with pytest.raises(GpuError, match="JSON"):
        amd_smi_gpus(prints({"static": "ERROR"}))


AMD = {
    "static": json.dumps(
        [
            {
                "gpu": 0,
                "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
                "bus": {"bdf": "0000:05:00.0"},
                "vram": {"size": {"value": 196592, "unit": "MB"}},
            }
        ]
    ),
    "metric": json.dumps(
        [
            {
                "gpu": 0,
                "mem_usage": {
                    "total_vram": {"value": 196592, "unit": "MB"},
                    "used_vram": {"value": 1024, "unit": "MB"},
                },
            }
        ]
    ),
    "list": json.dumps([{"gpu": 0, "bdf": "0000:05:00.0", "uuid": "4cff74a1-0000-1000-80f5-c9c1e6cf1b9e"}]),
    "process": json.dumps(
        [
            {
                "gpu": 0,
                "process_list": [
                    {"process_info": {"name": "python", "pid": 8, "mem_usage": {"value": GIB, "unit": "B"}}}
                ],
            }
        ]
    ),
}


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi_of_both_json_shapes_is_read(wrapped: bool) -> None:
    """The list of ROCm 6 and the ``gpu_data`` object of ROCm 7 give the same GPU; its MB are MiB."""
    outputs = {words: f'{{"gpu_data": {text}}}' if wrapped else text for words, text in AMD.items()}
    (gpu,) = amd_smi_gpus(prints(outputs))
    assert (gpu.name, gpu.memory_gib, gpu.free_gib) == ("AMD Instinct MI300X", 196592 / 1024, 195568 / 1024)
    assert (gpu.unified_memory, gpu.bus_id) == (False, "0000:05:00.0")
    assert [(n.pid, n.name, n.used_gib) for n in gpu.processes] == [(8, "python", 1.0)]


def test_an_apu_with_a_small_carve_out_has_its_gtt_as_memory() -> None:
    """On an APU the larger of VRAM and GTT is what a model can use."""
    row = {"Card Series": "AMD Radeon Graphics", "GFX Version": "gfx1151", "PCI Bus": "0000:C5:00.0"}
    row |= {"VRAM Total Memory (B)": str(GIB // 2), "VRAM Total Used Memory (B)": "0"}
    row |= {"GTT Total Memory (B)": str(96 * GIB), "GTT Total Used Memory (B)": str(GIB)}
    (gpu,) = rocm_smi_gpus(prints({"rocm-smi": "WARNING: low power\n" + json.dumps({"card0": row, "system": {}})}))
    assert (gpu.memory_gib, gpu.free_gib, gpu.unified_memory) == (96.0, 95.0, True)


def test_amd_memory_is_sampled_from_the_drivers_files(tmp_path: Path) -> None:
    """No subprocess is needed where the amdgpu driver's files are there."""
    device = tmp_path / "bus/pci/devices/0000:c5:00.0"
    device.mkdir(parents=True)
    (device / "mem_info_vram_total").write_text(f"{8 * GIB}\n")
    (device / "mem_info_vram_used").write_text(f"{GIB}\n")
    gpu = Gpu(0, "AMD Instinct MI300X", 8.0, 8.0, tool="rocm-smi", bus_id="0000:C5:00.0")
    with open_reader([gpu], sysfs=tmp_path) as reader:
        assert list(reader.read()) == [7.0]
        (device / "mem_info_vram_used").unlink()
        with pytest.raises(GpuError, match="cannot be read"):
            reader.read()


def test_a_missing_or_failing_tool_is_a_gpu_error() -> None:
    """The error is the tool's own first line, or that it is not there."""
    with pytest.raises(GpuError, match="not on PATH"):
        run_tool(["kvyield-no-such-tool"])
    with pytest.raises(GpuError, match="No such file"):
        run_tool(["ls", "/kvyield-no-such-folder"])


def fake_tool(folder: Path, name: str, script: str) -> None:
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def test_memory_is_read_by_the_tool_where_there_is_nothing_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NVML each reading asks nvidia-smi; a GPU that it no longer lists is an error."""
    log = tmp_path / "log.xml"
    log.write_text(nvidia("NVIDIA H200", "143771 MiB", "1024 MiB")["-q -x"])
    fake_tool(tmp_path, "nvidia-smi", f"cat {log}")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = nvidia_smi_gpus()
    with open_reader(found) as reader:
        assert list(reader.read()) == [1.0]
        log.write_text("<nvidia_smi_log></nvidia_smi_log>")
        with pytest.raises(GpuError, match="no longer lists"):
            reader.read()


def test_a_tool_that_hangs_or_only_fails_silently_is_a_gpu_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is bounded, and an exit status without words is told."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_tool(tmp_path, "slow-smi", "exec sleep 30")
    with pytest.raises(GpuError, match=r"did not answer within 0\.2 s"):
        run_tool(["slow-smi"], timeout_seconds=0.2)
    fake_tool(tmp_path, "sad-smi", "exit 9")
    with pytest.raises(GpuError, match="exit status 9"):
        run_tool(["sad-smi"])


def test_the_numbers_of_amd_smi_are_read_in_every_spelling() -> None:
    """A size may be a number with its unit in one text, a table, or a bare number of MiB; other text is nothing."""
    static = json.dumps([{"gpu": 0, "asic": {"market_name": "AMD Instinct MI210"}, "vram": {"size": "65520 MB"}}])
    used = json.dumps([{"gpu": 0, "mem_usage": {"used_vram": 20, "total_vram": "N/A"}}])
    outputs = {"static": static, "metric": used, "list": "[]"}
    (found,) = amd_smi_gpus(prints(outputs))
    assert (found.memory_gib, found.free_gib, found.processes) == (65520 / 1024, 65500 / 1024, ())
