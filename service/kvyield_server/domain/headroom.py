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

from kvyield_server.domain.belief import truncation
from kvyield_server.domain.flags import NAMES, positive
from kvyield_server.domain.model_facts import is_latent_attention, read_shape
from kvyield_server.domain.observation import (
    Engine,
    EngineName,
    Flags,
    Model,
    Observation,
    Outcome,
    Verification,
)
from kvyield_server.domain.parallel import TENSOR
from kvyield_server.domain.request_table import attention_ranks
from kvyield_server.domain.scalars import any_named, as_count, first_given

_GROWTH, _GROWTH_SD = 1.5, 0.5
_BEYOND_LOG_SD = 0.4
_PRIOR_LOG_SD = 0.6
_MEASURED_LOG_SD = 0.15
_INTERPOLATED_LOG_SD = 0.25
_DEFAULT_CHUNK_TOKENS = 8192
_LEAST_DROP_GIB = 0.02
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


@dataclass(frozen=True, slots=True)
class Drop:
    """What a passed prompt took: at least ``own_gib`` by itself, at most ``since_ready_gib`` with those before it."""

    prompt_tokens: int
    chunk_tokens: int
    own_gib: float
    since_ready_gib: float
    longest_so_far: bool


@dataclass(frozen=True, slots=True)
class Limit:
    """A prompt that passed (or died of memory) with ``free_gib`` free at ready, its own need not measured."""

    prompt_tokens: int
    chunk_tokens: int
    free_gib: float
    passed: bool


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
        return PromptNeedUnder(self, _chunk(self.engine, flags), self._heads_per_gpu(flags) if self.latent else 16.0)

    def measured(self, prompt_tokens: int, flags: Flags) -> bool:
        """Return whether memory was measured (or ran out) at this chunk and at a length that proves this one."""
        chunk = _chunk(self.engine, flags)
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
        if evidence.engine in (EngineName.VLLM, EngineName.TENSORRT_LLM):
            return log(0.25) + log(max(short, 0.1)), 0.8
        below = 0.3 * abs(log(short))
        if not evidence.latent:
            return log(1.2 * chunk / _DEFAULT_CHUNK_TOKENS * evidence.hidden_size / 4096 * short), _PRIOR_LOG_SD + below
        return log(2.0 * max(1.0, prompt_tokens / 65536) * self.heads_per_gpu / 16 * short), _PRIOR_LOG_SD + below

    def _from_chunks(self, prior: tuple[float, float], prompt_tokens: int) -> tuple[float, float]:
        """Plain attention: what counts is the largest chunk worked on; distance in chunk widens what is known."""
        evidence, chunk = [prior], self.chunk_tokens
        asked = min(prompt_tokens, chunk)
        for drop in self.evidence.drops:
            worked = min(drop.prompt_tokens, drop.chunk_tokens)
            if not drop.longest_so_far and worked < asked:
                continue
            away = log(asked / worked)
            one_chunk = drop.prompt_tokens < min(prompt_tokens, 2 * chunk)
            sd = sqrt(_MEASURED_LOG_SD**2 + (0.3 * away) ** 2 + (0.15 if one_chunk else 0.0) ** 2)
            evidence.append((log(max(drop.since_ready_gib, _LEAST_DROP_GIB)) + away, sd))
        mean, sd = _pooled(evidence)
        return mean, sqrt(sd**2 + 0.1**2) if len(evidence) > 1 else sd

    def _from_growth(self, prior: tuple[float, float], prompt_tokens: int) -> tuple[float, float]:
        """Latent attention: between measured lengths interpolated, beyond the longest a power law that soon widens."""
        curve = _curve(self.evidence.drops)
        if not curve:
            return prior
        longest, need_gib = curve[-1]
        if prompt_tokens > longest:
            far = log(prompt_tokens / longest)
            beyond = log(need_gib) + _GROWTH * far, max(_BEYOND_LOG_SD, sqrt(0.4**2 + (_GROWTH_SD * far) ** 2))
            trust = min(1.0, max(0.0, (prompt_tokens / longest - 4.0) / 4.0))
            return _pooled([beyond, (prior[0], 0.9 / sqrt(trust))]) if trust > 0.0 else beyond
        return _between(curve, prompt_tokens, prior)

    def _limited(self, mean: float, sd: float, limit: Limit, prompt_tokens: int) -> tuple[float, float]:
        if self.evidence.latent:
            far = log(prompt_tokens / limit.prompt_tokens)
            shift, spread = _GROWTH * far, _GROWTH_SD * abs(far)
        else:
            shift = log(min(prompt_tokens, self.chunk_tokens) / min(limit.prompt_tokens, limit.chunk_tokens))
            spread = 0.3 * abs(shift)
        noise = sqrt(_MEASURED_LOG_SD**2 + spread**2)
        return _truncated(mean, sd, log(max(limit.free_gib, _LEAST_DROP_GIB)) + shift, noise, upper=limit.passed)


def fit_prompt_need(starts: Sequence[Observation], model: Model, engine: Engine) -> PromptNeed:
    """Return the prompt need that the starts' verifications and run-time failures support for this model."""
    shape = read_shape(model.facts)
    passed = [(start, check) for start in starts for check in start.verifications if check.passed]
    return PromptNeed(
        engine=engine.name,
        latent=_is_latent(model),
        hidden_size=float(shape.hidden_size or 4096),
        attention_heads=shape.attention_heads,
        drops=tuple(drop for start in starts for drop in _drops(start)),
        limits=tuple(limit for start in starts for limit in _limits(start)),
        verified_prompt_tokens=max((check.prompt_tokens for _, check in passed), default=None),
        verified_chunk_tokens=frozenset(_chunk(engine.name, start.flags) for start, _ in passed),
    )


def _drops(start: Observation) -> Iterable[Drop]:
    """Return what each passed prompt with sampled memory took, in the order sent."""
    chunk = _chunk(start.engine.name, start.flags)
    seen = [check for check in start.verifications if check.lowest_free_gib is not None]
    firsts = [value for value in (_highest_before(seen), start.measurements.free_at_ready_gib) if value is not None]
    longest = 0
    for check in seen:
        lowest = check.lowest_free_gib
        before = check.free_before_gib if check.free_before_gib is not None else (firsts[0] if firsts else None)
        if lowest is None or before is None or not check.passed or check.prompt_tokens < 1:
            continue
        own = max(0.0, before - lowest)
        since_ready = max(own, max(firsts, default=before) - lowest)
        yield Drop(check.prompt_tokens, chunk, own, since_ready, check.prompt_tokens >= longest)
        longest = max(longest, check.prompt_tokens)


def _highest_before(checks: Sequence[Verification]) -> float | None:
    """Return the highest figure read before any prompt: sampled as the lows were, so the two compare."""
    return max((check.free_before_gib for check in checks if check.free_before_gib is not None), default=None)


def _limits(start: Observation) -> Iterable[Limit]:
    """Return passed prompts whose memory was not sampled, and the prompt that the server ran out of memory with."""
    free = start.measurements.free_at_ready_gib
    if free is None or free <= 0.0:
        return
    chunk = _chunk(start.engine.name, start.flags)
    for check in start.verifications:
        if check.passed and check.lowest_free_gib is None and check.prompt_tokens >= 1:
            yield Limit(check.prompt_tokens, chunk, free, passed=True)
    prompt = start.failure.prompt_tokens if start.failure else None
    if start.outcome is Outcome.OOM_RUNTIME and prompt is not None and prompt >= 1:
        yield Limit(prompt, chunk, free, passed=False)


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


def _chunk(engine: EngineName, flags: Flags) -> int:
    return positive(flags, NAMES[engine].chunk) or _DEFAULT_CHUNK_TOKENS
