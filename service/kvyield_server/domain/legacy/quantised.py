"""Weights made 8-bit by a flag: by how much they get lighter, which moves where the pool begins."""

from __future__ import annotations

from collections.abc import Iterator

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.facts.model_config import flat_facts
from kvyield_server.domain.facts.observation import Facts, Flags, Observation
from kvyield_server.domain.facts.scalars import as_word, first_given, is_on
from kvyield_server.domain.legacy.student import StudentT

_FLAG = "quantization"
_EIGHT_BIT = ("fp8", "w8a8", "int8", "bitsandbytes_8bit")


def spared_share(running: Observation | None, base: StudentT | None, facts: Facts) -> float | None:
    """Return half the weights as a share of the base, where they are logged and known to be 16-bit."""
    known = flat_facts(facts)
    is_wide = as_word(first_given(known, "torch_dtype", "dtype")) in ("bfloat16", "float16")
    if running is None or base is None or not is_wide:
        return None
    if known.get("quantization_config") or is_on(running.flags.get(_FLAG)):
        return None
    weights = running.measurements.weights_gib
    before, after = running.measurements.free_before_load_gib, running.measurements.free_after_load_gib
    if weights is None and before is not None and after is not None:
        weights = before - after
    return 0.5 * weights / base.loc if weights is not None and 0.0 < weights < base.loc else None


def lighter_share(running: Observation | None, base: StudentT | None, facts: Facts, asked: Flags) -> float:
    """Return by which share of the base these flags make the running start's weights lighter, zero where not known."""
    word = as_word(asked.get(_FLAG)) or ""
    return (spared_share(running, base, facts) or 0.0) if word.startswith(_EIGHT_BIT) else 0.0


def unknown_weights(running: Observation | None, asked: Flags, share: float) -> Iterator[Caution]:
    """Warn where a quantisation is asked for that is not the running one and whose weight nothing tells."""
    then = None if running is None else running.flags.get(_FLAG)
    now = asked.get(_FLAG)
    is_changed = running is not None and (as_word(now) or is_on(now)) != (as_word(then) or is_on(then))
    if is_changed and not share:
        detail = f"{_FLAG} {now} is not what runs ({then}): how much the weights take with it is not known here."
        yield Caution(code="unknown_change", detail=detail)
