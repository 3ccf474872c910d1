"""Free memory at ready: the other line of the yield model, linear in columns that share m and K with the pool's.

What the pool does not take of the base m stays free, less what the engine takes beside the pool:

    E(f) = m (1 - f) + (K - taken) + s taken - X - table - graphs . g + d G        GiB

K is the pool's budget and ``taken`` what a cap or a fixed pool leaves of it; s is the share of a pool that is budgeted
and not allocated (a draft billed in layers of its target); X is all that is fixed; the table of requests is arithmetic;
d tells whether SGLang left out its prefill graphs, which take G. Unknown are (X, s, error of m, g, G): a normal prior,
points of free memory, and bounds (a start that came up had some left, one that died starting had none), each of which
may mean something else. The scatter of equal starts runs over fixed scales, weighted by evidence, as for the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, sqrt
from typing import NamedTuple
from uuid import UUID

import numpy as np
from scipy.special import ndtr

from kvyield_server.domain.engines.fraction_share import is_sized_after_capture
from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.engines.sglang import (
    FEWEST_REQUESTS,
    PREFILL_GRAPH_FREE_GIB,
    SPECULATIVE_REQUESTS,
    attention_ranks,
    default_requests,
    request_table_gib,
)
from kvyield_server.domain.engines.token_cost import speculation
from kvyield_server.domain.engines.vllm import default_sequences
from kvyield_server.domain.facts.devices import has_unified_memory
from kvyield_server.domain.facts.model_config import read_shape
from kvyield_server.domain.facts.observation import (
    NO_MEMORY_FLAGS,
    EngineName,
    Flags,
    Observation,
    Outcome,
    Scalar,
)
from kvyield_server.domain.facts.scalars import as_number, is_on
from kvyield_server.domain.facts.versions import parse_version
from kvyield_server.domain.model.bounds import Bound, Normals, given_bounds
from kvyield_server.domain.model.evidence import fraction_of, held_by_others, usable_free
from kvyield_server.domain.model.line import Normal
from kvyield_server.domain.model.mixture import Floats, Mixture
from kvyield_server.domain.model.pool import PoolAt, PoolLine
from kvyield_server.domain.model.pool_fit import REBASE_GIB

NOISE_GIB, NOISE_WEIGHT = (0.03, 0.08, 0.14, 0.3, 0.8, 2.5), (0.12, 0.25, 0.28, 0.2, 0.1, 0.05)
UNIFIED_NOISE, UNIFIED_WEIGHT = (0.005, 0.01, 0.02, 0.04, 0.1), (0.1, 0.25, 0.35, 0.2, 0.1)
FIXED = Normal(1.35, 2.0)
GRAPHS = Normal(1.15, 0.6)
REQUEST = Normal(0.004, 0.006)
DRAFT_REQUEST = Normal(0.03, 0.03)
OTHER_REQUEST = Normal(0.0006, 0.001)
PREFILL_GRAPHS = Normal(1.3, 0.12)
"""What SGLang's prefill graphs take, GiB: 1.24 to 1.44 over the starts in the recorded trial."""
ALL_GRAPHS_GIB = 1.8
STEP_DOUBT_GIB, NEVER_DROPPED = 0.2, 1e-4
UNSEEN_CHANGE_GIB, MILD_CHANGE_GIB = 0.4, 0.05
PROFILE_CHANGE_GIB = 0.24
"""vLLM keeps some of what its profile run took: with other max_num_batched_tokens 0.02 to 0.38 GiB less was free at
ready (root mean square of five recorded starts), in no order."""
SAMPLED_SD_GIB = 0.1
"""Free memory read from the GPU before a prompt, not by the engine at ready."""
LARGEST_GIB, LEAST_BASE_GIB = 1e5, 1e-3
LEAST_FREE_GIB = 0.005
"""Engines print hundredths of a GiB and nothing below zero: a reading of 0.00 says that no memory was left, not by how
much more was wanted."""
COLUMNS = 6
MOST_SAVED = 0.2
LEAST_POINTS, FAR = 4, 6.0
WRONG_SHARE, WRONG_SD = 0.05, 0.1
"""How often arithmetic alone is nowhere near, and by how much then, as a share of the GPU's memory: one of the seven
pairs with readings was, by 2 to 12 % (tests/domain/estimate_priors.py); seven say little of how often."""
UNRELATED = 0.01
"""How often a start runs out of memory for a cause of its own, such as another process nobody saw: none of 252 recorded
starts that came up and of 19 deaths shows one, so not much above 3 in 252 (the same script)."""
MOST_BOUNDS, MOST_DEATHS = 8, 4
TRUST = {"upper": 0.9, "lower": 0.995, "death": 1.0}
"""How often a bound means what it says; what else a death may mean has normals of its own."""
NEGLIGIBLE = 2e-3
PREFILL_VERSION = (0, 5, 16, 0)


class Reading(NamedTuple):
    """What one start says of free memory: GiB, what kind of statement, further doubt, GiB that others held."""

    fraction: float
    gib: float
    kind: str
    sd: float
    lent: float
    dropped: float


class FreePoints(NamedTuple):
    """Points of free memory: rows of shape (n, columns), GiB without the arithmetic part, and further variances."""

    rows: Floats
    values: Floats
    extra: Floats


class Prior(NamedTuple):
    """Means and standard deviations of the coefficients before any start."""

    mean: Floats
    sd: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """Free memory at ready as a function of the flags, for one deployment.

    ``reference`` are the flags that columns are differences from, so that a flag which never varies adds no doubt.
    ``graph_gib`` is what all graphs take where prefill graphs are among them.
    """

    line: PoolLine
    reference: Flags
    context_tokens: int | None
    posterior: Normals | None
    graph_gib: float = ALL_GRAPHS_GIB
    is_other_version: bool = False

    @property
    def engine(self) -> EngineName:
        return self.line.setting.engine.name

    def at(self, flags: Flags, fractions: Floats, pool: PoolAt) -> tuple[Mixture | None, Floats | None]:
        """Return GiB free on the fullest GPU at ready, and how likely SGLang leaves out its prefill graphs.

        The first is None where nothing tells the GPU's memory, the second where graphs are never left out.
        """
        if self.posterior is None:
            return None, None
        captured = self._mixture(flags, fractions, pool, dropped=0.0)
        if not self.may_drop_graphs(flags):
            return captured, None
        after_pool = captured.moments()[0] + self.graph_gib
        share: Floats = ndtr((PREFILL_GRAPH_FREE_GIB - after_pool) / STEP_DOUBT_GIB)
        if not (share > NEVER_DROPPED).any():
            return captured, None
        without = self._mixture(flags, fractions, pool, dropped=1.0)
        mixed = Mixture(
            mean=np.concatenate((captured.mean, without.mean)),
            sd=np.concatenate((captured.sd, without.sd)),
            weight=np.concatenate((captured.weight * (1.0 - share), without.weight * share)),
        )
        return mixed, share

    def may_drop_graphs(self, flags: Flags) -> bool:
        """Tell whether SGLang of this version captures prefill graphs where there is room for them."""
        if self.engine is not EngineName.SGLANG or is_on(flags.get("disable_cuda_graph")):
            return False
        named = flags.get("disable_prefill_cuda_graph")
        if named is not None:
            return not is_on(named)
        version = parse_version(self.line.setting.engine.version)
        return version is not None and version >= PREFILL_VERSION

    def left_out_graphs(self, start: Observation, ready: float) -> bool:
        """Tell whether SGLang left out its prefill graphs at a start with so much free at ready."""
        return _dropped(self, start, ready) > 0.0

    def _mixture(self, flags: Flags, fractions: Floats, pool: PoolAt, *, dropped: float) -> Mixture:
        assert self.posterior is not None
        p = self.posterior
        rows, known = self.rows(flags, fractions, pool, dropped=np.full(fractions.size, dropped))
        mean = p.mean @ rows.T + known
        variance = ((rows @ p.covariance) * rows).sum(axis=2)
        unseen = _unseen_variance(self.engine, flags, self.reference)
        unseen += UNSEEN_CHANGE_GIB**2 if self.is_other_version else 0.0
        sd = np.sqrt(np.maximum(variance + unseen, 0.0) + (p.noise**2)[:, None])
        return Mixture(mean=mean, sd=sd, weight=np.full(mean.shape, p.weight[:, None]))

    def rows(
        self, flags: Flags, fractions: Floats, pool: PoolAt, *, dropped: Floats, lent: Floats | float = 0.0
    ) -> tuple[Floats, Floats]:
        """Return what the coefficients are multiplied with, and the part that is arithmetic, at each fraction.

        ``lent`` is what another process held of the base.
        """
        base = self.line.base
        assert base is not None
        counts_blocks = NAMES[self.engine].counts_blocks is not None
        x = np.minimum(fractions, 1.0) if counts_blocks else fractions * self.line.share(flags)
        left = 1.0 - x
        there, here = self._graphs(self.reference), self._graphs(flags)
        taken = np.maximum(pool.taken_gib, 0.0)
        spare = np.maximum(pool.budget_gib, 0.0) - taken
        if pool.flag is None:
            spare = np.zeros_like(taken)
        known = (base.mean - lent) * left + spare - self._table(flags, pool)
        if self.engine is EngineName.VLLM:
            known = base.mean * left + spare - lent
        ones = np.ones_like(fractions)
        left = left + spare / max(base.mean, LEAST_BASE_GIB)
        graphs = (ones * (there[0] - here[0]), ones * (there[1] - here[1]))
        return np.column_stack((ones, taken, left, *graphs, dropped)), known

    def _table(self, flags: Flags, pool: PoolAt) -> Floats | float:
        """Return the GiB of SGLang's request table at each fraction; zero where its context is unknown."""
        names = NAMES[self.engine]
        context = positive(flags, names.context) or self.context_tokens
        if self.engine is not EngineName.SGLANG or context is None:
            return 0.0
        requests = positive(flags, names.requests) or (SPECULATIVE_REQUESTS if speculation(flags) else None)
        ranks = attention_ranks(flags)
        if requests is not None:
            return request_table_gib(np.array([float(requests)]), context, ranks)
        if pool.pool is None:
            return request_table_gib(np.array([float(FEWEST_REQUESTS)]), context, ranks)
        tokens = np.minimum(pool.pool.moments()[0], pool.pool.ceiling)
        return request_table_gib(default_requests(np.maximum(tokens, 0.0), context), context, ranks)

    def _graphs(self, flags: Flags) -> tuple[float, float]:
        """Return whether graphs are captured, and up to which number of requests."""
        names = NAMES[self.engine]
        on = 0.0 if is_on(flags.get(names.graphs_off or "")) else 1.0
        tensor = positive(flags, names.tensor_parallel) or 1
        limit = positive(flags, names.graph_batch) or (512 if tensor >= 4 else 256)
        requests = positive(flags, names.requests)
        if requests is None:
            requests = SPECULATIVE_REQUESTS if speculation(flags) else limit
        if self.engine is EngineName.SGLANG:
            return on, on * min(requests, limit)
        if self.engine is EngineName.VLLM:
            requests = positive(flags, names.requests) or default_sequences(self.line.setting.hardware)
        return on, float(min(requests, 4096))


def fit_free_memory(starts: Sequence[Observation], line: PoolLine, deaths: Sequence[Observation] = ()) -> FreeMemory:
    """Return the free-memory line that the starts support, given the pool's line. The newest start is the reference.

    ``deaths`` are those that count, among the starts and of deployments much alike.
    """
    newest = starts[-1] if starts else None
    setting = line.setting
    free = FreeMemory(
        line=line,
        reference=newest.flags if newest is not None else setting.flags,
        context_tokens=read_shape(setting.model.facts).context_length,
        posterior=None,
        graph_gib=_all_graphs(starts),
    )
    base = line.base
    if base is None:
        return free
    own = {start.id for start in starts}
    others = [death for death in deaths if death.id not in own and death.outcome is Outcome.OOM_STARTUP]
    readings = list(_alike(free, [*starts, *others], frozenset(start.id for start in deaths)))
    return replace(free, posterior=_posterior(free, base, readings))


def _all_graphs(starts: Sequence[Observation]) -> float:
    logged = [gib for start in starts if (gib := as_number(start.measurements.graph_gib)) is not None and 0 < gib < 50]
    return max((gib for gib in logged if gib >= 1.0), default=ALL_GRAPHS_GIB)


def _alike(
    free: FreeMemory, starts: Sequence[Observation], deaths: frozenset[UUID]
) -> Sequence[tuple[Flags, list[Reading]]]:
    """Return each set of flags, fraction apart, with the readings of the starts that had them."""
    name, usual = NAMES[free.engine].fraction, _usual_free(starts)
    alike: dict[tuple[tuple[str, Scalar], ...], list[Observation]] = {}
    for start in starts:
        if fraction_of(start) is not None:
            key = tuple([item for item in start.flags.items() if item[0] != name])
            alike.setdefault(key, []).append(start)
    found = []
    for same in alike.values():
        may_drop = free.may_drop_graphs(same[0].flags)
        told = (_reading(free, start, usual, is_death=start.id in deaths, may_drop=may_drop) for start in same)
        readings = [reading for reading in told if reading is not None]
        if readings:
            found.append((same[0].flags, readings))
    return found


def _usual_free(starts: Sequence[Observation]) -> float | None:
    """Return what was free before load at the newest start that logged it while no other process held memory."""
    logged = [start for start in starts if start.measurements.free_before_load_gib is not None]
    alone = [start for start in logged if not held_by_others(start)] or logged
    return alone[-1].measurements.free_before_load_gib if alone else None


def _reading(
    free: FreeMemory, start: Observation, usual: float | None, *, is_death: bool, may_drop: bool
) -> Reading | None:
    """Return GiB free at ready as a point, an upper or a lower bound; None where a start says nothing."""
    fraction = fraction_of(start) or 0.0
    measured, own = start.measurements, as_number(start.measurements.free_before_load_gib)
    lent = 0.0
    if own is not None and usual is not None and REBASE_GIB < abs(usual - own) < LARGEST_GIB:
        lent = usual - own
    if start.outcome is Outcome.OOM_STARTUP:
        is_other = start.engine.version != free.line.setting.engine.version
        return Reading(fraction, 0.0, "death", UNSEEN_CHANGE_GIB * is_other, lent, 0.0) if is_death else None
    if not start.came_up:
        return None
    ready = usable_free(start, measured.free_at_ready_gib)
    pool_end = usable_free(start, measured.free_at_pool_end_gib)
    if ready is not None and ready != pool_end and ready >= LEAST_FREE_GIB:
        return Reading(fraction, ready, "point", 0.0, lent, _dropped(free, start, ready) if may_drop else 0.0)
    before = [usable_free(start, check.free_before_gib) for check in start.verifications]
    sampled = max((gib for gib in before if gib is not None), default=None)
    if sampled is not None:
        dropped = _dropped(free, start, sampled) if may_drop else 0.0
        return Reading(fraction, sampled, "point", SAMPLED_SD_GIB, lent, dropped)
    most = pool_end if ready is None else ready
    if most is not None:
        return Reading(fraction, most, "upper", 0.0, lent, 0.0)
    return Reading(fraction, 0.0, "lower", 0.0, lent, 0.0)


def _dropped(free: FreeMemory, start: Observation, ready: float) -> float:
    """Return 1 where prefill graphs were left out, told by what graphs took or by what was free before them."""
    if not free.may_drop_graphs(start.flags):
        return 0.0
    took = as_number(start.measurements.graph_gib)
    if took is None:
        return 1.0 if ready + PREFILL_GRAPHS.mean < PREFILL_GRAPH_FREE_GIB - free.graph_gib else 0.0
    is_short = took < free.graph_gib - 0.5 * PREFILL_GRAPHS.mean
    return 1.0 if is_short or (took < 1.0 and ready + took < PREFILL_GRAPH_FREE_GIB) else 0.0


def _posterior(free: FreeMemory, base: Normal, groups: Sequence[tuple[Flags, list[Reading]]]) -> Normals:
    mean, sd = _prior(free, base)
    is_unified = has_unified_memory(free.line.setting.hardware)
    noise = np.array(UNIFIED_NOISE) * base.mean if is_unified else np.array(NOISE_GIB)
    weight = np.array(UNIFIED_WEIGHT if is_unified else NOISE_WEIGHT)
    points, bounds, deaths = _stacked(free, groups)
    posterior = _with_points(Prior(mean, sd), noise, weight, points)
    scales = posterior.weight.size
    if not points.values.size:
        posterior = _or_wrong(posterior, mean, sd, WRONG_SD * base.mean)
    return _falling(_given(_merged(posterior, scales), bounds, deaths), base)


def _or_wrong(posterior: Normals, mean: Floats, sd: Floats, wrong_gib: float) -> Normals:
    """Return the prior, or else one that is far wider in what is fixed, as long as no start measured free memory."""
    wide = np.diag(np.concatenate(([wrong_gib], sd[1:])) ** 2)
    return Normals(
        weight=np.append((1.0 - WRONG_SHARE) * posterior.weight, WRONG_SHARE),
        mean=np.vstack((posterior.mean, mean)),
        covariance=np.concatenate((posterior.covariance, wide[None])),
        noise=np.append(posterior.noise, np.median(posterior.noise)),
    )


def _given(posterior: Normals, bounds: list[Bound], deaths: list[Bound]) -> Normals:
    """Return the posterior given all bounds; each death doubles the normals, for its cause may have been another."""
    if not bounds and not deaths:
        return posterior
    told = np.array(list(product((1.0, 0.0), repeat=len(deaths))))
    counts = np.hstack((np.ones((len(told), len(bounds))), told)).repeat(posterior.weight.size, axis=0)
    doubled = Normals(
        weight=np.tile(posterior.weight, len(told)) * UNRELATED ** (1.0 - counts[:, len(bounds) :]).sum(axis=1),
        mean=np.tile(posterior.mean, (len(told), 1)),
        covariance=np.tile(posterior.covariance, (len(told), 1, 1)),
        noise=np.tile(posterior.noise, len(told)),
    )
    found = given_bounds(doubled, [*bounds, *deaths], counts)
    kept = found.weight > NEGLIGIBLE
    return Normals(
        weight=found.weight[kept] / found.weight[kept].sum(),
        mean=found.mean[kept],
        covariance=found.covariance[kept],
        noise=found.noise[kept],
    )


def _merged(posterior: Normals, scales: int) -> Normals:
    """Return the posterior with neighbours among the first ``scales`` normals joined, to three at most."""
    order = np.argsort(posterior.noise[:scales])
    reached = np.cumsum(posterior.weight[order]) / posterior.weight[:scales].sum()
    slots = np.minimum(np.searchsorted(np.array([0.6, 0.93]), reached - 1e-12), 2)
    weight, means, covariances, noise = [], [], [], []
    for slot in np.unique(slots):
        chosen = order[slots == slot]
        share = posterior.weight[chosen] / posterior.weight[chosen].sum()
        mean = share @ posterior.mean[chosen]
        off = posterior.mean[chosen] - mean
        weight.append(posterior.weight[chosen].sum())
        means.append(mean)
        covariances.append(np.einsum("k,kij->ij", share, posterior.covariance[chosen]) + (share[:, None] * off).T @ off)
        noise.append(sqrt(float(share @ posterior.noise[chosen] ** 2)))
    return Normals(
        weight=np.concatenate((weight, posterior.weight[scales:])),
        mean=np.concatenate((means, posterior.mean[scales:])),
        covariance=np.concatenate((covariances, posterior.covariance[scales:])),
        noise=np.concatenate((noise, posterior.noise[scales:])),
    )


def _falling(posterior: Normals, base: Normal) -> Normals:
    """Return the posterior with free memory that falls as the fraction rises, whatever the starts said."""
    mean = posterior.mean.copy()
    mean[:, 1] = np.clip(mean[:, 1], -0.1, MOST_SAVED)
    mean[:, 2] = np.maximum(mean[:, 2], -0.5 * base.mean)
    return replace(posterior, mean=mean)


def _prior(free: FreeMemory, base: Normal) -> tuple[Floats, Floats]:
    """Return the prior of (-X, s, error of m, graphs, each request, prefill graphs left out)."""
    graphs_on, _ = free._graphs(free.reference)
    setting, engine = free.line.setting, free.engine
    saved = 0.05 if _draft_billed_in_layers(setting.engine.version, free) else 0.0
    beside = engine is EngineName.SGLANG and not is_sized_after_capture(free.reference)
    graphs = GRAPHS if beside else Normal(0.0, 0.3)
    fixed = FIXED.mean + (GRAPHS.mean * graphs_on if beside else 0.0)
    request = OTHER_REQUEST
    if engine is EngineName.SGLANG:
        request = DRAFT_REQUEST if speculation(setting.flags) else REQUEST
    means = (-fixed, saved, 0.0, graphs.mean, request.mean, PREFILL_GRAPHS.mean)
    sds = (FIXED.sd, 0.03, max(min(base.sd, base.mean), 1e-3), graphs.sd, request.sd, PREFILL_GRAPHS.sd)
    return np.array(means), np.array(sds)


def _draft_billed_in_layers(version: str | None, free: FreeMemory) -> bool:
    """SGLang 0.5.11 to 0.5.15 bills a block draft as so many layers of its target, which the draft does not take."""
    is_block = speculation(free.line.setting.flags) in ("dflash", "dspark")
    era = parse_version(version) or (0, 5, 12, 0)
    return free.engine is EngineName.SGLANG and is_block and (0, 5, 11, 0) <= era <= (0, 5, 15, 99)


def _stacked(
    free: FreeMemory, groups: Sequence[tuple[Flags, list[Reading]]]
) -> tuple[FreePoints, list[Bound], list[Bound]]:
    """Return all points, and the bounds and deaths that say most: the lowest upper and the highest lower ones."""
    rows, values, extra = [np.zeros((0, COLUMNS))], [np.zeros(0)], [np.zeros(0)]
    found: dict[str, list[Bound]] = {"upper": [], "lower": [], "death": []}
    for flags, readings in groups:
        fractions = np.array([reading.fraction for reading in readings])
        lent = np.array([reading.lent for reading in readings])
        dropped = np.array([reading.dropped for reading in readings])
        unseen = _unseen_variance(free.engine, flags, free.reference)
        pool = free.line.at(flags, fractions)
        row, known = free.rows(flags, fractions, pool, dropped=dropped, lent=lent)
        is_point = np.array([reading.kind == "point" for reading in readings])
        left = np.array([reading.gib for reading in readings]) - known
        rows.append(row[is_point])
        values.append(left[is_point])
        extra.append(np.array([reading.sd**2 for reading in readings])[is_point] + unseen)
        for index in np.flatnonzero(~is_point):
            kind, sign = readings[index].kind, -1.0 if readings[index].kind == "lower" else 1.0
            doubt = readings[index].sd ** 2 + unseen
            found[kind].append(Bound(sign * row[index], sign * float(left[index]), TRUST[kind], doubt))
    points = FreePoints(np.concatenate(rows), np.concatenate(values), np.concatenate(extra))
    upper, lower, deaths = (sorted(found[kind], key=_tightness) for kind in ("upper", "lower", "death"))
    return points, [*upper[:MOST_BOUNDS], *lower[:MOST_BOUNDS]], deaths[:MOST_DEATHS]


def _tightness(bound: Bound) -> tuple[float, ...]:
    return bound.limit, *bound.row


def _with_points(prior: Prior, noise: Floats, weight: Floats, points: FreePoints) -> Normals:
    """Return the posterior after all points, at each noise scale, weighted by its evidence."""
    (mean, sd), (rows, values, extra) = prior, points
    precision, count = np.diag(sd**-2.0), values.size
    scatter = noise[:, None] ** 2 + extra
    robust = (
        np.ones_like(scatter) if count < LEAST_POINTS else np.tile(_inliers(mean, sd, rows, values), (noise.size, 1))
    )
    p = robust / scatter
    total = precision + np.einsum("kn,ni,nj->kij", p, rows, rows)
    covariance = np.linalg.inv(total)
    pull = precision @ mean + np.einsum("kn,ni,n->ki", p, rows, values)
    found = np.einsum("kij,kj->ki", covariance, pull)
    if not count:
        return Normals(weight=weight, mean=found, covariance=covariance, noise=noise)
    off = values - found @ rows.T
    misfit = (p * off * off).sum(axis=1) + (((found - mean) / sd) ** 2).sum(axis=1)
    height = np.log(weight) - 0.5 * misfit - 0.5 * (robust * np.log(scatter)).sum(axis=1)
    height += 0.5 * np.linalg.slogdet(covariance)[1]
    share = np.exp(height - height.max())
    kept = share > NEGLIGIBLE
    share = share[kept] / share[kept].sum()
    return Normals(weight=share, mean=found[kept], covariance=covariance[kept], noise=noise[kept])


def _inliers(mean: Floats, sd: Floats, rows: Floats, values: Floats) -> Floats:
    """Return 1 for points near the median of what is left when the prior's columns are taken off, 0 for those far out.

    Another process, a mistyped figure or a mislabelled outcome moves single points by gigabytes.
    """
    left = values - rows @ mean
    middle = np.median(left)
    spread = 1.4826 * float(np.median(np.abs(left - middle)))
    doubt = np.sqrt((((rows - np.median(rows, axis=0)) * np.where(np.arange(sd.size) == 0, 0.0, sd)) ** 2).sum(axis=1))
    near = np.abs(left - middle) <= FAR * np.maximum(spread, 0.25) + 3.0 * doubt
    found: Floats = near.astype(np.float64)
    return found


def _unseen_variance(engine: EngineName, flags: Flags, reference: Flags) -> float:
    """Return the variance, GiB squared, that flags add which differ from the reference in a way not modelled."""
    if not reference or flags is reference:
        return 0.0
    names = NAMES[engine]
    modelled = {names.fraction, names.context, names.requests, names.graph_batch, names.graphs_off, "page_size"}
    modelled |= {"disable_prefill_cuda_graph", *names.caps, *names.inert_with}
    mild = {names.chunk, names.kv_dtype}
    unseen = (key for key in flags if key not in modelled and key not in NO_MEMORY_FLAGS)
    changed = [key for key in unseen if reference.get(key, inf) != flags[key]]
    strong = sum(1 for key in changed if key not in mild and not _harmless(flags, reference, key))
    profiled = PROFILE_CHANGE_GIB if engine is EngineName.VLLM and names.chunk in changed else 0.0
    return MILD_CHANGE_GIB**2 * (len(changed) - strong) + UNSEEN_CHANGE_GIB**2 * min(strong, 6) + profiled**2


def _harmless(flags: Flags, reference: Flags, key: str) -> bool:
    """A flag that one side says is off and the other does not mention is not a change."""
    return key not in reference and flags[key] in (None, False)
