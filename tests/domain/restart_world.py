"""Simulated engines to restart until a target is verified, and the ways in which people search.

Truths are drawn from the priors that the model states: free memory before load 1.5 % around the GPU's figure, the
price of a token 0.3 % around its formula and an unknown draft's factor lognormal around 1.06 with 8 %, cut to [1.0,
1.25]; what the engine takes beside the pool 2.5 +- 2 GiB, never under 0.3; the share of the budget that is
allocated 1.00 +- 0.03; equal starts 0.02 % apart; allocation granules up to 0.2 GiB; the prompt's need lognormal
around the prior of its kind of attention with log-sd 0.6. Six of ten histories are logs with free memory before and
after load, and four of ten hold a second start. The target lies between the history's largest fraction and the
largest at which the prompt still survives, at least 0.01 below that: every task can be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import exp, floor
from typing import Any
from uuid import UUID

import numpy as np

from domain.real_starts import EPOCH
from domain.simulated_models import prompt_prior
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question
from kvyield_server.domain.engines.token_cost import token_cost
from kvyield_server.domain.facts.devices import free_before_load
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
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

GIB = float(2**30)
MOST_RESTARTS = 60
GPUS = (
    ("NVIDIA H200", 140.40),
    ("NVIDIA H100 80GB HBM3", 79.65),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95.59),
)
ARCHITECTURES: tuple[Mapping[str, Any], ...] = (
    {
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
    },
    {
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 8192,
    },
    {
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "hidden_size": 7168,
    },
)
Search = Callable[["Task"], Iterator[float]]


@dataclass(frozen=True, slots=True)
class Truth:
    """What an engine really does: pool, free memory and prompt need, GiB."""

    base: float
    weights: float
    token_bytes: float
    beside: float
    allocated: float
    prompt: float

    def tokens(self, fraction: float) -> float:
        return (self.base * fraction - self.weights) * GIB / self.token_bytes

    def free(self, fraction: float) -> float:
        budget = self.base * fraction - self.weights
        return self.base - self.weights - self.allocated * budget - self.beside

    def highest(self) -> float:
        """The fraction at which the prompt takes the last of the memory."""
        room = self.base - self.weights - self.beside - self.prompt
        return (room / self.allocated + self.weights) / self.base


@dataclass(slots=True)
class Task:
    """A running deployment and a target; ``seen`` grows with every restart."""

    truth: Truth
    target: int
    hardware: Hardware
    model: Model
    flags: Mapping[str, Scalar]
    logs_memory: bool
    random: np.random.Generator
    seen: list[Observation] = field(default_factory=list)

    def restart(self, fraction: float, *, verify: bool = True) -> bool:
        """Start at a fraction, send the prompt if the pool holds it, and tell whether the target is verified."""
        truth = self.truth
        pool = floor(truth.tokens(fraction) * (1.0 + 0.0002 * self.random.standard_normal()))
        free = truth.free(fraction) - float(self.random.uniform(0.0, 0.2))
        start = self._observation(fraction, max(1, pool), free)
        if free <= 0.0 or pool < 1:
            phase = Phase.GRAPH_CAPTURE if pool >= 1 else Phase.POOL
            outcome = Outcome.OOM_STARTUP if pool >= 1 else Outcome.REFUSED
            self.seen.append(replace(start, outcome=outcome, failure=Failure(phase=phase)))
            return False
        if not verify or pool < self.target + 7:
            self.seen.append(start)
            return False
        if free < truth.prompt:
            died = Failure(phase=Phase.SERVING, prompt_tokens=self.target)
            self.seen.append(replace(start, outcome=Outcome.OOM_RUNTIME, failure=died))
            return False
        check = Verification(
            prompt_tokens=self.target, passed=True, free_before_gib=free, lowest_free_gib=free - truth.prompt
        )
        self.seen.append(replace(start, verifications=(check,)))
        return True

    def _observation(self, fraction: float, pool: int, free: float) -> Observation:
        before, after = round(self.truth.base, 2), round(self.truth.base - self.truth.weights, 2)
        return Observation(
            id=UUID(int=int(self.random.integers(1, 2**62))),
            observed_at=EPOCH + timedelta(minutes=10 * len(self.seen)),
            hardware=self.hardware,
            model=self.model,
            engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
            outcome=Outcome.READY,
            flags={**self.flags, "mem_fraction_static": fraction},
            measurements=Measurements(
                pool_tokens=pool,
                free_at_ready_gib=round(free, 2) if free > 0.0 else None,
                free_before_load_gib=before if self.logs_memory else None,
                free_after_load_gib=after if self.logs_memory else None,
            ),
        )


def draw_task(seed: int) -> Task:
    """Draw a task that can be done, with a history of one or two starts that are below the target."""
    random = np.random.default_rng(seed)
    while True:
        task, room = _draw(random)
        if room is None:
            continue
        lowest, highest = room
        aim = float(random.uniform(lowest + 0.01, highest - 0.01))
        task.target = max(1, floor(task.truth.tokens(aim)) - 7)
        task.restart(round(lowest, 3), verify=False)
        if random.random() < 0.4:
            task.restart(round(lowest - float(random.uniform(0.01, 0.05)), 3), verify=False)
        if all(start.outcome is Outcome.READY for start in task.seen):
            return task


def _draw(random: np.random.Generator) -> tuple[Task, tuple[float, float] | None]:
    tensor = int(random.choice([1, 2, 4, 8]))
    gpu, memory = GPUS[random.integers(len(GPUS))]
    hardware = Hardware(gpu=gpu, gpu_count=tensor, memory_gib=memory, unified_memory=False)
    model = Model(name="simulated", facts=ARCHITECTURES[random.integers(len(ARCHITECTURES))])
    draft: dict[str, Scalar] = {"speculative_algorithm": "DFLASH" if random.random() < 0.3 else None}
    flags: dict[str, Scalar] = {"tp_size": tensor, "context_length": 4096, "max_running_requests": 32, **draft}
    cost = token_cost(
        model.facts,
        Engine(name=EngineName.SGLANG, version="0.5.12"),
        {"speculative_algorithm": None, "tp_size": tensor},
        tensor,
    )
    free = free_before_load(hardware, is_spread=tensor > 1)
    assert cost is not None
    assert free is not None
    base = free.gib * (1.0 + 0.015 * random.standard_normal())
    factor = 1.0 + 0.003 * random.standard_normal()
    if draft["speculative_algorithm"]:
        factor *= min(1.25, max(1.0, 1.06 * exp(0.08 * random.standard_normal())))
    truth = Truth(
        base=base,
        weights=base * random.uniform(0.2, 0.7),
        token_bytes=cost.bytes_per_token * factor,
        beside=max(0.3, 2.5 + 2.0 * random.standard_normal()),
        allocated=1.0 + 0.03 * random.standard_normal(),
        prompt=0.0,
    )
    task = Task(truth, 0, hardware, model, {**flags, "chunked_prefill_size": 8192}, bool(random.random() < 0.6), random)
    median, log_sd = prompt_prior(model.facts, EngineName.SGLANG, tensor, 100_000)
    task.truth = replace(truth, prompt=median * exp(log_sd * float(random.standard_normal())))
    lowest, highest = truth.weights / base + float(random.uniform(0.05, 0.15)), min(0.995, task.truth.highest())
    return task, (lowest, highest) if highest - lowest > 0.025 else None


def by_advice(task: Task) -> Iterator[float]:
    """Yield what kvyield advises on all that was seen so far, be it at risk or infeasible."""
    while True:
        fit = fit_pair(PairEvidence(tuple(task.seen))).choose(engine=None, engine_version=None, like=None, flags={})
        assert fit is not None
        advised = recommend(fit, Question(target_tokens=task.target)).flags.get("mem_fraction_static")
        yield float(advised) if isinstance(advised, int | float) else 0.9


def upwards(task: Task) -> Iterator[float]:
    """Yield 0.01 more each time until a start runs out of memory, then the last one that lived, as documented."""
    for fraction in upwards_until_held(task):
        yield fraction
        if task.seen[-1].outcome is not Outcome.READY:
            yield round(fraction - 0.01, 3)


def upwards_until_held(task: Task) -> Iterator[float]:
    """Yield 0.01 more each time; whoever knows the target stops at the first start that holds it."""
    highest = max(start.fraction or 0.0 for start in task.seen)
    while True:
        highest = min(0.999, round(highest + 0.01, 3))
        yield highest


def downwards(_task: Task) -> Iterator[float]:
    """Yield 0.98, then 0.01 less each time."""
    fraction = 0.98
    while True:
        yield fraction
        fraction = max(0.01, round(fraction - 0.01, 3))


def bisection(task: Task) -> Iterator[float]:
    """Yield the middle between the largest fraction that was too small and the smallest that ran out of memory."""
    low, high = max(start.fraction or 0.0 for start in task.seen), 0.99
    while True:
        middle = round((low + high) / 2, 4)
        yield middle
        died = task.seen[-1].outcome is not Outcome.READY
        low, high = (low, middle) if died else (middle, high)


def engine_default(task: Task) -> Iterator[float]:
    """Yield SGLang's own default fraction, then 0.01 more or 0.05 less, as the last start was too small or died."""
    memory = (task.hardware.memory_gib or 80.0) * 1024
    chunk, batch = 8192 if memory < 160 * 1024 else 16384, 512 if task.hardware.gpu_count >= 4 else 256
    reserved = 512 + 1.5 * chunk + 2 * batch + task.hardware.gpu_count / 8 * 1024
    fraction = round((memory - max(reserved, 10240)) / memory, 3)
    while True:
        yield fraction
        died = task.seen[-1].outcome is not Outcome.READY
        fraction = round(min(0.999, max(0.01, fraction + (-0.05 if died else 0.01))), 3)
