"""Finding this host's cards with whatever tool it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvyield.gpu._amd import amd_smi_cards, rocm_smi_cards
from kvyield.gpu._card import Card, GpuError
from kvyield.gpu._nvidia_smi import nvidia_smi_cards
from kvyield.gpu._nvml import nvml_cards
from kvyield.gpu._visible import visible

Finder = Callable[[], list[Card]]

FINDERS: Sequence[Finder] = (nvml_cards, nvidia_smi_cards, amd_smi_cards, rocm_smi_cards)

_ADVICE = (
    "On the GPU host, check that nvidia-smi (or amd-smi) works. In a container, start it with --gpus all (NVIDIA) or "
    "with --device /dev/kfd --device /dev/dri (AMD). Elsewhere, give --gpu, --gpu-count and --gpu-memory-gib."
)


def cards(
    *,
    environ: Mapping[str, str] | None = None,
    finders: Sequence[Finder] = FINDERS,
    except_pids: frozenset[int] = frozenset(),
) -> list[Card]:
    """The cards that this environment sees, with free memory now and the processes on them.

    NVML is asked first, then ``nvidia-smi``, ``amd-smi`` and ``rocm-smi``. Processes in ``except_pids`` (the engine's
    own) are left out of the neighbours. Raises GpuError, which says what to do, when there is no card.
    """
    found = _first(finders)
    seen = visible(found, os.environ if environ is None else environ)
    return [
        replace(card, neighbours=tuple(n for n in card.neighbours if n.pid not in except_pids | {os.getpid()}))
        for card in seen
    ]


def _first(finders: Sequence[Finder]) -> list[Card]:
    reasons: list[str] = []
    for finder in finders:
        try:
            found = finder()
        except GpuError as error:
            reasons.append(str(error))
            continue
        if found:
            return found
        reasons.append(f"{finder.__name__.removesuffix('_cards').replace('_', '-')} lists no card")
    raise GpuError(f"no GPU was found ({'; '.join(reasons)}). {_ADVICE}")
