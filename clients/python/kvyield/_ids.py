"""Ids that follow from content, so that reading the same log twice gives the same observations."""

from __future__ import annotations

import hashlib
from uuid import UUID

import msgspec

from kvyield import _wire


def content_id(observation: _wire.Observation) -> UUID:
    """A UUID of version 7's shape: the start's time (zero when unknown), then a digest of every field but ``id``."""
    nameless = msgspec.structs.replace(observation, id=None)
    digest = hashlib.sha256(msgspec.json.encode(msgspec.to_builtins(nameless), order="sorted")).digest()
    moment = observation.observed_at
    milliseconds = max(int(moment.timestamp() * 1000), 0) if moment else 0
    low = int.from_bytes(digest[:10], "big")
    value = (milliseconds & (2**48 - 1)) << 80 | low
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)
