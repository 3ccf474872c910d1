"""How a request says which pair and deployment it means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from kvyield_server.domain.observation import EngineName
from kvyield_server.schemas.common import GpuCount, ModelName, Name, PositiveGib, ShortText
from kvyield_server.schemas.facts import FactsIn, fact_faults
from kvyield_server.schemas.strict import Fault

_NAMES = ("gpu", "gpu_count", "model", "engine")


class NamedIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """``pair_id``, or ``gpu``, ``gpu_count``, ``model`` and ``engine``; ``like`` names a start."""

    pair_id: UUID | None = None
    gpu: Name | None = None
    gpu_count: GpuCount | None = None
    model: ModelName | None = None
    engine: EngineName | None = None
    engine_version: ShortText | None = None
    like: UUID | None = None


class ColdStartIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """What makes a cold start possible: facts of the model's config, and of one GPU."""

    facts: FactsIn | None = None
    memory_gib: PositiveGib | None = None
    unified_memory: bool | None = None


class SelectorIn(NamedIn, ColdStartIn, forbid_unknown_fields=True, kw_only=True):
    """Which pair and deployment is meant; with ``facts`` the pair may be one that was never recorded."""


def selector_faults(selector: NamedIn, pointer: str) -> Iterator[Fault]:
    """Yield what the types cannot say: one way of naming the pair, and all of it."""
    names = {name: getattr(selector, name) for name in _NAMES}
    if selector.pair_id is not None:
        for name in _NAMES[:3]:
            if names[name] is not None:
                yield Fault(f"{pointer}/{name}", f"{name} is given beside pair_id; give one or the other.")
    else:
        for name, value in names.items():
            if value is None:
                yield Fault(f"{pointer}/{name}", f"{name} is needed: give pair_id, or all of {', '.join(_NAMES)}.")
    if isinstance(selector, ColdStartIn):
        yield from fact_faults(selector.facts or {}, f"{pointer}/facts")


def selector_kept(selector: NamedIn) -> dict[str, Any]:
    """Return the selector as given, without what was not said, as plain JSON values."""
    return {name: value for name, value in msgspec.to_builtins(selector).items() if value is not None}
