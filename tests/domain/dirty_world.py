"""Simulated ledgers with what real ones contain: starts that something else spoiled, and figures that are not so.

Truths are drawn wider than, and from other families than, the model's priors. Bytes per token are uniform within 5 % of
the formula's, the base (T or D) uniform within 3 % of the device's, weights uniform over 15 to 75 % of it. Boot noise
is log-uniform from 0.005 to 0.5 % of the pool, normal within one world. Pools are whole pages. Free memory at ready
loses 0.93 to 1.07 of the KV memory (uniform), in buffers of whole 2 MiB, and 0.4 to 6 GiB beside it (log-uniform). A
prompt takes the middle of its kind times 0.29 to 3.5 (log-uniform): 1.2 GiB, for latent attention 2 GiB for 16 heads a
GPU, growing beyond 65,536 tokens by a power between 1 and 2; vLLM's takes 0.05 to 0.8 GiB (uniform). Nothing here is
tuned to what the model then says.

Each ledger has one to seven clean starts and one or two of these contaminations: ``neighbour`` (a death under another
process, its free memory logged or not), ``patched`` (a start of a build with other weights and price of a token),
``outcome`` (a start that came up, posted as a death, or a death posted as ready), ``typed`` (a mistyped fraction),
``capped`` (a pool cut by a flag that nobody recorded), ``rank`` (free memory and pool of a rank that is not the
fullest) and ``nominal`` (the memory size that the GPU is sold as).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil, exp, floor, log
from typing import Any
from uuid import UUID

import numpy as np

from domain.ledgers import EPOCH
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
    Verification,
)

GIB = float(2**30)
KINDS = ("neighbour", "patched", "outcome", "typed", "capped", "rank", "nominal")
GPUS = (
    ("NVIDIA H200", 139.80, 141.0),
    ("NVIDIA H100 80GB HBM3", 79.19, 80.0),
    ("NVIDIA L40S", 44.40, 48.0),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 94.97, 96.0),
)
"""Name, what the framework sees in GiB, and what it is sold as."""
DENSE = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 1_048_576,
}
LATENT = {
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "hidden_size": 7168,
    "max_position_embeddings": 1_048_576,
}
LOWEST_ROOM = 0.06
"""Clean starts lie at least so far above the zero crossing: below, there is hardly a pool."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What the engine really does; fractions in, tokens and GiB out."""

    base: float
    weights: float
    token_bytes: float
    layers: int
    page: int
    lost: float
    beside: float
    noise: float
    prompt: float
    growth: float

    def tokens(self, fraction: float, factor: float = 1.0) -> int:
        """Return the pool, whole pages of it."""
        budget = max(0.0, self.base * fraction - self.weights)
        return floor(budget * GIB / self.token_bytes * factor / self.page) * self.page

    def free(self, fraction: float) -> float:
        """Return free memory at ready: every buffer, two a layer, is rounded up to 2 MiB."""
        granule = 2 * self.layers * 2.0 / 1024
        budget = self.lost * max(0.0, self.base * fraction - self.weights)
        return self.base - self.weights - ceil(budget / granule) * granule - self.beside

    def prompt_gib(self, prompt_tokens: int) -> float:
        """Return what a prompt takes: latent attention's grows beyond 65,536 tokens."""
        return self.prompt * max(1.0, prompt_tokens / 65_536) ** self.growth


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One dirty ledger: its starts, what is true, which starts are clean, what was asked, and how it was spoiled."""

    starts: tuple[Observation, ...]
    clean: frozenset[UUID]
    truth: Truth
    kinds: tuple[str, ...]
    is_newest_spoiled: bool
    target: int
    concurrent: int
    asked_at: float
    is_answerable: bool
    random: np.random.Generator

    @property
    def engine(self) -> EngineName:
        return self.starts[0].engine.name

    def succeeds(self, fraction: float, kept: Observation | None) -> bool:
        """Return whether a restart at this fraction, or the server that runs, holds the prompts and survives them."""
        truth = self.truth
        if kept is not None:
            pool, free = kept.measurements.pool_tokens or 0, truth.free(kept.fraction or 0.0)
        else:
            pool = truth.tokens(fraction, 1.0 + truth.noise * float(self.random.standard_normal()))
            free = truth.free(fraction) - float(self.random.uniform(0.0, 0.15))
        return pool >= self.concurrent * self.target + 7 and free >= truth.prompt_gib(self.target)


def dirty_world(seed: int, contaminations: int | None = None) -> World:
    """Draw one ledger; ``contaminations`` fixes how many spoil it (none, one or two)."""
    random = np.random.default_rng(seed)
    for _ in range(1_000):
        made = _Draw(random, contaminations).world()
        if made is not None:
            return made
    raise AssertionError("no world fits")


class _Draw:
    def __init__(self, random: np.random.Generator, contaminations: int | None) -> None:
        self.random = random
        self.engine = EngineName.SGLANG if random.random() < 0.6 else EngineName.VLLM
        self.version = "0.5.12" if self.engine is EngineName.SGLANG else "0.26.0"
        self.tensor = int(random.choice([1, 2, 4, 8]))
        name, self.memory, self.sold_as = GPUS[random.integers(len(GPUS))]
        self.is_latent = bool(random.random() < 0.35)
        self.is_config_known = bool(random.random() < 0.7)
        self.logs_memory, self.logs_free = bool(random.random() < 0.6), bool(random.random() < 0.85)
        self.hardware = Hardware(gpu=name, gpu_count=self.tensor, memory_gib=self.memory, unified_memory=False)
        count = int(random.integers(1, 3)) if contaminations is None else contaminations
        self.kinds = tuple(str(kind) for kind in random.choice(KINDS, size=count, replace=False))
        self.truth = self._truth()
        self.flags = self._flags()
        self.number = 0

    def _uniform(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))

    def _log_uniform(self, low: float, high: float) -> float:
        return exp(self._uniform(log(low), log(high)))

    def _truth(self) -> Truth:
        if self.is_latent:
            price, layers = 576 * 2 * 61.0, 61
        else:
            price, layers = max(1, 8 // self.tensor) * 2 * 128 * 2 * 36.0, 36
        at_start = 0.6 if self.engine is EngineName.SGLANG else 0.0
        base = (self.memory - at_start) * (1.0 + self._uniform(-0.03, 0.03))
        return Truth(
            base=base,
            weights=base * self._uniform(0.15, 0.75),
            token_bytes=price * (1.0 + self._uniform(-0.05, 0.05)),
            layers=layers,
            page=16 if self.engine is EngineName.VLLM else int(self.random.choice([1, 1, 64])),
            lost=self._uniform(0.93, 1.07),
            beside=self._log_uniform(0.4, 6.0),
            noise=self._log_uniform(0.00005, 0.005),
            prompt=self._prompt(),
            growth=self._uniform(1.0, 2.0) if self.is_latent and self.engine is EngineName.SGLANG else 0.0,
        )

    def _prompt(self) -> float:
        if self.engine is EngineName.VLLM:
            return self._uniform(0.05, 0.8)
        middle = 2.0 * 64 / self.tensor / 16 if self.is_latent else 1.2
        return middle * self._log_uniform(1 / 3.5, 3.5)

    def _flags(self) -> dict[str, Any]:
        if self.engine is EngineName.SGLANG:
            return {
                "tp_size": self.tensor,
                "context_length": 1_048_576,
                "max_running_requests": 64,
                "chunked_prefill_size": 8192,
                "page_size": self.truth.page,
                "speculative_algorithm": None,
            }
        return {
            "tensor_parallel_size": self.tensor,
            "max_model_len": 32_768,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "speculative_config": None,
            "compile_cache": "warm",
        }

    def world(self) -> World | None:
        truth, random = self.truth, self.random
        lowest = truth.weights / truth.base + LOWEST_ROOM
        room = truth.base - truth.weights - truth.beside - 0.5
        highest = min(0.985, (room / truth.lost + truth.weights) / truth.base)
        if highest - lowest < 0.05:
            return None
        fractions = self._fractions(lowest, highest)
        clean = [self._ready(fraction) for fraction in fractions]
        starts, is_newest = list(clean), False
        for kind in self.kinds:
            if kind == "nominal":
                continue
            spoiled = self._spoiled(kind, lowest, highest, max(fractions))
            if spoiled is None:
                continue
            position = int(random.integers(0, len(starts) + 1))
            is_newest = is_newest or position == len(starts)
            starts.insert(position, spoiled)
        times = [replace(start, observed_at=EPOCH + timedelta(hours=hour)) for hour, start in enumerate(starts)]
        if "nominal" in self.kinds:
            sold = replace(self.hardware, memory_gib=self.sold_as)
            times = [replace(start, hardware=sold) for start in times]
        ids = frozenset(start.id for start in clean)
        target, concurrent = self._target(lowest, highest)
        safe = [step / 1000 for step in range(10, 996) if self._is_safe(step / 1000, target, concurrent)]
        times = self._verified(times, ids, target)
        return World(
            starts=tuple(times),
            clean=ids,
            truth=truth,
            kinds=self.kinds,
            is_newest_spoiled=is_newest,
            target=target,
            concurrent=concurrent,
            asked_at=round(min(0.99, max(lowest, self._uniform(min(fractions) - 0.04, max(fractions) + 0.04))), 3),
            is_answerable=len(safe) >= 2,
            random=random,
        )

    def _is_safe(self, fraction: float, target: int, concurrent: int) -> bool:
        """Return whether this fraction holds the target three standard deviations above its noise, and survives."""
        truth = self.truth
        return truth.tokens(fraction, 1.0 - 3.0 * truth.noise) >= concurrent * target + 8 and truth.free(
            fraction
        ) - 0.15 >= truth.prompt_gib(target)

    def _fractions(self, lowest: float, highest: float) -> list[float]:
        count = int(self.random.integers(1, 8))
        return [round(self._uniform(lowest, highest), 3) for _ in range(count)]

    def _target(self, lowest: float, highest: float) -> tuple[int, int]:
        """Draw what is asked for: prompts of one length, as many as fill the pool of some fraction."""
        aim = max(16, self.truth.tokens(self._uniform(lowest, min(0.99, highest + 0.01))) - 16)
        least, most = (20_000, 250_000) if self.engine is EngineName.SGLANG else (8_000, 32_000)
        prompt = min(aim, int(self.random.integers(least, most)))
        return prompt, max(1, min(64, aim // prompt))

    def _ready(self, fraction: float, truth: Truth | None = None) -> Observation:
        truth = truth or self.truth
        pool = truth.tokens(fraction, 1.0 + truth.noise * float(self.random.standard_normal()))
        free = truth.free(fraction) - self._uniform(0.0, 0.15)
        return self._observed(fraction, max(truth.page, pool), free, truth)

    def _observed(
        self, fraction: float, pool: int, free: float, truth: Truth, outcome: Outcome = Outcome.READY
    ) -> Observation:
        self.number += 1
        logged: dict[str, float] = {}
        if self.logs_memory and self.engine is EngineName.SGLANG:
            logged = {
                "free_before_load_gib": round(truth.base, 2),
                "free_after_load_gib": round(truth.base - truth.weights, 2),
            }
        elif self.logs_memory:
            logged = {
                "kv_cache_gib": round(pool * truth.token_bytes / GIB, 2),
                "device_memory_gib": round(truth.base, 2),
            }
        is_up = outcome is Outcome.READY
        return Observation(
            id=UUID(int=int(self.random.integers(1, 2**62))),
            observed_at=EPOCH,
            hardware=self.hardware,
            model=Model(name="simulated", facts=(LATENT if self.is_latent else DENSE) if self.is_config_known else {}),
            engine=Engine(name=self.engine, version=self.version),
            outcome=outcome,
            flags={_fraction_flag(self.engine): fraction, **self.flags},
            measurements=Measurements(
                pool_tokens=pool if is_up else None,
                free_at_ready_gib=round(max(0.0, free), 2) if is_up and self.logs_free else None,
                **(logged if is_up or self.engine is EngineName.SGLANG else {}),
            ),
            failure=None if is_up else Failure(phase=Phase.POOL),
        )

    def _verified(self, starts: list[Observation], clean: frozenset[UUID], target: int) -> list[Observation]:
        """Send prompts to half of the clean starts that can take them; what does not fit is not sent here."""
        found = []
        for unsent in starts:
            start = unsent
            free = self.truth.free(start.fraction or 0.0) - 0.1
            longest = (start.measurements.pool_tokens or 0) - 8
            prompt = min(target if self.random.random() < 0.6 else 20_000, longest)
            if start.id in clean and self.random.random() < 0.5 and prompt > 4_096:
                need = self.truth.prompt_gib(prompt)
                if free > need:
                    lowest = round(free - need * self._uniform(0.97, 1.0), 3)
                    check = Verification(
                        prompt_tokens=prompt,
                        passed=True,
                        free_before_gib=round(free, 3),
                        lowest_free_gib=lowest,
                        concurrent=1,
                        elapsed_seconds=prompt / 5_000,
                        memory_samples=100,
                    )
                    start = replace(start, verifications=(check,))
            found.append(start)
        return found

    def _spoiled(self, kind: str, lowest: float, highest: float, ran: float) -> Observation | None:
        makers: Mapping[str, Any] = {
            "neighbour": self._neighbour,
            "patched": self._patched,
            "outcome": self._outcome,
            "typed": self._typed,
            "capped": self._capped,
            "rank": self._rank,
        }
        made: Observation | None = makers[kind](lowest, highest, ran)
        return made

    def _neighbour(self, lowest: float, highest: float, ran: float) -> Observation:
        """A death at a fraction that ran, because another process held the GPU."""
        fraction = round(self._uniform(lowest, ran), 3)
        died = self._observed(fraction, 0, 0.0, self.truth, Outcome.OOM_STARTUP)
        if self.random.random() < 0.5:
            died = replace(died, outcome=Outcome.REFUSED)
        held = self._uniform(0.3, 0.9) * self.truth.base
        logged = self.random.random() < 0.5
        before = round(self.truth.base - held, 2) if logged else None
        return replace(died, measurements=Measurements(free_before_load_gib=before))

    def _patched(self, lowest: float, highest: float, _ran: float) -> Observation:
        shift = self._uniform(0.5, 4.0) * (1 if self.random.random() < 0.5 else -1)
        patched = replace(
            self.truth,
            weights=max(1.0, self.truth.weights + shift),
            token_bytes=self.truth.token_bytes * self._uniform(0.9, 1.1),
        )
        return self._ready(
            round(self._uniform(max(lowest, patched.weights / patched.base + 0.03), highest + 0.01), 3), patched
        )

    def _outcome(self, lowest: float, highest: float, _ran: float) -> Observation:
        """A start that came up, posted as a death; or one without memory, posted as ready."""
        if self.random.random() < 0.6:
            fraction = round(self._uniform(lowest, highest), 3)
            wrong = self.random.choice(
                np.array([Outcome.OOM_STARTUP.value, Outcome.FAILED.value, Outcome.REFUSED.value])
            )
            return replace(self._ready(fraction), outcome=Outcome(str(wrong)), failure=Failure(phase=Phase.UNKNOWN))
        fraction = round(min(0.995, highest + self._uniform(0.0, 0.05)), 3)
        return self._ready(fraction)

    def _typed(self, lowest: float, highest: float, _ran: float) -> Observation:
        """A ready start whose fraction lost or swapped a digit."""
        fraction = round(self._uniform(lowest, highest), 2)
        digits = f"{fraction:.2f}"[2:]
        swapped = float(f"0.{digits[1]}{digits[0]}")
        slips = [slip for slip in (swapped, fraction / 10, fraction + 0.1, fraction - 0.1) if 0.01 < slip < 1.0]
        typed = round(float(self.random.choice(slips)), 3)
        start = self._ready(fraction)
        return replace(start, flags={**start.flags, _fraction_flag(self.engine): typed})

    def _capped(self, lowest: float, highest: float, _ran: float) -> Observation:
        start = self._ready(round(self._uniform(lowest, highest), 3))
        pool = max(1, floor((start.measurements.pool_tokens or 1) * self._uniform(0.2, 0.9)))
        logged = None if start.measurements.kv_cache_gib is None else round(pool * self.truth.token_bytes / GIB, 2)
        return replace(start, measurements=replace(start.measurements, pool_tokens=pool, kv_cache_gib=logged))

    def _rank(self, lowest: float, highest: float, _ran: float) -> Observation:
        """A start that logs a rank with more memory than the fullest."""
        more = self._uniform(0.3, 3.0)
        other = replace(self.truth, weights=max(0.5, self.truth.weights - more))
        return self._ready(round(self._uniform(lowest, highest), 3), other)


def _fraction_flag(engine: EngineName) -> str:
    return "mem_fraction_static" if engine is EngineName.SGLANG else "gpu_memory_utilization"
