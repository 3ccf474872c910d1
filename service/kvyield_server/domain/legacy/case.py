"""A question put to a fitted deployment: what is the same for all the flags tried, and each set of flags as a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvyield_server.domain.answers import FitSummary, Question
from kvyield_server.domain.engines.registry import NAMES, positive, translated
from kvyield_server.domain.facts.layout import DATA
from kvyield_server.domain.facts.observation import Engine, EngineName, Flags, Model, Observation, Scalar
from kvyield_server.domain.facts.scalars import as_count, first_given
from kvyield_server.domain.legacy.demand import advised_flags
from kvyield_server.domain.legacy.free_memory import FreeMemoryAlong, FreeMemoryLine
from kvyield_server.domain.legacy.headroom import PromptNeed, PromptNeedUnder
from kvyield_server.domain.legacy.memory_failures import SiblingDeath, binds, counts_against
from kvyield_server.domain.legacy.quantised import lighter_share
from kvyield_server.domain.legacy.request_table import PoolAlong, flags_as_set
from kvyield_server.domain.legacy.student import StudentT
from kvyield_server.domain.legacy.window import Need, fraction_of


class Capacity(Protocol):
    """What advice needs of the capacity line."""

    @property
    def engine(self) -> Engine: ...
    @property
    def base_gib(self) -> StudentT | None: ...
    @property
    def bytes_per_token(self) -> StudentT | None: ...

    @property
    def model(self) -> Model: ...
    @property
    def flags(self) -> Flags: ...
    @property
    def page_tokens(self) -> int: ...
    def along(self, flags: Flags) -> PoolAlong: ...


class YieldModel(Protocol):
    """A fitted deployment, as far as advice reads it."""

    @property
    def summary(self) -> FitSummary: ...
    @property
    def running(self) -> Observation | None: ...
    @property
    def capacity(self) -> Capacity: ...
    @property
    def free_memory(self) -> FreeMemoryLine: ...
    @property
    def prompt_need(self) -> PromptNeed: ...
    @property
    def starts(self) -> Sequence[Observation]: ...
    @property
    def neighbours(self) -> Sequence[SiblingDeath]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question put to a fitted deployment, with what is the same for all the flags tried.

    ``running_context`` is what the running start admits, the model's own where it set none. ``deaths`` rule fractions
    out; ``distant_deaths``, of deployments less alike, only warn. ``lighter`` is the share of the base by which weights
    are imagined lighter than they are.
    """

    fit: YieldModel
    question: Question
    engine: EngineName
    held: Flags
    running: Flags
    running_context: int | None
    deaths: tuple[Observation, ...]
    distant_deaths: tuple[Observation, ...] = ()
    lighter: float = 0.0

    @property
    def fraction_flag(self) -> str:
        """The engine's own name of the fraction."""
        return NAMES[self.engine].fraction

    def under(self, flags: dict[str, Scalar]) -> Trial:
        """Return the deployment under these flags, as functions of the fraction."""
        pool = self.fit.capacity.along(flags)
        if self.lighter:
            pool = Lightened(pool, self.lighter)
        return Trial(
            flags=flags,
            pool=pool,
            free=self.fit.free_memory.along(flags, pool),
            ranks=as_count(first_given(flags, *DATA)) or 1,
            needs=self.fit.prompt_need.under(flags),
        )

    def need(self, trial: Trial, prompt_tokens: int) -> Need:
        """Return the need of a prompt of this length."""
        given = self.question.prompt_need_gib
        return given if given is not None else trial.needs.need(prompt_tokens)


@dataclass(frozen=True, slots=True)
class Lightened:
    """A capacity line whose weights take less: it lies that much farther left."""

    heavier: PoolAlong
    share: float

    def pool(self, fraction: float) -> StudentT | None:
        return self.heavier.pool(min(1.0, fraction + self.share))

    def budget_gib(self, fraction: float) -> float | None:
        return self.heavier.budget_gib(min(1.0, fraction + self.share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set of flags put to the model: pool and free memory as functions of the fraction."""

    flags: dict[str, Scalar]
    pool: PoolAlong
    free: FreeMemoryAlong
    ranks: int
    needs: PromptNeedUnder
    pools: dict[float, StudentT | None] = field(default_factory=dict)
    frees: dict[float, StudentT | None] = field(default_factory=dict)

    def pool_at(self, step: float) -> StudentT | None:
        """Return the pool at a step on the grid of fractions."""
        if step not in self.pools:
            self.pools[step] = self.pool.pool(fraction_of(step))
        return self.pools[step]

    def free_at(self, step: float) -> StudentT | None:
        """Return free memory at ready at a step on the grid of fractions."""
        if step not in self.frees:
            self.frees[step] = self.free.at_ready(fraction_of(step))
        return self.frees[step]


def make_case(fit: YieldModel, question: Question) -> Case:
    """Return the question as a case of this deployment."""
    engine = fit.summary.engine
    running = running_flags(fit)
    held = translated(engine, question.flags)
    near, distant = _deaths(fit, question)
    return Case(
        fit=fit,
        question=question,
        engine=engine,
        held=held,
        running=running,
        running_context=positive(running, NAMES[engine].context) or fit.free_memory.context_tokens,
        deaths=near,
        distant_deaths=distant,
        lighter=lighter_share(fit.running, fit.capacity.base_gib, fit.capacity.model.facts, {**running, **held}),
    )


def _deaths(fit: YieldModel, question: Question) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
    """Return the starts out of memory that rule their fraction out, and those that only warn."""
    siblings = [death for death in fit.neighbours if counts_against(death.start, question)]
    version = question.engine_version or fit.summary.engine_version
    binding = {death.start.id for death in siblings if binds(death, version, fit.starts)}
    own = tuple(start for start in fit.starts if counts_against(start, question))
    near = tuple(death.start for death in siblings if death.start.id in binding)
    return (*own, *near), tuple(death.start for death in siblings if death.start.id not in binding)


def starting_flags(case: Case) -> dict[str, Scalar]:
    """Return the flags that the advice starts from, fraction apart."""
    return advised_flags(case.engine, case.question, case.running, case.fit.free_memory.context_tokens)


def running_flags(fit: YieldModel) -> Flags:
    """Return the flags that stand in for those not given: the newest start's as set, or a cold fit's own."""
    return flags_as_set(fit.running, fit.free_memory.context_tokens) if fit.running else fit.capacity.flags
