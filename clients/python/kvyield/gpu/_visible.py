"""Which GPUs an engine in this environment sees: CUDA_VISIBLE_DEVICES and what other vendors have in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvyield.gpu._card import Card, GpuError, Tool


def visible(cards: Sequence[Card], environ: Mapping[str, str]) -> list[Card]:
    """The GPUs that the environment leaves visible, in its order. Raises GpuError when it hides all of them."""
    left = list(cards)
    for name in _variables(cards[0].tool if cards else "nvml", environ):
        if name in environ:
            left = _chosen(left, environ[name], by_position=name != "CUDA_VISIBLE_DEVICES" or not _is_nvidia(cards))
            if cards and not left:
                raise GpuError(
                    f"{name}={environ[name]!r} hides all {len(cards)} GPUs: unset it for kvyield, or give it the "
                    "value that the engine has"
                )
    return left


def _is_nvidia(cards: Sequence[Card]) -> bool:
    return bool(cards) and cards[0].tool in ("nvml", "nvidia-smi")


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


def _chosen(cards: Sequence[Card], value: str, *, by_position: bool) -> list[Card]:
    """CUDA's own rule: entries count up to the first that names no GPU; a GPU named twice counts once.

    Level Zero's mask may name a tile of a GPU ("0.1"); its memory is told per GPU.
    """
    chosen: list[Card] = []
    for entry in value.split(","):
        number, dot, tile = entry.strip().partition(".")
        plain = number if dot and tile.isdigit() else entry.strip()
        card = _named(cards, plain, by_position=by_position)
        if card is None:
            break
        if card not in chosen:
            chosen.append(card)
    return chosen


def _named(cards: Sequence[Card], entry: str, *, by_position: bool) -> Card | None:
    if entry.isdigit():
        numbered: Iterable[tuple[int, Card]] = enumerate(cards) if by_position else ((c.index, c) for c in cards)
        return next((card for number, card in numbered if number == int(entry)), None)
    matches = [card for card in cards if entry and card.uuid and _same_uuid(card.uuid, entry)]
    return matches[0] if len(matches) == 1 else None


def _same_uuid(uuid: str, entry: str) -> bool:
    """CUDA takes any unambiguous beginning of a UUID; ROCm writes ``GPU-`` before the hexadecimal id."""
    bare = entry.lower().removeprefix("gpu-")
    known = uuid.lower().removeprefix("gpu-").removeprefix("0x")
    return bool(bare) and known.startswith(bare)
