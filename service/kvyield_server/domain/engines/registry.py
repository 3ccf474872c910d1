"""Every engine that kvyield knows, and flags read or translated by the role that they play."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from kvyield_server.domain.engines.lmdeploy import LMDEPLOY
from kvyield_server.domain.engines.sglang import SGLANG
from kvyield_server.domain.engines.spec import EngineSpec
from kvyield_server.domain.engines.tensorrt_llm import TENSORRT_LLM
from kvyield_server.domain.engines.vllm import VLLM
from kvyield_server.domain.facts.observation import EngineName, Flags, Scalar
from kvyield_server.domain.facts.scalars import as_count, as_number

NAMES: Mapping[EngineName, EngineSpec] = MappingProxyType(
    {
        EngineName.SGLANG: SGLANG,
        EngineName.VLLM: VLLM,
        EngineName.TENSORRT_LLM: TENSORRT_LLM,
        EngineName.LMDEPLOY: LMDEPLOY,
    }
)
_ROLES = ("fraction", "context", "requests", "chunk", "tensor_parallel", "data_parallel")


def translated(engine: EngineName, flags: Flags) -> dict[str, Scalar]:
    """Return ``flags`` under the engine's own names: another engine's name for the same role becomes this engine's."""
    aliases = _aliases(engine)
    return {aliases.get(key, key): value for key, value in flags.items()}


@lru_cache(maxsize=len(EngineName))
def _aliases(engine: EngineName) -> Mapping[str, str]:
    own = NAMES[engine]
    roles = [role for role in _ROLES if getattr(own, role)]
    others = {getattr(names, role): getattr(own, role) for names in NAMES.values() for role in roles}
    return {**others, **{getattr(own, role): getattr(own, role) for role in roles}}


def number(flags: Flags, key: str | None) -> float | None:
    """Return the flag as a finite number, or None when it is off, unknown or not a number."""
    return as_number(flags.get(key)) if key else None


def positive(flags: Flags, key: str | None) -> int | None:
    """Return the flag as a positive whole number, or None (engines use -1 and 0 for "off" or "choose yourself")."""
    return as_count(flags.get(key)) if key else None
