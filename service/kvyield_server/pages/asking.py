"""The advice form: from what a person typed to a question, with every fault beside its field."""

from __future__ import annotations

import re
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

LABELS = {
    "target_tokens": "Target: longest prompt, tokens",
    "reply_tokens": "Reply, tokens",
    "concurrent": "Such prompts at once",
    "confidence": "Confidence, pool and memory each",
    "prefer": "Preferred fraction",
    "max_running_requests": "Running requests, at most",
    "kv_cache_dtype": "KV cache dtype",
    "chunked_prefill_size": "Prefill chunk, tokens",
    "prompt_need_gib": "Prompt need, GiB",
}
FIELDS = tuple(LABELS)
CONFIDENCES = ("0.8", "0.9", "0.95", "0.99")
PREFERENCES = (
    ("keep", "closest to what runs"),
    ("headroom", "smallest: most memory"),
    ("pool", "largest: most tokens"),
)
_NUMBERS = frozenset(FIELDS) - {"kv_cache_dtype", "prefer"}
_IN_WORDS = (
    (re.compile(r"expected int\b"), "expected a whole number"),
    (re.compile(r"expected float\b"), "expected a number"),
    (re.compile(r"expected str matching regex .*"), "expected letters, digits, dots, dashes and underscores."),
    (re.compile(r"( \| null)?, got str"), ""),
    (re.compile(r">= (\S+?)\.?$"), r"of at least \1."),
    (re.compile(r"<= (\S+?)\.?$"), r"of at most \1."),
)
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
        found.setdefault(name if name in FIELDS else "target_tokens", _in_words(name, fault.detail))
    return found


def _in_words(name: str, detail: str) -> str:
    """Return a fault with the field's label for its name, and types as a person says them."""
    value, colon, rule = detail.partition(": expected ")
    value, rule = value.replace(f"{name} is ", f"{LABELS.get(name, name)}: ", 1), colon.removeprefix(": ") + rule
    for pattern, words in _IN_WORDS:
        rule = pattern.sub(words, rule)
    return f"{value}; {rule}" if colon else value
