"""From a deployment's starts to its capacity line: points, noise, pages, contradictions, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.engines.fraction_share import fraction_share, is_amd
from kvyield_server.domain.engines.token_cost import speculation
from kvyield_server.domain.facts.devices import LOGGED_SD, has_unified_memory, usable_memory
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import keeps_states, read_shape
from kvyield_server.domain.facts.observation import EngineName
from kvyield_server.domain.facts.scalars import as_count, first_given
from kvyield_server.domain.legacy.capacity import DISCRETE_NOISE, SHARED_NOISE, CapacityLine, Noise
from kvyield_server.domain.legacy.capacity_prior import CapacityPrior, Setting, logged_base
from kvyield_server.domain.legacy.contradictions import Readings, find_contradiction, slope_disagreement
from kvyield_server.domain.legacy.evidence import Evidence, Label, Use, mark_equal_pools
from kvyield_server.domain.legacy.reconciliation import priced, reconciled
from kvyield_server.domain.legacy.regression import (
    DATA_SPAN,
    LinePosterior,
    SlopePrior,
    fit_line,
    line_from_prior,
    points_alone,
)
from kvyield_server.domain.legacy.straight_line import Points, Vector

PAGES = (256, 128, 64, 32, 16)
VLLM_BLOCK = 16
REBASE_GIB = 0.05
GIB_ROUNDING = 0.003
BOOT_SD_GIB = 0.2
"""By how much vLLM's memory beside the pool differs between boots with a draft or states: see docs/adr/0006."""
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


def fit_capacity(setting: Setting, found: Sequence[Evidence], prior: CapacityPrior) -> CapacityFit:
    """Fit the line of one deployment to its own starts as classified, oldest first."""
    evidence = mark_equal_pools(found)
    counts_tokens = _counts_tokens(evidence, prior)
    is_shared = has_unified_memory(setting.hardware)
    page = page_tokens(setting, evidence)
    noise = _noise(setting, prior, page, counts_tokens=counts_tokens, is_shared=is_shared)
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
        is_amd=is_amd(setting.hardware),
        bend=stage_bend(setting),
    )
    line = priced(line, outcome.evidence) if not counts_tokens else reconciled(line)
    labels = outcome.labels.union(*(item.labels for item in outcome.evidence))
    if is_shared:
        labels |= {Label.UNIFIED_MEMORY}
    fractions = len(np.unique(np.round(readings.points.x, 6)))
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


def _noise(setting: Setting, prior: CapacityPrior, page: int, *, counts_tokens: bool, is_shared: bool) -> Noise:
    rounding = page * UNIFORM_SD if counts_tokens else GIB_ROUNDING
    if is_shared:
        return Noise(SHARED_NOISE, rounding)
    boot = BOOT_SD_GIB if _boots_differ(setting) else 0.0
    if counts_tokens:
        boot *= prior.tokens_per_gib.value if prior.tokens_per_gib is not None else 0.0
    return Noise(DISCRETE_NOISE, rounding, boot)


def _boots_differ(setting: Setting) -> bool:
    """Tell whether memory beside the pool differs between equal boots, as vLLM's does with drafts or states."""
    is_vllm = setting.engine.name is EngineName.VLLM
    return is_vllm and (bool(speculation(setting.flags)) or keeps_states(setting.model))


def stage_bend(setting: Setting) -> float:
    """Return how much flatter the pool's line of the stage with most layers is than that of one with fewest."""
    layers = read_shape(setting.model.facts).full_layers
    stages = parallel_layout(setting.flags, setting.hardware.gpu_count).pipeline
    if stages == 1 or layers is None or layers < stages:
        return 0.0
    return 1.0 - (layers // stages) / -(-layers // stages)


def _readings(
    evidence: tuple[Evidence, ...],
    setting: Setting,
    prior: CapacityPrior,
    noise: Noise,
    page: int,
    *,
    counts_tokens: bool,
) -> tuple[Readings, tuple[Evidence, ...]]:
    """Return the points in the line's unit, rebased to the newest start's base memory, and the evidence so used."""
    pairs = [
        (item, _ordinate(item, prior, page, counts_tokens=counts_tokens) if item.use is Use.POINT else None)
        for item in evidence
    ]
    chosen = tuple(item for item, value in pairs if value is not None)
    if len(chosen) < sum(item.use is Use.POINT for item in evidence):
        lost = [item for item, value in pairs if value is None and item.use is Use.POINT]
        evidence = _put(evidence, lost, Use.SET_ASIDE, "nothing tells how many tokens one GiB holds")
    x = np.array([item.fraction for item in chosen], dtype=np.float64)
    y = np.array([value for _, value in pairs if value is not None], dtype=np.float64)
    scale = _rebasing(chosen, setting, prior)
    doubt = np.where(scale == 1.0, 0.0, LOGGED_SD * np.abs(y))
    sd = np.hypot(noise.rounding + noise.relative * np.maximum(y, 0.0) + doubt, noise.boot)
    return Readings(Points(x * scale, y, sd), chosen), evidence


def _ordinate(item: Evidence, prior: CapacityPrior, page: int, *, counts_tokens: bool) -> float | None:
    if not counts_tokens:
        return item.kv_gib
    if item.tokens is not None:
        return item.tokens + page / 2.0
    if item.kv_gib is None or prior.tokens_per_gib is None or prior.tokens_per_gib.relative_sd > 0.01:
        return None
    return item.kv_gib * prior.tokens_per_gib.value


def _rebasing(chosen: Sequence[Evidence], setting: Setting, prior: CapacityPrior) -> Vector:
    """Return base memory at each start over the running base, 1 where it was not logged or does not differ.

    Times the share of the fraction that the start's engine applied.
    """
    applied = _applied(chosen, setting)
    if prior.base is None or setting.scales_free_memory or prior.base.relative_sd > LOGGED_SD:
        return applied
    running = prior.base.gib
    bases = np.array([logged_base(item.start) or running for item in chosen], dtype=np.float64)
    return applied * np.where(np.abs(bases - running) > REBASE_GIB, bases / running, 1.0)


def _applied(chosen: Sequence[Evidence], setting: Setting) -> Vector:
    if not is_amd(setting.hardware):
        return np.ones(len(chosen))
    context = read_shape(setting.model.facts).context_length
    shares = [fraction_share(item.start.engine, item.start.flags, amd=True, context_tokens=context) for item in chosen]
    return np.array(shares, dtype=np.float64)


def _fitted(
    setting: Setting,
    readings: Readings,
    evidence: tuple[Evidence, ...],
    prior: CapacityPrior,
    *,
    counts_tokens: bool,
    is_shared: bool,
) -> _Outcome:
    slope, anchor = prior.slope(counts_tokens=counts_tokens), prior.anchor
    is_noisy = is_shared or _boots_differ(setting)
    posterior = fit_line(readings.points, slope, anchor, prefers_points=not is_noisy)
    if posterior is None:
        known = None if slope is None or anchor is None else line_from_prior(slope, anchor)
        return _Outcome(posterior=known, evidence=evidence)
    outlying = posterior.weights < 1e-3
    kept = readings.kept(~outlying)
    reason = find_contradiction(kept, is_shared=is_shared, steepest=_steepest(setting, prior, counts_tokens))
    if reason is None and outlying.sum() > OUTLIER_SHARE * len(readings.evidence):
        reason = "more than a third of the starts lie far off any line"
    if reason is not None:
        return _confounded(evidence, kept, reason)
    if outlying.any():
        far = readings.kept(outlying).evidence
        evidence = _put(evidence, far, Use.SET_ASIDE, "far off the line of the other starts", Label.OUTLIER)
    expected = prior.expected_slope if counts_tokens else slope
    return _checked(readings.points, posterior, evidence, expected, is_shared=is_shared)


def _steepest(setting: Setting, prior: CapacityPrior, counts_tokens: bool) -> float | None:
    """Return the slope that the whole card would give, in the line's unit per 1.0 of the fraction.

    Where states share the memory in a way that the config does not tell, it may be steeper by that doubt.
    """
    card = usable_memory(setting.hardware) or prior.base
    if card is None:
        return None
    if not counts_tokens:
        return card.gib
    if prior.tokens_per_gib is None:
        return None
    doubt = 2.0 * prior.tokens_per_gib.relative_sd if keeps_states(setting.model) else 0.0
    return card.gib * prior.tokens_per_gib.value * (1.0 + doubt)


def _confounded(evidence: tuple[Evidence, ...], kept: Readings, reason: str) -> _Outcome:
    marked = _put(evidence, kept.evidence, Use.SET_ASIDE, f"confounded: {reason}", Label.CONFOUNDED)
    caution = Caution(code="confounded", detail=f"No line was fitted to these starts: {reason}.")
    return _Outcome(posterior=None, evidence=marked, labels=frozenset({Label.CONFOUNDED}), cautions=(caution,))


def _put(
    evidence: tuple[Evidence, ...], chosen: Sequence[Evidence], use: Use, reason: str, *labels: Label
) -> tuple[Evidence, ...]:
    """Return the evidence with the chosen starts put to another use."""
    ids = {item.start.id for item in chosen}
    return tuple(item.put(use, reason, *labels) if item.start.id in ids else item for item in evidence)


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
    alone = points_alone(points, posterior.weights)
    own = alone.slope_estimate()
    detail = None if own is None else slope_disagreement(posterior, own.loc, own.scale, slope)
    if detail is None:
        return _Outcome(posterior=posterior, evidence=evidence)
    caution = Caution(code="slope_disagreement", detail=f"Beware: {detail}.")
    return _Outcome(
        posterior=alone,
        evidence=evidence,
        labels=frozenset({Label.SLOPE_DISAGREEMENT}),
        cautions=(caution,),
    )
