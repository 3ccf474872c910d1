"""A yield model that is simply given: a straight pool line, a straight line of free memory, and a prompt need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log

import numpy as np
from scipy.special import ndtr, ndtri

from kvyield_server.domain.answers import Basis, BasisKind, Caution, Estimate, FitSummary
from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.facts.observation import (
    NO_MEMORY_FLAGS,
    Engine,
    Flags,
    Hardware,
    Model,
    Observation,
    Outcome,
    Verification,
)
from kvyield_server.domain.model.interface import Floats, Mask, Measured, Predicted

GIB = float(2**30)


@dataclass(frozen=True)
class Normal:
    """A quantity at n fractions: means and one standard deviation; a cap is the most that it can be."""

    mean: Floats
    sd: float
    cap: float = float("inf")

    def above(self, threshold: float) -> Floats:
        sure = ndtr((self.mean - threshold) / self.sd)
        return np.asarray(sure if threshold <= self.cap else np.zeros_like(self.mean))

    def quantile(self, probability: float) -> Floats:
        return np.minimum(self.mean + self.sd * float(ndtri(probability)), self.cap)

    def at(self, index: int) -> Normal:
        return replace(self, mean=self.mean[index : index + 1])

    def median(self, index: int) -> float:
        return float(self.quantile(0.5)[index])

    def estimate(self, index: int, level: float = 0.9) -> Estimate:
        low, median, high = (float(self.quantile(p)[index]) for p in ((1 - level) / 2, 0.5, (1 + level) / 2))
        return Estimate(median=median, low=low, high=high, level=level)


@dataclass(frozen=True)
class GivenNeed:
    """A lognormal prompt need."""

    median_gib: float
    log_sd: float
    is_measured: bool = False

    def at_most(self, gib: float) -> float:
        return 0.0 if gib <= 0.0 else float(ndtr(log(gib / self.median_gib) / self.log_sd))

    def estimate(self, level: float = 0.9) -> Estimate:
        half = float(ndtri((1 + level) / 2)) * self.log_sd
        return Estimate(
            median=self.median_gib, low=self.median_gib * exp(-half), high=self.median_gib * exp(half), level=level
        )


@dataclass(frozen=True, kw_only=True)
class GivenModel:
    """A deployment: N = base (f - zero) / c, E = free_at_zero - base f, and what its starts measured.

    Fewer running requests free 0.03 GiB each; an 8-bit KV cache halves the bytes of a token. Where the need grows with
    the prompt it does so in proportion, from ``need_grows_from`` tokens on.
    """

    model: Model
    hardware: Hardware
    engine: Engine
    flags: Flags
    starts: Sequence[Observation] = ()
    base: float = 100.0
    zero: float = 0.2
    token_bytes: float = 131072.0
    pool_noise: float = 0.0002
    free_at_zero: float | None = 100.0
    free_sd: float = 0.3
    need_gib: float = 1.2
    need_sd: float = 0.3
    need_grows_from: int | None = None
    table_gib_per_token: float = 0.0
    graph_gib: float = 0.0
    page_tokens: int = 1
    context_tokens: int | None = None
    weights_are_stated: bool = True
    why_unsound: str | None = None
    is_known: bool = True
    drifted: Observation | None = None
    labels: tuple[str, ...] = ()
    version: str | None = None
    death: Observation | None = None
    extra: dict[str, float] = field(default_factory=dict)
    relatives: Sequence[GivenModel] = ()
    distant_deaths: Sequence[Observation] = ()

    @property
    def summary(self) -> FitSummary:
        passed = [check.prompt_tokens for start in self.starts for check in start.verifications if check.passed]
        kind = (BasisKind.CONFIG_ONLY, BasisKind.ONE_START, BasisKind.SEVERAL_STARTS)[min(2, len(self.starts))]
        basis = Basis(
            kind=kind,
            deployment="given",
            observation_ids=tuple(start.id for start in self.starts),
            verified_prompt_tokens=max(passed, default=None),
        )
        slope = self.base * GIB / self.token_bytes
        parameters = {
            "slope_tokens_per_fraction": Estimate(median=slope, low=slope, high=slope),
            "zero_fraction": Estimate(median=self.zero, low=self.zero, high=self.zero),
        }
        return FitSummary(
            deployment="given",
            deployment_id="00000000",
            engine=self.engine.name,
            engine_version=self.engine.version,
            parameters=parameters,
            basis=basis,
            evidence=(),
            labels=self.labels,
        )

    @property
    def runs(self) -> Observation | None:
        return next((start for start in reversed(self.starts) if start.came_up), None)

    @property
    def limited(self) -> Observation | None:
        printed = (start for start in self.starts if start.came_up and start.measurements.longest_prompt_tokens)
        return max(printed, key=lambda start: start.observed_at, default=None)

    def contradiction(self, flags: Flags) -> str | None:
        return self.why_unsound

    def at(self, flags: Flags, fractions: Floats) -> Predicted:
        names = NAMES[self.engine.name]
        cost = self.bytes_per_token(flags).median
        tokens = np.maximum(self.base * (fractions - self.zero) * GIB / cost, -1e9)
        sd = self.pool_noise * 0.15 * self.base * GIB / cost + 0.5
        line = Normal(tokens, sd)
        cap = positive(flags, names.pool_cap)
        fixed = positive(flags, names.blocks_flag)
        pool, flag = (Normal(tokens, sd, float(cap)), names.pool_cap) if cap else (line, None)
        if fixed:
            pool, flag = Normal(np.full_like(fractions, fixed * self.page_tokens), 0.5), names.blocks_flag
        for name in names.bytes_flags:
            if size := positive_bytes(flags, name):
                pool, flag = Normal(np.full_like(fractions, size / cost), 0.5), name
        free = None
        if self.free_at_zero is not None:
            requests = positive(flags, names.requests) or 0
            context = positive(flags, names.context) or self.context_tokens or 0
            graphs = self.graph_gib * (positive(flags, names.graph_batch) or 512) / 512
            shift = (
                graphs
                + self.table_gib_per_token * context
                + sum(gib for key, gib in self.extra.items() if flags.get(key) is not None)
            )
            free = Normal(self.free_at_zero - self.base * fractions - 0.03 * requests - shift, self.free_sd)
        known = self.is_known
        return Predicted(
            fractions=fractions,
            pool=pool if known else None,
            line=line if known else None,
            kv_gib=None,
            free=free,
            pool_flag=flag,
        )

    def need(self, flags: Flags, prompt_tokens: int) -> GivenNeed:
        taken = [
            check.free_before_gib - check.lowest_free_gib
            for start in self.starts
            for check in start.verifications
            if check.passed and check.prompt_tokens >= prompt_tokens
            if check.free_before_gib is not None and check.lowest_free_gib is not None
        ]
        if taken:
            return GivenNeed(max(*taken, 1e-3), 0.05, is_measured=True)  # lognormal, so never quite nothing
        if self.need_grows_from is not None:
            return GivenNeed(self.need_gib * max(1.0, prompt_tokens / self.need_grows_from), self.need_sd)
        chunk = positive(flags, NAMES[self.engine.name].chunk) or 8192
        return GivenNeed(self.need_gib * chunk / 8192, self.need_sd)

    def survives(
        self, flags: Flags, predicted: Predicted, need: GivenNeed | float, prompt_tokens: int
    ) -> Floats | None:
        free = predicted.free
        if free is None:
            return None
        nodes = ndtri((np.arange(41) + 0.5) / 41)
        needs = need.median_gib * np.exp(need.log_sd * nodes) if isinstance(need, GivenNeed) else np.array([need])
        return np.asarray(np.mean([free.above(float(gib)) for gib in needs], axis=0))

    def forbidden(
        self, flags: Flags, fractions: Floats, prompt_tokens: int, concurrent: int
    ) -> tuple[Mask, Observation | None]:
        died = self.death
        if died is None:
            died = next((start for start in reversed(self.starts) if start.outcome is Outcome.OOM_STARTUP), None)
        if died is None or died.fraction is None:
            return np.zeros(fractions.shape, dtype=bool), None
        return fractions >= died.fraction - 1e-9, died

    def measured(self, flags: Flags) -> Measured | None:
        alike = tuple(start for start in self.starts if start.came_up and same(start.flags, flags))
        if not alike:
            return None
        newest = alike[-1].measurements
        return Measured(
            newest=alike[-1],
            pool_tokens=newest.pool_tokens,
            free_at_ready_gib=newest.free_at_ready_gib,
        )

    def failed(self, flags: Flags) -> Observation | None:
        return None

    def implausible(self, start: Observation) -> str | None:
        return None

    def passed(self, flags: Flags, prompt_tokens: int, concurrent: int) -> Verification | None:
        return self._check(flags, prompt_tokens, concurrent, passed=True)

    def unserved(self, flags: Flags, prompt_tokens: int, concurrent: int) -> Verification | None:
        if self.passed(flags, prompt_tokens, concurrent) is not None:
            return None
        failed = (
            check
            for start in self.starts
            for check in start.verifications
            if not check.passed and check.prompt_tokens <= prompt_tokens
            if not is_lighter(self, flags, start.flags)
        )
        return next(failed, None)

    def uncounted(self, asked: Flags) -> Iterator[Caution]:
        return iter(())

    def bytes_per_token(self, flags: Flags) -> Estimate:
        cost = self.token_bytes * (0.5 if "fp8" in str(flags.get("kv_cache_dtype")) else 1.0)
        return Estimate(median=cost, low=cost, high=cost)

    def _check(self, flags: Flags, prompt_tokens: int, concurrent: int, *, passed: bool) -> Verification | None:
        found = (
            check
            for start in self.starts
            if same(start.flags, flags)
            for check in start.verifications
            if check.passed is passed and check.prompt_tokens >= prompt_tokens and (check.concurrent or 1) >= concurrent
        )
        return next(found, None)


def same(one: Flags, other: Flags) -> bool:
    """Tell whether two sets of flags are the same to the memory."""
    keys = {*one, *other} - NO_MEMORY_FLAGS
    return all(one.get(key) == other.get(key) for key in keys)


def is_lighter(model: GivenModel, flags: Flags, then: Flags) -> bool:
    """Tell whether flags take less memory than others: a smaller fraction or chunk, or fewer requests."""
    names = NAMES[model.engine.name]
    return any(
        isinstance(now := flags.get(key), int | float)
        and isinstance(before := then.get(key), int | float)
        and now < before
        for key in (names.fraction, names.chunk, names.requests)
    )


def positive_bytes(flags: Flags, name: str) -> float | None:
    value = flags.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def with_starts(model: GivenModel, *starts: Observation) -> GivenModel:
    """Return the model with other starts, oldest first; the newest that came up lends its flags."""
    runs = next((start for start in reversed(starts) if start.came_up), starts[-1] if starts else None)
    return replace(model, starts=starts, flags=runs.flags if runs is not None else model.flags)
