"""All deployments of one pair, fitted: the one door through which use cases reach the yield model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from kvyield_server.domain.answers import (
    Basis,
    Caution,
    FitSummary,
    Prediction,
)
from kvyield_server.domain.facts.deployment import (
    Group,
    Key,
    agrees,
    deployment_key,
    deployment_label,
    differing_fields,
    group_starts,
    key_identifier,
)
from kvyield_server.domain.facts.model_config import keeps_states, read_shape
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Facts,
    Flags,
    Hardware,
    Model,
    Observation,
    Outcome,
)
from kvyield_server.domain.facts.versions import plain_version
from kvyield_server.domain.legacy.capacity import CapacityLine
from kvyield_server.domain.legacy.capacity_fit import CapacityFit, fit_capacity
from kvyield_server.domain.legacy.capacity_prior import CapacityPrior, Setting, physics_prior
from kvyield_server.domain.legacy.case import Lightened
from kvyield_server.domain.legacy.drift import (
    NEW_VERSION_LEVEL,
    SAME_DEPLOYMENT_LEVEL,
    Drift,
    drift_from,
    is_on_line,
    newest_point,
)
from kvyield_server.domain.legacy.evidence import Label, Use, classify
from kvyield_server.domain.legacy.fit_summary import (
    CHANGED,
    basis_kind,
    finite,
    layout_cautions,
    not_enough,
    parameters,
    warnings_of,
    whole_pages,
)
from kvyield_server.domain.legacy.free_memory import FreeMemoryLine, fit_free_memory
from kvyield_server.domain.legacy.headroom import PromptNeed, fit_prompt_need
from kvyield_server.domain.legacy.known_flags import unknown_flags
from kvyield_server.domain.legacy.memory_failures import SiblingDeath, sibling_deaths
from kvyield_server.domain.legacy.pooling import Member, count_alike, lent, pooled_prior
from kvyield_server.domain.legacy.quantised import lighter_share, unknown_weights
from kvyield_server.domain.legacy.regime import newest_regime
from kvyield_server.domain.legacy.request_table import flags_as_set
from kvyield_server.domain.legacy.student import StudentT
from kvyield_server.domain.legacy.superseded import counted_once, measured_once
from kvyield_server.domain.legacy.unusable import (
    NO_PRIOR,
    NUMERICAL_FAILURES,
    strict_arithmetic,
    unusable_evidence,
    unusable_fit,
)

MOST_RELATIVES = 64
"""How many deployments lend to the others, the newest: with all of them, time would grow with their square."""


@dataclass(frozen=True, slots=True)
class PairEvidence:
    """What is known of one pair. ``transfers`` are starts of the same model on other hardware."""

    observations: tuple[Observation, ...]
    transfers: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFit:
    """One fitted deployment. ``running`` is the newest start that served; its flags stand in for flags not given.

    ``neighbours`` are starts of sibling deployments that ran out of memory.
    """

    key: Key
    summary: FitSummary
    running: Observation | None
    capacity: CapacityLine
    free_memory: FreeMemoryLine
    prompt_need: PromptNeed
    starts: tuple[Observation, ...]
    neighbours: tuple[SiblingDeath, ...] = ()

    def for_version(self, version: str | None) -> DeploymentFit:
        """Return the fit as it answers for this engine version: wider where its evidence is of another."""
        known = self.key.get("version")
        if version is None or known is None or known == plain_version(version):
            return self
        capacity = replace(self.capacity, is_other_version=True)
        free_memory = replace(self.free_memory, capacity=capacity, is_other_version=True)
        return replace(self, capacity=capacity, free_memory=free_memory)

    def predict(self, flags: Flags) -> Prediction:
        """Return pool and free memory at these flags; an estimate is None when nothing tells it."""
        asked = {**self.capacity.flags, **flags}
        share = lighter_share(self.running, self.capacity.base_gib, self.capacity.model.facts, asked)
        pool, kv_gib, free = self._lighter(asked, share) if share else self._as_heavy(asked)
        engine = self.capacity.engine.name
        unknown = (*unknown_weights(self.running, asked, share), *unknown_flags(engine, flags, self.starts))
        warnings = (*self.summary.warnings, *unknown)
        pool = pool if finite(pool) is not None else None
        if pool is None:
            warnings = (*warnings, not_enough(self.summary))
        return Prediction(
            flags=asked,
            pool_tokens=None if pool is None else whole_pages(pool.estimate(), self.capacity.page_tokens),
            kv_cache_gib=finite(kv_gib),
            free_at_ready_gib=finite(free),
            basis=self.summary.basis,
            warnings=warnings,
        )

    def _as_heavy(self, asked: Flags) -> tuple[StudentT | None, StudentT | None, StudentT | None]:
        return self.capacity.pool(asked), self.capacity.kv_gib(asked), self.free_memory.at_ready(asked)

    def _lighter(self, asked: Flags, share: float) -> tuple[StudentT | None, StudentT | None, StudentT | None]:
        """Return pool, KV memory and free memory with weights lighter by a share of the base."""
        along = self.capacity.along(asked)
        pool, fraction = Lightened(along, share), along.fraction
        if fraction is None:
            return None, None, None
        free = self.free_memory.along(asked, pool).at_ready(fraction)
        return pool.pool(fraction), along.kv_gib(min(1.0, fraction + share)), free


@dataclass(frozen=True, slots=True)
class PairFit:
    """The deployments of one pair, the newest start's first."""

    deployments: tuple[DeploymentFit, ...]

    def choose(
        self, *, engine: EngineName | None, engine_version: str | None, like: UUID | None, flags: Flags
    ) -> DeploymentFit | None:
        """Return the deployment that a question is about, or None when no start of that engine is known.

        ``like`` names a start of it. Else it is the deployment of the newest start that agrees with the flags; when
        none agrees, the newest one of that version, or of that engine, answers with wider intervals.
        """
        chosen = self._chosen(engine, engine_version, like, flags)
        return None if chosen is None else chosen.for_version(engine_version)

    def _chosen(
        self, engine: EngineName | None, engine_version: str | None, like: UUID | None, flags: Flags
    ) -> DeploymentFit | None:
        if like is not None:
            return next((fit for fit in self.deployments if any(start.id == like for start in fit.starts)), None)
        candidates = [fit for fit in self.deployments if engine is None or fit.capacity.engine.name is engine]
        same_version = [fit for fit in candidates if _has_version(fit, engine_version)] or candidates
        agreeing = [fit for fit in same_version if _agrees_with(fit, flags)]
        return next(iter(agreeing or same_version), None)


def _has_version(fit: DeploymentFit, version: str | None) -> bool:
    return version is None or fit.key.get("version") == plain_version(version)


def _agrees_with(fit: DeploymentFit, flags: Flags) -> bool:
    line = fit.capacity
    asked = deployment_key(line.model, Engine(name=line.engine.name), flags, line.gpu_count)
    return agrees(fit.key, asked)


def fit_pair(evidence: PairEvidence) -> PairFit:
    """Fit every deployment of a pair. The order of the observations does not matter."""
    if not evidence.observations:
        return PairFit(())
    groups = group_starts(evidence.observations)
    hardware, model = _merged(evidence.observations)
    with strict_arithmetic():
        members = [_member(group, _setting(group, hardware, model), evidence.transfers) for group in groups]
        fits = [_fitted(group, member, members) for group, member in zip(groups, members, strict=True)]
    deaths = sibling_deaths(groups)
    return PairFit(tuple(replace(fit, neighbours=own) for fit, own in zip(fits, deaths, strict=True)))


def _member(group: Group, setting: Setting, transfers: Sequence[Observation]) -> Member:
    try:
        return _usable_member(group, setting, transfers)
    except NUMERICAL_FAILURES:
        found, fit = unusable_evidence(group.starts), unusable_fit(setting, group.starts)
        return Member(group.key, setting, found, NO_PRIOR, fit, is_hybrid=False)


def _fitted(group: Group, member: Member, members: Sequence[Member]) -> DeploymentFit:
    """Return the fit of one deployment; alone where its relatives' figures, without a line where its own are no use."""
    if Label.UNUSABLE not in member.fit.labels:
        for lenders in (members, (member,)):
            with suppress(*NUMERICAL_FAILURES):
                return _pooled(group, member, lenders)
    return _unusable(group, member.setting)


def _unusable(group: Group, setting: Setting) -> DeploymentFit:
    return _deployment(group, setting, unusable_fit(setting, group.starts), NO_PRIOR, None)


def _usable_member(group: Group, setting: Setting, transfers: Sequence[Observation]) -> Member:
    prior = physics_prior(setting, group.starts, transfers)
    found = counted_once([classify(start) for start in group.starts])
    return Member(group.key, setting, found, prior, fit_capacity(setting, found, prior), keeps_states(setting.model))


def _pooled(group: Group, member: Member, members: Sequence[Member]) -> DeploymentFit:
    others = [other for other in members[: MOST_RELATIVES + 1] if other is not member]
    prior = pooled_prior(member.prior, member, others) if others else member.prior
    fit = member.fit if prior == member.prior else fit_capacity(member.setting, member.found, prior)
    if Label.CONFOUNDED not in fit.labels:
        found = _deployment(group, member.setting, fit, prior, _find_drift(member, prior, others))
        return _with_loan(found, lent(member, others, prior))
    regime = newest_regime(member.setting, member.found, prior)
    if regime is None:
        return _deployment(group, member.setting, fit, prior, None)
    since = replace(regime[1], labels=regime[1].labels | {Label.DRIFT}, cautions=(*regime[1].cautions, CHANGED))
    return _deployment(group, member.setting, since, prior, None)


def cold_fit(
    *, hardware: Hardware, model: Model, engine: Engine, flags: Flags, transfers: tuple[Observation, ...] = ()
) -> DeploymentFit:
    """Return what config, card and other hardware's starts say before the first start of a pair."""
    setting = Setting(hardware=hardware, model=model, engine=engine, flags=flags)
    group = Group(deployment_key(model, engine, flags, hardware.gpu_count), ())
    try:
        with strict_arithmetic():
            prior = physics_prior(setting, (), transfers)
            return _deployment(group, setting, fit_capacity(setting, (), prior), prior, None)
    except NUMERICAL_FAILURES:
        return _unusable(group, setting)


def _merged(observations: Sequence[Observation]) -> tuple[Hardware, Model]:
    """Return the pair's hardware and model, each attribute as the newest start that gave it did."""
    newest_first = sorted(observations, key=lambda start: (start.observed_at, start.id.int), reverse=True)
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
    served = [start for start in group.starts if start.outcome in (Outcome.READY, Outcome.OOM_RUNTIME)]
    return next(iter(reversed(served or group.starts)), None)


def _setting(group: Group, hardware: Hardware, model: Model) -> Setting:
    running = _running(group)
    assert running is not None
    engine = replace(running.engine, version=running.engine.version or group.key.get("version"))
    model = replace(model, revision=group.key.get("revision"))
    flags = flags_as_set(running, read_shape(model.facts).context_length)
    return Setting(hardware=hardware, model=model, engine=engine, flags=flags)


def _layout(group: Group, setting: Setting) -> tuple[Caution, ...]:
    return layout_cautions(group.key, setting.hardware.gpu_count) if group.starts else ()


def _with_loan(fit: DeploymentFit, loan: tuple[int, int]) -> DeploymentFit:
    if not loan[0]:
        return fit
    basis = replace(fit.summary.basis, lent_starts=loan[0], lent_deployments=loan[1])
    return replace(fit, summary=replace(fit.summary, basis=basis))


def _find_drift(member: Member, prior: CapacityPrior, others: Sequence[Member]) -> Drift | None:
    """Return drift of the newest start from its own history, or of a new version's first start from the old one's."""
    if Label.CONFOUNDED in member.fit.labels:
        return None
    newest = newest_point(member.fit.evidence)
    if newest is None or is_on_line(member.fit, newest.start):
        return None
    earlier = [item for item in member.found if item.start.id != newest.start.id]
    if earlier:
        history = fit_capacity(member.setting, earlier, prior)
        known = history.distinct_fractions > 1
        return drift_from(history.line, newest.start, level=SAME_DEPLOYMENT_LEVEL) if known else None
    for other in others:
        is_older = bool(other.found) and other.found[-1].start.observed_at < newest.start.observed_at
        is_same_but_older = is_older and differing_fields(member.key, other.key) == {"version"}
        if is_same_but_older and other.fit.distinct_fractions and count_alike(member, other):
            since = other.key.get("version")
            return drift_from(other.fit.line, newest.start, level=NEW_VERSION_LEVEL, since_version=since)
    return None


def _deployment(
    group: Group, setting: Setting, fit: CapacityFit, prior: CapacityPrior, drift: Drift | None
) -> DeploymentFit:
    if fit.line.posterior is not None and not fit.line.posterior.is_finite:
        raise FloatingPointError("the line has figures that no pool can have")
    line = fit.line if drift is None else replace(fit.line, widening_tokens=abs(drift.tokens))
    measured = () if Label.UNUSABLE in fit.labels else group.starts
    need = fit_prompt_need(measured, setting.model, setting.engine)
    basis = Basis(
        kind=basis_kind(fit, prior),
        deployment=deployment_label(group.key),
        observation_ids=tuple(item.start.id for item in fit.evidence if item.use is Use.POINT),
        verified_prompt_tokens=need.verified_prompt_tokens,
    )
    free_memory = fit_free_memory(measured_once(measured), line, setting.model)
    labels = fit.labels | ({Label.DRIFT} if drift is not None else set())
    summary = FitSummary(
        deployment=deployment_label(group.key),
        deployment_id=group.identifier if group.starts else key_identifier(group.key),
        engine=setting.engine.name,
        engine_version=setting.engine.version,
        parameters=parameters(line, free_memory),
        basis=basis,
        evidence=tuple(item.item() for item in fit.evidence),
        labels=tuple(sorted(labels)),
        warnings=(*warnings_of(fit, labels, drift), *_layout(group, setting)),
        last_observed_at=group.newest.observed_at if group.starts else None,
    )
    return DeploymentFit(
        key=group.key,
        summary=summary,
        running=_running(group),
        capacity=line,
        free_memory=free_memory,
        prompt_need=need,
        starts=group.starts,
    )
