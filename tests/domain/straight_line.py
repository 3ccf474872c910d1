"""A yield model written down by hand: a known capacity line, with the real free-memory line and prompt need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import hypot

from domain.worked_starts import KIMI
from kvyield_server.domain.answers import Basis, BasisKind, FitSummary
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Flags,
    Model,
    Observation,
)
from kvyield_server.domain.legacy.free_memory import FreeMemoryLine, fit_free_memory
from kvyield_server.domain.legacy.headroom import PromptNeed, fit_prompt_need
from kvyield_server.domain.legacy.memory_failures import SiblingDeath
from kvyield_server.domain.legacy.student import StudentT

GIB = float(2**30)


@dataclass(frozen=True, kw_only=True)
class StraightLine:
    """A capacity line that is simply given: base and zero crossing in GiB and fraction, bytes per token."""

    model: Model
    engine: Engine
    base: float
    zero: float
    token_bytes: float
    page_tokens: int = 1
    flags: Flags = field(default_factory=dict)
    relative_noise: float = 0.0002
    base_sd: float = 0.0006
    noise_tokens: float = 0.5

    def along(self, flags: Flags) -> StraightAlong:
        cost = self.token_bytes * (0.5 if "fp8" in str(flags.get("kv_cache_dtype")) else 1.0)
        return StraightAlong(self, GIB / cost)

    @property
    def base_gib(self) -> StudentT | None:
        return StudentT(self.base, self.base * self.base_sd)

    @property
    def bytes_per_token(self) -> StudentT | None:
        return StudentT(self.token_bytes, 0.003 * self.token_bytes)


@dataclass(frozen=True)
class StraightAlong:
    """The line under fixed flags."""

    line: StraightLine
    tokens_per_gib: float

    def pool(self, fraction: float) -> StudentT | None:
        tokens = self.line.base * (fraction - self.line.zero) * self.tokens_per_gib
        return StudentT(tokens, hypot(self.line.relative_noise * abs(tokens), self.line.noise_tokens), 6.0)

    def budget_gib(self, fraction: float) -> float | None:
        return self.line.base * (fraction - self.line.zero)


@dataclass(frozen=True, kw_only=True)
class HandFit:
    """A deployment as advice reads it."""

    summary: FitSummary
    running: Observation | None
    capacity: StraightLine
    free_memory: FreeMemoryLine
    prompt_need: PromptNeed
    starts: tuple[Observation, ...]
    neighbours: tuple[SiblingDeath, ...] = ()


def hand_fit(line: StraightLine, starts: Sequence[Observation]) -> HandFit:
    """Return a fit whose pool line is given and whose memory is fitted to ``starts`` (newest first)."""
    model, engine = line.model, line.engine
    kind = BasisKind.SEVERAL_STARTS if len(starts) > 1 else BasisKind.ONE_START
    return HandFit(
        summary=FitSummary(
            deployment="by hand",
            deployment_id="00000000",
            engine=engine.name,
            engine_version=engine.version,
            parameters={},
            basis=Basis(kind=kind, deployment="by hand", observation_ids=tuple(start.id for start in starts)),
            evidence=(),
            labels=(),
        ),
        running=starts[0] if starts else None,
        capacity=line,
        free_memory=fit_free_memory(starts, line, model),
        prompt_need=fit_prompt_need(starts, model, engine),
        starts=tuple(starts),
    )


def worked_line() -> StraightLine:
    """Return the truth of the worked case: N = 1,303,889 (f - 0.77244)."""
    engine = Engine(name=EngineName.SGLANG, version="0.5.12")
    return StraightLine(model=KIMI, engine=engine, base=93.73, zero=0.77244, token_bytes=93.73 * GIB / 1303889)
