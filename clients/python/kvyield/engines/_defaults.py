"""Engines' own defaults of memory flags, by version, where they depend on nothing else.

Read in the engines' sources. Between two versions that were read and differ, the default is unknown and stays absent.
Used only when the engine printed all arguments that differ from their defaults."""

from __future__ import annotations

import re

from kvyield.engines._start import Scalar

_VLLM: dict[str, tuple[tuple[tuple[int, int, int], tuple[int, int, int], Scalar], ...]] = {
    "gpu_memory_utilization": (((0, 1, 0), (0, 9, 2), 0.9), ((0, 20, 0), (0, 33, 999), 0.92)),
}


def vllm_default(flag: str, version: str) -> Scalar:
    """vLLM's default of ``flag`` in ``version``; None when it is not known."""
    number = parse_version(version)
    if number is None:
        return None
    for first, last, value in _VLLM.get(flag, ()):
        if first <= number <= last:
            return value
    return None


def parse_version(text: str) -> tuple[int, int, int] | None:
    """``0.26.0.post1`` as (0, 26, 0); None when it is no such version."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
