"""Which flags an answer takes into account, so that any other one can be named as what it is: not counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import lru_cache

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.facts.deployment import deployment_label, key_fields
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation
from kvyield_server.domain.legacy.evidence import CAP_FLAGS, FIXED_POOL_FLAGS


@lru_cache(maxsize=len(EngineName))
def known_flags(engine: EngineName) -> frozenset[str]:
    """Return the flags of an engine that move a pool or free memory here."""
    names = NAMES[engine]
    roles = {value for each in fields(names) if isinstance(value := getattr(names, each.name), str)}
    of_key = {name for group in key_fields(engine, requests_move_pool=True).values() for name in group}
    sizing = {*CAP_FLAGS.get(engine, ()), *FIXED_POOL_FLAGS.get(engine, ()), *names.inert_with}
    return frozenset({*roles, *of_key, *sizing, "disable_radix_cache"})


def unknown_flags(engine: EngineName, asked: Flags, starts: Sequence[Observation]) -> Iterator[Caution]:
    """Warn of asked flags that neither kvyield nor any start of the deployment knows."""
    odd = sorted(name for name in asked if name not in known_flags(engine))
    unknown = [name for name in odd if not any(name in start.flags for start in starts)]
    if unknown:
        engine_word = deployment_label({"engine": engine.value})
        listed = ", ".join(unknown)
        detail = f"No start of this deployment has {listed}, and nothing is known of it for {engine_word}: not counted."
        yield Caution(code="unknown_flag", detail=detail)
