"""Which GPUs use the host's own memory: a table of product designations and of AMD's architecture names.

Grace superchips (GH200, GB200, GB300) are not in it: their GPUs have HBM of their own, which is what NVML reports.
"""

from __future__ import annotations

import re
from itertools import pairwise

_NVIDIA = (
    *("gb10", "dgx spark", "n1x"),  # Grace Blackwell with one LPDDR5X memory
    *("orin", "xavier", "thor", "tegra", "jetson"),  # Jetson and Drive modules: "Orin (nvgpu)", "NVIDIA Thor"
)
_AMD = (
    "mi300a",
    *("8040s", "8050s", "8060s", "8065s", "strix halo"),  # Ryzen AI Max, gfx1151
    *("840m", "860m", "880m", "890m", "strix point", "krackan"),  # Ryzen AI 300, gfx1150, gfx1152, gfx1153
    *("740m", "760m", "780m"),  # Ryzen 7040 and 8040, gfx1103
    *("610m", "660m", "680m"),  # Ryzen 6000 and 7000, gfx1035, gfx1036
    *("gfx902", "gfx909", "gfx90c", "gfx1033", "gfx1035", "gfx1036", "gfx1103"),
    *("gfx1150", "gfx1151", "gfx1152", "gfx1153"),
)
_INTEL = ("130t", "140t", "130v", "140v", "b370", "b390", "iris xe", "uhd graphics")
_APPLE = tuple(f"apple m{generation}" for generation in range(1, 10))

_DESIGNATIONS = frozenset((*_AMD, *_INTEL, *_APPLE))
_DISCRETE_VENDOR = re.compile(r"nvidia|geforce|quadro|tesla")
_WORD = re.compile(r"[a-z0-9]+")


def shares_host_memory(gpu: object) -> bool:
    """Whether a GPU of this name, or of this architecture ("gfx1151"), uses the host's own memory.

    A designation counts as a whole word only, and an AMD or Intel one not in the name of an NVIDIA GPU
    ("GeForce GTX 780M" is discrete).
    """
    text = re.sub(r"\((?:r|tm)\)", " ", str(gpu).lower())
    words = _WORD.findall(text)
    names = {*words, *map(" ".join, pairwise(words))}
    return not names.isdisjoint(_NVIDIA if _DISCRETE_VENDOR.search(text) else (*_DESIGNATIONS, *_NVIDIA))
