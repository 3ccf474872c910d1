"""Which GPUs an engine in this environment sees: CUDA_VISIBLE_DEVICES and what other vendors have in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvyield.gpu._gpu import Gpu, GpuError, Tool


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that the environment leaves visible, in its order. Raises GpuError when it hides all of them."""
    left = list(gpus)
    for name in _variables(gpus[0].tool if gpus else "nvml", environ):
        if name in environ:
            left = _chosen(left, environ[name], by_position=name != "CUDA_VISIBLE_DEVICES" or not _is_nvidia(gpus))
            if gpus and not left:
                raise GpuError(
                    f"{name}={environ[name]!r} hides all {len(gpus)} GPUs: unset it for kvyield, or give it the "
                    "value that the engine has"
                )
    return left


def _is_nvidia(gpus: Sequence[Gpu]) -> bool:
    return bool(gpus) and gpus[0].tool in ("nvml", "nvidia-smi")


def _variables(tool: Tool, environ: Mapping[str, str]) -> Sequence[str]:
    """The variables that hide GPUs from an engine, in the order in which they apply.

    ROCm's runtime hides before HIP does, and HIP reads CUDA's variable where its own is not set.
    """
    if tool in ("nvml", "nvidia-smi"):
        return ("CUDA_VISIBLE_DEVICES",)
    if tool in ("amd-smi", "rocm-smi"):
        hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
        return ("ROCR_VISIBLE_DEVICES", hip)
    return ("ASCEND_RT_VISIBLE_DEVICES",) if tool == "npu-smi" else ("ZE_AFFINITY_MASK",)


def _chosen(gpus: Sequence[Gpu], value: str, *, by_position: bool) -> list[Gpu]:
    """CUDA's own rule: entries count up to the first that names no GPU; a GPU named twice counts once.

    Level Zero's mask may name a tile of a GPU ("0.1"); its memory is told per GPU.
    """
    chosen: list[Gpu] = []
    for entry in value.split(","):
        number, dot, tile = entry.strip().partition(".")
        plain = number if dot and tile.isdigit() else entry.strip()
        gpu = _named(gpus, plain, by_position=by_position)
        if gpu is None:
            break
        if gpu not in chosen:
            chosen.append(gpu)
    return chosen


def _named(gpus: Sequence[Gpu], entry: str, *, by_position: bool) -> Gpu | None:
    if entry.isdigit():
        numbered: Iterable[tuple[int, Gpu]] = enumerate(gpus) if by_position else ((c.index, c) for c in gpus)
        return next((gpu for number, gpu in numbered if number == int(entry)), None)
    matches = [gpu for gpu in gpus if entry and gpu.uuid and _same_uuid(gpu.uuid, entry)]
    return matches[0] if len(matches) == 1 else None


def _same_uuid(uuid: str, entry: str) -> bool:
    """CUDA takes any unambiguous beginning of a UUID; ROCm writes ``GPU-`` before the hexadecimal id."""
    bare = entry.lower().removeprefix("gpu-")
    known = uuid.lower().removeprefix("gpu-").removeprefix("0x")
    return bool(bare) and known.startswith(bare)
