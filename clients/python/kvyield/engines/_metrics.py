"""Prometheus' text format, as far as engines' ``/metrics`` need it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LARGEST_BYTES = 16 << 20

_LINE = re.compile(r"([A-Za-z_:][\w:]{0,200})(?:\{(.{0,20000})\})? (\S{1,64})(?: \d{1,20})?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w{0,200})="([^"\\]*(?:\\.[^"\\]*)*)"')


@dataclass(frozen=True)
class Sample:
    """One series' value."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(body: bytes) -> Iterator[Sample]:
    """Every readable sample; comments and what cannot be read are passed over."""
    for line in body[:LARGEST_BYTES].decode("utf-8", "replace").splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        value = _number(match[3]) if match else None
        if match and value is not None:
            yield Sample(match[1], dict(_LABEL.findall(match[2] or "")), value)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
