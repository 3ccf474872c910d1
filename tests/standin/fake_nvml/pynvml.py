"""Takes the place of ``pynvml`` on a module path: GPUs whose free memory a stand-in engine's process keeps in a file.

``STANDIN_FREE`` names the file; ``STANDIN_IDLE_GIB`` is what is free while no engine runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from standin.memory import FreeMemoryFile
from standin.nvml import FakeGpu, FakeNvml

TOTAL_GIB = 95.59
_FILE = Path(os.environ["STANDIN_FREE"])
_FREE = FreeMemoryFile(_FILE)


def _free_gib() -> float:
    """What the engine's process keeps, as long as there is one and it has loaded its model."""
    idle = float(os.environ["STANDIN_IDLE_GIB"])
    try:
        os.kill(int(_FILE.with_suffix(".owner").read_text()), 0)
    except (OSError, ValueError):
        return idle
    return _FREE.read()[0] or idle


_GPU = FakeGpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", "GPU-1", TOTAL_GIB, _free_gib)
_NVML = FakeNvml([_GPU])


def __getattr__(name: str) -> object:
    """The names of the real module."""
    return getattr(_NVML, name)
