"""Prompt need: what a prompt takes at its peak below free memory at ready.

Engines keep what a prompt took, so within one start the drop since ready is the need of the longest prompt so far.
Plain attention works through a prompt chunk by chunk and needs no more for a longer one. Latent and sparse attention
(MLA and its kin) unpack the whole prefix, so the need grows with the prompt, and a shorter one is only a lower bound.

What is taken where there is room is more than what is needed: allocators make do with less under pressure. So a prompt
that passed and was sampled bounds the need from above, and it is the tightest server that tells most.

Where neither config nor name tells the kind of attention the need is a mixture of both kinds, weighted by how well each
predicts the prompts that were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, inf, log, sqrt

import numpy as np
from scipy.special import ndtr, ndtri

from kvyield_server.domain.answers import Estimate
from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.engines.sglang import attention_ranks
from kvyield_server.domain.facts.layout import TENSOR
from kvyield_server.domain.facts.model_config import is_latent_attention, read_shape
from kvyield_server.domain.facts.observation import (
    Answer,
    EngineName,
    Flags,
    Model,
    Observation,
    Outcome,
    Verification,
)
from kvyield_server.domain.facts.scalars import any_named, as_count, as_number, first_given
from kvyield_server.domain.model.evidence import usable_free
from kvyield_server.domain.model.free_memory import UNRELATED
from kvyield_server.domain.model.line import truncation
from kvyield_server.domain.model.mixture import Floats, Mixture

DEFAULT_CHUNK_TOKENS = 8192
GROWTH, GROWTH_SD = 1.5, 0.5
BEYOND_LOG_SD = 0.4
PRIOR_LOG_SD = 0.6
HEADS_LOG_SD = 0.7
"""Where no config tells them, latent attention has 16 heads per GPU, and 5 to 50 in nine of ten: 8 and 16 recorded, 64
or 128 over one to eight GPUs in the models of today."""
MEASURED_LOG_SD = 0.15
INTERPOLATED_LOG_SD = 0.25
ONE_CHUNK_LOG_SD = 0.15
REPEAT_LOG_SD = 0.1
LEAST_DROP_GIB = 0.05
UNKNOWN_LENGTH = 0
RECURS, RECURS_GIB = 0.5, 1.0
"""How likely a start dies again right below one that died, and in how many GiB less of pool that falls to a third. A
judgement: no recorded start is nearer below a death than 0.47 GiB, and the ten nearest (to 2.4 GiB) came up."""
ROOMY = 0.5
"""A prompt that left more than this share of its own drop free was in no hurry: its drop overstates the need."""
ROOM_LOG_SHIFT, ROOM_LOG_SD = -0.1, 0.12
"""With room a prompt takes up to a quarter (one MLA start: a third) more than in a tight server."""
WITHOUT_PREFILL_GRAPHS = (0.94, 0.15)
"""Median GiB and log-sd that a prompt takes anew where SGLang left out its prefill graphs (0.93 to 0.98 measured)."""

LATENT_SHARE = 0.04
"""How often attention is latent or sparse where neither config nor name tells. Judgement: none of the four recorded
models whose own name tells nothing has it, while 14 of the 51 that tell do (tests/domain/estimate_priors.py): its
families are few and known by name."""
_LATENT_NAMES = ("deepseek-v", "deepseek-r1", "kimi-k", "kimi-linear", "longcat", "glm-5", "dsv2", "dsv3")
_PLAIN_NAMES = (
    "qwen",
    "llama",
    "gemma",
    "gpt2",
    "gpt-oss",
    "opt-",
    "granite",
    "internlm",
    "lfm2",
    "nemotron",
    "grok-1",
)
"""Looked for first: DeepSeek-R1-Distill-Qwen-7B has the attention of Qwen."""
_CERTAIN = 0.002
_TELLING = 6
_FARTHEST = 3.0
_NODES: Floats = np.asarray(ndtri((np.arange(21) + 0.5) / 21), dtype=np.float64)
_HALVINGS = 24
_HERMITE_NODES, _HERMITE_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)


def was_served(check: Verification) -> bool:
    """Tell whether a prompt was served whole: a wrong answer is an answer, and memory does not depend on it."""
    if check.passed or check.answer in (Answer.RIGHT, Answer.WRONG):
        return True
    return check.error is not None and check.error.strip().lower().startswith("wrong answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptNeed:
    """A positive quantity in GiB: its logarithm is normal with standard deviation ``log_sd``.

    ``is_measured`` says that a prompt no shorter was measured at this chunk size. ``without_graphs`` is the need where
    SGLang left out its prefill graphs, when it differs. ``kinds`` are a chance and the need of each kind of attention,
    where it is not known which the model has; median and ``log_sd`` (half of the central 68 %) are then of both.
    """

    median_gib: float
    log_sd: float
    is_measured: bool = False
    without_graphs: PromptNeed | None = None
    kinds: tuple[tuple[float, PromptNeed], ...] = ()

    def at_most(self, gib: float) -> float:
        """Return P(need <= gib)."""
        if self.kinds:
            return sum(chance * need.at_most(gib) for chance, need in self.kinds)
        share = gib / self.median_gib
        return float(ndtr(log(share) / self.log_sd)) if share > 0.0 else 0.0

    def quantile(self, probability: float) -> float:
        """Return the GiB that the need stays under with ``probability`` (0 < probability < 1)."""
        if not self.kinds:
            return self.median_gib * exp(self.log_sd * float(ndtri(probability)))
        each = [log(need.quantile(probability)) for _, need in self.kinds]
        low, high = min(each), max(each)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.at_most(exp(middle)) < probability else (low, middle)
        return exp(0.5 * (low + high))

    def estimate(self, level: float = 0.9) -> Estimate:
        """Return median and central interval."""
        tail = 0.5 * (1.0 - level)
        return Estimate(median=self.median_gib, low=self.quantile(tail), high=self.quantile(1.0 - tail), level=level)

    def nodes(self) -> Floats:
        """Return equally likely values of the need, GiB."""
        if self.kinds:
            return np.array([self.quantile((index + 0.5) / _NODES.size) for index in range(_NODES.size)])
        values: Floats = self.median_gib * np.exp(self.log_sd * _NODES)
        return values


def _of_either_kind(plain: PromptNeed, latent: PromptNeed, latent_chance: float) -> PromptNeed:
    """Return the need of a model whose attention is latent with this chance."""
    if not _CERTAIN < latent_chance < 1.0 - _CERTAIN:
        return latent if latent_chance > 0.5 else plain
    kinds = ((1.0 - latent_chance, replace(plain, without_graphs=None)), (latent_chance, latent))
    whole = PromptNeed(median_gib=1.0, log_sd=1.0, kinds=kinds)
    low, middle, high = (whole.quantile(probability) for probability in (0.16, 0.5, 0.84))
    bare = plain.without_graphs
    return replace(
        whole,
        median_gib=middle,
        log_sd=0.5 * log(high / low),
        is_measured=plain.is_measured and latent.is_measured,
        without_graphs=None if bare is None else _of_either_kind(bare, latent, latent_chance),
    )


def survival(free: Mixture, need: PromptNeed | float) -> Floats:
    """Return P(free - need >= 0) at each fraction: integrated over the narrower of the two, so that few nodes do."""
    if not isinstance(need, PromptNeed):
        return free.above(need)
    if need.kinds:
        each = [chance * survival(free, kind) for chance, kind in need.kinds]
        return np.asarray(sum(each), dtype=np.float64)
    z, share = _HERMITE_NODES, _HERMITE_WEIGHTS / _HERMITE_WEIGHTS.sum()
    middle = free.sd.size // 2
    if need.median_gib * need.log_sd < float(np.partition(free.sd, middle, axis=None)[middle]):
        taken = need.median_gib * np.exp(need.log_sd * z)
        tails = ndtr((free.mean[:, :, None] - taken) / free.sd[:, :, None])
    else:
        left = np.maximum(free.mean[:, :, None] + free.sd[:, :, None] * z, 1e-9)
        tails = ndtr(np.log(left / need.median_gib) / need.log_sd)
    chance: Floats = np.minimum((free.weight * (tails @ share)).sum(axis=0), 1.0)
    return chance


def given_deaths(chance: Floats, fractions: Floats, at_deaths: Floats, deaths: Floats) -> Floats:
    """Return the chance that a prompt fits at each fraction, given that prompts ran out of memory at ``deaths``.

    ``deaths`` are fractions, rising; ``chance`` and ``at_deaths`` are the chances without that knowledge, the latter of
    the prompts that died. Room is taken to end at one unknown fraction: every death lies above it, or has a cause of
    its own, which few have. So of the chance that it ends beyond k of the deaths only the k-th power of that share is
    left.
    """
    reached = np.minimum.accumulate(np.clip(at_deaths, 0.0, 1.0))
    unexplained = UNRELATED ** np.arange(deaths.size + 1)
    ends = np.concatenate(([1.0], reached)) - np.concatenate((reached, [0.0]))
    likely = ends * unexplained
    beyond = np.concatenate((likely[::-1].cumsum()[::-1][1:], [0.0]))  # room ends above the next death, weighted
    segment = np.searchsorted(deaths, fractions - 1e-9)
    floor = np.concatenate((reached, [0.0]))[segment]
    left = np.maximum(chance - floor, 0.0) * unexplained[segment] + beyond[segment]
    given: Floats = np.clip(np.minimum(left / likely.sum(), chance), 0.0, 1.0)
    return given


def unless_it_recurs(fractions: Floats, death: float, served: float, gib_per_fraction: float) -> Floats:
    """Return the chance at each fraction that what died at ``death`` does not die there again for whatever reason.

    Nothing is in doubt up to ``served``, where the same came up.
    """
    below = np.maximum(death - fractions, 0.0) * gib_per_fraction
    chance: Floats = np.where(fractions > served + 1e-9, 1.0 - RECURS * np.exp(-below / RECURS_GIB), 1.0)
    return chance


def headroom(free: Mixture, need: PromptNeed | float, index: int, level: float = 0.9) -> Estimate:
    """Return the median and central interval of free - need at one of the fractions, GiB."""
    one = free.at(index)
    if not isinstance(need, PromptNeed):
        return one.shifted(-need).estimate(0, level)
    nodes = need.nodes()
    mean = np.repeat((one.mean[:, 0, None] - nodes).reshape(-1, 1), 3, axis=1)
    sd = np.repeat(np.repeat(one.sd[:, 0], nodes.size).reshape(-1, 1), 3, axis=1)
    weight = np.repeat(one.weight[:, 0] / nodes.size, nodes.size).reshape(-1, 1)
    tail = 0.5 * (1.0 - level)
    wanted = np.array([tail, 0.5, 1.0 - tail])
    each = mean + ndtri(wanted) * sd
    low, high = each.min(axis=0), each.max(axis=0)
    for _ in range(22):
        middle = 0.5 * (low + high)
        below = (weight * ndtr((middle - mean) / sd)).sum(axis=0) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    least, median, most = (0.5 * (low + high)).tolist()
    return Estimate(median=median, low=least, high=most, level=level)


@dataclass(frozen=True, slots=True)
class Drop:
    """What a served prompt took: at least ``own_gib`` by itself, at most ``since_ready_gib`` with those before it.

    ``is_roomy`` says that so much was left that the allocator was under no pressure.
    """

    prompt_tokens: int
    chunk_tokens: int
    own_gib: float
    since_ready_gib: float
    longest_so_far: bool
    is_roomy: bool
    without_graphs: bool

    @property
    def worked_tokens(self) -> int:
        """The tokens of its largest chunk."""
        return min(self.prompt_tokens, self.chunk_tokens)


@dataclass(frozen=True, slots=True)
class Limit:
    """A prompt that was served (or died of memory) with ``free_gib`` to take, its own need not measured."""

    prompt_tokens: int
    chunk_tokens: int
    free_gib: float
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptNeeds:
    """The prompt needs of one deployment, from its verifications and, without any, from the kind of attention.

    ``latent_chance`` is how likely attention is latent where nothing tells it; None where ``latent`` is known.
    """

    engine: EngineName
    latent: bool
    hidden_size: float
    attention_heads: int | None
    drops: tuple[Drop, ...] = ()
    limits: tuple[Limit, ...] = ()
    verified_prompt_tokens: int | None = None
    latent_chance: float | None = None

    def without_deaths(self) -> PromptNeeds:
        """Return the needs as they were without the prompts that ran out of memory."""
        return replace(self, limits=tuple(limit for limit in self.limits if limit.passed))

    def need(self, prompt_tokens: int, flags: Flags, *, drops_graphs: bool = False) -> PromptNeed:
        """Return what a prompt takes at its peak below free at ready, under ``flags``.

        ``drops_graphs`` says that these are flags under which SGLang may leave out its prefill graphs.
        """
        if self.latent_chance is not None:
            plain, latent = (
                each.need(prompt_tokens, flags, drops_graphs=drops_graphs)
                for each in (self._of_kind(latent=False), self._of_kind(latent=True))
            )
            return _of_either_kind(plain, latent, self.latent_chance)
        prompt_tokens = max(1, prompt_tokens)
        chunk = chunk_tokens(self.engine, flags)
        need = self._need(prompt_tokens, chunk, flags, [drop for drop in self.drops if not drop.without_graphs])
        if not drops_graphs or self.latent:
            return need
        bare = [drop for drop in self.drops if drop.without_graphs]
        if bare:
            other = self._need(prompt_tokens, chunk, flags, bare)
        else:
            short = min(1.0, prompt_tokens / chunk)
            median = max(need.median_gib, WITHOUT_PREFILL_GRAPHS[0] * chunk / DEFAULT_CHUNK_TOKENS * short)
            other = PromptNeed(median_gib=median, log_sd=max(need.log_sd, 0.3))
        return replace(need, without_graphs=other)

    def _of_kind(self, *, latent: bool) -> PromptNeeds:
        return replace(self, latent=latent, latent_chance=None)

    def told_by_prompts(self) -> PromptNeeds:
        """Return the needs with the chance of latent attention that the sampled prompts leave.

        Each is predicted from the shorter ones by either kind: what plain attention takes stays the same.
        """
        if self.latent_chance is None:
            return self
        plain, latent = (self._of_kind(latent=kind)._log_likelihood() for kind in (False, True))
        odds = self.latent_chance / (1.0 - self.latent_chance) * exp(latent - plain)
        return replace(self, latent_chance=odds / (1.0 + odds))

    def _log_likelihood(self) -> float:
        """Return the log density of what prompts took, the longest few lengths, up to a constant."""
        total, known = 0.0, list[Drop]()
        first = {drop.prompt_tokens: drop for drop in self.drops if drop.longest_so_far and not drop.without_graphs}
        for _, drop in sorted(first.items())[-_TELLING:]:
            mean, sd = self._believed(known, drop.prompt_tokens, drop.chunk_tokens, {})
            sd = sqrt(sd**2 + MEASURED_LOG_SD**2)
            off = min(abs(log(max(drop.since_ready_gib, LEAST_DROP_GIB)) - mean) / sd, _FARTHEST)
            total -= 0.5 * off**2 + log(sd)
            known.append(drop)
        return total

    def _believed(self, drops: Sequence[Drop], prompt_tokens: int, chunk: int, flags: Flags) -> tuple[float, float]:
        """Return mean and standard deviation of the need's logarithm, from prompts that were sampled."""
        prior = self._prior(prompt_tokens, chunk, flags)
        if self.latent:
            return _from_growth(drops, prior, prompt_tokens)
        return self._from_chunks(drops, prior, prompt_tokens, chunk)

    def _need(self, prompt_tokens: int, chunk: int, flags: Flags, drops: Sequence[Drop]) -> PromptNeed:
        mean, sd = self._believed(drops, prompt_tokens, chunk, flags)
        for limit in self.limits:
            mean, sd = self._limited(mean, sd, limit, prompt_tokens, chunk)
        return PromptNeed(
            median_gib=exp(min(mean, 20.0)), log_sd=max(sd, 0.02), is_measured=self._is_measured(prompt_tokens, chunk)
        )

    def _is_measured(self, prompt_tokens: int, chunk: int) -> bool:
        """Tell whether memory was measured (or ran out) at this chunk and at a length that proves this one."""
        proofs: Iterable[Drop | Limit] = (*self.drops, *(limit for limit in self.limits if not limit.passed))
        if self.latent:
            return any(proof.prompt_tokens >= prompt_tokens for proof in proofs)
        needed = min(prompt_tokens, 2 * chunk)
        return any(proof.chunk_tokens == chunk and proof.prompt_tokens >= needed for proof in proofs)

    def _prior(self, prompt_tokens: int, chunk: int, flags: Flags) -> tuple[float, float]:
        short = min(1.0, prompt_tokens / chunk)
        if NAMES[self.engine].reserves_peak:
            return log(0.25) + log(max(short, 0.1)), 0.8
        below = 0.3 * abs(log(short))
        if not self.latent:
            return log(1.2 * chunk / DEFAULT_CHUNK_TOKENS * self.hidden_size / 4096 * short), PRIOR_LOG_SD + below
        heads = self._heads_per_gpu(flags)
        doubt = PRIOR_LOG_SD if self.attention_heads is not None else hypot(PRIOR_LOG_SD, HEADS_LOG_SD)
        return log(2.0 * max(1.0, prompt_tokens / 65536) * heads / 16 * short), doubt + below

    def _heads_per_gpu(self, flags: Flags) -> float:
        if self.attention_heads is None or not any_named(flags, *TENSOR):
            return 16.0
        ways = as_count(first_given(flags, *TENSOR)) or 1
        return max(1.0, self.attention_heads / max(1, ways // attention_ranks(flags)))

    def _from_chunks(
        self, drops: Sequence[Drop], prior: tuple[float, float], prompt_tokens: int, chunk: int
    ) -> tuple[float, float]:
        """Plain attention: what counts is the largest chunk worked on; only the drops nearest to it are evidence."""
        asked = min(prompt_tokens, chunk)
        known = [drop for drop in drops if drop.longest_so_far or drop.worked_tokens >= asked]
        if NAMES[self.engine].reserves_peak:
            known = [drop for drop in known if drop.prompt_tokens >= asked]
        if not known:
            return prior
        nearest = min(abs(log(asked / drop.worked_tokens)) for drop in known)
        near = [drop for drop in known if abs(log(asked / drop.worked_tokens)) <= nearest + 1e-9]
        near = [drop for drop in near if not drop.is_roomy] or near
        mean, sd = _pooled([prior, *(_from_chunk(drop, asked, prompt_tokens, chunk) for drop in near)])
        return mean, sqrt(sd**2 + REPEAT_LOG_SD**2)

    def _limited(self, mean: float, sd: float, limit: Limit, prompt_tokens: int, chunk: int) -> tuple[float, float]:
        """Bound the need by a prompt that was served, or died, with known free memory.

        One that was served and was no shorter, in no smaller a chunk, proves the need: its free memory was enough.
        """
        if limit.prompt_tokens == UNKNOWN_LENGTH:
            shift = spread = 0.0
        elif self.latent:
            far = log(prompt_tokens / limit.prompt_tokens)
            shift, spread = GROWTH * far, GROWTH_SD * abs(far)
        else:
            shift = log(min(prompt_tokens, chunk) / min(limit.prompt_tokens, limit.chunk_tokens))
            spread = 0.3 * abs(shift)
        if not limit.passed and shift < 0.0:
            return mean, sd
        free = log(max(limit.free_gib, LEAST_DROP_GIB))
        noise = sqrt(MEASURED_LOG_SD**2 + spread**2)
        mean, sd = _truncated(mean, sd, free + shift, noise, upper=limit.passed)
        if limit.passed and shift <= 0.0:
            mean = min(mean, free - 2.0 * MEASURED_LOG_SD)
            sd = max(0.02, min(sd, 0.5 * (free - mean)))
        return mean, sd


def _from_chunk(drop: Drop, asked: int, prompt_tokens: int, chunk: int) -> tuple[float, float]:
    away = log(asked / drop.worked_tokens)
    one_chunk = drop.prompt_tokens < min(prompt_tokens, 2 * chunk)
    sd = sqrt(MEASURED_LOG_SD**2 + (0.3 * away) ** 2 + (ONE_CHUNK_LOG_SD if one_chunk else 0.0) ** 2)
    return log(max(drop.since_ready_gib, LEAST_DROP_GIB)) + away, sd


def _from_growth(drops: Sequence[Drop], prior: tuple[float, float], prompt_tokens: int) -> tuple[float, float]:
    """Latent attention: between measured lengths interpolated, beyond the longest a power law that soon widens.

    A prompt of one chunk has no prefix to unpack: what it took is only a lower bound for longer ones.
    """
    curve = _curve([drop for drop in drops if drop.prompt_tokens > drop.chunk_tokens])
    short = _curve([drop for drop in drops if drop.prompt_tokens <= drop.chunk_tokens])
    if short and prompt_tokens <= short[-1][0]:
        return _between(short, prompt_tokens, prior)
    if short:
        prior = _truncated(*prior, log(short[-1][1]), MEASURED_LOG_SD, upper=False)
    if not curve:
        return prior
    longest, need_gib, roomy = curve[-1]
    if prompt_tokens <= longest:
        return _between(curve, prompt_tokens, prior)
    far = log(prompt_tokens / longest)
    mean = log(need_gib) + (ROOM_LOG_SHIFT if roomy else 0.0) + GROWTH * far
    beyond = mean, sqrt(BEYOND_LOG_SD**2 + (GROWTH_SD * far) ** 2)
    trust = min(1.0, max(0.0, (prompt_tokens / longest - 4.0) / 4.0))
    return _pooled([beyond, (prior[0], 0.9 / sqrt(trust))]) if trust > 0.0 else beyond


Curve = list[tuple[int, float, bool]]


def _curve(drops: Sequence[Drop]) -> Curve:
    """Return (prompt tokens, need, whether only seen with room), rising in both.

    At a length the mean of repeats, of the tight servers alone where there are any; then the running maximum.
    """
    by_length: dict[int, list[Drop]] = {}
    for drop in drops:
        if drop.longest_so_far:
            by_length.setdefault(drop.prompt_tokens, []).append(drop)
    curve: Curve = []
    for length, found in sorted(by_length.items()):
        tight = [drop for drop in found if not drop.is_roomy]
        needs = [max(drop.since_ready_gib, LEAST_DROP_GIB) for drop in tight or found]
        need = sum(needs) / len(needs)
        if tight:
            curve = [(at, min(taken, need), roomy) for at, taken, roomy in curve]
        curve.append((length, max(need, curve[-1][1]) if curve else need, not tight))
    return curve


def _between(curve: Curve, prompt_tokens: int, prior: tuple[float, float]) -> tuple[float, float]:
    length, need, roomy = next(point for point in curve if point[0] >= prompt_tokens)
    shift, more = (ROOM_LOG_SHIFT, ROOM_LOG_SD) if roomy else (0.0, 0.0)
    if length == prompt_tokens:
        return log(need) + shift, sqrt(MEASURED_LOG_SD**2 + more**2)
    below = [point for point in curve if point[0] < prompt_tokens]
    if not below:
        return _truncated(*prior, log(need), MEASURED_LOG_SD, upper=True)
    left, low, _ = below[-1]
    share = log(prompt_tokens / left) / log(length / left)
    middle = log(low) + share * log(need / low) + share * shift
    return middle, sqrt(INTERPOLATED_LOG_SD**2 + (0.25 * log(need / low)) ** 2)


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


def fit_prompt_needs(
    starts: Sequence[Observation],
    model: Model,
    engine: EngineName,
    free_at: Callable[[Observation], float | None],
    without_graphs: Callable[[Observation], bool],
) -> PromptNeeds:
    """Return the prompt needs that the starts' verifications and run-time failures support for this model.

    ``free_at`` tells free memory at ready of a start that did not log it.
    """
    shape = read_shape(model.facts)
    told = [start for start in starts if start.verifications or start.outcome is Outcome.OOM_RUNTIME]
    served = [check for start in told for check in start.verifications if was_served(check)]
    latent = has_latent_attention(model)
    latent = False if latent is None and NAMES[engine].reserves_peak else latent
    needs = PromptNeeds(
        engine=engine,
        latent=bool(latent),
        latent_chance=LATENT_SHARE if latent is None else None,
        hidden_size=float(shape.hidden_size or 4096),
        attention_heads=shape.attention_heads,
        drops=tuple(drop for start in told for drop in _drops(start, without_graphs=without_graphs(start))),
        limits=tuple(limit for start in told for limit in _limits(start, free_at)),
        verified_prompt_tokens=max((check.prompt_tokens for check in served), default=None),
    )
    return needs.told_by_prompts()


def _drops(start: Observation, *, without_graphs: bool) -> Iterable[Drop]:
    """Return what each served prompt with sampled memory took, in the order sent."""
    chunk = chunk_tokens(start.engine.name, start.flags)
    seen = [check for check in start.verifications if check.lowest_free_gib is not None]
    befores = [gib for check in seen if (gib := usable_free(start, check.free_before_gib)) is not None]
    firsts = [max(befores)] if befores else []
    ready = usable_free(start, start.measurements.free_at_ready_gib)
    if ready is not None:
        firsts.append(ready)
    longest = 0
    for check in seen:
        lowest = check.lowest_free_gib
        before = check.free_before_gib if check.free_before_gib is not None else (firsts[0] if firsts else None)
        if lowest is None or before is None or not was_served(check) or check.prompt_tokens < 1:
            continue
        own = max(0.0, before - lowest)
        since_ready = max(own, max(firsts, default=before) - lowest)
        is_roomy = lowest > ROOMY * since_ready
        yield Drop(
            check.prompt_tokens, chunk, own, since_ready, check.prompt_tokens >= longest, is_roomy, without_graphs
        )
        longest = max(longest, check.prompt_tokens)


def _limits(start: Observation, free_at: Callable[[Observation], float | None]) -> Iterable[Limit]:
    """Return served prompts whose memory was not sampled, and the prompt that the server ran out of memory with.

    A death that says what it wanted and what was free tells by how much the prompt would have needed more.
    """
    measured = usable_free(start, start.measurements.free_at_ready_gib)
    free = measured if measured is not None else free_at(start)
    if free is None or free <= 0.0 or free == inf:
        return
    chunk = chunk_tokens(start.engine.name, start.flags)
    for check in start.verifications:
        if measured is not None and was_served(check) and check.lowest_free_gib is None and check.prompt_tokens >= 1:
            yield Limit(check.prompt_tokens, chunk, free, passed=True)
    failure = start.failure
    prompt = failure.prompt_tokens if failure else None
    if start.outcome is not Outcome.OOM_RUNTIME or failure is None:
        return
    wanted, left = as_number(failure.wanted_gib), as_number(failure.free_gib)
    short = max(0.0, wanted - left) if wanted is not None and left is not None else 0.0
    if prompt is not None and prompt >= 1:
        yield Limit(prompt, chunk, free + short, passed=False)
    elif short > 0.0:
        yield Limit(UNKNOWN_LENGTH, chunk, free + short, passed=False)


def chunk_tokens(engine: EngineName, flags: Flags) -> int:
    """Return the tokens of one prefill chunk, by the engine's usual default where it is unset or off."""
    return positive(flags, NAMES[engine].chunk) or DEFAULT_CHUNK_TOKENS


def has_latent_attention(model: Model) -> bool | None:
    """Tell whether attention is latent or sparse, by the config, else by the name; None where neither tells."""
    stated, name = is_latent_attention(model.facts), model.name.lower().replace(" ", "-")
    if stated is not None or any(each in name for each in _PLAIN_NAMES):
        return bool(stated)
    return True if any(each in name for each in _LATENT_NAMES) else None
