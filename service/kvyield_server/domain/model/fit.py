"""All deployments of one pair, fitted: the one door through which use cases and advice reach the yield model.

Deployments of a pair lend each other what they share. Those that differ only in what moves w share the slope and have a
w of their own around a common mean; those that differ in c by a known ratio share w; those of different engine versions
share both, loosely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import hypot
from uuid import UUID

import numpy as np
from numpy.linalg import LinAlgError

from kvyield_server.domain.answers import Basis, BasisKind, Caution, Estimate, FitSummary
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.engines.sglang import flags_as_set
from kvyield_server.domain.engines.token_cost import counts_alike, token_cost
from kvyield_server.domain.facts.deployment import (
    Group,
    Key,
    deployment_key,
    deployment_label,
    differing_fields,
    group_starts,
    key_fields,
    key_identifier,
)
from kvyield_server.domain.facts.model_config import keeps_states, read_shape
from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
    Engine,
    EngineName,
    Facts,
    Flags,
    Hardware,
    Model,
    Observation,
    Outcome,
    Phase,
    Scalar,
)
from kvyield_server.domain.facts.scalars import as_count, as_number
from kvyield_server.domain.facts.versions import is_other_series
from kvyield_server.domain.model.consensus import LEAST_AGREEING
from kvyield_server.domain.model.deployment import DeploymentFit, PairFit, sound_estimate
from kvyield_server.domain.model.evidence import (
    SAME_FRACTION,
    Evidence,
    Label,
    Use,
    classify,
    counted_once,
    fraction_of,
    impossible_figures,
    is_death,
    is_no_lighter,
    states_told,
)
from kvyield_server.domain.model.free_memory import FreeMemory, fit_free_memory
from kvyield_server.domain.model.history import History
from kvyield_server.domain.model.line import GIB, Normal
from kvyield_server.domain.model.need import PromptNeeds, fit_prompt_needs
from kvyield_server.domain.model.pool import (
    SHIFT_SD_GIB,
    UNKNOWN_SHIFT_SD_GIB,
    VERSION_COST_SD,
    PoolLine,
)
from kvyield_server.domain.model.pool_fit import Lent, PoolFit, fit_pool
from kvyield_server.domain.model.prior import Knowledge, Setting, prior_knowledge

__all__ = ["DeploymentFit", "PairEvidence", "PairFit", "cold_fit", "fit_pair"]

MOST_RELATIVES = 64
"""How many deployments lend to the others, the newest: with all of them, time would grow with their square."""
SHARED_SLOPE_SD = 0.0005
KNOWN_RATIO_SD = 0.001
DTYPE_SLACK = 0.15
"""8-bit KV holds 1.75 to 2 times the tokens of 16-bit (latent caches carry scales)."""
UNPOOLED = frozenset(
    {"engine", "variant", "revision", "tp", "pp", "dp", "dp_attention", "dcp", "quantization", "draft"}
)
NUMERICAL_FAILURES = (ArithmeticError, ValueError, LinAlgError)

UNIFIED = Caution(
    code="unified_memory",
    detail="The GPU shares its memory with the host: equal starts differ by per cents, so every interval is wide.",
)
NEIGHBOUR = Caution(
    code="neighbour",
    detail="Another process held GPU memory during a start; its figures were rebased on what was free then.",
)
UNUSABLE = Caution(
    code="unusable_figures",
    detail=(
        "No line can be computed from what was posted: one figure is implausibly large or small. "
        "Retract the start that holds it, or correct the GPU's memory or the model's facts."
    ),
)


@dataclass(frozen=True, slots=True)
class PairEvidence:
    """What is known of one pair. ``transfers`` are starts of the same model on other hardware."""

    observations: tuple[Observation, ...]
    transfers: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One deployment as its relatives see it: its key, setting and evidence, and the fit on these alone."""

    key: Key
    setting: Setting
    starts: tuple[Observation, ...]
    found: tuple[Evidence, ...]
    knowledge: Knowledge
    fit: PoolFit
    running: Observation | None
    is_usable: bool = True


def fit_pair(evidence: PairEvidence) -> PairFit:
    """Fit every deployment of a pair. The order of the observations does not matter."""
    if not evidence.observations:
        return PairFit(())
    starts = states_told(counted_once(evidence.observations))
    hardware, model = _merged(starts)
    with _strict_arithmetic():
        groups = group_starts(starts)
        told = _dtypes_told(groups, hardware, model)
        groups = group_starts(told.get(start.id, start) for start in starts) if told else groups
        members = [_member(group, _setting(group, hardware, model), evidence.transfers) for group in groups]
        fits = [_fitted(member, members) for member in members]
    if len(fits) == 1:
        return PairFit(tuple(fits))
    near = [
        tuple(
            other
            for other in fits[: MOST_RELATIVES + 1]
            if other is not fit and not differing_fields(fit.key, other.key) & {"engine", "variant", "revision"}
        )
        for fit in fits
    ]
    return PairFit(tuple(replace(fit, relatives=own) for fit, own in zip(fits, near, strict=True)))


def _dtypes_told(groups: Sequence[Group], hardware: Hardware, model: Model) -> dict[UUID, Observation]:
    """Return, by id, the starts that do not name their KV dtype with the one that their pool shows.

    Unknown joins known, but a pool half as large as the others' 8-bit ones, or twice as large as their 16-bit ones, is
    of the other kind.
    """
    found: dict[UUID, Observation] = {}
    for group in groups:
        spec, is_8bit = NAMES[group.starts[0].engine.name], group.key.get("kv_dtype") == "fp8"
        flag, told = spec.kv_dtype, "auto" if is_8bit else spec.half_kv
        named = tuple(start for start in group.starts if start.flags.get(flag) is not None)
        silent = [start for start in group.starts if start.flags.get(flag) is None and start.measurements.pool_tokens]
        if not silent or not any(start.measurements.pool_tokens for start in named):
            continue
        alone = Group(group.key, named)
        member = _member(alone, _setting(alone, hardware, model), ())
        for start in silent:
            asked = {**member.setting.flags, **start.flags, flag: member.setting.flags.get(flag)}
            with suppress(*NUMERICAL_FAILURES):
                if _holds_other_ratio(member, start, asked, 0.5 if is_8bit else 2.0):
                    found[start.id] = replace(start, flags={**start.flags, flag: told})
    return found


def _holds_other_ratio(member: _Member, start: Observation, flags: Flags, ratio: float) -> bool:
    """Tell whether a start's pool is this many times what the line of others predicts, where that predicts well."""
    fraction, tokens = fraction_of(start), start.measurements.pool_tokens
    if fraction is None or not tokens:
        return False
    line = member.fit.line.at(flags, np.array([fraction])).line
    if line is None:
        return False
    low, middle, high = line.quantiles(0, (0.05, 0.5, 0.95))
    return low > 0.7 * middle and high < 1.4 * middle and abs(tokens / (ratio * middle) - 1.0) < DTYPE_SLACK


def cold_fit(
    *, hardware: Hardware, model: Model, engine: Engine, flags: Flags, transfers: tuple[Observation, ...] = ()
) -> DeploymentFit:
    """Return what config, GPU and other hardware's starts say before the first start of a pair."""
    setting = Setting(hardware=hardware, model=model, engine=engine, flags=flags)
    group = Group(deployment_key(model, engine, flags, hardware.gpu_count), ())
    with _strict_arithmetic():
        member = _member(group, setting, transfers)
        return _fitted(member, [member])


@contextmanager
def _strict_arithmetic() -> Iterator[None]:
    """Let numpy raise ``FloatingPointError`` where it would warn and go on with infinities."""
    with np.errstate(over="raise", divide="raise", invalid="raise", under="ignore"):
        yield


def _member(group: Group, setting: Setting, transfers: Sequence[Observation]) -> _Member:
    with suppress(*NUMERICAL_FAILURES):
        knowledge = prior_knowledge(setting, group.starts, transfers)
        found = tuple(classify(start) for start in group.starts)
        running = _running(group)
        fit = fit_pool(setting, found, knowledge, running=running)
        return _Member(
            key=group.key,
            setting=setting,
            starts=group.starts,
            found=found,
            knowledge=knowledge,
            fit=fit,
            running=running,
        )
    return _unusable(group.key, setting, group.starts)


def _unusable(key: Key, setting: Setting, starts: tuple[Observation, ...]) -> _Member:
    """Return a deployment without a line, every start set aside with the reason."""
    bare = replace(setting, hardware=replace(setting.hardware, memory_gib=None), model=Model(name=setting.model.name))
    knowledge = prior_knowledge(bare, (), ())
    reason = "no line can be computed from the figures of these starts: one of them is implausibly large or small"
    found = tuple(Evidence(start, Use.SET_ASIDE, reason, labels=frozenset({Label.UNUSABLE})) for start in starts)
    fit = PoolFit(
        line=PoolLine(setting=setting, knowledge=knowledge, posterior=None, page_tokens=1),
        evidence=found,
        labels=frozenset({Label.UNUSABLE}),
        cautions=(UNUSABLE,),
        distinct_fractions=0,
    )
    return _Member(
        key=key,
        setting=setting,
        starts=starts,
        found=found,
        knowledge=knowledge,
        fit=fit,
        running=None,
        is_usable=False,
    )


def _fitted(member: _Member, members: Sequence[_Member]) -> DeploymentFit:
    """Return the fit of one deployment; alone where its relatives' figures, without a line where its own are no use."""
    if member.is_usable:
        for lenders in (members, (member,)):
            with suppress(*NUMERICAL_FAILURES):
                return _pooled(member, lenders)
        member = _unusable(member.key, member.setting, member.starts)
    return _deployment(member, member.fit, Lent(), ())


def _pooled(member: _Member, members: Sequence[_Member]) -> DeploymentFit:
    others = [other for other in members[: MOST_RELATIVES + 1] if other is not member]
    lent = _lent(member, others)
    fit = member.fit
    if lent.slopes or lent.crossings:
        fit = fit_pool(member.setting, member.found, member.knowledge, lent, member.running)
    fit = _with_failed_newest(member, _with_version_drift(member, fit, others))
    return _deployment(member, fit, lent, others)


def _lent(member: _Member, others: Sequence[_Member]) -> Lent:
    """Return the narrowest slope and zero crossing that relatives' own evidence gives, in this deployment's tokens."""
    slopes: list[tuple[Normal, _Member]] = []
    crossings: list[Normal] = []
    for other in others:
        changed = differing_fields(member.key, other.key)
        if changed & UNPOOLED or not other.is_usable or not other.fit.distinct_fractions:
            continue
        ratio = _price_ratio(member, other, changed)
        slope = other.fit.line.slope
        if ratio is not None and slope is not None and other.fit.line.tells_slope:
            low, middle, high = slope.quantiles(0, (0.16, 0.5, 0.84))
            doubt = hypot(0.5 * (high - low) / middle, ratio.sd)
            slopes.append((Normal(middle * ratio.mean, middle * ratio.mean * doubt), other))
        zero = other.fit.line.zero_fraction
        if zero is not None and member.knowledge.knows_base:
            base = member.knowledge.line.base.mean
            shift = hypot(*(SHIFT_SD_GIB.get(field, UNKNOWN_SHIFT_SD_GIB) for field in changed), 0.05)
            more = _more_graphs(member, other) if "graphs" in changed else 0.0
            doubt = hypot(shift, 0.3 * more, (zero.high - zero.low) / 3.29 * base)
            crossings.append(Normal(zero.median + more / base, doubt))
    own = member.fit.line.slope
    best = min(slopes, key=lambda each: each[0].sd / each[0].mean, default=None)
    nearest = min(crossings, key=lambda each: each.sd, default=None)
    if best is not None and own is not None and member.fit.line.tells_slope:
        low, middle, high = own.quantiles(0, (0.16, 0.5, 0.84))
        best = best if best[0].sd / best[0].mean < 0.5 * (high - low) / middle else None
    lender = None if best is None else best[1]
    points = 0 if lender is None else sum(item.use is Use.POINT for item in lender.fit.evidence)
    return Lent(
        slopes=() if best is None else (best[0],),
        crossings=() if nearest is None else (nearest,),
        starts=points,
        deployments=1 if points else 0,
    )


def _more_graphs(member: _Member, other: _Member) -> float:
    """Return GiB that this deployment's graphs take more than a relative's, as logged; vLLM takes them off the pool."""
    if member.running is None or other.running is None or member.setting.engine.name is not EngineName.VLLM:
        return 0.0
    own, theirs = (as_number(each.running.measurements.graph_gib) for each in (member, other) if each.running)
    return 0.0 if own is None or theirs is None else own - theirs


def _price_ratio(member: _Member, other: _Member, changed: frozenset[str]) -> Normal | None:
    """Return the relative's bytes per token over this one's, or None when they are not comparable."""
    if "speculation" in changed or not _count_alike(member, other, changed):
        return None
    doubt = hypot(SHARED_SLOPE_SD, VERSION_COST_SD if "version" in changed else 0.0)
    if "kv_dtype" not in changed:
        return Normal(1.0, doubt)
    here, there = (
        token_cost(m.setting.model.facts, m.setting.engine, m.setting.flags, m.setting.hardware.gpu_count)
        for m in (member, other)
    )
    if here is None or there is None:
        return None
    return Normal(there.bytes_per_token / here.bytes_per_token, hypot(doubt, KNOWN_RATIO_SD))


def _count_alike(member: _Member, other: _Member, changed: frozenset[str]) -> bool:
    """Tell whether both mean the same by pool tokens: of vLLM's hybrids not across a change of their definition."""
    is_hybrid = keeps_states(member.setting.model)
    alike = counts_alike(member.setting.engine, other.setting.engine, hybrid=is_hybrid)
    return alike and ("length" not in changed or not is_hybrid)


def _with_version_drift(member: _Member, fit: PoolFit, others: Sequence[_Member]) -> PoolFit:
    """Say where a new version's first start lies off the line of the version before it."""
    points = [item for item in fit.evidence if item.use is Use.POINT and item.tokens is not None]
    if len(points) != 1 or Label.DRIFT in fit.labels:
        return fit
    newest = points[0]
    for other in others:
        is_older = bool(other.starts) and other.starts[-1].observed_at < newest.start.observed_at
        if not is_older or differing_fields(member.key, other.key) != {"version"}:
            continue
        if not other.fit.distinct_fractions or not _count_alike(member, other, frozenset()):
            continue
        fraction, tokens = newest.fraction, newest.tokens
        if fraction is None or tokens is None:
            return fit
        predicted = other.fit.line.at({**other.setting.flags, **newest.start.flags}, np.array([fraction])).line
        if predicted is None:
            return fit
        low, middle, high = predicted.quantiles(0, (0.005, 0.5, 0.995))
        if low <= tokens + fit.line.page_tokens / 2.0 <= high:
            return fit
        caution = _drift_caution(fit.line, tokens - middle, f"engine version {other.key.get('version')}")
        return replace(fit, labels=fit.labels | {Label.DRIFT}, cautions=(*fit.cautions, caution))
    return fit


def _with_failed_newest(member: _Member, fit: PoolFit) -> PoolFit:
    """Say where the newest start ran out of memory or was refused and three or more that came up contradict it."""
    newest = member.starts[-1] if member.starts else None
    if newest is None or newest.came_up or newest.outcome is Outcome.FAILED or fit.drifted is not None:
        return fit
    fraction = fraction_of(newest)
    if fraction is None or (newest.failure is not None and newest.failure.phase is Phase.LOAD):
        return fit
    is_refusal = newest.outcome is Outcome.REFUSED
    against = [
        start
        for start in member.starts
        if start.came_up
        and (served := fraction_of(start)) is not None
        and (served <= fraction if is_refusal else served >= fraction - SAME_FRACTION)
        and is_no_lighter(newest.engine.name, start.flags, newest.flags)
    ]
    if not against or sum(start.came_up for start in member.starts) < LEAST_AGREEING:
        return fit
    what = "was refused" if is_refusal else "ran out of memory"
    detail = (
        f"The newest start {what} at {fraction:g}, and of the earlier ones {len(against)} came up "
        f"{'no higher' if is_refusal else 'no lower'}: check first what else uses the GPU."
    )
    caution = Caution(code="drift", detail=detail)
    return replace(fit, drifted=newest, labels=fit.labels | {Label.DRIFT}, cautions=(*fit.cautions, caution))


def _drift_caution(line: PoolLine, tokens: float, against: str, differing: str = "") -> Caution:
    cost = line.cost
    gib = "" if cost is None else f" ({tokens * np.exp(cost.mean) / GIB:+.2f} GiB)"
    detail = (
        f"The newest start's pool is {tokens:+,.0f} tokens{gib} off what {against} predicted; check what else uses the "
        "GPU, and verify before a restart."
    ) + (f" What differs: {differing}." if differing else "")
    return Caution(code="drift", detail=detail)


def _deployment(member: _Member, fit: PoolFit, lent: Lent, others: Sequence[_Member]) -> DeploymentFit:
    setting, line = member.setting, fit.line
    measured = member.starts if member.is_usable else ()
    mistyped = frozenset(item.start.id for item in fit.evidence if Label.OUTLIER in item.labels)
    history = History(
        engine=setting.engine,
        starts=member.starts,
        flags=setting.flags,
        mistyped=mistyped,
        siblings=tuple(_siblings(member, others)),
        gib_per_fraction=None if line.base is None else max(line.base.mean, 1e-3),
    )
    free = fit_free_memory(measured, line, history.deaths)
    needs = _needs(measured, setting, free)
    if fit.drift_tokens:
        caution = _drift_caution(line, fit.drift_tokens, "earlier starts", fit.drift_detail)
        fit = replace(fit, cautions=(*fit.cautions, caution))
    labels = tuple(sorted(fit.labels))
    basis = Basis(
        kind=_basis_kind(fit),
        deployment=deployment_label(member.key),
        observation_ids=tuple(item.start.id for item in fit.evidence if item.use is Use.POINT),
        verified_prompt_tokens=needs.verified_prompt_tokens,
        lent_starts=lent.starts,
        lent_deployments=lent.deployments,
    )
    summary = FitSummary(
        deployment=deployment_label(member.key),
        deployment_id=Group(member.key, member.starts).identifier if member.starts else key_identifier(member.key),
        engine=setting.engine.name,
        engine_version=setting.engine.version,
        parameters=_parameters(line, free),
        basis=basis,
        evidence=tuple(item.item() for item in fit.evidence),
        labels=labels,
        warnings=tuple(_warnings(fit, member)),
        last_observed_at=member.starts[-1].observed_at if member.starts else None,
    )
    return DeploymentFit(
        key=member.key,
        summary=summary,
        pool=fit,
        free=free,
        needs=needs,
        history=history,
        distant_deaths=tuple(_distant_deaths(member, others, history)),
    )


def _needs(starts: Sequence[Observation], setting: Setting, free: FreeMemory) -> PromptNeeds:
    def free_at(start: Observation) -> float | None:
        fraction = start.fraction
        if fraction is None or not 0.0 < fraction <= 1.0:
            return None
        fractions, flags = np.array([fraction]), {**setting.flags, **start.flags}
        found, _ = free.at(flags, fractions, free.line.at(flags, fractions))
        return None if found is None else float(found.moments()[0][0])

    def without_graphs(start: Observation) -> bool:
        ready = start.measurements.free_at_ready_gib
        return ready is not None and free.left_out_graphs(start, ready)

    return fit_prompt_needs(starts, setting.model, setting.engine.name, free_at, without_graphs)


def _siblings(member: _Member, others: Sequence[_Member]) -> Iterator[Observation]:
    """Yield starts of deployments that differ in the version alone, within one minor series or where it is unknown."""
    for other in others:
        if differing_fields(member.key, other.key) - {"version"}:
            continue
        if not is_other_series(member.key.get("version"), other.key.get("version")):
            yield from other.starts


_OTHER_MEMORY = frozenset({"engine", "tp", "pp", "dp", "dp_attention", "dcp", "kv_dtype"})


def _distant_deaths(member: _Member, others: Sequence[_Member], history: History) -> Iterator[Observation]:
    """Yield deaths of deployments with the same engine, layout and KV dtype that rule nothing out here."""
    counting = {start.id for start in history.deaths}
    for other in others:
        if differing_fields(member.key, other.key) & _OTHER_MEMORY:
            continue
        yield from (start for start in other.starts if is_death(start) and start.id not in counting)


def _basis_kind(fit: PoolFit) -> BasisKind:
    """Return the rung of the cold-start ladder that a fit is based on."""
    if fit.distinct_fractions > 1:
        return BasisKind.SEVERAL_STARTS
    if fit.distinct_fractions == 1:
        return BasisKind.ONE_START
    is_lent = fit.line.knowledge.cost_source == "transfer"
    return BasisKind.TRANSFER if is_lent else BasisKind.CONFIG_ONLY


def _parameters(line: PoolLine, free: FreeMemory) -> dict[str, Estimate]:
    """Return what the line is made of, each with its unit in its name; free memory is at the running flags."""
    share, flags = line.share(line.setting.flags), line.setting.flags
    found: dict[str, Estimate | None] = {}
    if line.slope is not None and line.tells_slope:
        found["slope_tokens_per_fraction"] = _scaled(line.slope.estimate(), share)
    zero = line.zero_fraction
    found["zero_fraction"] = None if zero is None else _scaled(zero, 1.0 / share)
    found["bytes_per_token"] = line.bytes_per_token(flags)
    base = line.base
    if base is not None:
        found["base_memory_gib"] = _normal_estimate(base)
    fraction = as_number(flags.get(FRACTION_FLAG[line.setting.engine.name]))
    if fraction is not None and 0.0 < fraction <= 1.0:
        at = np.array([fraction])
        found["free_at_ready_gib"] = sound_estimate(free.at(flags, at, line.at(flags, at))[0])
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    low, middle, high = (value * factor for value in (estimate.low, estimate.median, estimate.high))
    return Estimate(median=middle, low=low, high=high, level=estimate.level)


def _normal_estimate(value: Normal) -> Estimate:
    return Estimate(median=value.mean, low=value.mean - 1.645 * value.sd, high=value.mean + 1.645 * value.sd)


def _warnings(fit: PoolFit, member: _Member) -> Iterator[Caution]:
    """Yield the warnings of a fit, contradictions first."""
    yield from fit.cautions
    yield from impossible_figures(member.starts)
    if Label.UNIFIED_MEMORY in fit.labels:
        yield UNIFIED
    if Label.NEIGHBOUR in fit.labels:
        yield NEIGHBOUR
    if member.knowledge.weights_source == "assumed" and not fit.distinct_fractions:
        detail = "Nothing states the bytes of a weight: anything from 4-bit to 16-bit is taken to be possible."
        yield Caution(code="weights_assumed", detail=detail)
    if member.starts:
        yield from _layout_cautions(member.key, member.setting.hardware.gpu_count)


def _layout_cautions(key: Key, gpu_count: int) -> Iterator[Caution]:
    """Warn of a deployment that spreads over more GPUs than its hardware has."""
    tensor, pipeline, data = (as_count(key.get(field)) or 1 for field in ("tp", "pp", "dp"))
    wanted = tensor * pipeline * data
    if wanted > gpu_count and key.get("dp_attention", "off") == "off":
        sizes = f"tensor {tensor}, pipeline {pipeline}, data {data}"
        detail = f"The layout ({sizes}) takes {wanted} GPUs and the hardware has {gpu_count}: is the count right?"
        yield Caution(code="layout_exceeds_hardware", detail=detail)


def _merged(observations: Sequence[Observation]) -> tuple[Hardware, Model]:
    """Return the pair's hardware and model, each attribute as the newest start that gave it did."""
    newest_first = observations[::-1]
    newest = newest_first[0]
    memory = (start.hardware.memory_gib for start in newest_first)
    unified = (start.hardware.unified_memory for start in newest_first)
    hardware = replace(
        newest.hardware,
        memory_gib=next((value for value in memory if value is not None), None),
        unified_memory=next((value for value in unified if value is not None), None),
    )
    facts: dict[str, object] = {}
    seen: Facts | None = None
    for start in newest_first:
        if start.model.facts is not seen and start.model.facts != seen:
            seen = start.model.facts
            facts = {**{name: value for name, value in seen.items() if value is not None}, **facts}
    return hardware, replace(newest.model, facts=facts)


def _running(group: Group) -> Observation | None:
    """Return the newest start that came up, else the newest."""
    served = [start for start in group.starts if start.came_up]
    return next(iter(reversed(served or group.starts)), None)


def _joined(group: Group) -> dict[str, Scalar]:
    """Return flags of the key that only some starts state: unknown joins known, whichever start states it."""
    fields = {name for names in key_fields(group.starts[0].engine.name).values() for name in names}
    found: dict[str, Scalar] = {}
    for start in group.starts:
        found.update({name: value for name, value in start.flags.items() if name in fields and value is not None})
    return found


def _setting(group: Group, hardware: Hardware, model: Model) -> Setting:
    running = _running(group)
    assert running is not None
    engine = replace(running.engine, version=running.engine.version or group.key.get("version"))
    model = replace(model, revision=group.key.get("revision"))
    flags = {**_joined(group), **flags_as_set(running, read_shape(model.facts).context_length)}
    return Setting(hardware=hardware, model=model, engine=engine, flags=flags)
