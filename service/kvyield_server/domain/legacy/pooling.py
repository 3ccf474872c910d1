"""Partial pooling: deployments of one pair lend each other what they share.

Those that differ only in what moves w share the slope and have a w of their own around a common mean; those that
differ in c by a known ratio share w; those of different engine versions share both, loosely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import hypot

from kvyield_server.domain.engines.token_cost import counts_alike, token_cost
from kvyield_server.domain.facts.deployment import Key, differing_fields
from kvyield_server.domain.legacy.capacity_change import SHIFT_SD_GIB, UNKNOWN_SHIFT_SD_GIB, VERSION_COST_SD, Ratio
from kvyield_server.domain.legacy.capacity_fit import CapacityFit
from kvyield_server.domain.legacy.capacity_prior import CapacityPrior, Setting
from kvyield_server.domain.legacy.evidence import Evidence, Use
from kvyield_server.domain.legacy.regression import Anchor, SlopePrior

SHARED_SLOPE_SD = 0.0005
KNOWN_RATIO_SD = 0.001
UNPOOLED = frozenset(
    {"engine", "variant", "revision", "tp", "pp", "dp", "dp_attention", "dcp", "quantization", "draft"}
)
REPRICED = frozenset({"kv_dtype"})


@dataclass(frozen=True, slots=True)
class Member:
    """One deployment as the others see it: its key, setting and evidence, and the fit on these alone."""

    key: Key
    setting: Setting
    found: tuple[Evidence, ...]
    prior: CapacityPrior
    fit: CapacityFit
    is_hybrid: bool


def pooled_prior(own: CapacityPrior, member: Member, others: Sequence[Member]) -> CapacityPrior:
    """Return the prior of one deployment with what its relatives know better."""
    slopes = [own.slope_tokens, *_slopes(member, others)]
    slope = min((s for s in slopes if s is not None), key=lambda s: s.sd / abs(s.mean or 1e-9), default=None)
    anchors = [own.anchor, *_anchors(member, others, own)]
    anchor = min((a for a in anchors if a is not None), key=lambda a: a.sd, default=None)
    ratio = own.tokens_per_gib
    if ratio is None and slope is not None and own.base is not None and slope.mean > 0.0:
        doubt = hypot(slope.sd / slope.mean, own.base.relative_sd)
        ratio = Ratio(slope.mean / own.base.gib, doubt)
    return replace(own, slope_tokens=slope, anchor=anchor, tokens_per_gib=ratio)


def _slopes(member: Member, others: Sequence[Member]) -> Iterable[SlopePrior]:
    """Return the slopes that relatives' own evidence gives, in this deployment's tokens."""
    return (slope for other in others if (slope := _lent_slope(member, other)) is not None)


def _lent_slope(member: Member, other: Member) -> SlopePrior | None:
    ratio, slope = _price_ratio(member, other), other.fit.line.slope
    if ratio is None or slope is None or slope.loc <= 0.0 or not other.fit.line.counts_tokens:
        return None
    mean = slope.loc * ratio.value
    return SlopePrior(mean, mean * hypot(slope.scale / slope.loc, ratio.relative_sd))


def lent(member: Member, others: Sequence[Member], prior: CapacityPrior) -> tuple[int, int]:
    """Return how many starts of how many other deployments lend a pooled prior its slope; the narrowest one lends."""
    if prior.slope_tokens is None or prior.slope_tokens == member.prior.slope_tokens:
        return 0, 0
    lenders = [other for other in others if _lent_slope(member, other) == prior.slope_tokens]
    points = [sum(item.use is Use.POINT for item in other.fit.evidence) for other in lenders]
    return sum(points), sum(count > 0 for count in points)


def _price_ratio(member: Member, other: Member) -> Ratio | None:
    """Return the relative's bytes per token over this one's, or None when they are not comparable."""
    changed = differing_fields(member.key, other.key)
    if changed & UNPOOLED or "speculation" in changed or not count_alike(member, other):
        return None
    doubt = hypot(SHARED_SLOPE_SD, VERSION_COST_SD if "version" in changed else 0.0)
    if not changed & REPRICED:
        return Ratio(1.0, doubt)
    here, there = (
        token_cost(m.setting.model.facts, m.setting.engine, m.setting.flags, m.setting.hardware.gpu_count)
        for m in (member, other)
    )
    if here is None or there is None:
        return None
    return Ratio(there.bytes_per_token / here.bytes_per_token, hypot(doubt, KNOWN_RATIO_SD))


def count_alike(member: Member, other: Member) -> bool:
    """Tell whether both mean the same by pool tokens: of vLLM's hybrids not across a change of their definition."""
    here, there = member.setting, other.setting
    same_length = "length" not in differing_fields(member.key, other.key)
    return counts_alike(here.engine, there.engine, hybrid=member.is_hybrid) and (same_length or not member.is_hybrid)


def _anchors(member: Member, others: Sequence[Member], own: CapacityPrior) -> Iterable[Anchor]:
    """Return the zero crossings of relatives, each as doubtful as what differs makes it."""
    if own.base is None:
        return
    for other in others:
        changed = differing_fields(member.key, other.key)
        zero = other.fit.line.zero_fraction
        if changed & UNPOOLED or zero is None or not other.fit.distinct_fractions:
            continue
        shift = hypot(*(SHIFT_SD_GIB.get(field, UNKNOWN_SHIFT_SD_GIB) for field in changed), 0.05)
        yield Anchor(zero.loc, hypot(zero.scale, shift / own.base.gib))
