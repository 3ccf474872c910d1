"""NVML of the GPUs that ``STANDIN_GPUS`` names: put on PYTHONPATH, it stands in for the real package."""

from __future__ import annotations

import json
import os
from pathlib import Path

from standin.gpus import Gpus
from standin.nvml import FakeGpu, FakeNvml, FakeNvmlError

NVMLError = FakeNvmlError
NVML_DEVICE_MIG_ENABLE = 1
NVML_ERROR_NOT_SUPPORTED = 3


def _nvml() -> FakeNvml:
    told = json.loads(os.environ["STANDIN_GPUS"])
    gpus = Gpus(Path(told["folder"]), told["count"], told["total_gib"], told["release_seconds"])
    name = told.get("name", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition")

    def free(index: int) -> float:
        return gpus.read()[index]

    return FakeNvml(
        [
            FakeGpu(name, f"GPU-{index}", told["total_gib"], lambda index=index: free(index))  # type: ignore[misc]
            for index in range(told["count"])
        ]
    )


_nvml_now = _nvml()
for _name in dir(_nvml_now):
    if _name.startswith("nvml"):
        globals()[_name] = getattr(_nvml_now, _name)
