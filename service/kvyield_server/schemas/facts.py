"""Facts of a model's own ``config.json``, bounded: numbers, texts, lists and small nested objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvyield_server.schemas.common import JsonObject
from kvyield_server.schemas.secrets import looks_secret
from kvyield_server.schemas.strict import Fault, pointer_to, shown

FactsIn = JsonObject
MAX_DEPTH = 6
MAX_VALUES = 20_000
MAX_TEXT = 2_000
MAX_NAME = 200
MAX_NUMBER = 10**15


_UNWELCOME = "is named like a secret; secrets are not kept, leave it out."


def fact_faults(facts: Mapping[str, Any], pointer: str) -> Iterator[Fault]:
    """Yield what is wrong with facts: too deep, too many, too long, or not finite."""
    if not facts:
        return
    if _count(facts, MAX_DEPTH) > MAX_VALUES:
        yield Fault(pointer, f"facts holds more than {MAX_VALUES} values; give the fields that size the KV cache.")
        return
    for name, value in facts.items():
        if detail := _name_fault(name) or _fault(value, MAX_DEPTH):
            yield Fault(pointer + pointer_to(name), f"{name[:100]} {detail}")


def _fault(value: Any, depth: int) -> str | None:
    if isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else ():
            if detail := _name_fault(name):
                return f"holds {name[:100]}, which {detail}"
        items = list(value.values()) if isinstance(value, dict) else value
        if depth == 0 and items:
            return f"is nested more than {MAX_DEPTH} deep."
        return next((detail for item in items if (detail := _fault(item, depth - 1))), None)
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"has {len(value)} characters; at most {MAX_TEXT} are kept."
    if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        return f"is {shown(value)}; numbers go up to 10^15 either way."
    return None


def _name_fault(name: str) -> str | None:
    if len(name) > MAX_NAME:
        return f"has a name of {len(name)} characters; at most {MAX_NAME} are kept."
    return _UNWELCOME if looks_secret(name) else None


def _count(value: Any, depth: int) -> int:
    if not isinstance(value, dict | list) or depth < 0:
        return 1
    items = value.values() if isinstance(value, Mapping) else value
    nested = [item for item in items if isinstance(item, dict | list)]
    return 1 + len(items) - len(nested) + sum(_count(item, depth - 1) for item in nested)
