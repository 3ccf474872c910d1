"""Ids that follow from the start itself, so that reading the same log twice gives the same observations.

`start_id` follows from what every version of a reader finds in a log: a version that finds more makes the same id. Two
starts that are alike in all of that, such as replicas on many hosts at once, are told apart by `told_apart_id`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timezone
from uuid import UUID

import msgspec

from kvyield import _wire

TELLING_FLAGS = (
    "mem_fraction_static",
    "gpu_memory_utilization",
    "free_gpu_memory_fraction",
    "cache_max_entry_count",
    "port",
)
_Observed = _wire.Observation | _wire.StoredObservation


def start_id(observation: _wire.Observation) -> UUID:
    """An id of the start: its time to the second, engine, model, hardware and outcome; of all when it has no time."""
    if observation.observed_at is None:
        return content_id(observation)
    return _id(observation, _identity(observation))


def told_apart_id(observation: _wire.Observation) -> UUID:
    """An id that also follows from what tells two starts of one second apart: host, fraction, port, pool."""
    return _id(observation, [*_identity(observation), sorted(_telling(observation).items())])


def content_id(observation: _wire.Observation) -> UUID:
    """An id of everything that was observed."""
    return _id(observation, msgspec.to_builtins(msgspec.structs.replace(observation, id=None)))


def verification_id(observation_id: UUID, verification: _wire.Verification) -> UUID:
    """An id of a verification of a start: the same one has the same id."""
    content = [str(observation_id), msgspec.to_builtins(verification)]
    return _uuid(hashlib.sha256(msgspec.json.encode(content, order="sorted")).digest(), 0)


def is_same_start(one: _Observed, other: _Observed) -> bool:
    """Whether two observations with one `start_id` can be of one start: nothing that both tell is another value."""
    first, second = _telling(one), _telling(other)
    return all(first[name] == second[name] for name in first.keys() & second.keys())


def _identity(observation: _wire.Observation) -> list[object]:
    moment = observation.observed_at
    second = moment.astimezone(timezone.utc).replace(microsecond=0).isoformat() if moment else None
    hardware = observation.hardware
    return [
        second,
        observation.engine.name,
        observation.model.name,
        hardware.gpu,
        hardware.gpu_count,
        observation.outcome,
    ]


def _telling(observation: _Observed) -> Mapping[str, object]:
    measured = observation.measurements
    told = {name: observation.flags.get(name) for name in TELLING_FLAGS}
    host = observation.host.partition(".")[0].lower() if observation.host else None
    told |= {"host": host, "pool_tokens": measured.pool_tokens}
    return {name: value for name, value in told.items() if value is not None}


def _id(observation: _wire.Observation, content: object) -> UUID:
    """The start's time (zero when unknown), then a digest of the content."""
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).digest()
    moment = observation.observed_at
    return _uuid(digest, max(int(moment.timestamp()) * 1000, 0) if moment else 0)


def _uuid(digest: bytes, milliseconds: int) -> UUID:
    """A UUID of version 7's shape."""
    low = int.from_bytes(digest[:10], "big")
    value = (milliseconds & (2**48 - 1)) << 80 | low
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)
