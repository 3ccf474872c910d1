"""What of the fraction an engine really applies, and when it was applied.

SGLang 0.5.5 to 0.5.23 multiplies the fraction by 0.85 without a word where AMD's aiter attends to a context beyond
8,192 tokens. Lines are drawn over the share that was applied, so that starts with and without it lie on one.
"""

from __future__ import annotations

import re
from functools import lru_cache

from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.engines.sglang import POST_CAPTURE
from kvyield_server.domain.facts.model_config import read_shape
from kvyield_server.domain.facts.observation import Engine, EngineName, Flags, Hardware, Observation
from kvyield_server.domain.facts.scalars import as_word, first_given, is_on
from kvyield_server.domain.facts.versions import parse_version

AITER_SHARE = 0.85
AITER_CONTEXT = 8192
AITER_VERSIONS = ((0, 5, 5, 0), (0, 5, 23, 99))

_POST_CAPTURE = frozenset(POST_CAPTURE)
_AMD = re.compile(r"\b(amd|instinct|mi[23]\d\d[a-z]*)\b")


def is_amd(hardware: Hardware) -> bool:
    """Tell whether the GPU is one of AMD's accelerators."""
    return _is_named_amd(hardware.gpu)


@lru_cache(maxsize=1024)
def _is_named_amd(gpu: str) -> bool:
    return _AMD.search(gpu.lower()) is not None


def fraction_share(engine: Engine, flags: Flags, *, amd: bool, context_tokens: int | None) -> float:
    """Return what the engine multiplies the fraction by before it uses it; ``context_tokens`` is the model's own.

    aiter is AMD's default where no backend is named; an unknown context is taken to be long, as most are.
    """
    if not amd or engine.name is not EngineName.SGLANG:
        return 1.0
    version = parse_version(engine.version)
    backend = as_word(flags.get("attention_backend")) or "aiter"
    context = positive(flags, NAMES[EngineName.SGLANG].context) or context_tokens
    is_of_era = version is None or AITER_VERSIONS[0] <= version <= AITER_VERSIONS[1]
    is_long = context is None or context > AITER_CONTEXT
    return AITER_SHARE if is_of_era and is_long and backend == "aiter" else 1.0


def share_of(start: Observation) -> float:
    """Return the share of its fraction that a start applied."""
    if not is_amd(start.hardware):
        return 1.0
    context = read_shape(start.model.facts).context_length
    return fraction_share(start.engine, start.flags, amd=True, context_tokens=context)


def is_sized_after_capture(flags: Flags) -> bool:
    """Tell whether SGLang sized the pool from what graphs had left, so that they move the pool."""
    return not _POST_CAPTURE.isdisjoint(flags) and is_on(first_given(flags, *POST_CAPTURE))
