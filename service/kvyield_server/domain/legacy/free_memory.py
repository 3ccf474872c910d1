"""Free memory at ready: the second line of the yield model.

What the pool does not take of the base m stays free, less what the engine takes beside the pool:

    E(f) = m (1 - f) + (1 - rho) K(f) - X - table - sum_j g_j x_j        GiB

K is the pool's budget in GiB; rho is the share of the budget that is really allocated (below 1 where a draft model is
billed in layers of its target); X is all that is fixed; the table that maps requests to tokens is known arithmetic.
Flags are taken as differences from a reference start, so that a flag which never varies adds no uncertainty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Protocol

import numpy as np

from kvyield_server.domain.engines.fraction_share import fraction_share, is_amd, is_sized_after_capture
from kvyield_server.domain.engines.registry import NAMES, number, positive
from kvyield_server.domain.engines.token_cost import speculation
from kvyield_server.domain.facts.devices import has_unified_memory
from kvyield_server.domain.facts.model_config import read_shape
from kvyield_server.domain.facts.observation import NO_MEMORY_FLAGS, Engine, EngineName, Flags, Model, Observation
from kvyield_server.domain.facts.scalars import is_on
from kvyield_server.domain.facts.versions import parse_version
from kvyield_server.domain.legacy.belief import Belief, Matrix, Row, Vector
from kvyield_server.domain.legacy.free_memory_evidence import alike
from kvyield_server.domain.legacy.request_table import SPECULATIVE_REQUESTS, PoolAlong, RequestTable, request_table
from kvyield_server.domain.legacy.student import StudentT

_GIB = float(2**30)
_FIRST, _LAST = 0.25, 0.75
_NOISE_GIB = 0.14
_UNIFIED_NOISE = 0.02
_PRIOR_DF = 4.0
_UNSEEN_CHANGE_GIB = 0.4
_FIXED_GIB, _FIXED_SD_GIB = 1.35, 2.0
_GRAPHS_GIB, _GRAPHS_SD_GIB = 1.15, 0.6


class PoolLine(Protocol):
    """What free memory needs of the capacity line."""

    @property
    def engine(self) -> Engine: ...
    @property
    def flags(self) -> Flags: ...
    @property
    def base_gib(self) -> StudentT | None: ...
    @property
    def bytes_per_token(self) -> StudentT | None: ...
    def along(self, flags: Flags) -> PoolAlong: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemoryLine:
    """Free memory at ready as a function of the flags, for one deployment.

    ``is_other_version`` says that it answers for another engine version than its evidence is of.
    """

    engine: EngineName
    capacity: PoolLine
    reference: Flags
    context_tokens: int | None
    belief: Belief | None
    is_other_version: bool = False
    is_amd: bool = False

    def at_ready(self, flags: Flags) -> StudentT | None:
        """Return GiB free on the fullest GPU when the server is ready; None when nothing tells the card's memory."""
        fraction = number(flags, NAMES[self.engine].fraction)
        return None if fraction is None else self.along(flags, self.capacity.along(flags)).at_ready(fraction)

    def along(self, flags: Flags, pool: PoolAlong) -> FreeMemoryAlong:
        """Return the line under these flags as a function of the fraction; ``pool`` is the capacity line under them."""
        there, here = self._graphs(self.reference), self._graphs(flags)
        unseen = _unseen_variance(self.engine, flags, self.reference)
        return FreeMemoryAlong(
            pool=pool,
            base=self.capacity.base_gib,
            graphs=(there[0] - here[0], there[1] - here[1]),
            table=request_table(self.engine, flags, self.context_tokens),
            unseen_variance=unseen + (_UNSEEN_CHANGE_GIB**2 if self.is_other_version else 0.0),
            cap_gib=self._cap_gib(flags),
            belief=self.belief,
            share=self._share(flags),
        )

    def _share(self, flags: Flags) -> float:
        """Return what the engine multiplies the fraction by under these flags."""
        if not self.is_amd:
            return 1.0
        return fraction_share(self.capacity.engine, flags, amd=True, context_tokens=self.context_tokens)

    def _cap_gib(self, flags: Flags) -> float | None:
        """Return the GiB of a pool that a flag caps in tokens."""
        cap, cost = positive(flags, NAMES[self.engine].pool_cap), self.capacity.bytes_per_token
        return None if cap is None or cost is None else cap * cost.loc / _GIB

    def _graphs(self, flags: Flags) -> tuple[float, float]:
        """Return whether graphs are captured, and up to which number of requests."""
        names = NAMES[self.engine]
        on = 0.0 if is_on(flags.get(names.graphs_off or "")) else 1.0
        limit = positive(flags, names.graph_batch) or (
            512 if (positive(flags, names.tensor_parallel) or 1) >= 4 else 256
        )
        requests = positive(flags, names.requests)
        if requests is None:
            requests = SPECULATIVE_REQUESTS if speculation(flags) else limit
        if self.engine is EngineName.SGLANG:
            return on, on * min(requests, limit)
        return on, float(min(requests, 4096))


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemoryAlong:
    """Free memory at ready under fixed flags: what is left to say is the fraction."""

    pool: PoolAlong
    base: StudentT | None
    graphs: tuple[float, float]
    table: RequestTable
    unseen_variance: float
    cap_gib: float | None
    belief: Belief | None
    share: float = 1.0

    def at_ready(self, fraction: float) -> StudentT | None:
        """Return GiB free on the fullest GPU when the server is ready; None when nothing tells the card's memory."""
        if self.belief is None:
            return None
        value = self.belief.at(self.row(fraction), self.unseen_variance).shifted(self.known_gib(fraction))
        return value if isfinite(value.loc) and isfinite(value.scale) else None

    def known_gib(self, fraction: float) -> float:
        """Return the part that is arithmetic: what the fraction leaves of the base, less the request table."""
        base = self.base.loc if self.base is not None else 0.0
        budget, taken = self._budget(fraction)
        return base * (1.0 - self.share * fraction) + budget - taken - self.table.gib(self.pool, fraction)

    def row(self, fraction: float) -> Row:
        """Return what the coefficients are multiplied with."""
        return 1.0, self._budget(fraction)[1], 1.0 - self.share * fraction, *self.graphs

    def rows(self, fractions: Vector, lent: Vector) -> tuple[Matrix, Vector]:
        """Return ``row`` and ``known_gib`` of many fractions, ``lent`` GiB of the base being a neighbour's at each.

        The budget is a straight line, told by two points.
        """
        full = _straight(self.pool.budget_gib, fractions) - lent * self.share * fractions
        taken = full if self.cap_gib is None else np.minimum(full, self.cap_gib)
        ones, left = np.ones_like(fractions), 1.0 - self.share * fractions
        rows = np.column_stack((ones, taken, left, self.graphs[0] * ones, self.graphs[1] * ones))
        base = self.base.loc if self.base is not None else 0.0
        return rows, (base - lent) * left + full - taken - self.table.gibs(self.pool, fractions)

    def _budget(self, fraction: float) -> tuple[float, float]:
        """Return the pool's budget, GiB, and what it takes of that when a flag caps it."""
        full = self.pool.budget_gib(fraction) or 0.0
        return full, full if self.cap_gib is None else min(full, self.cap_gib)


def fit_free_memory(starts: Sequence[Observation], capacity: PoolLine, model: Model) -> FreeMemoryLine:
    """Return the free-memory line that the starts support.

    Points are free memory at ready; a figure read at pool end, and a start that ran out of memory after its pool was
    sized, are upper bounds. The newest start is the reference.
    """
    newest = max(starts, key=lambda start: (start.observed_at, start.id), default=None)
    line = FreeMemoryLine(
        engine=capacity.engine.name,
        capacity=capacity,
        reference=newest.flags if newest else capacity.flags,
        context_tokens=read_shape(model.facts).context_length,
        belief=None,
        is_amd=any(is_amd(start.hardware) for start in starts),
    )
    base = capacity.base_gib
    return line if base is None else replace(line, belief=_fitted(line, starts, _prior(line, base, starts)))


def _straight(line: Callable[[float], float | None], fractions: Vector) -> Vector:
    """Return a straight line at many fractions, zero where it is not known."""
    low, high = line(_FIRST) or 0.0, line(_LAST) or 0.0
    return low + (high - low) * ((fractions - _FIRST) / (_LAST - _FIRST))


def _fitted(line: FreeMemoryLine, starts: Sequence[Observation], prior: Belief) -> Belief:
    points: list[tuple[Matrix, Vector, Vector]] = []
    bounds: list[tuple[Matrix, Vector]] = []
    for flags, readings in alike(line.engine, starts):
        along = line.along(flags, line.capacity.along(flags))
        fractions, lent, gib, is_point = (np.array(column) for column in zip(*readings, strict=True))
        rows, known = along.rows(fractions, lent)
        left = gib - known
        weight = prior.noise_variance / (prior.noise_variance + along.unseen_variance)
        points.append((rows[is_point], left[is_point], np.full(int(is_point.sum()), weight)))
        bounds.append((rows[~is_point], left[~is_point]))
    belief = prior
    if points:
        belief = prior.with_points(*(np.concatenate(column) for column in zip(*points, strict=True)))
    for bounded, highest in bounds:
        for row, value in zip(bounded.tolist(), highest.tolist(), strict=True):
            belief = belief.below(tuple(row), value)
    return belief


def _prior(line: FreeMemoryLine, base: StudentT, starts: Sequence[Observation]) -> Belief:
    """Return the prior: SGLang leaves about 2.5 GiB less than m (1 - f), of which graphs are about half."""
    graphs_on, _ = line._graphs(line.reference)
    saved = 0.05 if _draft_billed_in_layers(starts) else 0.0
    graphs_beside = line.engine is EngineName.SGLANG and not is_sized_after_capture(line.reference)
    graphs, graphs_sd = (_GRAPHS_GIB, _GRAPHS_SD_GIB) if graphs_beside else (0.0, 0.3)
    fixed = _FIXED_GIB + (_GRAPHS_GIB * graphs_on if graphs_beside else 0.0)
    request, request_sd = _request_cost(line, starts)
    mean = (-fixed, saved, 0.0, graphs, request)
    sd = (_FIXED_SD_GIB, 0.03, max(base.scale, 1e-3), graphs_sd, request_sd)
    return Belief.prior(mean, sd, noise_sd=_noise_gib(base, starts), df=_PRIOR_DF)


def _noise_gib(base: StudentT, starts: Sequence[Observation]) -> float:
    """Return the scatter of equal starts: far more where the host's memory is the GPU's."""
    is_unified = any(has_unified_memory(start.hardware) for start in starts)
    return max(_NOISE_GIB, _UNIFIED_NOISE * base.loc) if is_unified else _NOISE_GIB


def _request_cost(line: FreeMemoryLine, starts: Sequence[Observation]) -> tuple[float, float]:
    """Return GiB per running request: verification of drafts makes graphs and logits much larger."""
    if line.engine is not EngineName.SGLANG:
        return 0.0006, 0.001
    drafts = any(speculation(start.flags) for start in starts)
    return (0.03, 0.03) if drafts else (0.004, 0.006)


def _unseen_variance(engine: EngineName, flags: Flags, reference: Flags) -> float:
    """Return the variance, GiB squared, that flags add which differ from the reference in a way not modelled."""
    if not reference or flags is reference:
        return 0.0
    names = NAMES[engine]
    modelled = {names.fraction, names.context, names.requests, names.graph_batch, names.graphs_off, "page_size"}
    mild = {names.chunk, names.kv_dtype, "max_total_tokens"}
    unseen = (key for key in flags if key not in modelled and key not in NO_MEMORY_FLAGS)
    changed = [key for key in unseen if reference.get(key, _MISSING) != flags[key]]
    strong = sum(1 for key in changed if key not in mild and not _harmless(flags, reference, key))
    return 0.05**2 * (len(changed) - strong) + _UNSEEN_CHANGE_GIB**2 * min(strong, 6)


_MISSING = inf


def _harmless(flags: Flags, reference: Flags, key: str) -> bool:
    """A flag that one side says is off and the other does not mention is no change."""
    return key not in reference and flags[key] in (None, False)


def _draft_billed_in_layers(starts: Sequence[Observation]) -> bool:
    """SGLang 0.5.11 to 0.5.15 bills a block draft as so many layers of its target, which the draft does not take."""
    return any(
        speculation(start.flags) in ("dflash", "dspark")
        and (0, 5, 11, 0) <= (parse_version(start.engine.version) or (0, 5, 12, 0)) <= (0, 5, 15, 99)
        for start in starts
        if start.engine.name is EngineName.SGLANG
    )
