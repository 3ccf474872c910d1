"""Finding this host's GPUs with whatever tool it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvyield.gpu._amd import amd_smi_gpus, rocm_smi_gpus
from kvyield.gpu._ascend import npu_smi_gpus
from kvyield.gpu._gpu import Gpu, GpuError, Tool
from kvyield.gpu._intel import xpu_smi_gpus
from kvyield.gpu._nvidia_smi import nvidia_smi_gpus
from kvyield.gpu._nvml import nvml_gpus
from kvyield.gpu._visible import visible

Finder = Callable[[], list[Gpu]]

FINDER_OF: Mapping[Tool, Finder] = {
    "nvml": nvml_gpus,
    "nvidia-smi": nvidia_smi_gpus,
    "amd-smi": amd_smi_gpus,
    "rocm-smi": rocm_smi_gpus,
    "npu-smi": npu_smi_gpus,
    "xpu-smi": xpu_smi_gpus,
}
FINDERS: Sequence[Finder] = tuple(FINDER_OF.values())

_ADVICE = (
    "On the GPU host, check that nvidia-smi (or amd-smi, npu-smi, xpu-smi) works. In a container, start it with "
    "--gpus all (NVIDIA), --device /dev/kfd --device /dev/dri (AMD) or --device /dev/dri (Intel), or mount npu-smi and "
    "/dev/davinci* (Ascend). Elsewhere, give --gpu, --gpu-count and --gpu-memory-gib."
)


def find_gpus(
    *,
    environ: Mapping[str, str] | None = None,
    finders: Sequence[Finder] = FINDERS,
    except_pids: frozenset[int] = frozenset(),
) -> list[Gpu]:
    """The GPUs that this environment sees, with free memory now and the processes on them.

    NVML is asked first, then ``nvidia-smi``, ``amd-smi``, ``rocm-smi``, ``npu-smi``
    and ``xpu-smi``. Processes in ``except_pids`` (the engine's
    own) are left out of ``processes``. Raises GpuError, which says what to do, when there is no GPU.
    """
    found = _first(finders)
    seen = visible(found, os.environ if environ is None else environ)
    return [
        replace(gpu, processes=tuple(n for n in gpu.processes if n.pid not in except_pids | {os.getpid()}))
        for gpu in seen
    ]


def _first(finders: Sequence[Finder]) -> list[Gpu]:
    reasons: list[str] = []
    for finder in finders:
        try:
            found = finder()
        except GpuError as error:
            reasons.append(str(error))
            continue
        if found:
            return found
        reasons.append(f"{finder.__name__.removesuffix('_gpus').replace('_', '-')} lists no GPU")
    raise GpuError(f"no GPU was found ({'; '.join(reasons)}). {_ADVICE}")
