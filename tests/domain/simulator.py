"""Simulated starts from the engines' own sizing formulas, with noise drawn from the classes that the model states.

Pool. Equal starts scatter by sigma N(0, 1), sigma^2 being 0.0002^2 of the pool (and, for vLLM with a draft or states,
0.2^2 GiB^2 beside it) times 4 / chi^2(4): the stated class with its four degrees of freedom. What cannot be seen is
drawn from its stated prior: free memory before load off the GPU's figure by 1.5 %, the logged one off by 0.06 % (free
after load is what the engine sizes by, and is off by its rounding only), the price of a token off its formula by
0.3 %, a hybrid's by 5 % more where the engine splits its memory, an unknown draft's factor lognormal around 1.06 with
8 %, cut to [1.0, 1.25]. Another process on the GPU, never at the newest start, takes up to 15 %. A vLLM start on
a cold compile cache, recorded as such, has 1 GiB (half-normal) more beside the pool.

Free memory at ready. SGLang keeps 1.35 +- 2 GiB beside the pool, graphs 1.15 +- 0.6 GiB more when on, 0.004 +- 0.006
GiB per running request (0.03 +- 0.03 with a draft) up to the graph limit, and its request table; vLLM 1.35 +- 2 GiB and
0.0006 +- 0.001 per request. 1.00 +- 0.03 of the budget is allocated (0.95 with a draft that is billed in layers). What
requests take is their graphs': without graphs they take none.
Allocation granules and the rank that prints make equal starts differ by 0.14 GiB, with four degrees of freedom again.

Prompts. The need is lognormal around the prior of its kind of attention with log-sd 0.6; beyond 65,536 tokens latent
attention's grows by a power of 1.5 +- 0.5; a sampled peak is off by 10 %.

Nothing here is tuned to the coverage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import exp, floor
from uuid import UUID

import numpy as np

from domain.real_starts import EPOCH
from domain.simulated_models import ARCHITECTURES, HYBRIDS, VERSIONS, Draft, draft_factor, prompt_prior, token_bytes
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.facts.devices import free_before_load, usable_memory
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Phase,
    Scalar,
    Verification,
)

GIB = float(2**30)
CHUNK = 8192
KNEE_TOKENS = 65_536
GPUS = (
    ("NVIDIA H200", 140.40),
    ("NVIDIA H100 80GB HBM3", 79.65),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95.59),
    ("NVIDIA L40S", 44.99),
)
DRAFTS = (
    Draft(algorithm=None),
    Draft(algorithm=None),
    Draft(algorithm="EAGLE"),
    Draft(algorithm="DFLASH"),
    Draft(algorithm="DFLASH", has_facts=False),
    Draft(algorithm="DFLASH", is_told=False, has_facts=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Evidence of one deployment and one start to predict: its flags, what it really gets, and what a prompt takes.

    ``free_gib`` is None where the start to predict runs out of memory before it is ready.
    """

    evidence: tuple[Observation, ...]
    asked: Mapping[str, Scalar]
    kind: str
    pool_tokens: int
    free_gib: float | None
    prompt_tokens: int
    peak_gib: float


def simulate(seed: int) -> Task:
    """Draw one deployment and one to four starts of it, then one more to predict."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 5))
    world = _World(random, has_history=count > 1)
    starts = [world.start(position) for position in range(count + 1)]
    last, prompt_tokens = starts[-1], int(random.integers(CHUNK, 200_000))
    assert last.measurements.pool_tokens is not None
    return Task(
        evidence=tuple(starts[:-1]),
        asked=last.flags,
        kind=world.kind,
        pool_tokens=last.measurements.pool_tokens,
        free_gib=world.last_free_gib if world.last_free_gib > 0.0 else None,
        prompt_tokens=prompt_tokens,
        peak_gib=world.peak_gib(prompt_tokens),
    )


class _World:
    """One deployment with its hidden truths."""

    def __init__(self, random: np.random.Generator, *, has_history: bool) -> None:
        self.random = random
        self.kind = str(random.choice(list(ARCHITECTURES)))
        self.engine = EngineName.SGLANG if random.random() < 0.6 else EngineName.VLLM
        self.tensor = int(random.choice([1, 2, 4, 8]))
        gpu, memory = GPUS[random.integers(len(GPUS))]
        self.hardware = Hardware(gpu=gpu, gpu_count=self.tensor, memory_gib=memory, unified_memory=False)
        self.draft = DRAFTS[0] if self.kind in HYBRIDS else DRAFTS[random.integers(len(DRAFTS))]
        self.version = str(random.choice(VERSIONS[self.engine]))
        self.facts = {**ARCHITECTURES[self.kind], **self.draft.facts()}
        self.logs_memory, self.logs_free = random.random() < 0.6, random.random() < 0.8
        self.page = 16 if self.engine is EngineName.VLLM else int(random.choice([1, 1, 64]))
        self._draw_pool(may_have_neighbours=has_history)
        self._draw_beside()
        self._draw_habits()

    @property
    def is_sglang(self) -> bool:
        return self.engine is EngineName.SGLANG

    def _student(self) -> float:
        """Return the standard deviation of a class whose own is 1, with its four degrees of freedom."""
        return float(np.sqrt(4.0 / self.random.chisquare(4)))

    def _normal(self, mean: float, sd: float) -> float:
        return mean + sd * float(self.random.standard_normal())

    def _draw_pool(self, *, may_have_neighbours: bool) -> None:
        random, factor = self.random, self._student()
        has_boots = not self.is_sglang and (
            self.kind in HYBRIDS or (bool(self.draft.flags(self.engine)) and self.draft.algorithm is not None)
        )
        self.scatter, self.boot_gib = 0.0002 * factor, 0.2 * factor if has_boots else 0.0
        self.cost = self._token_cost()
        self.base = self._base()
        self.logged_base = self.base * self._normal(1.0, 0.0006)
        self.weights = self.base * float(random.uniform(0.2, 0.6))
        can_share = self.is_sglang and self.logs_memory and may_have_neighbours
        self.has_neighbours = can_share and random.random() < 0.2
        self.begins_cold = not self.is_sglang and random.random() < 0.3
        self.cold_gib = abs(self._normal(0.0, 1.0))

    def _token_cost(self) -> float:
        target = token_bytes(self.kind, self.engine, self.version, self.tensor)
        split = 0.05 if self.kind == "recurrent" else 0.0
        split = float(np.hypot(split, 0.05)) if self.kind in HYBRIDS and not self.is_sglang else split
        if self.draft.has_facts:
            layers = int(self.facts["num_hidden_layers"])
            factor = draft_factor(self.draft, (self.engine, self.version), target, self.tensor, layers)
        else:
            factor = min(1.25, max(1.0, 1.06 * exp(self._normal(0.0, 0.08))))
        is_unbilled = self.draft.is_told and self.is_sglang and self.version == "0.5.8"
        return target * (1.0 if is_unbilled else factor) * self._normal(1.0, float(np.hypot(0.003, split)))

    def _base(self) -> float:
        if not self.is_sglang:
            total = usable_memory(self.hardware)
            assert total is not None
            return total.gib * self._normal(1.0, total.relative_sd)
        free = free_before_load(self.hardware, is_spread=self.tensor > 1)
        assert free is not None
        return free.gib * self._normal(1.0, 0.015)

    def _draw_beside(self) -> None:
        drafts = self.draft.is_told and self.draft.algorithm is not None
        self.fixed = self._normal(1.35, 2.0)
        self.graphs = self._normal(1.15, 0.6) if self.is_sglang else 0.0
        cost, cost_sd = (0.03, 0.03) if drafts else (0.004, 0.006)
        self.request_gib = self._normal(cost, cost_sd) if self.is_sglang else self._normal(0.0006, 0.001)
        in_layers = self.is_sglang and self.draft.algorithm == "DFLASH" and self.version in ("0.5.12", "0.5.15")
        self.allocated = self._normal(0.95 if in_layers and self.draft.is_told else 1.0, 0.03)
        self.free_scatter = 0.14 * self._student()

    def _draw_habits(self) -> None:
        """Draw what people change from start to start: running requests, and graphs."""
        random = self.random
        self.leaves_requests = self.is_sglang and self.draft.algorithm is None and random.random() < 0.2
        self.varies_requests = self.is_sglang and self.kind not in HYBRIDS and random.random() < 0.5
        self.requests = int(random.choice([8, 16, 32, 64]))
        self.first_requests = self.requests
        self.toggles_graphs = self.is_sglang and random.random() < 0.15
        median, log_sd = prompt_prior(self.facts, self.engine, self.tensor, KNEE_TOKENS)
        self.peak = median * exp(self._normal(0.0, log_sd))
        self.growth = self._normal(1.5, 0.5) if self.kind == "mla" and self.is_sglang else 0.0

    @property
    def model(self) -> Model:
        return Model(name="simulated", facts=self.facts)

    def peak_gib(self, prompt_tokens: int) -> float:
        """Return what a prompt takes at its peak."""
        return float(self.peak * max(1.0, prompt_tokens / KNEE_TOKENS) ** self.growth)

    def start(self, position: int) -> Observation:
        """Draw one start between the zero crossing and where memory gets scarce; the least pool of all ranks counts."""
        highest = 1.0 - 7.5 / self.base
        fraction = round(float(self.random.uniform(min(self.weights / self.base + 0.05, highest - 0.02), highest)), 3)
        meets = self.has_neighbours and position == 0 and self.random.random() < 0.5
        taken = float(self.random.uniform(0.0, 0.15)) * self.base if meets else 0.0
        is_cold = self.begins_cold and position == 0
        if self.varies_requests:
            self.requests = int(self.random.choice([8, 16, 32, 64]))
        base = self.base - taken
        budget = base * fraction - self.weights - self._normal(self.cold_gib if is_cold else 0.0, self.boot_gib)
        pool = self._pool(budget)
        graphs_off = self.toggles_graphs and self.random.random() < 0.5
        flags = self._flags(fraction, self.requests, {"disable_cuda_graph": graphs_off} if self.is_sglang else {})
        if not self.is_sglang:
            flags["compile_cache"] = "cold" if is_cold else "warm"
        free = self.last_free_gib = self._free(base, fraction, budget, pool, graphs_off=graphs_off)
        measured = self._measured(pool, budget, self.logged_base - taken, base - self.weights, free)
        return self._observed(position, flags, measured, free)

    def _pool(self, budget: float) -> int:
        ranks = 1.0 + 0.00001 * self.random.standard_normal(self.tensor)
        tokens = budget * GIB / self.cost * float(ranks.min()) * self._normal(1.0, self.scatter)
        return max(self.page, floor(tokens / self.page) * self.page)

    def _free(self, base: float, fraction: float, budget: float, pool: int, *, graphs_off: bool) -> float:
        table = 0.0
        if self.is_sglang:
            context = int(self.facts["max_position_embeddings"])
            chosen = min(4096, max(2048, int(pool / context * 512)))
            table = ((chosen if self.leaves_requests else self.requests) + 1) * (context + 4) * 4 / GIB
        more = 0 if self.leaves_requests else self.requests - self.first_requests
        beside = self.fixed + self.graphs + self.request_gib * more
        if graphs_off:
            beside -= self.graphs + self.request_gib * (more + self.first_requests)
        left = base * (1.0 - fraction) + (1.0 - self.allocated) * budget - beside - table
        return self._normal(left, self.free_scatter)

    def _flags(self, fraction: float, requests: int, more: Mapping[str, Scalar]) -> dict[str, Scalar]:
        names = NAMES[self.engine]
        flags: dict[str, Scalar] = {
            names.fraction: fraction,
            names.tensor_parallel: self.tensor,
            names.chunk: CHUNK,
            **self.draft.flags(self.engine),
            **more,
        }
        if not self.leaves_requests:
            flags[names.requests] = requests
        if self.is_sglang:
            flags["page_size"] = self.page
        return flags

    def _measured(self, pool: int, budget: float, before: float, after: float, free: float) -> Measurements:
        ready = round(free, 2) if self.logs_free and free > 0.0 else None
        if not self.logs_memory:
            return Measurements(pool_tokens=pool, free_at_ready_gib=ready)
        if not self.is_sglang:
            total = round(before, 2)
            return Measurements(
                pool_tokens=pool, free_at_ready_gib=ready, kv_cache_gib=round(budget, 2), device_memory_gib=total
            )
        return Measurements(
            pool_tokens=pool,
            free_at_ready_gib=ready,
            free_before_load_gib=round(before, 2),
            free_after_load_gib=round(after, 2),
        )

    def _observed(self, position: int, flags: Mapping[str, Scalar], measured: Measurements, free: float) -> Observation:
        """Return the start as it ended: ready, with a prompt sent to some, or out of memory."""
        outcome, failure = Outcome.READY, None
        checks: tuple[Verification, ...] = ()
        prompt = int(self.random.integers(CHUNK // 2, 150_000))
        peak = self.peak_gib(prompt) * exp(self._normal(0.0, 0.1))
        if free <= 0.0:
            outcome, failure = Outcome.OOM_STARTUP, Failure(phase=Phase.GRAPH_CAPTURE)
        elif self.logs_free and self.random.random() < 0.3 and peak < free:
            checks = (
                Verification(prompt_tokens=prompt, passed=True, free_before_gib=free, lowest_free_gib=free - peak),
            )
        return Observation(
            id=UUID(int=int(self.random.integers(1, 2**62))),
            observed_at=EPOCH + timedelta(minutes=position),
            hardware=self.hardware,
            model=self.model,
            engine=Engine(name=self.engine, version=self.version if self.draft.is_told else None),
            outcome=outcome,
            flags=flags,
            measurements=measured,
            failure=failure,
            verifications=checks,
        )
