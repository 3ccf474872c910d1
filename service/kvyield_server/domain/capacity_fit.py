"""From a deployment's starts to its capacity line: points, noise, pages, contradictions, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.capacity import DISCRETE_NOISE, SHARED_NOISE, CapacityLine, Noise
from kvyield_server.domain.capacity_prior import CapacityPrior, Setting, logged_base
from kvyield_server.domain.contradictions import Reading, find_contradiction, slope_disagreement
from kvyield_server.domain.devices import LOGGED_SD, has_unified_memory, usable_memory
from kvyield_server.domain.evidence import Evidence, Label, Use, classify, mark_equal_pools
from kvyield_server.domain.observation import EngineName, Observation
from kvyield_server.domain.reconciliation import priced, reconciled
from kvyield_server.domain.regression import (
    DATA_SPAN,
    LinePosterior,
    SlopePrior,
    fit_line,
    line_from_prior,
)
from kvyield_server.domain.scalars import as_count, first_given
from kvyield_server.domain.straight_line import Points

PAGES = (256, 128, 64, 32, 16)
VLLM_BLOCK = 16
REBASE_GIB = 0.05
GIB_ROUNDING = 0.003
UNIFORM_SD = 1.0 / sqrt(12.0)
OUTLIER_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFit:
    """A capacity line with the evidence behind it. ``line.posterior`` is None when nothing, or no one line, fits."""

    line: CapacityLine
    evidence: tuple[Evidence, ...]
    labels: frozenset[Label]
    cautions: tuple[Caution, ...]
    distinct_fractions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    posterior: LinePosterior | None
    evidence: tuple[Evidence, ...]
    labels: frozenset[Label] = frozenset()
    cautions: tuple[Caution, ...] = ()


def fit_capacity(setting: Setting, starts: Sequence[Observation], prior: CapacityPrior) -> CapacityFit:
    """Fit the line of one deployment; ``starts`` are its own, oldest first."""
    evidence = mark_equal_pools([classify(start) for start in starts])
    counts_tokens = _counts_tokens(evidence, prior)
    is_shared = has_unified_memory(setting.hardware)
    page = page_tokens(setting, evidence)
    noise = _noise(page, counts_tokens=counts_tokens, is_shared=is_shared)
    readings, evidence = _readings(evidence, setting, prior, noise, page, counts_tokens=counts_tokens)
    outcome = _fitted(setting, readings, evidence, prior, counts_tokens=counts_tokens, is_shared=is_shared)
    line = CapacityLine(
        model=setting.model,
        engine=setting.engine,
        gpu_count=setting.hardware.gpu_count,
        flags=setting.flags,
        posterior=outcome.posterior,
        tokens_per_gib=prior.tokens_per_gib,
        counts_tokens=counts_tokens,
        base=prior.base,
        page_tokens=page,
        noise=noise,
    )
    line = priced(line, outcome.evidence) if not counts_tokens else reconciled(line)
    labels = outcome.labels.union(*(item.labels for item in outcome.evidence))
    if is_shared:
        labels |= {Label.UNIFIED_MEMORY}
    fractions = len({round(reading.x, 6) for reading in readings})
    return CapacityFit(
        line=line,
        evidence=outcome.evidence,
        labels=labels,
        cautions=outcome.cautions,
        distinct_fractions=fractions,
    )


def _counts_tokens(evidence: Sequence[Evidence], prior: CapacityPrior) -> bool:
    """Tell whether the line is in tokens: unless nothing prices a token and more fractions have GiB than tokens."""
    points = [item for item in evidence if item.use is Use.POINT]
    if not points:
        return prior.tokens_per_gib is not None
    in_tokens = {item.fraction for item in points if item.tokens is not None}
    in_gib = {item.fraction for item in points if item.kv_gib is not None}
    return bool(in_tokens) and (prior.tokens_per_gib is not None or len(in_tokens) >= len(in_gib))


def page_tokens(setting: Setting, evidence: Sequence[Evidence]) -> int:
    """Return the page that pools are rounded to: as flagged, else the largest usual one that divides every pool."""
    flagged = as_count(first_given(setting.flags, "page_size", "block_size"))
    pools = {item.tokens for item in evidence if item.use is Use.POINT and item.tokens is not None}
    if flagged is not None and all(pool % flagged == 0 for pool in pools):
        return flagged
    usual = VLLM_BLOCK if setting.engine.name is EngineName.VLLM else 1
    if not pools:
        return usual
    shared = next((page for page in PAGES if all(pool % page == 0 for pool in pools)), 1)
    if shared == usual or shared ** len(pools) >= PAGES[2]:
        return shared
    return usual if all(pool % usual == 0 for pool in pools) else 1


def _noise(page: int, *, counts_tokens: bool, is_shared: bool) -> Noise:
    rounding = page * UNIFORM_SD if counts_tokens else GIB_ROUNDING
    return Noise(SHARED_NOISE if is_shared else DISCRETE_NOISE, rounding)


def _readings(
    evidence: Sequence[Evidence],
    setting: Setting,
    prior: CapacityPrior,
    noise: Noise,
    page: int,
    *,
    counts_tokens: bool,
) -> tuple[list[Reading], tuple[Evidence, ...]]:
    """Return the points in the line's unit, rebased to the newest start's base memory, and the evidence so used."""
    readings, used = [], []
    for item in evidence:
        value = _ordinate(item, prior, page, counts_tokens=counts_tokens) if item.use is Use.POINT else None
        is_lost = item.use is Use.POINT and value is None
        used.append(item.put(Use.SET_ASIDE, "nothing tells how many tokens one GiB holds") if is_lost else item)
        if value is not None and item.fraction is not None:
            scale = _rebasing(item.start, setting, prior)
            sd = noise.sd(value) + (0.0 if scale == 1.0 else LOGGED_SD * abs(value))
            readings.append(Reading(item.fraction * scale, value, sd, item))
    return readings, tuple(used)


def _ordinate(item: Evidence, prior: CapacityPrior, page: int, *, counts_tokens: bool) -> float | None:
    if not counts_tokens:
        return item.kv_gib
    if item.tokens is not None:
        return item.tokens + page / 2.0
    if item.kv_gib is None or prior.tokens_per_gib is None or prior.tokens_per_gib.relative_sd > 0.01:
        return None
    return item.kv_gib * prior.tokens_per_gib.value


def _rebasing(start: Observation, setting: Setting, prior: CapacityPrior) -> float:
    """Return base memory at that start over the running base, where both were logged and differ."""
    logged = logged_base(start)
    if logged is None or prior.base is None or setting.scales_free_memory or prior.base.relative_sd > LOGGED_SD:
        return 1.0
    return logged / prior.base.gib if abs(logged - prior.base.gib) > REBASE_GIB else 1.0


def _fitted(
    setting: Setting,
    readings: Sequence[Reading],
    evidence: tuple[Evidence, ...],
    prior: CapacityPrior,
    *,
    counts_tokens: bool,
    is_shared: bool,
) -> _Outcome:
    slope, anchor = prior.slope(counts_tokens=counts_tokens), prior.anchor
    if setting.scales_free_memory and slope is None and readings:
        slope = _proportional(readings)
    if not readings:
        known = None if slope is None or anchor is None else line_from_prior(slope, anchor)
        return _Outcome(posterior=known, evidence=evidence)
    points = _points(readings)
    posterior = fit_line(points, slope, anchor, prefers_points=not is_shared)
    assert posterior is not None
    outlying = posterior.weights < 1e-3
    kept = [reading for reading, is_far in zip(readings, outlying, strict=True) if not is_far]
    reason = find_contradiction(kept, is_shared=is_shared, steepest=_steepest(setting, prior, counts_tokens))
    if reason is None and outlying.sum() > OUTLIER_SHARE * len(readings):
        reason = "more than a third of the starts lie far off any line"
    if reason is not None:
        return _confounded(evidence, kept, reason)
    far = [reading.evidence for reading, is_far in zip(readings, outlying, strict=True) if is_far]
    evidence = _mark(evidence, far, "far off the line of the other starts", Label.OUTLIER)
    expected = prior.expected_slope if counts_tokens else slope
    return _checked(points, posterior, evidence, expected, is_shared=is_shared)


def _points(readings: Sequence[Reading]) -> Points:
    table = np.array([(reading.x, reading.y, reading.sd) for reading in readings], dtype=np.float64)
    return Points(table[:, 0], table[:, 1], table[:, 2])


def _proportional(readings: Sequence[Reading]) -> SlopePrior | None:
    """Return the slope of a line through the origin."""
    mean = sum(reading.y / reading.x for reading in readings) / len(readings)
    return SlopePrior(mean, 0.005 * mean) if mean > 0.0 else None


def _steepest(setting: Setting, prior: CapacityPrior, counts_tokens: bool) -> float | None:
    """Return the slope that the whole card would give, in the line's unit per 1.0 of the fraction."""
    card = usable_memory(setting.hardware) or prior.base
    if card is None:
        return None
    if not counts_tokens:
        return card.gib
    return None if prior.tokens_per_gib is None else card.gib * prior.tokens_per_gib.value


def _confounded(evidence: tuple[Evidence, ...], kept: Sequence[Reading], reason: str) -> _Outcome:
    marked = _mark(evidence, [reading.evidence for reading in kept], f"confounded: {reason}", Label.CONFOUNDED)
    caution = Caution(code="confounded", detail=f"No line was fitted to these starts: {reason}.")
    return _Outcome(posterior=None, evidence=marked, labels=frozenset({Label.CONFOUNDED}), cautions=(caution,))


def _mark(
    evidence: tuple[Evidence, ...], chosen: Sequence[Evidence], reason: str, label: Label
) -> tuple[Evidence, ...]:
    ids = {item.start.id for item in chosen}
    return tuple(
        item.put(Use.SET_ASIDE, reason, label) if item.start.id in ids and item.use is Use.POINT else item
        for item in evidence
    )


def _checked(
    points: Points,
    posterior: LinePosterior,
    evidence: tuple[Evidence, ...],
    slope: SlopePrior | None,
    *,
    is_shared: bool,
) -> _Outcome:
    """Compare the points' own slope with the physics; where they disagree, the points win and it is said."""
    if slope is None or points.span < DATA_SPAN or is_shared:
        return _Outcome(posterior=posterior, evidence=evidence)
    alone = fit_line(points, None, None)
    own = None if alone is None else alone.slope_estimate()
    detail = None if own is None else slope_disagreement(posterior, own.loc, own.scale, slope)
    if detail is None or alone is None:
        return _Outcome(posterior=posterior, evidence=evidence)
    caution = Caution(code="slope_disagreement", detail=f"Beware: {detail}.")
    return _Outcome(
        posterior=alone,
        evidence=evidence,
        labels=frozenset({Label.SLOPE_DISAGREEMENT}),
        cautions=(caution,),
    )
