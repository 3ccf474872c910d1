"""Prompt need: what a prompt takes at its peak below free memory at ready.

Engines keep what a prompt took, so within one start the drop since ready is the need of the longest prompt so far.
Plain attention works through a prompt chunk by chunk and needs no more for a longer one. Latent and sparse attention
(MLA and its kin) unpack the whole prefix, so the need grows with the prompt, and a shorter one is only a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

from scipy.special import ndtr, ndtri

from kvyield_server.domain.facts.layout import TENSOR
from kvyield_server.domain.facts.model_config import is_latent_attention, read_shape
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Flags,
    Model,
    Observation,
    Outcome,
)
from kvyield_server.domain.facts.scalars import any_named, as_count, first_given
from kvyield_server.domain.legacy.belief import truncation
from kvyield_server.domain.legacy.prompt_evidence import (
    DEFAULT_CHUNK_TOKENS,
    Drop,
    Limit,
    chunk_tokens,
    drops_of,
    limits_of,
)
from kvyield_server.domain.legacy.request_table import attention_ranks

_GROWTH, _GROWTH_SD = 1.5, 0.5
_BEYOND_LOG_SD = 0.4
_PRIOR_LOG_SD = 0.6
_MEASURED_LOG_SD = 0.15
_INTERPOLATED_LOG_SD = 0.25
_ONE_CHUNK_LOG_SD = 0.15
_REPEAT_LOG_SD = 0.1
_LEAST_DROP_GIB = 0.05
_RESERVING = frozenset({EngineName.VLLM, EngineName.TENSORRT_LLM})
"""Engines that set a profiled peak aside before they size the pool."""

_LATENT_NAMES = ("deepseek-v2", "deepseek-v3", "deepseek-r1", "kimi-k2", "glm-5")


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A positive quantity in GiB: its logarithm is normal with standard deviation ``log_sd``."""

    median_gib: float
    log_sd: float

    def cdf(self, gib: float) -> float:
        """Return P(X <= gib)."""
        if gib <= 0.0:
            return 0.0
        return float(ndtr(log(gib / self.median_gib) / self.log_sd))

    def quantile(self, probability: float) -> float:
        """Return the GiB that X stays under with ``probability`` (0 < probability < 1)."""
        return self.median_gib * exp(self.log_sd * float(ndtri(probability)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptNeed:
    """The prompt need of one deployment, from its verifications and, without any, from the kind of attention."""

    engine: EngineName
    latent: bool
    hidden_size: float
    attention_heads: int | None
    drops: tuple[Drop, ...] = ()
    limits: tuple[Limit, ...] = ()
    verified_prompt_tokens: int | None = None
    verified_chunk_tokens: frozenset[int] = frozenset()

    def need(self, prompt_tokens: int, flags: Flags) -> LogNormal:
        """Return the GiB that a prompt of ``prompt_tokens`` takes at its peak below free at ready, under ``flags``."""
        return self.under(flags).need(prompt_tokens)

    def under(self, flags: Flags) -> PromptNeedUnder:
        """Return the prompt need under these flags as a function of the prompt's length."""
        return PromptNeedUnder(
            self, chunk_tokens(self.engine, flags), self._heads_per_gpu(flags) if self.latent else 16.0
        )

    def measured(self, prompt_tokens: int, flags: Flags) -> bool:
        """Return whether memory was measured (or ran out) at this chunk and at a length that proves this one."""
        chunk = chunk_tokens(self.engine, flags)
        proofs: Iterable[Drop | Limit] = (*self.drops, *(limit for limit in self.limits if not limit.passed))
        if self.latent:
            return any(proof.prompt_tokens >= prompt_tokens for proof in proofs)
        needed = min(prompt_tokens, 2 * chunk)
        return any(proof.chunk_tokens == chunk and proof.prompt_tokens >= needed for proof in proofs)

    def _heads_per_gpu(self, flags: Flags) -> float:
        if self.attention_heads is None or not any_named(flags, *TENSOR):
            return 16.0
        ways = as_count(first_given(flags, *TENSOR)) or 1
        return max(1.0, self.attention_heads / max(1, ways // attention_ranks(flags)))


@dataclass(frozen=True, slots=True)
class PromptNeedUnder:
    """A prompt need under fixed flags: what is left to say is the prompt's length."""

    evidence: PromptNeed
    chunk_tokens: int
    heads_per_gpu: float

    def need(self, prompt_tokens: int) -> LogNormal:
        """Return the GiB that a prompt of ``prompt_tokens`` takes at its peak below free at ready."""
        prior = self._prior(prompt_tokens)
        latent = self.evidence.latent
        mean, sd = self._from_growth(prior, prompt_tokens) if latent else self._from_chunks(prior, prompt_tokens)
        for limit in self.evidence.limits:
            mean, sd = self._limited(mean, sd, limit, prompt_tokens)
        return LogNormal(exp(mean), sd)

    def _prior(self, prompt_tokens: int) -> tuple[float, float]:
        evidence, chunk = self.evidence, self.chunk_tokens
        short = min(1.0, prompt_tokens / chunk)
        if evidence.engine in _RESERVING:
            return log(0.25) + log(max(short, 0.1)), 0.8
        below = 0.3 * abs(log(short))
        if not evidence.latent:
            return log(1.2 * chunk / DEFAULT_CHUNK_TOKENS * evidence.hidden_size / 4096 * short), _PRIOR_LOG_SD + below
        return log(2.0 * max(1.0, prompt_tokens / 65536) * self.heads_per_gpu / 16 * short), _PRIOR_LOG_SD + below

    def _from_chunks(self, prior: tuple[float, float], prompt_tokens: int) -> tuple[float, float]:
        """Plain attention: what counts is the largest chunk worked on; only the drops nearest to it are evidence."""
        asked = min(prompt_tokens, self.chunk_tokens)
        drops = [drop for drop in self.evidence.drops if drop.longest_so_far or drop.worked_tokens >= asked]
        if self.evidence.engine in _RESERVING:
            drops = [drop for drop in drops if drop.worked_tokens >= asked]
        if not drops:
            return prior
        nearest = min(abs(log(asked / drop.worked_tokens)) for drop in drops)
        near = [drop for drop in drops if abs(log(asked / drop.worked_tokens)) <= nearest + 1e-9]
        mean, sd = _pooled([prior, *(self._from_chunk(drop, asked, prompt_tokens) for drop in near)])
        return mean, sqrt(sd**2 + _REPEAT_LOG_SD**2)

    def _from_chunk(self, drop: Drop, asked: int, prompt_tokens: int) -> tuple[float, float]:
        away = log(asked / drop.worked_tokens)
        one_chunk = drop.prompt_tokens < min(prompt_tokens, 2 * self.chunk_tokens)
        sd = sqrt(_MEASURED_LOG_SD**2 + (0.3 * away) ** 2 + (_ONE_CHUNK_LOG_SD if one_chunk else 0.0) ** 2)
        return log(max(drop.since_ready_gib, _LEAST_DROP_GIB)) + away, sd

    def _from_growth(self, prior: tuple[float, float], prompt_tokens: int) -> tuple[float, float]:
        """Latent attention: between measured lengths interpolated, beyond the longest a power law that soon widens.

        A prompt of one chunk has no prefix to unpack: what it took is only a lower bound for longer ones.
        """
        drops = self.evidence.drops
        curve = _curve([drop for drop in drops if drop.prompt_tokens > drop.chunk_tokens])
        short = _curve([drop for drop in drops if drop.prompt_tokens <= drop.chunk_tokens])
        if short and prompt_tokens <= short[-1][0]:
            return _between(short, prompt_tokens, prior)
        if short:
            prior = _truncated(*prior, log(short[-1][1]), _MEASURED_LOG_SD, upper=False)
        if not curve:
            return prior
        longest, need_gib = curve[-1]
        if prompt_tokens <= longest:
            return _between(curve, prompt_tokens, prior)
        far = log(prompt_tokens / longest)
        beyond = log(need_gib) + _GROWTH * far, sqrt(_BEYOND_LOG_SD**2 + (_GROWTH_SD * far) ** 2)
        trust = min(1.0, max(0.0, (prompt_tokens / longest - 4.0) / 4.0))
        return _pooled([beyond, (prior[0], 0.9 / sqrt(trust))]) if trust > 0.0 else beyond

    def _limited(self, mean: float, sd: float, limit: Limit, prompt_tokens: int) -> tuple[float, float]:
        """Bound the need by a prompt that passed, or died, with known free memory.

        One that passed and was no shorter, in no smaller a chunk, proves the need: its free memory was enough.
        """
        if self.evidence.latent:
            far = log(prompt_tokens / limit.prompt_tokens)
            shift, spread = _GROWTH * far, _GROWTH_SD * abs(far)
        else:
            shift = log(min(prompt_tokens, self.chunk_tokens) / min(limit.prompt_tokens, limit.chunk_tokens))
            spread = 0.3 * abs(shift)
        free = log(max(limit.free_gib, _LEAST_DROP_GIB))
        noise = sqrt(_MEASURED_LOG_SD**2 + spread**2)
        mean, sd = _truncated(mean, sd, free + shift, noise, upper=limit.passed)
        if limit.passed and shift <= 0.0:
            mean = min(mean, free - 2.0 * _MEASURED_LOG_SD)
            sd = min(sd, 0.5 * (free - mean))
        return mean, sd


def fit_prompt_need(starts: Sequence[Observation], model: Model, engine: Engine) -> PromptNeed:
    """Return the prompt need that the starts' verifications and run-time failures support for this model."""
    shape = read_shape(model.facts)
    starts = [start for start in starts if start.verifications or start.outcome is Outcome.OOM_RUNTIME]
    passed = [(start, check) for start in starts for check in start.verifications if check.passed]
    return PromptNeed(
        engine=engine.name,
        latent=_is_latent(model),
        hidden_size=float(shape.hidden_size or 4096),
        attention_heads=shape.attention_heads,
        drops=tuple(drop for start in starts for drop in drops_of(start)),
        limits=tuple(limit for start in starts for limit in limits_of(start)),
        verified_prompt_tokens=max((check.prompt_tokens for _, check in passed), default=None),
        verified_chunk_tokens=frozenset(chunk_tokens(engine.name, start.flags) for start, _ in passed),
    )


def _curve(drops: Sequence[Drop]) -> list[tuple[int, float]]:
    """Return (prompt tokens, need) rising in both: the mean of repeats at a length, then the running maximum."""
    by_length: dict[int, list[float]] = {}
    for drop in drops:
        if drop.longest_so_far:
            by_length.setdefault(drop.prompt_tokens, []).append(max(drop.since_ready_gib, _LEAST_DROP_GIB))
    curve: list[tuple[int, float]] = []
    for length, needs in sorted(by_length.items()):
        need = sum(needs) / len(needs)
        curve.append((length, max(need, curve[-1][1]) if curve else need))
    return curve


def _between(curve: list[tuple[int, float]], prompt_tokens: int, prior: tuple[float, float]) -> tuple[float, float]:
    at_or_above = next((length, need) for length, need in curve if length >= prompt_tokens)
    if at_or_above[0] == prompt_tokens:
        return log(at_or_above[1]), _MEASURED_LOG_SD
    below = [point for point in curve if point[0] < prompt_tokens]
    if not below:
        upper = log(at_or_above[1])
        return _truncated(*prior, upper, _MEASURED_LOG_SD, upper=True)
    (left, low), (right, high) = below[-1], at_or_above
    share = log(prompt_tokens / left) / log(right / left)
    middle = log(low) + share * log(high / low)
    return middle, sqrt(_INTERPOLATED_LOG_SD**2 + (0.25 * log(high / low)) ** 2)


def _pooled(beliefs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the precision-weighted mean of normal beliefs and its standard deviation."""
    weights = [1.0 / sd**2 for _, sd in beliefs]
    total = sum(weights)
    return sum(w * mean for w, (mean, _) in zip(weights, beliefs, strict=True)) / total, 1.0 / sqrt(total)


def _truncated(mean: float, sd: float, bound: float, noise: float, *, upper: bool) -> tuple[float, float]:
    """Return the normal matched to N(mean, sd) given that it lies (but for noise) below or above ``bound``."""
    sign = 1.0 if upper else -1.0
    spread = sqrt(sd**2 + noise**2)
    mills, shrink = truncation(sign * (bound - mean) / spread)
    return mean - sign * sd**2 / spread * mills, sd * sqrt(1.0 - shrink * (sd / spread) ** 2)


def _is_latent(model: Model) -> bool:
    stated = is_latent_attention(model.facts)
    return stated if stated is not None else any(name in model.name.lower() for name in _LATENT_NAMES)
