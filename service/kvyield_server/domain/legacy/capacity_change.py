"""What a change of flags does to a capacity line: a ratio on tokens, doubt about w, a shift of the zero crossing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot

from kvyield_server.domain.engines.token_cost import QUANT_POLICIES
from kvyield_server.domain.facts.observation import Flags
from kvyield_server.domain.facts.scalars import first_given

SHIFT_SD_GIB: Mapping[str, float] = {
    "version": 1.0,
    "batched_tokens": 1.0,
    "graphs": 1.0,
    "eager": 1.0,
    "compile_cache": 1.0,
    "sequences": 0.05,
    "running_requests": 1.0,
    "state_slots": 1.0,
    "length": 0.05,
    "attention": 0.05,
    "page": 0.05,
    "kv_dtype": 0.05,
}
UNKNOWN_SHIFT_SD_GIB = 2.0
VERSION_COST_SD = 0.02


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure with a relative standard deviation."""

    value: float
    relative_sd: float


@dataclass(frozen=True, slots=True)
class Change:
    """What a change of flags does: a ratio on tokens, doubt about w in GiB, and a shift of the zero crossing."""

    ratio: Ratio
    shift_sd_gib: float
    fraction_shift: float

    @property
    def is_none(self) -> bool:
        return self.ratio.value == 1.0 and self.ratio.relative_sd == 0.0

    def widened(self, shift_sd_gib: float, relative_sd: float) -> Change:
        """Return the change with further doubt about w, GiB, and about the price of a token."""
        ratio = Ratio(self.ratio.value, hypot(self.ratio.relative_sd, relative_sd))
        return Change(ratio, hypot(self.shift_sd_gib, shift_sd_gib), self.fraction_shift)


NO_CHANGE = Change(Ratio(1.0, 0.0), 0.0, 0.0)


def dtype_ratio(before: Flags, after: Flags) -> Ratio:
    """Without a config, 8-bit KV is taken to hold 1.5 to 2 times the tokens of 16-bit, 4-bit three to four times."""
    old, new = _density(before), _density(after)
    if old is None or new is None:
        return Ratio(1.0, 0.5)
    return Ratio(1.0, 0.05) if old == new else Ratio(new / old, 0.08)


def _density(flags: Flags) -> float | None:
    """Return tokens per byte relative to 16-bit KV, None for a word that says nothing known."""
    named = first_given(flags, "kv_cache_dtype", "quant_policy")
    word = str(named if named is not None else "auto").lower()
    word = QUANT_POLICIES.get(word, word)
    known = {
        "fp8": 1.9,
        "int8": 1.9,
        "fp4": 3.5,
        "int4": 3.5,
        "bf": 1.0,
        "fp16": 1.0,
        "float16": 1.0,
        "half": 1.0,
        "auto": 1.0,
    }
    return next((density for part, density in known.items() if part in word), None)
