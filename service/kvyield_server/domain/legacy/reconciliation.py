"""After the fit: what the fitted slope says about the memory and the bytes per token that it is the product of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot, log

from kvyield_server.domain.facts.devices import MemoryFigure
from kvyield_server.domain.legacy.capacity import CapacityLine
from kvyield_server.domain.legacy.capacity_change import Ratio
from kvyield_server.domain.legacy.evidence import Evidence


def reconciled(line: CapacityLine) -> CapacityLine:
    """Return the line with base memory and tokens per GiB moved, each by its own doubt, to agree with the slope."""
    slope = line.slope
    if slope is None or slope.loc <= 0.0 or slope.scale <= 0.0:
        return line
    base, ratio, doubt = line.base, line.tokens_per_gib, slope.scale / slope.loc
    if base is None and ratio is not None:
        return replace(line, base=MemoryFigure(slope.loc / ratio.value, hypot(doubt, ratio.relative_sd)))
    if base is not None and ratio is None:
        return replace(line, tokens_per_gib=Ratio(slope.loc / base.gib, hypot(doubt, base.relative_sd)))
    if base is None or ratio is None:
        return line
    return _shared_out(line, base, ratio, slope.loc, doubt)


def _shared_out(line: CapacityLine, base: MemoryFigure, ratio: Ratio, slope: float, doubt: float) -> CapacityLine:
    """Share the disagreement between slope and product out in proportion to variance."""
    of_base, of_ratio = base.relative_sd**2, ratio.relative_sd**2
    total = of_base + of_ratio + doubt**2
    miss = log(slope / (base.gib * ratio.value))
    if total <= 0.0 or abs(miss) > 3.0 * total**0.5:
        return line  # a disagreement, reported as such: neither figure is to be bent to it
    moved = MemoryFigure(base.gib * exp(miss * of_base / total), (of_base * (1.0 - of_base / total)) ** 0.5)
    priced_anew = Ratio(ratio.value * exp(miss * of_ratio / total), (of_ratio * (1.0 - of_ratio / total)) ** 0.5)
    return replace(line, base=moved, tokens_per_gib=priced_anew)


def priced(line: CapacityLine, evidence: Sequence[Evidence]) -> CapacityLine:
    """Return a line in GiB with tokens per GiB from the starts that counted tokens, where nothing else tells them."""
    if line.tokens_per_gib is not None or line.posterior is None:
        return line
    ratios = []
    for item in evidence:
        if item.tokens is None or item.fraction is None:
            continue
        held = line.posterior.at(item.fraction, line.noise.sd(1.0))
        if held is not None and held.loc > 0.0:
            ratios.append(Ratio(item.tokens / held.loc, held.scale / held.loc))
    best = min(ratios, key=lambda ratio: ratio.relative_sd, default=None)
    return replace(line, tokens_per_gib=best)
