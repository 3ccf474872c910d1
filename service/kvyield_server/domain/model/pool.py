"""The pool of one deployment under any flags, from its fitted line.

    K(f) = m f - w   GiB,      N(f) = K(f) 2^30 / c   tokens

``line`` has the numerics. Here is what surrounds them: what of a start is a point or a bound, which starts agree, and
what a change of flags does (a known ratio on the price of a token, weights that get lighter, doubt about w).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot, inf, isnan, sqrt

import numpy as np

from kvyield_server.domain.answers import Estimate
from kvyield_server.domain.engines.fraction_share import fraction_share, is_amd
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.engines.token_cost import (
    QUANT_POLICIES,
    UNKNOWN_DRAFT_FACTOR,
    UNKNOWN_DRAFT_SD,
    TokenCost,
    speculation,
    token_cost,
)
from kvyield_server.domain.facts.deployment import (
    Key,
    agrees,
    deployment_key,
    differing_fields,
    key_fields,
    requests_move_pool,
)
from kvyield_server.domain.facts.devices import usable_memory
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import flat_facts, keeps_states, read_shape
from kvyield_server.domain.facts.observation import (
    EngineName,
    Flags,
    Observation,
    Scalar,
)
from kvyield_server.domain.facts.scalars import as_count, as_number, as_word, first_given, is_on
from kvyield_server.domain.facts.versions import parse_version
from kvyield_server.domain.model.evidence import fraction_of, usable_tokens
from kvyield_server.domain.model.line import GIB, LinePosterior, Normal
from kvyield_server.domain.model.mixture import Floats, Mixture, fixed
from kvyield_server.domain.model.prior import Knowledge, Setting

UNIFORM_SD = 1.0 / sqrt(12.0)
SPAN = 0.0195
"""Points this far apart pin the slope: a hundredth of it is what equal starts scatter by."""
STEEPEST = 1.2
LARGEST_POOL_GIB = 1e5
UNSOUND = 0.05
LEAST_FRACTION = 0.05
"""Below this a fraction of all memory has no room for weights."""
_DENSEST = 4.0
"""KV dtypes that a log may not name hold up to so many times the tokens of 16 bits."""

SHIFT_SD_GIB = {
    "version": 1.0,
    "batched_tokens": 1.0,
    "graphs": 1.0,
    "graph_estimate": 1.0,
    "eager": 1.0,
    "compile_cache": 1.0,
    "sequences": 0.05,
    "running_requests": 1.0,
    "state_slots": 1.0,
    "length": 0.05,
    "attention": 0.05,
    "page": 0.05,
    "kv_dtype": 0.0,
}
"""Doubt about w, GiB, where two starts differ in one field of the key (design: partial pooling)."""
UNKNOWN_SHIFT_SD_GIB = 2.0
VERSION_COST_SD = 0.02
LENGTH_DOUBT = 0.03
"""Doubt about what a longer request takes, as a share: a workspace is proportional to it (5.16 GiB at 1,048,576 tokens
and 1.29 at 262,144 in a recorded start), and starts differ by some hundredths of a GiB."""
LATENT_RATIO_SD = 0.001
"""8-bit KV holds exactly twice the tokens with plain attention (measured); latent caches may add scales."""
_PRICED = frozenset({"kv_dtype", "tp", "dp", "dp_attention", "pp", "dcp", "speculation", "draft"})
_EIGHT_BIT = ("fp8", "w8a8", "int8", "bitsandbytes_8bit")
DRAFT_IN_BASE = (0, 5, 13, 0)
"""From here on SGLang loads a draft's weights before it sizes the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a change of flags does: tokens times a ratio, GiB freed for the pool, and doubt about both."""

    ratio: float = 1.0
    ratio_sd: float = 0.0
    freed_gib: float = 0.0
    shift_sd_gib: float = 0.0


NO_CHANGE = Change()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAt:
    """The pool under some flags at n fractions; None where nothing tells. ``taken_gib`` is what the pool takes of K."""

    line: Mixture | None
    pool: Mixture | None
    kv_gib: Mixture | None
    budget_gib: Floats
    taken_gib: Floats
    flag: str | None


@dataclass(frozen=True, kw_only=True)
class PoolLine:
    """The fitted line of one deployment.

    ``posterior`` is None where nothing was known beforehand and nothing measured. ``setting.flags`` stand in for flags
    not given. ``measured_at`` are the abscissae of the points. ``bend`` is how much flatter than its slope the line may
    be where another pipeline stage decides. ``gib_per_length`` is what a token of vLLM's context length takes of the
    pool's memory, where starts show it (a workspace that grows with the longest request).
    """

    setting: Setting
    knowledge: Knowledge
    posterior: LinePosterior | None
    page_tokens: int
    measured_at: tuple[float, ...] = ()
    measured_tokens: tuple[float, ...] = ()
    running: Observation | None = None
    is_other_version: bool = False
    bend: float = 0.0
    gib_per_length: float = 0.0

    def share(self, flags: Flags) -> float:
        """Return what the engine multiplies the fraction by under these flags."""
        if not is_amd(self.setting.hardware):
            return 1.0
        context = read_shape(self.setting.model.facts).context_length
        return fraction_share(self.setting.engine, flags, amd=True, context_tokens=context)

    @cached_property
    def base(self) -> Normal | None:
        """The memory that the fraction multiplies, GiB; None where nothing tells."""
        if self.posterior is None or not (self.knowledge.knows_base or self.tells_slope):
            return None if not self.knowledge.knows_base else self.knowledge.line.base
        _, covariance = self.posterior.moments()
        mean = float(self.posterior.weight @ np.maximum(self.posterior.theta[:, 2], 0.0))  # as K(f) rises
        return Normal(mean, sqrt(max(float(covariance[2, 2]), 1e-12)))

    @cached_property
    def slope(self) -> Mixture | None:
        """Tokens per 1.0 of the fraction."""
        if self.posterior is None:
            return None
        p = self.posterior
        sd = np.sqrt(np.maximum(p.covariance[:, 1, 1], 1e-12))
        return Mixture(mean=p.theta[:, 1:2], sd=sd[:, None], weight=p.weight[:, None])

    @cached_property
    def tells_slope(self) -> bool:
        """Whether anything tells how the pool moves with the fraction."""
        if self.slope is None:
            return False
        low, middle, high = self.slope.quantiles(0, (0.25, 0.5, 0.75))
        return middle > 0.0 and high - low < 0.6 * middle

    @cached_property
    def _tells_memory(self) -> bool:
        """Whether anything tells the GPU's memory: a source of its own, or starts that printed GiB."""
        if self.posterior is None or self.knowledge.knows_base:
            return self.posterior is not None
        mean, covariance = self.posterior.moments()
        return sqrt(max(float(covariance[2, 2]), 0.0)) < 0.3 * float(mean[2])

    @cached_property
    def zero_fraction(self) -> Estimate | None:
        """Where the line crosses zero, as a share of the base."""
        if self.posterior is None or not (self.tells_slope or self.knowledge.knows_zero):
            return None
        p, c = self.posterior, self.posterior.covariance
        if self.tells_slope:
            slope = np.maximum(p.theta[:, 1], 1e-9)
            x = -p.theta[:, 0] / slope
            variance = c[:, 0, 0] + x * (2.0 * c[:, 0, 1] + x * c[:, 1, 1])
        else:
            slope = np.maximum(p.theta[:, 2], 1e-9)
            x = p.theta[:, 3] / slope
            variance = c[:, 3, 3] + x * (x * c[:, 2, 2] - 2.0 * c[:, 2, 3])
        sd = np.sqrt(np.maximum(variance, 1e-12)) / slope
        return Mixture(mean=x[:, None], sd=sd[:, None], weight=p.weight[:, None]).estimate()

    @cached_property
    def cost(self) -> Normal | None:
        """Log bytes per token of one GPU; None where nothing tells."""
        if self.posterior is None:
            known = self.knowledge.line.printed_cost or self.knowledge.line.cost
            return known if self.knowledge.knows_cost else None
        return self.posterior.log_cost if self.posterior.log_cost.sd < 0.4 else None

    def bytes_per_token(self, flags: Flags) -> Estimate | None:
        """Return bytes that one token takes of one GPU's KV memory under these flags."""
        if self.cost is None:
            return None
        change = self.change({**self.setting.flags, **flags})
        middle, reach = exp(self.cost.mean) / change.ratio, 1.645 * hypot(self.cost.sd, change.ratio_sd)
        return Estimate(median=middle, low=middle * exp(-reach), high=middle * exp(reach))

    def at(self, flags: Flags, fractions: Floats) -> PoolAt:
        """Return the pool under these flags at each fraction."""
        change, count = self.change(flags), fractions.size
        spec = NAMES[self.setting.engine.name]
        is_entries = spec.counts_blocks is not None and count > 0 and bool((fractions > 1.0).all())
        x = np.ones(count) if is_entries else fractions * self.share(flags)
        line = self._tokens(x, change)
        kv_gib = None if self.posterior is None or not self._tells_memory else self._gib(x, change)
        budget = np.zeros(count) if kv_gib is None else (kv_gib.weight * kv_gib.mean).sum(axis=0)
        pool, flag, taken = line, None, budget
        per_token = None if self.cost is None else exp(self.cost.mean) / change.ratio / GIB
        cap, name = self._cap(flags)
        if name is not None and line is not None:
            pool = replace(line, ceiling=float(cap - cap % self.page_tokens))
            flag = name if bool((pool.above(pool.ceiling) > 0.0).any()) else None
        fixed_pool, fixed_name = self._fixed(flags, change, count)
        if is_entries:
            fixed_pool = replace(fixed(1.0, count), mean=(np.floor(fractions) * self.entry_tokens(flags))[None, :])
            fixed_name = spec.fraction
        if fixed_pool is not None:
            pool, flag, cap = fixed_pool, fixed_name, float(fixed_pool.mean[0, 0])
            taken = np.full(count, cap * per_token) if per_token is not None else budget
        elif name is not None and per_token is not None:
            taken = np.minimum(budget, cap * per_token)
        if flag is not None and kv_gib is not None and per_token is not None:
            kv_gib = replace(kv_gib, ceiling=cap * per_token) if fixed_pool is None else fixed(cap * per_token, count)
        return PoolAt(line=line, pool=pool, kv_gib=kv_gib, budget_gib=budget, taken_gib=taken, flag=flag)

    def _tokens(self, x: Floats, change: Change) -> Mixture | None:
        if self.posterior is None:
            return None
        if not self.tells_slope and not (x.size == 1 and self._is_measured(float(x[0]))):
            return None
        mean, sd, weight = self.posterior.tokens(x)
        extra = 0.0 * x
        if self.bend and self.measured_at:
            away = np.maximum(np.maximum(min(self.measured_at) - x, x - max(self.measured_at)), 0.0)
            slope, _ = self.posterior.moments()
            extra = self.bend * abs(float(slope[1])) * away
        if change is not NO_CHANGE:
            per_gib = self.tokens_per_gib()
            mean = mean + change.freed_gib * per_gib
            extra = np.hypot(extra, change.shift_sd_gib * per_gib)
            mean, sd, extra = mean * change.ratio, sd * change.ratio, extra * change.ratio
            extra = np.hypot(extra, np.abs(mean) * change.ratio_sd)
        pool = Mixture(mean=mean, sd=np.hypot(sd, extra), weight=weight, page=self.page_tokens)
        if self.tells_slope:
            return pool
        low, middle, high = pool.quantiles(0, (0.25, 0.5, 0.75))
        return pool if high - low < 0.6 * middle else None  # GiB were printed there, and nothing prices a token

    def _is_measured(self, x: float) -> bool:
        """Tell whether a start measured tokens at this abscissa: that holds without any slope."""
        measured = zip(self.measured_at, self.measured_tokens, strict=True)
        return any(abs(at - x) < 1e-9 and not isnan(tokens) for at, tokens in measured)

    def _gib(self, x: Floats, change: Change) -> Mixture:
        assert self.posterior is not None
        mean, sd, weight = self.posterior.gib(x)
        noise = self.posterior.noise[:, None] * np.abs(mean)
        return Mixture(
            mean=mean + change.freed_gib, sd=np.hypot(np.hypot(sd, noise), change.shift_sd_gib), weight=weight
        )

    def tokens_per_gib(self) -> float:
        """Return tokens per GiB, from the price where it is known, else from slope and base."""
        if self.cost is not None:
            return GIB / exp(self.cost.mean)
        if self.posterior is None or self.base is None:
            return 0.0
        mean, _ = self.posterior.moments()
        return max(0.0, float(mean[1])) / max(self.base.mean, 1e-6)

    def _cap(self, flags: Flags) -> tuple[float, str | None]:
        for name in NAMES[self.setting.engine.name].caps:
            limit = as_count(flags.get(name))
            if limit is not None:
                return float(limit), name
        return inf, None

    def _fixed(self, flags: Flags, change: Change, count: int) -> tuple[Mixture | None, str | None]:
        """Return the pool that a flag fixes whatever the fraction is, in whole pages."""
        spec = NAMES[self.setting.engine.name]
        blocks = as_count(flags.get(spec.blocks_flag)) if spec.blocks_flag else None
        if blocks is not None:
            return fixed(float(blocks * self.page_tokens), count, page=self.page_tokens), spec.blocks_flag
        for name in spec.bytes_flags:
            told = as_number(flags.get(name))
            if told is None or told <= 0.0 or self.cost is None:
                continue
            middle = told / exp(self.cost.mean) * change.ratio
            sd = middle * hypot(self.cost.sd, change.ratio_sd) + self.page_tokens * UNIFORM_SD
            shape = (1, count)
            mixture = Mixture(
                mean=np.full(shape, middle), sd=np.full(shape, sd), weight=np.ones(shape), page=self.page_tokens
            )
            return mixture, name
        return None, None

    def entry_tokens(self, flags: Flags) -> int:
        """Return the tokens of one block where the fraction flag counts blocks: as measured, flagged, or the usual."""
        running = self.running
        measured = None if running is None else usable_tokens(running, running.measurements.pool_tokens)
        entries = None if self.running is None or measured is None else self.running.fraction
        if measured is not None and entries is not None and entries > 1.0 and measured % int(entries) == 0:
            return measured // int(entries)
        return as_count(first_given(flags, "cache_block_seq_len")) or NAMES[self.setting.engine.name].counts_blocks or 1

    # What a change of flags does

    @cached_property
    def _key(self) -> Key:
        s = self.setting
        return {"kv_dtype": "auto", **deployment_key(s.model, s.engine, s.flags, s.hardware.gpu_count)}

    @cached_property
    def _cost(self) -> TokenCost | None:
        s = self.setting
        return token_cost(s.model.facts, s.engine, s.flags, s.hardware.gpu_count)

    @cached_property
    def _key_flags(self) -> frozenset[str]:
        s = self.setting
        fields = key_fields(s.engine.name, requests_move_pool=requests_move_pool(s.model, s.engine, s.flags))
        return frozenset(name for names in fields.values() for name in names)

    @cached_property
    def _changes(self) -> dict[frozenset[tuple[str, Scalar]], Change]:
        return {}

    def change(self, flags: Flags) -> Change:
        """Return what the differences between these flags and the deployment's do to the line."""
        own, key_flags = self.setting.flags, self._key_flags
        differing = frozenset(
            item for item in flags.items() if item[0] in key_flags and own.get(item[0], ...) != item[1]
        )
        found = NO_CHANGE
        if differing or self.is_other_version:
            known = self._changes.get(differing)
            found = self._changes[differing] = self._worked_out(flags) if known is None else known
        longer = longest_request(self.setting, flags) - longest_request(self.setting, own) if self.gib_per_length else 0
        if not longer:
            return found
        freed = -self.gib_per_length * longer
        doubt = hypot(found.shift_sd_gib, LENGTH_DOUBT * freed)
        return replace(found, freed_gib=found.freed_gib + freed, shift_sd_gib=doubt)

    def _worked_out(self, flags: Flags) -> Change:
        s = self.setting
        asked = deployment_key(s.model, s.engine, flags, s.hardware.gpu_count)
        changed = frozenset() if agrees(self._key, asked) else differing_fields(self._key, asked)
        if self.is_other_version:
            changed |= {"version"}
        if self.lighter_gib(flags):
            changed |= {"quantization"}
        if not changed:
            return NO_CHANGE
        ratio, ratio_sd = self._cost_ratio(flags, changed - {"version"})
        freed, freed_sd = self._freed(flags, changed)
        shift = max(SHIFT_SD_GIB.get(field, UNKNOWN_SHIFT_SD_GIB) for field in changed)
        if changed <= {"speculation", "draft"} and freed:
            shift = 0.0
        if "version" in changed:
            ratio_sd = hypot(ratio_sd, VERSION_COST_SD)
        return Change(ratio=ratio, ratio_sd=ratio_sd, freed_gib=freed, shift_sd_gib=hypot(shift, freed_sd))

    def _cost_ratio(self, flags: Flags, changed: frozenset[str]) -> tuple[float, float]:
        """Return tokens at the asked flags over tokens at the deployment's for the same memory, and its doubt."""
        if not changed & _PRICED:
            return 1.0, 0.0
        s, before = self.setting, self._cost
        after = token_cost(s.model.facts, s.engine, flags, s.hardware.gpu_count)
        if before is None or after is None:
            if changed <= {"speculation", "draft"}:
                return _draft_ratio(s.flags, flags, self.running)
            return _dtype_ratio(s.flags, flags) if changed <= {"kv_dtype"} else (1.0, 0.5)
        if changed <= {"kv_dtype", "tp"}:
            doubt = 0.0 if read_shape(s.model.facts).latent_width is None else LATENT_RATIO_SD
        else:
            doubt = hypot(before.relative_sd, after.relative_sd)
        return before.bytes_per_token / after.bytes_per_token, doubt

    def _freed(self, flags: Flags, changed: frozenset[str]) -> tuple[float, float]:
        """Return GiB that the change leaves to the pool: lighter or spread weights, a draft or graphs left out."""
        found = [
            self._spread(flags) if changed & {"tp", "pp"} else (0.0, 0.0),
            self._draft(flags) if "speculation" in changed else (0.0, 0.0),
            self._graphs(flags) if "graphs" in changed else (0.0, 0.0),
            (self._lighter(flags), 0.0) if "quantization" in changed else (0.0, 0.0),
        ]
        return sum(gib for gib, _ in found), hypot(*(sd for _, sd in found))

    def _spread(self, flags: Flags) -> tuple[float, float]:
        """Return how much less of w one GPU holds when weights spread over another number of GPUs."""
        if self.posterior is None:
            return 0.0, 0.0
        before = parallel_layout(self.setting.flags, self.setting.hardware.gpu_count)
        after = parallel_layout(flags, self.setting.hardware.gpu_count)
        share = before.tensor * before.pipeline / (after.tensor * after.pipeline)
        mean, _ = self.posterior.moments()
        return float(mean[3]) * (1.0 - share), 0.0

    def _draft(self, flags: Flags) -> tuple[float, float]:
        """Return the draft's weights as logged, where it is left out and its engine counts them before the pool."""
        took = None if self.running is None else as_number(self.running.measurements.draft_weights_gib)
        if took is None or speculation(flags) != "" or not 0.0 < took < 1e3:
            return 0.0, 0.0
        version = parse_version(self.setting.engine.version)
        is_sglang = self.setting.engine.name is EngineName.SGLANG
        is_late = is_sglang and version is not None and version < DRAFT_IN_BASE
        return (0.0, 0.0) if is_late else (took, 0.05 * took)

    def _graphs(self, flags: Flags) -> tuple[float, float]:
        """Return what a lower cap on graphs leaves of what they took, which vLLM sets aside before the pool."""
        spec, running = NAMES[self.setting.engine.name], self.running
        if not spec.reserves_peak or spec.graph_batch is None or running is None:
            return 0.0, 0.0
        took, now = as_number(running.measurements.graph_gib), as_count(flags.get(spec.graph_batch))
        was = as_count(running.flags.get(spec.graph_batch)) or 512
        if took is None or now is None or now >= was:
            return 0.0, 0.0
        freed = took * (1.0 - now / was)
        return freed, 0.3 * freed

    def lighter_gib(self, flags: Flags) -> float:
        """Return GiB that weights made 8-bit by a flag take less, where they are logged and known to be 16-bit."""
        return self._lighter(flags) if as_word(flags.get("quantization")) else 0.0

    def _lighter(self, flags: Flags) -> float:
        known, running = flat_facts(self.setting.model.facts), self.running
        is_wide = as_word(first_given(known, "torch_dtype", "dtype")) in ("bfloat16", "float16")
        word = as_word(flags.get("quantization")) or ""
        if running is None or not is_wide or not word.startswith(_EIGHT_BIT):
            return 0.0
        if known.get("quantization_config") or is_on(running.flags.get("quantization")):
            return 0.0
        measured = running.measurements
        weights, before, after = measured.weights_gib, measured.free_before_load_gib, measured.free_after_load_gib
        if weights is None and before is not None and after is not None:
            weights = before - after
        return 0.5 * weights if weights is not None and 0.0 < weights < 1e3 else 0.0

    # What cannot be

    def implausible(self, start: Observation) -> str | None:
        """Return why a start's fraction cannot be what it ran with, None where it may be.

        Too little memory for the weights, or for the pool at a price of 4-bit KV; a flag that sizes the pool by itself
        makes any fraction possible.
        """
        spec, fraction = NAMES[self.setting.engine.name], fraction_of(start)
        if fraction is None or spec.scales_free_memory or any(is_on(start.flags.get(n)) for n in spec.inert_with):
            return None
        prior, tokens = self.knowledge.line, usable_tokens(start, start.measurements.pool_tokens)
        weights = prior.weights.mean if self.knowledge.knows_weights and self.knowledge.knows_base else None
        if weights is not None and fraction * prior.base.mean < 0.5 * weights:
            told = f"{fraction * prior.base.mean:.1f} GiB in all, and the weights alone take about {weights:.1f}"
        elif tokens is not None and self.knowledge.knows_cost and self.knowledge.knows_base:
            least, given = tokens * exp(prior.cost.mean) / GIB / _DENSEST, fraction * prior.base.mean
            if least <= given:
                return None
            told = f"{given:.1f} GiB in all, and a pool of {tokens:,} tokens takes {least:.1f} or more"
        elif fraction < LEAST_FRACTION and weights is None:
            told = "no room for the weights of any model that one would size a pool for"
        else:
            return None
        return f"{spec.fraction} {fraction:g} leaves {told}: was it mistyped?"

    def contradiction(self) -> str | None:
        """Return what contradicts what where the line cannot be a real GPU's, None when it is sound."""
        if self.posterior is None or self.setting.scales_free_memory:
            return None
        zero = self.zero_fraction
        if zero is not None and zero.high <= 0.0:
            return (
                f"the implied zero crossing is {zero.median:.2f}: by this line a pool would be left at a fraction "
                "of 0, though weights take memory"
            )
        if self.measured_at and self.posterior.sound < UNSOUND and np.ptp(self.measured_at) < SPAN:
            found = self._unsound()
            if found is not None:
                return found
        steep = self._steepness()
        if steep is not None and steep > STEEPEST:
            return f"the pool rises {steep:.1f} times as fast with the fraction as the GPU's memory allows"
        return None

    def _unsound(self) -> str | None:
        """Say what a pool that is larger than memory, weights and the price of a token allow contradicts.

        A smaller one contradicts nothing: more than the weights may be taken before the pool.
        """
        x, tokens, prior = self.measured_at[-1], self.measured_tokens[-1], self.knowledge.line
        if isnan(tokens):
            return None
        per_token = exp((prior.printed_cost or prior.cost).mean)
        if prior.printed_cost is None and self.knowledge.formula is not None:
            per_token = min(per_token, self.knowledge.formula)
        implied = x - tokens * per_token / GIB / prior.base.mean
        stated = prior.weights.mean / prior.base.mean
        if implied > 0.5 * stated:
            return None
        return (
            f"a pool of {tokens:,.0f} tokens at {x:g} does not go with what config and GPU say: the implied zero "
            f"crossing is {implied:.2f}, while the weights say {stated:.2f}; bytes per token (KV dtype, draft), "
            "weights or the GPU's memory may be other than stated"
        )

    def _steepness(self) -> float | None:
        """Return the slope over what the whole GPU would give at the known price of a token."""
        prior = self.knowledge.line
        known = prior.printed_cost or (prior.cost if self.knowledge.knows_cost else None)
        usable = usable_memory(self.setting.hardware)
        if known is None or usable is None or self.slope is None or not self.tells_slope or known.sd > 0.1:
            return None
        low, _, _ = self.slope.quantiles(0, (0.05, 0.5, 0.95))
        doubt = 2.0 * known.sd if keeps_states(self.setting.model) else 0.0
        return low * exp(known.mean) / GIB / usable.gib / (1.0 + doubt)


def longest_request(setting: Setting, flags: Flags) -> int:
    """Return the context length that vLLM starts with, the model's own where it is unset or fitted; 0 if unknown."""
    given = as_count(flags.get(NAMES[setting.engine.name].context))
    return given or read_shape(setting.model.facts).context_length or 0


def _draft_ratio(before: Flags, after: Flags, running: Observation | None) -> tuple[float, float]:
    """Without a config, a draft's layers cost what their own pool took beside the target's, else the usual 6 %."""
    had, has = bool(speculation(before)), bool(speculation(after))
    if had == has:
        return 1.0, UNKNOWN_DRAFT_SD
    factor = UNKNOWN_DRAFT_FACTOR
    if had and running is not None:
        target, draft = running.measurements.kv_cache_gib, running.measurements.draft_kv_cache_gib
        if target is not None and draft is not None and 0.0 <= draft < target < LARGEST_POOL_GIB:
            factor = 1.0 + draft / target
    return (factor if had else 1.0 / factor), UNKNOWN_DRAFT_SD


def _dtype_ratio(before: Flags, after: Flags) -> tuple[float, float]:
    """Without a config, 8-bit KV is taken to hold 1.5 to 2 times the tokens of 16-bit, 4-bit three to four times."""
    old, new = _density(before), _density(after)
    if old is None or new is None:
        return 1.0, 0.5
    return (1.0, 0.05) if old == new else (new / old, 0.08)


def _density(flags: Flags) -> float | None:
    """Return tokens per byte relative to 16-bit KV, None for a word that says nothing known."""
    named = first_given(flags, "kv_cache_dtype", "quant_policy")
    word = str(named if named is not None else "auto").lower()
    word = QUANT_POLICIES.get(word, word)
    known = {"fp8": 1.9, "int8": 1.9, "fp4": 3.5, "int4": 3.5, "bf": 1.0, "float16": 1.0, "fp16": 1.0, "half": 1.0}
    return 1.0 if word == "auto" else next((density for part, density in known.items() if part in word), None)
