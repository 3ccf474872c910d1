"""How a request says which pair and deployment it means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from kvyield_server.domain.facts.observation import EngineName
from kvyield_server.schemas.common import GpuCount, MemoryGib, ModelName, Name, ShortText
from kvyield_server.schemas.facts import FactsIn, fact_faults
from kvyield_server.schemas.strict import Fault

_NAMES = ("gpu", "gpu_count", "model", "engine")


class NamedIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which pair and deployment: `pair_id`, or all of `gpu`, `gpu_count`, `model` and `engine`.

    Attributes:
        pair_id: The pair, instead of its names.
        gpu: GPU model of the pair; case, spaces, punctuation and vendor prefixes do not matter.
        gpu_count: Number of GPUs of the pair.
        model: Name of the model of the pair; case, spaces, punctuation and vendor prefixes do not matter.
        engine: The engine; with `pair_id`, by default that of the newest start.
        engine_version: Version that will be started; its deployment is taken where there is one.
        like: A start whose deployment to ask about; else that of the newest start that agrees with the flags given.
    """

    pair_id: UUID | None = None
    gpu: Name | None = None
    gpu_count: GpuCount | None = None
    model: ModelName | None = None
    engine: EngineName | None = None
    engine_version: ShortText | None = None
    like: UUID | None = None


class SelectorIn(NamedIn, forbid_unknown_fields=True, kw_only=True):
    """Which pair and deployment; with `facts` the pair may be one that was never recorded.

    Attributes:
        facts: Fields of the model's `config.json`, for a model that was never recorded.
        memory_gib: Total memory of one GPU, in GiB, instead of the recorded one.
        unified_memory: Whether the GPU uses the host's memory, instead of what is recorded.
    """

    facts: FactsIn | None = None
    memory_gib: MemoryGib | None = None
    unified_memory: bool | None = None


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
    yield from fact_faults(getattr(selector, "facts", None) or {}, f"{pointer}/facts")


def selector_fields(selector: NamedIn) -> dict[str, Any]:
    """Return the selector's own fields, without a question's."""
    return {field: getattr(selector, field) for field in SelectorIn.__struct_fields__ if hasattr(selector, field)}


def selector_as_given(selector: NamedIn) -> dict[str, Any]:
    """Return the selector as given, without what was not said, as plain JSON values."""
    given = {name: value for name, value in selector_fields(selector).items() if value is not None}
    return dict(msgspec.to_builtins(given))
