"""From the starts of one deployment to its pool line: points, bounds, agreement, labels and what to say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, hypot
from uuid import UUID

import numpy as np

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.engines.fraction_share import fraction_share, is_amd
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.facts.devices import has_unified_memory, usable_memory
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import read_shape
from kvyield_server.domain.facts.observation import (
    EngineName,
    Flags,
    Observation,
    Outcome,
    Phase,
)
from kvyield_server.domain.facts.scalars import as_count, as_number, first_given
from kvyield_server.domain.model.consensus import Consensus, find_consensus
from kvyield_server.domain.model.evidence import (
    APART,
    SAME_FRACTION,
    Evidence,
    Label,
    Use,
    differing_flags,
    fraction_of,
    mark_blocked,
    mark_equal_pools,
)
from kvyield_server.domain.model.line import GIB, LinePosterior, NoiseScales, Normal, Points, fit_line
from kvyield_server.domain.model.pool import SPAN, UNIFORM_SD, VERSION_COST_SD, PoolLine, longest_request
from kvyield_server.domain.model.prior import UNKNOWN_COST_SD, Knowledge, Setting, logged_base, printed_sd

PAGES = (256, 128, 64, 32, 16)
VLLM_BLOCK = 16
REBASE_GIB = 0.05
GIB_ROUNDING = 0.003
LEAST_DISAGREEMENT = 0.005
MISTYPED = 1.5
"""Times the tokens per unit of fraction of the sound starts, from which a tiny fraction is taken as mistyped: a slipped
digit makes it ten times, and without any weights the tokens are in proportion to the fraction."""
LEAST_LENGTH_GIB, MOST_COMPARED = 0.5, 16
"""Equal starts of vLLM differ by less than this."""
DISCRETE = NoiseScales(
    relative=(0.0, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 5e-2, 0.25),
    boot=(0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 4.0),
    weight=(0.30, 0.10, 0.22, 0.24, 0.09, 0.025, 0.015, 0.006, 0.002),
    usual=0.01,
)
UNIFIED = NoiseScales(
    relative=(3e-3, 1e-2, 2e-2, 4e-2, 8e-2, 0.2),
    boot=(0.2, 0.5, 1.0, 1.5, 2.0, 4.0),
    weight=(0.05, 0.15, 0.33, 0.26, 0.14, 0.07),
    usual=0.08,
)
BOOTS_DIFFER = NoiseScales(
    relative=(0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 5e-2),
    boot=(0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 4.0),
    weight=(0.1, 0.2, 0.3, 0.2, 0.1, 0.06, 0.04),
    usual=0.01,
)
USUAL_SCATTER, UNIFIED_SCATTER = 5e-4, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What relatives lend a deployment: slopes in its own tokens, and zero crossings with their doubt in GiB."""

    slopes: tuple[Normal, ...] = ()
    crossings: tuple[Normal, ...] = ()
    starts: int = 0
    deployments: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFit:
    """A pool line with the evidence behind it.

    ``drifted`` is the newest start when three or more others put it off their line; ``drift_tokens`` by how much.
    """

    line: PoolLine
    evidence: tuple[Evidence, ...]
    labels: frozenset[Label]
    cautions: tuple[Caution, ...]
    distinct_fractions: int
    drifted: Observation | None = None
    drift_tokens: float = 0.0
    drift_detail: str = ""


def fit_pool(
    setting: Setting,
    found: Sequence[Evidence],
    knowledge: Knowledge,
    lent: Lent | None = None,
    running: Observation | None = None,
) -> PoolFit:
    """Fit the line of one deployment to its own starts as classified, oldest first."""
    evidence, mistyped = _without_mistyped(mark_equal_pools(found), setting, knowledge, running)
    evidence, blocked = mark_blocked(evidence)
    prior = knowledge.line
    if lent is not None:
        crossings = (*prior.crossings, *lent.crossings)
        prior = replace(prior, slopes=lent.slopes, crossings=crossings)
    is_unified = has_unified_memory(setting.hardware)
    page = page_tokens(setting, evidence)
    per_length = _gib_per_length(evidence, setting)
    evidence = tuple(_at_one_length(item, setting, per_length) for item in evidence) if per_length else evidence
    chosen = [item for item in evidence if item.use is Use.POINT]
    points = _points(chosen, setting, prior.base, page, has_base=knowledge.base_source == "logged")
    agreed = _agreed(points, prior.cost, prior.base, knowledge, setting, is_unified=is_unified)
    evidence, labels, cautions = _sorted_out(evidence, chosen, agreed)
    used = points.chosen(agreed.fitted)
    if agreed.before.any() and agreed.slope:
        was = Normal(agreed.slope, max(VERSION_COST_SD * agreed.slope, 1e-6))
        prior = replace(prior, slopes=(*prior.slopes, was))
    posterior = None
    if used.count or knowledge.knows_zero:
        scales = UNIFIED if is_unified else BOOTS_DIFFER if setting.boots_differ else DISCRETE
        posterior = fit_line(used, prior, scales)
        aside = points.chosen(agreed.outlying & (points.tokens > 0.0))
        if aside.count and not agreed.drifted:
            posterior = posterior.beside(aside.x, aside.tokens)
        posterior = _bounded(posterior, evidence, setting, page)
        posterior = posterior if np.isfinite(posterior.theta).all() else None
    line = PoolLine(
        setting=setting,
        knowledge=replace(knowledge, line=prior),
        posterior=posterior,
        page_tokens=page,
        measured_at=tuple(used.x.tolist()),
        measured_tokens=tuple(used.tokens.tolist()),
        running=running,
        bend=_stage_bend(setting),
        gib_per_length=per_length,
    )
    if is_unified:
        labels |= {Label.UNIFIED_MEMORY}
    more = _disagreement(line, used, prior.base) if not is_unified else None
    if more is not None:
        labels, cautions = labels | {Label.SLOPE_DISAGREEMENT}, [*cautions, more]
    cautions = [*cautions, *mistyped, *blocked, *_refusal_words(evidence)]
    drifted, by = _drift(line, chosen, points, agreed)
    labels = labels.union(*(item.labels for item in evidence))
    return PoolFit(
        line=line,
        evidence=evidence,
        labels=labels,
        cautions=tuple(cautions),
        distinct_fractions=len({round(x, 6) for x in used.x.tolist()}),
        drifted=drifted,
        drift_tokens=by,
        drift_detail="" if drifted is None else "; ".join(_what_differs(chosen[-2].start, drifted)),
    )


def _without_mistyped(
    found: Sequence[Evidence], setting: Setting, knowledge: Knowledge, running: Observation | None
) -> tuple[tuple[Evidence, ...], list[Caution]]:
    """Set aside points whose fraction cannot be what they ran with, where others can; of what runs advice says so.

    A pool in proportion to its fraction, or smaller, is no sign: weights leave the smaller fraction less per fraction.
    """
    line = PoolLine(setting=setting, knowledge=knowledge, posterior=None, page_tokens=1)
    doubtful: dict[UUID, tuple[float, str]] = {}
    reasons: dict[UUID, str] = {}
    for item in sorted((each for each in found if each.use is Use.POINT), key=_tokens_per_fraction, reverse=True):
        why = line.implausible(item.start)
        if why is None:  # the densest of the sound ones
            most = MISTYPED * _tokens_per_fraction(item)
            reasons = {key: text for key, (density, text) in doubtful.items() if density > most}
            break
        doubtful[item.start.id] = (_tokens_per_fraction(item), why)
    if not reasons:
        return tuple(found), []
    marked = (item.put(Use.SET_ASIDE, reasons[item.start.id]) if item.start.id in reasons else item for item in found)
    others = [why for key, why in reasons.items() if running is None or key != running.id]
    return tuple(marked), [Caution(code="implausible_fraction", detail=why) for why in others[-1:]]


def _tokens_per_fraction(item: Evidence) -> float:
    return (item.start.measurements.pool_tokens or 0) / (fraction_of(item.start) or 1.0)


def _gib_per_length(evidence: Sequence[Evidence], setting: Setting) -> float:
    """Return GiB per token of context length by which vLLM's pool is smaller, told by starts that came
    up, alike but for the length.

    0 where nothing shows it: most models reserve nothing that grows with the longest request.
    """
    if setting.engine.name is not EngineName.VLLM:
        return 0.0
    name, found = NAMES[setting.engine.name].context, [(0, 0.0)]
    points = [item for item in evidence if item.start.came_up and item.use is Use.POINT and item.kv_gib is not None]
    for one, other in combinations(points[-MOST_COMPARED:], 2):
        more = longest_request(setting, one.start.flags) - longest_request(setting, other.start.flags)
        less = (other.kv_gib or 0.0) - (one.kv_gib or 0.0)
        is_alike = one.fraction == other.fraction and differing_flags(one.start.flags, other.start.flags) == [name]
        if is_alike and abs(less) > LEAST_LENGTH_GIB and more * less > 0.0:
            found.append((abs(more), less / more))
    return max(found)[1]


def _at_one_length(item: Evidence, setting: Setting, per_length: float) -> Evidence:
    """Return a start's GiB as they would be with the context length of what runs."""
    more = longest_request(setting, item.start.flags) - longest_request(setting, setting.flags)
    if item.use is not Use.POINT or item.kv_gib is None or item.kv_gib <= 0.0 or not more:
        return item
    gib = item.kv_gib + per_length * more
    return item._replace(kv_gib=gib, tokens=None) if gib > 0.0 else item


def _refusal_words(evidence: Sequence[Evidence]) -> list[Caution]:
    """Say what the newest refusal's own arithmetic tells."""
    for item in reversed(evidence):
        failure, start = item.start.failure, item.start
        if start.outcome is not Outcome.REFUSED or failure is None or item.use is Use.SET_ASIDE:
            continue
        told = [
            f"{failure.needed_gib:g} GiB needed" if failure.needed_gib is not None else "",
            f"{failure.available_kv_cache_gib:g} GiB available" if failure.available_kv_cache_gib is not None else "",
            f"at most {failure.longest_tokens:,} tokens" if failure.longest_tokens is not None else "",
            f"{failure.minimum_fraction:.4f} the least fraction" if failure.minimum_fraction is not None else "",
        ]
        words = ", ".join(word for word in told if word)
        if words:
            at = "" if item.fraction is None else f" at {item.fraction:g}"
            return [Caution(code="refused", detail=f"The engine refused{at}: {words}. That is a point of the line.")]
    return []


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


def _points(chosen: Sequence[Evidence], setting: Setting, base: Normal, page: int, *, has_base: bool) -> Points:
    """Return points over the fraction that was applied, rebased to the usual base memory where a start logged its own.

    Another process makes SGLang's free memory smaller, and the pool is a share of that.
    """
    x = np.array([item.fraction or 0.0 for item in chosen])
    tokens = np.array([item.tokens + page / 2.0 if item.tokens is not None else np.nan for item in chosen])
    gib = np.array([item.kv_gib if item.kv_gib is not None else np.nan for item in chosen])
    if is_amd(setting.hardware):
        context = read_shape(setting.model.facts).context_length
        x *= [
            fraction_share(i.start.engine, {**setting.flags, **given(i.start.flags)}, amd=True, context_tokens=context)
            for i in chosen
        ]
    if has_base and not setting.scales_free_memory:
        own = np.array([logged_base(item.start) or base.mean for item in chosen])
        x *= np.where(np.abs(own - base.mean) > REBASE_GIB, own / base.mean, 1.0)
    largest = max((printed_sd(item.kv_gib) for item in chosen if item.kv_gib is not None), default=GIB_ROUNDING)
    return Points(x=x, tokens=tokens, gib=gib, page_sd=page * UNIFORM_SD, print_sd=min(largest, 0.03))


def given(flags: Flags) -> Flags:
    """Return the flags that say something."""
    return {name: value for name, value in flags.items() if value is not None}


def _agreed(
    points: Points, cost: Normal, base: Normal, knowledge: Knowledge, setting: Setting, *, is_unified: bool
) -> Consensus:
    """Return which points agree; GiB are compared as tokens at the known price.

    Where nothing prices a token, tokens and GiB are not comparable: the fewer of them are not judged.
    """
    price = knowledge.line.printed_cost or cost
    is_gib = np.isnan(points.tokens)
    judged = np.ones(points.count, dtype=np.bool_)
    if price.sd > UNKNOWN_COST_SD and is_gib.any() and not is_gib.all():
        judged = is_gib if is_gib.sum() > 0.5 * points.count else ~is_gib
    y = np.where(is_gib, points.gib * GIB / exp(price.mean), points.tokens)
    relative = UNIFIED_SCATTER if is_unified else USUAL_SCATTER
    size = np.abs(y)
    tolerance = points.page_sd + relative * np.maximum(size, 0.3 * size.max(initial=0.0)) + 1.0
    if knowledge.line.boot_gib:
        tolerance = tolerance + knowledge.line.boot_gib * GIB / exp(price.mean)
    expected = base.mean * GIB / exp(price.mean) if knowledge.knows_base and price.sd < 0.1 else None
    usable = usable_memory(setting.hardware)
    steepest = usable.gib * GIB / exp(price.mean) * (1.0 + 3.0 * price.sd) if usable and price.sd < 0.2 else None
    agreed = find_consensus(points.x[judged], y[judged], tolerance[judged], expected, steepest)
    if judged.all():
        return agreed
    fitted, outlying, before = ~judged, np.zeros_like(judged), np.zeros_like(judged)
    fitted[judged], outlying[judged], before[judged] = agreed.fitted, agreed.outlying, agreed.before
    return replace(agreed, fitted=fitted, outlying=outlying, before=before, drifted=agreed.drifted and bool(judged[-1]))


def _sorted_out(
    evidence: tuple[Evidence, ...], chosen: Sequence[Evidence], agreed: Consensus
) -> tuple[tuple[Evidence, ...], frozenset[Label], list[Caution]]:
    """Return the evidence with starts set aside that others overrule, and what to say of it."""
    reasons: dict[object, Evidence] = {}
    newest = chosen[-1].start.id if chosen else None
    for index, item in enumerate(chosen):
        if agreed.outlying[index] and agreed.drifted and item.start.id == newest:
            reasons[newest] = item.put(Use.SET_ASIDE, "off the line of three or more starts: see drift", Label.DRIFT)
        elif agreed.outlying[index]:
            reasons[item.start.id] = item.put(Use.SET_ASIDE, "far off the line of the other starts", Label.OUTLIER)
        elif agreed.before[index]:
            reasons[item.start.id] = item.put(Use.SET_ASIDE, "before the last lasting change")
    labels, cautions = frozenset[Label](), list[Caution]()
    if agreed.drifted:
        labels |= {Label.DRIFT}
    if agreed.before.any():
        labels |= {Label.DRIFT}
        since = [item for index, item in enumerate(chosen) if agreed.fitted[index]]
        before = [item for index, item in enumerate(chosen) if agreed.before[index]]
        cautions.append(_changed(before, since))
    is_torn = agreed.is_torn and not has_unified_memory(chosen[-1].start.hardware)
    if is_torn or _is_at_odds(chosen, agreed):
        labels |= {Label.CONFOUNDED}
        cautions.append(_confounded(chosen))
    return tuple(reasons.get(item.start.id, item) for item in evidence), labels, cautions


def _is_at_odds(chosen: Sequence[Evidence], agreed: Consensus) -> bool:
    """Tell whether fitted points differ at one fraction, or fall with the fraction, by more than any noise."""
    fitted = [item for index, item in enumerate(chosen) if agreed.fitted[index] and item.tokens is not None]
    if len(fitted) < 2:
        return False
    fitted.sort(key=lambda item: (item.fraction or 0.0, item.tokens or 0))
    fractions = np.array([item.fraction or 0.0 for item in fitted])
    pools = np.array([float(item.tokens or 0) for item in fitted])
    run, rise = np.diff(fractions), np.diff(pools)
    for index in np.flatnonzero((rise < 0.0) | ((run <= SAME_FRACTION) & (rise > 0.0))):
        left, right = fitted[index], fitted[index + 1]
        slack = 0.35 if has_unified_memory(left.start.hardware) else 0.005
        if left.start.engine.name is EngineName.VLLM and not differing_flags(left.start.flags, right.start.flags):
            slack = max(slack, 0.25)
        is_far = abs(rise[index]) > slack * max(pools[index], pools[index + 1])
        if is_far or (rise[index] < 0.0 and run[index] >= APART and slack < 0.1):
            return True
    return False


def _changed(before: Sequence[Evidence], since: Sequence[Evidence]) -> Caution:
    """Say that something lasting changed, and what the logs show of it."""
    found = _what_differs(before[-1].start, since[-1].start)
    what = "; ".join(found) if found else "no recorded flag or figure shows which"
    detail = (
        f"Earlier starts lie on another line: something lasting changed ({what}). Only those since then were fitted."
    )
    return Caution(code="drift", detail=detail)


def _what_differs(one: Observation, other: Observation) -> list[str]:
    """Return figures, version and flags that differ between a start and a later one, in words."""
    found = [
        f"{name.removesuffix('_gib').replace('_', ' ')} {then:g} GiB, now {now:g}"
        for name in ("draft_weights_gib", "weights_gib", "free_before_load_gib", "graph_gib")
        if (then := getattr(one.measurements, name)) is not None
        and (now := getattr(other.measurements, name)) is not None
        and abs(then - now) > REBASE_GIB
    ]
    if one.engine.version != other.engine.version:
        found.append(f"version {one.engine.version or 'unknown'}, now {other.engine.version or 'unknown'}")
    flags = [name for name in differing_flags(one.flags, other.flags) if one.flags.get(name) is not None][:6]
    return found + [f"{name} {one.flags.get(name)}, now {other.flags.get(name)}" for name in flags]


def _confounded(chosen: Sequence[Evidence]) -> Caution:
    names = sorted({name for item in chosen[:-1] for name in differing_flags(item.start.flags, chosen[-1].start.flags)})
    which = "flags that differ: " + ", ".join(names[:8]) if names else "no recorded flag differs"
    detail = f"The starts of this deployment contradict one another, so the interval is wide; {which}."
    return Caution(code="confounded", detail=detail)


def _drift(
    line: PoolLine, chosen: Sequence[Evidence], points: Points, agreed: Consensus
) -> tuple[Observation | None, float]:
    if not agreed.drifted or line.posterior is None:
        return None, 0.0
    newest = chosen[-1]
    mean, _, weight = line.posterior.tokens(points.x[-1:])
    expected = float((weight * mean)[:, 0].sum())
    value = newest.tokens if newest.tokens is not None else (newest.kv_gib or 0.0) * line.tokens_per_gib()
    return newest.start, value - expected


def _disagreement(line: PoolLine, points: Points, base: Normal) -> Caution | None:
    """Say where points that pin the slope disagree with memory and the price of a token: the points win."""
    known = line.knowledge.line.printed_cost or line.knowledge.line.cost
    if points.count < 2 or np.ptp(points.x) < SPAN or not line.knowledge.knows_base or not line.tells_slope:
        return None
    if known.sd > 0.2 or line.slope is None:
        return None
    expected = base.mean * GIB / exp(known.mean)
    low, middle, high = line.slope.quantiles(0, (0.16, 0.5, 0.84))
    sd = hypot(expected * hypot(known.sd, base.sd / base.mean), 0.5 * (high - low))
    if abs(middle - expected) <= max(LEAST_DISAGREEMENT * expected, 3.0 * sd):
        return None
    detail = (
        f"Beware: the starts give a slope {100.0 * (middle / expected - 1.0):+.1f} % off what memory and bytes per "
        "token say: something else changed between them, or the model's facts are not those of the running model."
    )
    return Caution(code="slope_disagreement", detail=detail)


def _bounded(posterior: LinePosterior, evidence: Sequence[Evidence], setting: Setting, page: int) -> LinePosterior:
    """Let caps ("at least so much") and refusals ("no more than so much") act, each only where it tells something."""
    shares = fraction_share if is_amd(setting.hardware) else None
    context = read_shape(setting.model.facts).context_length
    bounds: set[tuple[float, float, bool, bool]] = set()
    for item in evidence:
        if item.use is not Use.BOUND or item.fraction is None:
            continue
        start = item.start
        flags = {**setting.flags, **given(start.flags)}
        share = 1.0 if shares is None else shares(start.engine, flags, amd=True, context_tokens=context)
        x = item.fraction * share
        if Label.CAPPED in item.labels and item.tokens is not None:
            bounds.add((x, float(item.tokens), False, False))
        elif (limit := _refusal_limit(start, context)) is not None:
            bounds.add((x, limit[0], True, limit[1]))
    for x, value, is_upper, in_gib in sorted(bounds)[:24]:
        row = np.array([0.0, 0.0, x, -1.0]) if in_gib else np.array([1.0, x, 0.0, 0.0])
        noise = GIB_ROUNDING if in_gib else page * UNIFORM_SD + USUAL_SCATTER * abs(value) + 1.0
        if is_upper:
            posterior = posterior.below(row, value, noise, trust=0.9)
        else:
            posterior = posterior.below(-row, -value, noise, trust=0.97)
    return posterior


def _refusal_limit(start: Observation, model_context: int | None) -> tuple[float, bool] | None:
    """Return what a refusal without a figure of its own says that the pool was under: tokens, or GiB (True)."""
    failure = start.failure
    if start.outcome is not Outcome.REFUSED or (failure is not None and failure.phase is Phase.LOAD):
        return None
    if failure is not None and as_number(failure.minimum_fraction) is not None:
        return None
    if failure is not None and (needed := as_number(failure.needed_gib)) is not None and 0.0 < needed < 1e4:
        return needed, True
    spec = NAMES[start.engine.name]
    if start.engine.name is EngineName.VLLM:
        longest = as_count(start.flags.get(spec.context)) or model_context
        return (float(longest or 0), False)
    is_at_pool = failure is not None and failure.phase is Phase.POOL
    return (0.0, False) if is_at_pool or failure is None else None


def _stage_bend(setting: Setting) -> float:
    """Return how much flatter the pool's line of the stage with most layers is than that of one with fewest."""
    layers = read_shape(setting.model.facts).full_layers
    stages = parallel_layout(setting.flags, setting.hardware.gpu_count).pipeline
    if stages == 1 or layers is None or layers < stages:
        return 0.0
    return 1.0 - (layers // stages) / -(-layers // stages)
