"""The advice form: from what a person typed to a question, with every fault beside its field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from kvyield_server.domain.engines.sglang import RESERVED_TOKENS
from kvyield_server.domain.facts.observation import Scalar
from kvyield_server.pages.views.starts import CONTEXT_FLAGS
from kvyield_server.schemas.recommendations import QuestionIn, recommendation_faults
from kvyield_server.schemas.strict import Fault, faults_of

FIELDS = (
    "target_tokens",
    "reply_tokens",
    "concurrent",
    "confidence",
    "prefer",
    "max_running_requests",
    "kv_cache_dtype",
    "chunked_prefill_size",
    "prompt_need_gib",
)
CONFIDENCES = ("0.8", "0.9", "0.95", "0.99")
PREFERENCES = (
    ("keep", "what runs, or the nearest to it"),
    ("headroom", "the smallest fraction: most memory left"),
    ("pool", "the largest fraction: most tokens"),
)
_NUMBERS = frozenset(FIELDS) - {"kv_cache_dtype", "prefer"}
_SPACERS = str.maketrans("", "", ",_'\u00a0\u2009\u202f ")
_SOME_TARGET = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``values`` fill the form again as typed; ``question`` is None when ``faults`` (by field) say why."""

    values: dict[str, str]
    question: QuestionIn | None
    faults: dict[str, str]


def asked(given: Mapping[str, str], *, pair_id: UUID, like: UUID | None, default_target: int) -> Asked:
    """Return the question of a form; an empty field is not said, and thousands may be set apart."""
    typed = {name: given[name].strip() for name in FIELDS if given.get(name, "").strip()}
    typed.setdefault("target_tokens", str(default_target))
    typed.setdefault("confidence", "0.95")
    typed.setdefault("prefer", "keep")
    fields: dict[str, Any] = {name: _plain(name, text) for name, text in typed.items()}
    fields |= {"pair_id": str(pair_id)} | ({"like": str(like)} if like else {})
    faults = faults_of(fields, QuestionIn, strict=False)
    question = None if faults else msgspec.convert(fields, QuestionIn, strict=False)
    if question is not None and (faults := recommendation_faults(question)):
        question = None
    return Asked(values=typed, question=question, faults=_by_field(faults))


def is_asked(given: Mapping[str, str]) -> bool:
    """Tell whether a question was asked at all: any field of the form was said."""
    return any(given.get(name, "").strip() for name in FIELDS)


def default_target(flags: Mapping[str, Scalar], pool_tokens: int | None) -> int:
    """Return the target to begin with: what a request may ask for now, else what the pool holds now.

    A context length that an advice made for a round target gives that target again, not one that is longer each time.
    """
    for name in CONTEXT_FLAGS:
        value = flags.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value - RESERVED_TOKENS if value % 1000 == RESERVED_TOKENS else value
    return pool_tokens or _SOME_TARGET


def _plain(name: str, text: str) -> str:
    return text.translate(_SPACERS) if name in _NUMBERS else text


def _by_field(faults: list[Fault]) -> dict[str, str]:
    found: dict[str, str] = {}
    for fault in faults:
        name = fault.pointer.removeprefix("/").partition("/")[0]
        found.setdefault(name if name in FIELDS else "target_tokens", fault.detail)
    return found
