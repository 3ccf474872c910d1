"""What the service takes at most, so that one odd value does not keep a whole start out of the ledger."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from kvyield import _wire
from kvyield._secrets import looks_secret, redacted

LONGEST_EXCERPT = 4096
LONGEST_LINE = 500
LONGEST_MESSAGE = 2000
LONGEST_NAME = 200
LONGEST_MODEL_NAME = 500
MOST_FLAGS = 500
_LARGEST = {"gib": 1e6, "tokens": 1e12, "seconds": 1e7, "fraction": 1.0, "count": 65_536}
_LEAST = {"gib": 1e-6, "tokens": 1, "seconds": 1e-6, "fraction": 1e-3, "count": 1}
_LEAST_MEMORY, _LARGEST_MEMORY = 0.1, 1e5
_UNIT = {"fitted_max_model_len": "tokens", "rank": "count"}
_MEMORY = frozenset({"memory_gib", "driver_memory_gib", "device_memory_gib", "gpu_memory_gib"})
_SIGNED = frozenset({"available_kv_cache_gib"})
_NOT_ZERO = frozenset(
    {
        *("pool_tokens", "uncapped_pool_tokens", "swa_pool_tokens", "longest_prompt_tokens", "longest_tokens"),
        *("fitted_max_model_len", "kv_cache_gib", "device_memory_gib", "memory_gib", "prompt_tokens"),
        *("minimum_fraction", "gpu_count"),
    }
)
_FLAG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,119}")


def is_possible(name: str, value: object) -> bool:
    """Whether a figure is one that its name can have: a finite number, not negative, below what any host has."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    unit = _UNIT.get(name) or name.rpartition("_")[2]
    largest = _LARGEST_MEMORY if name in _MEMORY else _LARGEST[unit]
    least = _LEAST_MEMORY if name in _MEMORY else _LEAST[unit]
    if value == 0:
        return name not in _NOT_ZERO
    return least <= (abs(value) if name in _SIGNED else value) <= largest


def is_start_time(moment: datetime) -> bool:
    """Whether an engine can have started then: in this century, and not more than a day ahead of this host's clock."""
    if not 2000 <= moment.year < 2200:
        return False
    aware = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return aware < datetime.now(timezone.utc) + timedelta(hours=23)


def is_flag(name: str, value: _wire.Scalar) -> bool:
    """Whether a flag may be sent: no secret, a name, and a value that JSON and a database can hold."""
    if looks_secret(name) or not _FLAG_NAME.fullmatch(name):
        return False
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) < 2**63
    return not isinstance(value, str) or 0 < len(value) <= 16_000


def name_within(path: str, text: str) -> str | None:
    """A name, cut to what the service keeps; None when nothing is left."""
    return clean(text, LONGEST_MODEL_NAME if path == "model.name" else LONGEST_NAME).strip() or None


def excerpt_of(lines: Sequence[str]) -> str | None:
    """The key lines, secrets and control signs removed, whole lines up to a few KB."""
    kept: list[str] = []
    size = 0
    for line in (clean(line, LONGEST_LINE) for line in lines):
        size += len(line) + 1
        if size > LONGEST_EXCERPT:
            break
        kept.append(line)
    return "\n".join(kept) or None


def clean(text: str, longest: int) -> str:
    """At most so much of the text, without secrets and without signs that move a terminal's cursor.

    More is looked at than is kept, so that no part of a secret is left at the end.
    """
    safe = redacted(text[: 4 * longest].rstrip())
    if safe.isprintable():
        return safe[:longest]
    return "".join(sign for sign in safe if sign.isprintable() or sign in "\t\n")[:longest]
