"""Simulated starts from the engines' own sizing formulas, with noise drawn from the classes that the model states.

Per deployment, equal starts scatter by sigma * N(0, 1) of the pool, sigma^2 being 0.0002^2 times 4 / chi^2(4): the
stated class with its four degrees of freedom. What cannot be seen is drawn from its stated prior: free memory before
load off the card's figure by 1.5 %, the logged one off by 0.06 % (free after load is what the engine sizes by, and is
off by its rounding only), the price of a token off its formula by 0.3 %, an unknown draft's factor lognormal around
1.06 with 8 %, cut to [1.0, 1.25]. A neighbour on the card, which leaves the newest start alone, takes up to 15 %.
A vLLM start on a cold compile cache, recorded as such, has 1 GiB (half-normal) more beside the pool. Nothing here is
tuned to the coverage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import floor
from typing import Any
from uuid import UUID

import numpy as np

from domain.real_starts import EPOCH
from kvyield_server.domain.devices import free_before_load, usable_memory
from kvyield_server.domain.observation import (
    Engine,
    EngineName,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Scalar,
)

GIB = float(2**30)
CARDS = (
    ("NVIDIA H200", 140.40),
    ("NVIDIA H100 80GB HBM3", 79.65),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95.59),
    ("NVIDIA L40S", 44.99),
)
ARCHITECTURES: tuple[Mapping[str, Any], ...] = (
    {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128},
    {"num_hidden_layers": 61, "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
    {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
)


@dataclass(frozen=True, slots=True)
class Task:
    """Evidence of one deployment and one start to predict, with the pool that it really gets."""

    evidence: tuple[Observation, ...]
    asked: Mapping[str, Scalar]
    pool_tokens: int


def simulate(seed: int) -> Task:
    """Draw one deployment and one to four starts of it, then one more to predict."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 5))
    world = _World(random, has_history=count > 1)
    starts = [world.start(position) for position in range(count + 1)]
    last = starts[-1]
    assert last.measurements.pool_tokens is not None
    return Task(tuple(starts[:-1]), last.flags, last.measurements.pool_tokens)


class _World:
    """One deployment with its hidden truths."""

    def __init__(self, random: np.random.Generator, *, has_history: bool) -> None:
        self.random = random
        self.engine = EngineName.SGLANG if random.random() < 0.6 else EngineName.VLLM
        self.tensor = int(random.choice([1, 2, 4, 8]))
        gpu, memory = CARDS[random.integers(len(CARDS))]
        self.hardware = Hardware(gpu=gpu, gpu_count=self.tensor, memory_gib=memory, unified_memory=False)
        self.facts = ARCHITECTURES[random.integers(len(ARCHITECTURES))]
        self.draft: bool | None = [None, False, False, True][random.integers(4)]
        self.logs_memory = random.random() < 0.6
        self.page = 16 if self.engine is EngineName.VLLM else int(random.choice([1, 1, 64]))
        self.scatter = 0.0002 * float(np.sqrt(4.0 / random.chisquare(4)))
        self.cost = self._token_bytes() * (1.0 + 0.003 * random.standard_normal()) * self._draft_factor()
        self.base = self._base()
        self.logged_base = self.base * (1.0 + 0.0006 * random.standard_normal())
        self.weights = self.base * random.uniform(0.2, 0.6)
        may_share = self.engine is EngineName.SGLANG and self.logs_memory and has_history
        self.has_neighbours = may_share and random.random() < 0.2
        self.begins_cold = self.engine is EngineName.VLLM and random.random() < 0.3
        self.cold_gib = abs(float(random.standard_normal()))

    def _token_bytes(self) -> float:
        layers = self.facts["num_hidden_layers"]
        if "kv_lora_rank" in self.facts:
            return float(576 * 2 * layers)
        heads = max(1, self.facts["num_key_value_heads"] // self.tensor)
        return float(heads * 2 * self.facts["head_dim"] * 2 * layers)

    def _draft_factor(self) -> float:
        if self.draft is False:
            return 1.0
        factor = 1.06 * float(np.exp(0.08 * self.random.standard_normal()))
        return min(1.25, max(1.0, factor))

    def _base(self) -> float:
        if self.engine is EngineName.VLLM:
            total = usable_memory(self.hardware)
            assert total is not None
            return total.gib * (1.0 + total.relative_sd * float(self.random.standard_normal()))
        free = free_before_load(self.hardware, is_spread=self.tensor > 1)
        assert free is not None
        return free.gib * (1.0 + 0.015 * float(self.random.standard_normal()))

    def start(self, position: int) -> Observation:
        """Draw one start at a fraction between the zero crossing and 0.96, the least pool of all ranks counting."""
        lowest = self.weights / self.base + 0.05
        fraction = round(float(self.random.uniform(lowest, 0.96)), 3)
        taken = float(self.random.uniform(0.0, 0.15)) * self.base if self._meets_neighbour(position) else 0.0
        base, logged = self.base - taken, self.logged_base - taken
        is_cold = self.begins_cold and position == 0
        budget = base * fraction - self.weights - (self.cold_gib if is_cold else 0.0)
        ranks = 1.0 + 0.00001 * self.random.standard_normal(self.tensor)
        tokens = budget * GIB / self.cost * float(ranks.min()) * (1.0 + self.scatter * self.random.standard_normal())
        pool = max(self.page, floor(tokens / self.page) * self.page)
        measured = self._measured(pool, budget, logged, base - self.weights)
        return Observation(
            id=UUID(int=int(self.random.integers(1, 2**62))),
            observed_at=EPOCH + timedelta(minutes=position),
            hardware=self.hardware,
            model=Model(name="simulated", facts=self.facts),
            engine=Engine(name=self.engine, version=None if self.draft is None else "0.5.12"),
            outcome=Outcome.READY,
            flags=self._flags(fraction, is_cold=is_cold),
            measurements=measured,
        )

    def _meets_neighbour(self, position: int) -> bool:
        return self.has_neighbours and position == 0 and self.random.random() < 0.5

    def _measured(self, pool: int, budget: float, before: float, after: float) -> Measurements:
        if not self.logs_memory:
            return Measurements(pool_tokens=pool)
        if self.engine is EngineName.VLLM:
            return Measurements(pool_tokens=pool, kv_cache_gib=round(budget, 2), device_memory_gib=round(before, 2))
        return Measurements(
            pool_tokens=pool, free_before_load_gib=round(before, 2), free_after_load_gib=round(after, 2)
        )

    def _flags(self, fraction: float, *, is_cold: bool) -> dict[str, Scalar]:
        drafts: dict[bool | None, dict[str, Scalar]]
        if self.engine is EngineName.VLLM:
            flags: dict[str, Scalar] = {"gpu_memory_utilization": fraction, "tensor_parallel_size": self.tensor}
            flags["compile_cache"] = "cold" if is_cold else "warm"
            drafts = {None: {}, False: {"speculative_config": None}, True: {"speculative_config": "{}"}}
        else:
            flags = {"mem_fraction_static": fraction, "tp_size": self.tensor, "page_size": self.page}
            drafts = {None: {}, False: {"speculative_algorithm": None}, True: {"speculative_algorithm": "DFLASH"}}
        return {**flags, **drafts[self.draft]}
