"""Small shared rules: ids, the clock, what a database can hold, how attributes merge."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from kvyield_server.domain.facts.observation import Facts, Hardware, Model
from kvyield_server.errors import InvalidError

_chance = random.Random(secrets.randbits(256))  # noqa: S311 - ids must be unique, not secret; os.urandom costs more than a post
os.register_at_fork(after_in_child=lambda: _chance.seed(secrets.randbits(256)))
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def new_id() -> UUID:
    """Return a UUIDv7 (RFC 9562), which sorts by the millisecond at which it was made. It is no secret."""
    milliseconds = time.time_ns() // 1_000_000
    chance = _chance.getrandbits(74)
    high, low = chance >> 62, chance & (1 << 62) - 1
    return UUID(int=milliseconds << 80 | 0x7 << 76 | high << 64 | 0x2 << 62 | low)


def utc_now() -> datetime:
    return datetime.now(UTC)


def plain(value: object) -> Any:
    """Return a dataclass or mapping as dicts, lists and scalars."""
    return msgspec.to_builtins(value, enc_hook=_plain_mapping)


def _plain_mapping(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


def to_json(value: object) -> str:
    """Return JSON text that both databases take.

    InvalidError for what one of them refuses: NaN and infinities, NUL characters and lone surrogates.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except ValueError as error:
        raise InvalidError([("", f"holds a value that cannot be stored: {error}")]) from error
    if "\\u0000" in text and _NUL_ESCAPE.search(text):
        raise InvalidError([("", "holds a NUL character, which cannot be stored")])
    return text


def refuse_unstorable(value: object) -> None:
    """Raise InvalidError when any text or number within ``value`` is one that some database refuses."""
    to_json(plain(value))


def merge_hardware(known: Hardware, newer: Hardware) -> Hardware:
    """Return what is known after ``newer``: its attributes win where they are not None."""
    return replace(
        known,
        memory_gib=known.memory_gib if newer.memory_gib is None else newer.memory_gib,
        unified_memory=known.unified_memory if newer.unified_memory is None else newer.unified_memory,
        driver_memory_gib=known.driver_memory_gib if newer.driver_memory_gib is None else newer.driver_memory_gib,
    )


def merge_model(known: Model, newer: Model) -> Model:
    """Return what is known after ``newer``: its revision and each of its facts win where they are not None."""
    return replace(known, revision=newer.revision or known.revision, facts=_merge_facts(known.facts, newer.facts))


def _merge_facts(known: Facts, newer: Facts) -> Facts:
    return {**known, **{name: value for name, value in newer.items() if value is not None}}
