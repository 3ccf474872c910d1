"""A fitted deployment as advice and use cases see it, and the deployments of a pair among which a question chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import inf
from uuid import UUID

import numpy as np

from kvyield_server.domain.answers import Caution, Estimate, FitSummary, Prediction
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.facts.deployment import (
    Key,
    agrees,
    deployment_key,
    key_fields,
)
from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
    Engine,
    EngineName,
    Flags,
    Hardware,
    Model,
    Observation,
    Outcome,
    Verification,
)
from kvyield_server.domain.facts.scalars import as_number, as_word, is_on
from kvyield_server.domain.facts.versions import plain_version
from kvyield_server.domain.model.evidence import (
    Label,
)
from kvyield_server.domain.model.free_memory import FreeMemory
from kvyield_server.domain.model.history import History
from kvyield_server.domain.model.interface import Mask, Measured, Need, Predicted
from kvyield_server.domain.model.mixture import Floats, Mixture
from kvyield_server.domain.model.need import (
    PromptNeed,
    PromptNeeds,
    given_deaths,
    headroom,
    survival,
    unless_it_recurs,
)
from kvyield_server.domain.model.pool import (
    NO_CHANGE,
    PoolLine,
)
from kvyield_server.domain.model.pool_fit import PoolFit


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFit:
    """One fitted deployment: a ``YieldModel``, with what use cases need beside it."""

    key: Key
    summary: FitSummary
    pool: PoolFit
    free: FreeMemory
    needs: PromptNeeds
    history: History
    distant_deaths: tuple[Observation, ...] = ()
    relatives: tuple[DeploymentFit, ...] = field(default=(), repr=False, compare=False)

    @property
    def engine(self) -> Engine:
        return self.pool.line.setting.engine

    @property
    def model(self) -> Model:
        return self.pool.line.setting.model

    @property
    def hardware(self) -> Hardware:
        return self.pool.line.setting.hardware

    @property
    def flags(self) -> Flags:
        """Those of what runs, but for a cold compile cache: the next start may find what that one compiled.

        So it is asked about as another state, with that state's doubt. Starts that were cold time and again keep no
        cache. Measured on an H200 (vLLM 0.26.0): 0.51 GiB of pool between cold and warm.
        """
        flags = self.pool.line.setting.flags
        is_repeated = len(self.starts) > 1 and not self.relatives
        if flags.get("compile_cache") == "cold" and not is_repeated:
            return {**flags, "compile_cache": "warm"}
        return flags

    @property
    def page_tokens(self) -> int:
        return self.pool.line.page_tokens

    @property
    def context_tokens(self) -> int | None:
        return self.free.context_tokens

    @property
    def starts(self) -> tuple[Observation, ...]:
        return self.history.starts

    @property
    def runs(self) -> Observation | None:
        return self.history.runs

    @property
    def limited(self) -> Observation | None:
        return self.history.limited

    @property
    def drifted(self) -> Observation | None:
        return self.pool.drifted

    @property
    def weights_are_stated(self) -> bool:
        return self.pool.line.knowledge.knows_weights or self.pool.line.knowledge.names_zero

    def contradiction(self, flags: Flags) -> str | None:
        """Return what contradicts what where the line cannot be a real GPU's; None when it is sound."""
        del flags
        return self.pool.line.contradiction()

    def at(self, flags: Flags, fractions: Floats) -> Predicted:
        """Return pool and free memory under these flags at each fraction; a relative that ran with them answers."""
        line, memory = self._answering(flags)
        found = line.at(flags, fractions)
        free, dropped = memory.at(flags, fractions, found)
        return Predicted(
            fractions=fractions,
            pool=found.pool,
            line=found.line,
            kv_gib=found.kv_gib,
            free=free,
            pool_flag=found.flag,
            dropped=dropped,
        )

    def _answering(self, flags: Flags) -> tuple[PoolLine, FreeMemory]:
        """Return the lines that answer for these flags: a relative's where they are its own and not this one's."""
        line = self.pool.line
        if self.relatives and not line.is_other_version and line.change(flags) is not NO_CHANGE:
            asked = deployment_key(self.model, self.engine, flags, self.hardware.gpu_count)
            for other in self.relatives:
                if other.pool.distinct_fractions and agrees(other.key, asked) and not agrees(self.key, asked):
                    return other.pool.line, other.free
        return line, self.free

    def need(self, flags: Flags, prompt_tokens: int) -> PromptNeed:
        """Return what a prompt of this length takes under these flags."""
        return self.needs.need(prompt_tokens, flags, drops_graphs=self.free.may_drop_graphs(flags))

    def survives(self, flags: Flags, predicted: Predicted, need: Need | float, prompt_tokens: int) -> Floats | None:
        """Return P(free memory at ready - need >= 0) at each fraction; None where nothing tells free memory.

        Deaths at start-up are in the free memory that is predicted. Deaths while serving are evidence on free memory
        and need together, so they take the place of what they say of the need alone. Below either kind the same may
        happen again.
        """
        serving = self.history.deaths_at(flags, prompt_tokens, Outcome.OOM_RUNTIME)
        if serving and not isinstance(need, int | float):
            need = self._need_but_for_deaths(flags, prompt_tokens)
        chance = self._survival(predicted, need)
        if chance is None:
            return None
        if serving:
            deaths = np.array([fraction for fraction, _ in serving])
            there = self.at(flags, deaths)
            at_deaths = np.ones_like(deaths)
            for index, (_, prompt) in enumerate(serving):
                is_other = prompt is not None and prompt != prompt_tokens and not isinstance(need, int | float)
                took = self._need_but_for_deaths(flags, prompt) if is_other and prompt is not None else need
                found = self._survival(there, took)
                at_deaths[index] = 1.0 if found is None else found[index]
            chance = given_deaths(chance, predicted.fractions, at_deaths, deaths)
        for outcome in (Outcome.OOM_STARTUP, Outcome.OOM_RUNTIME):
            chance = chance * self._unless_it_recurs(flags, predicted.fractions, prompt_tokens, outcome)
        return chance

    def _need_but_for_deaths(self, flags: Flags, prompt_tokens: int) -> PromptNeed:
        needs = self.needs.without_deaths()
        return needs.need(prompt_tokens, flags, drops_graphs=self.free.may_drop_graphs(flags))

    def _unless_it_recurs(
        self, flags: Flags, fractions: Floats, prompt_tokens: int, outcome: Outcome
    ) -> Floats | float:
        deaths, base = self.history.deaths_at(flags, prompt_tokens, outcome), self.pool.line.base
        if not deaths or base is None:
            return 1.0
        lowest = deaths[0][0]
        served = self.history.served_below(flags, lowest, prompt_tokens, outcome)
        return unless_it_recurs(fractions, lowest, served, base.mean)

    def _survival(self, predicted: Predicted, need: Need | float) -> Floats | None:
        free = predicted.free
        if not isinstance(free, Mixture):
            return None
        taken = need if isinstance(need, PromptNeed | float) else need.median_gib
        chance = survival(free, taken)
        bare = taken.without_graphs if isinstance(taken, PromptNeed) else None
        if bare is None or predicted.dropped is None:
            return chance
        mixed: Floats = (1.0 - predicted.dropped) * chance + predicted.dropped * survival(free, bare)
        return mixed

    def headroom(self, flags: Flags, fraction: float, need: Need | float, level: float = 0.9) -> Estimate | None:
        """Return median and central interval of free memory at ready less the need; None where nothing tells it."""
        fractions = np.array([fraction])
        found = self.at(flags, fractions)
        if not isinstance(found.free, Mixture):
            return None
        taken = need if isinstance(need, PromptNeed | float) else need.median_gib
        if isinstance(taken, PromptNeed) and taken.without_graphs is not None:
            is_dropped = found.dropped is not None and float(found.dropped[0]) > 0.5
            taken = taken.without_graphs if is_dropped else taken
        return headroom(found.free, taken, 0, level)

    def forbidden(
        self, flags: Flags, fractions: Floats, prompt_tokens: int, concurrent: int
    ) -> tuple[Mask, Observation | None]:
        """Return the fractions that a death which counts rules out, and the death that rules out the lowest."""
        return self.history.forbidden(flags, fractions, prompt_tokens, concurrent)

    def measured(self, flags: Flags) -> Measured | None:
        """Return what live starts that came up under these very flags measured."""
        return self.history.measured(flags)

    def failed(self, flags: Flags) -> Observation | None:
        """Return the newest start under these very flags that never came up, where none under them ever did."""
        return self.history.failed(flags)

    def implausible(self, start: Observation) -> str | None:
        """Return why a start's fraction cannot be what it ran with, None where it may be."""
        return self.pool.line.implausible(start)

    def passed(self, flags: Flags, prompt_tokens: int, concurrent: int) -> Verification | None:
        """Return a passed verification, under flags no lighter, of a prompt no shorter and as many at once."""
        return self.history.passed(flags, prompt_tokens, concurrent)

    def unserved(self, flags: Flags, prompt_tokens: int, concurrent: int) -> Verification | None:
        """Return the verification that was not served and forbids ``ok`` for such a prompt until one passes."""
        return self.history.unserved(flags, prompt_tokens, concurrent)

    def bytes_per_token(self, flags: Flags) -> Estimate | None:
        """Return bytes that one token takes of one GPU's KV memory under these flags."""
        return self.pool.line.bytes_per_token(flags)

    def for_version(self, version: str | None) -> DeploymentFit:
        """Return the fit as it answers for this engine version: wider where its evidence is of another."""
        known = self.key.get("version")
        if version is None or known is None or known == plain_version(version):
            return self
        line = replace(self.pool.line, is_other_version=True)
        free = replace(self.free, line=line, is_other_version=True)
        return replace(self, pool=replace(self.pool, line=line), free=free)

    def predict(self, flags: Flags) -> Prediction:
        """Return pool and free memory at these flags; an estimate is None when nothing tells it."""
        asked = {**self.flags, **flags}
        name = FRACTION_FLAG[self.engine.name]
        fraction = as_number(asked.get(name))
        counts = NAMES[self.engine.name].counts_blocks is not None
        is_fraction = fraction is not None and (0.0 <= fraction <= 1.0 or (counts and fraction > 1.0))
        found = self.at(asked, np.array([fraction if is_fraction and fraction is not None else 0.5]))
        pool, kv_gib, free = (sound_estimate(part) for part in (found.pool, found.kv_gib, found.free))
        if not is_fraction:
            pool, kv_gib, free = (pool if found.pool_flag is not None else None), None, None
        cap = found.pool.ceiling if isinstance(found.pool, Mixture) else inf
        pool = pool if found.pool_flag is not None else _widened(pool, self.pool.drift_tokens, cap)
        warnings = [*self.summary.warnings, *self.uncounted(flags), *self._capped(found, asked)]
        if pool is None:
            warnings.append(not_enough(self.summary))
        return Prediction(
            flags=asked,
            pool_tokens=pool,
            kv_cache_gib=kv_gib,
            free_at_ready_gib=free,
            basis=self.summary.basis,
            warnings=tuple(warnings),
        )

    def _capped(self, found: Predicted, asked: Flags) -> Iterator[Caution]:
        if found.pool_flag is not None:
            value = asked.get(found.pool_flag)
            detail = f"{found.pool_flag} {value} sets the pool, whatever the fraction: the prediction says so."
            yield Caution(code="pool_is_capped", detail=detail)

    def uncounted(self, asked: Flags) -> Iterator[Caution]:
        """Warn of asked flags that neither kvyield nor any start knows, and of weights that nothing tells."""
        engine = self.engine.name
        odd = sorted(name for name in asked if name not in known_flags(engine))
        unknown = [name for name in odd if not any(name in start.flags for start in self.starts)]
        if unknown:
            title, listed = NAMES[engine].title, ", ".join(unknown)
            detail = (
                f"No start of this deployment has {listed}, and nothing is known about it for {title}: not counted."
            )
            yield Caution(code="unknown_flag", detail=detail)
        if self.runs is None or "quantization" not in asked:
            return
        now, then = asked.get("quantization"), self.runs.flags.get("quantization")
        is_changed = (as_word(now) or is_on(now)) != (as_word(then) or is_on(then))
        if is_changed and not self.pool.line.lighter_gib(asked):
            detail = (
                f"quantization {now} is not what runs ({then}): how much the weights take with it is not known here."
            )
            yield Caution(code="unknown_change", detail=detail)


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
        candidates = [fit for fit in self.deployments if engine is None or fit.engine.name is engine]
        same_version = [fit for fit in candidates if _has_version(fit, engine_version)] or candidates
        agreeing = [fit for fit in same_version if _agrees_with(fit, flags)]
        return next(iter(agreeing or same_version), None)


def _has_version(fit: DeploymentFit, version: str | None) -> bool:
    return version is None or fit.key.get("version") == plain_version(version)


def _agrees_with(fit: DeploymentFit, flags: Flags) -> bool:
    asked = deployment_key(fit.model, Engine(name=fit.engine.name), flags, fit.hardware.gpu_count)
    return agrees(fit.key, asked)


@lru_cache(maxsize=len(EngineName))
def known_flags(engine: EngineName) -> frozenset[str]:
    """Return the flags of an engine that move a pool or free memory here."""
    spec = NAMES[engine]
    roles = {value for each in fields(spec) if isinstance(value := getattr(spec, each.name), str)} - {spec.title}
    of_key = {name for group in key_fields(engine, requests_move_pool=True).values() for name in group}
    more = {"disable_radix_cache", "disable_prefill_cuda_graph"}
    return frozenset({*roles, *of_key, *spec.caps, *spec.inert_with, *more})


def not_enough(summary: FitSummary) -> Caution:
    """Return the warning that goes with a null pool, and what to post next."""
    if Label.CONFOUNDED in summary.labels:
        detail = "The starts of this deployment contradict one another; post two that differ in the fraction alone."
    else:
        detail = (
            "Nothing shows how the pool depends on the fraction: post a second start at another fraction, the model's "
            "config.json facts, or a log with the engine's own memory lines."
        )
    return Caution(code="not_enough_evidence", detail=detail)


def _widened(pool: Estimate | None, by: float, cap: float) -> Estimate | None:
    """Return an interval that holds what the newest start's drift would make of it as well, never beyond a cap."""
    if pool is None or not by:
        return pool
    low = max(0.0, min(pool.low, pool.median + by - 0.5 * (pool.high - pool.low)))
    high = max(pool.high, pool.median + by + 0.5 * (pool.high - pool.low))
    return replace(pool, low=low, high=min(high, cap))


def sound_estimate(quantity: object, index: int = 0) -> Estimate | None:
    """Return the estimate, or None where nothing tells it or a figure of it is none that memory can have."""
    if not isinstance(quantity, Mixture) or not quantity.is_finite:
        return None
    return quantity.estimate(index)
