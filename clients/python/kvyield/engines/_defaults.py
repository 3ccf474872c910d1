"""Engines' own defaults of memory flags, by version, where they depend on nothing else.

Read in the engines' sources. Between two versions that were read and differ, the default is unknown and stays absent.
Used only when the engine printed all arguments that differ from their defaults."""

from __future__ import annotations

import re

from kvyield.engines._start import Scalar

_Version = tuple[int, int, int]
_NEWEST: _Version = (0, 33, 999)
_VLLM: tuple[tuple[str, _Version, _Version, Scalar], ...] = (
    ("gpu_memory_utilization", (0, 1, 0), (0, 19, 0), 0.9),  # raised by vllm-project/vllm#38284, after 0.19.0
    ("gpu_memory_utilization", (0, 20, 0), _NEWEST, 0.92),
    ("num_gpu_blocks_override", (0, 4, 1), _NEWEST, None),
    ("kv_cache_memory_bytes", (0, 20, 0), _NEWEST, None),
    ("cpu_offload_gb", (0, 9, 2), _NEWEST, 0),
    ("enable_lora", (0, 9, 2), _NEWEST, False),
)


def vllm_defaults(version: str) -> dict[str, Scalar]:
    """vLLM's own values of flags that were not given, in ``version``; a flag whose default is not known is left out."""
    number = parse_version(version)
    if number is None:
        return {}
    return {flag: value for flag, first, last, value in _VLLM if first <= number <= last}


def parse_version(text: str) -> tuple[int, int, int] | None:
    """``0.26.0.post1`` as (0, 26, 0); None when it is no such version."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
