"""What is known of a pool line before its points: memory, weights and the price of a token, and who may be wrong.

Sources, best first: the engine's own log, other hardware, the model's config, the device table. Each hypothesis says
that one of them is wrong; its weight is that of its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, log, sqrt
from statistics import median

from kvyield_server.domain.engines.fraction_share import is_sized_after_capture, share_of
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.engines.token_cost import (
    BLOCK_DRAFTS,
    HYBRID_SD,
    UNKNOWN_DRAFT_FACTOR,
    has_states_of_their_own,
    is_pinned,
    kv_element_bytes,
    speculation,
    token_cost,
)
from kvyield_server.domain.facts.devices import LOGGED_SD, free_before_load, has_unified_memory, usable_memory
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import has_token_price, keeps_states, read_shape
from kvyield_server.domain.facts.observation import Engine, EngineName, Flags, Hardware, Model, Observation
from kvyield_server.domain.facts.scalars import as_count, as_number
from kvyield_server.domain.facts.weights import weights_of_gpu
from kvyield_server.domain.model.evidence import fraction_of, held_by_others, pool_cap, usable_tokens
from kvyield_server.domain.model.line import GIB, Hypothesis, LinePrior, Normal, combined, price

PRINTED_SD_GIB = 0.003
"""Rounding of a figure that is printed with two decimals."""
LEAST_RATIO_SD = 0.0001
LOGGED_WEIGHTS_SD = 0.0024
"""Doubt about T - A as a share of A: what comes and goes between the two lines of a log and the sizing of the pool."""
TRANSFER_SD = 0.005
GRAPHS_GIB, GRAPHS_SD_GIB = 1.5, 0.8
STATES_SD_GIB = 3.0
TARGET_COST_SD = 0.15
"""Without a config, what a draft or states add to the price of the target's own pool is a guess."""
BOOT_SD_GIB = 0.2
"""By how much vLLM's memory beside the pool differs between boots with a draft or states: see docs/adr/0006."""
VLLM_EXTRA = Normal(1.7, 1.6)
PEAK_DOUBT = 0.1
"""How often vLLM's profiled peak and graph estimate are far more than that (20.88 GiB of graphs, 13 GiB on a GB10)."""
SGLANG_EXTRA = Normal(0.1, 0.3)
MOST_WEIGHTS = 0.9
"""A model whose 16-bit weights would take more of the GPU than this is run with fewer bits."""
UNKNOWN_BASE = Normal(80.0, 80.0)
UNKNOWN_COST = Normal(log(60_000.0), 3.0)
UNKNOWN_COST_SD = 1.0
NEWEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The hardware, model, engine and flags that a line is fitted for."""

    hardware: Hardware
    model: Model
    engine: Engine
    flags: Flags

    @property
    def scales_free_memory(self) -> bool:
        """Tell whether the fraction multiplies what is left after weights, so that the line starts at zero."""
        return NAMES[self.engine.name].scales_free_memory

    @property
    def boots_differ(self) -> bool:
        """Tell whether memory beside the pool differs between equal boots, as vLLM's does with drafts or states."""
        is_vllm = self.engine.name is EngineName.VLLM
        return is_vllm and (bool(speculation(self.flags)) or keeps_states(self.model))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """A line's prior with where it comes from. ``formula`` is the config's price of a token without a draft, bytes;
    ``names_zero`` says that a refusal named the zero crossing.
    """

    line: LinePrior
    base_source: str
    weights_source: str
    cost_source: str
    formula: float | None
    names_zero: bool = False

    @property
    def knows_base(self) -> bool:
        return self.base_source != "unknown"

    @property
    def knows_weights(self) -> bool:
        return self.weights_source not in ("unknown", "assumed")

    @property
    def knows_zero(self) -> bool:
        """Whether anything tells where the line crosses zero: weights, be they assumed, or a refusal."""
        return self.knows_base and (self.weights_source != "unknown" or bool(self.line.crossings))

    @property
    def knows_cost(self) -> bool:
        return self.cost_source != "unknown"


def prior_knowledge(setting: Setting, starts: Sequence[Observation], transfers: Sequence[Observation]) -> Knowledge:
    """Return what logs, other hardware, config and GPU say together about a deployment's line.

    The newest starts are enough: their logs say the same.
    """
    starts = starts[-NEWEST:]
    base, base_source = _base(setting, starts)
    weights, weights_source = _weights(setting, starts, transfers, base)
    cost, cost_source, formula = _cost(setting, transfers)
    beside = _target_price(starts) if cost_source == "unknown" else None
    if beside is not None:
        cost, cost_source = beside, "target"
    own = [ratio for start in starts if (ratio := _printed_price(start)) is not None]
    printed = combined(own)
    if printed is not None:
        cost_source = "printed"
        cost = Normal(cost.mean, max(cost.sd, abs(cost.mean - printed.mean)))  # what is printed is what is billed
    crossings = tuple(_named_crossings(starts, base))
    line = LinePrior(
        base=base,
        weights=weights,
        cost=cost,
        printed_cost=printed,
        crossings=crossings,
        hypotheses=_hypotheses(setting, base, cost, (base_source, weights_source, cost_source)),
        boot_gib=BOOT_SD_GIB if setting.boots_differ else 0.0,
    )
    return Knowledge(
        line=line,
        base_source=base_source,
        weights_source=weights_source,
        cost_source=cost_source,
        formula=formula,
        names_zero=bool(crossings),
    )


_DOUBT = {"logged": 0.004, "zero": 0.0005, "printed": 0.002, "transfer": 0.02}
"""How likely a source is to be wrong; the config's and the table's figures more often than what the engine printed."""


def _hypotheses(setting: Setting, base: Normal, cost: Normal, sources: tuple[str, str, str]) -> tuple[Hypothesis, ...]:
    """Return the hypotheses that each source of prior knowledge (memory, weights, price) is wrong, and that none is."""
    base_source, weights_source, cost_source = sources
    more_doubt = PEAK_DOUBT if setting.engine.name is EngineName.VLLM else 0.0
    wrong = [
        Hypothesis("memory", _DOUBT.get(base_source, 0.01), base_sd_gib=0.1 * base.mean),
        Hypothesis("weights", more_doubt + _DOUBT.get(weights_source, 0.03), weights_sd_gib=0.25 * base.mean),
    ]
    if cost.sd < UNKNOWN_COST_SD and cost_source != "printed":
        wrong.append(Hypothesis("cost", _DOUBT.get(cost_source, 0.04), cost_sd=0.5))
    return (Hypothesis("sound", 1.0 - sum(each.weight for each in wrong)), *wrong)


def logged_base(start: Observation) -> float | None:
    """Return the memory that the fraction multiplies as a start's own log gives it, GiB."""
    measured, engine = start.measurements, start.engine.name
    if engine is EngineName.SGLANG:
        value = as_number(measured.free_before_load_gib)
    elif engine is EngineName.VLLM:
        value = as_number(measured.device_memory_gib)
    else:
        value = as_number(measured.free_after_load_gib)
    return value if value is not None and 0.1 < value < 1e4 else None


def _base(setting: Setting, starts: Sequence[Observation]) -> tuple[Normal, str]:
    """Return the memory that the fraction multiplies.

    As logged by the newest start that is not an outlier: another process makes SGLang's figure smaller for a while. A
    start that failed while other processes held memory says nothing about the others.
    """
    alone = [start for start in starts if has_unified_memory(start.hardware) or not held_by_others(start)]
    for some in (alone, [start for start in starts if start.came_up]):
        logged = [value for start in some if (value := logged_base(start)) is not None]
        if logged:
            break
    if logged:
        usual = median(logged) if len(logged) > 2 else max(logged)
        newest = next((value for value in reversed(logged) if abs(value - usual) <= 0.02 * usual), usual)
        return Normal(newest, LOGGED_SD * newest), "logged"
    if setting.engine.name is EngineName.VLLM:
        figure = usable_memory(setting.hardware)
    elif setting.engine.name is EngineName.SGLANG:
        layout = parallel_layout(setting.flags, setting.hardware.gpu_count)
        figure = free_before_load(setting.hardware, is_spread=layout.is_spread)
    else:
        figure = None
    if figure is not None:
        return Normal(figure.gib, figure.gib * figure.relative_sd), "table"
    total = usable_memory(setting.hardware) if setting.scales_free_memory else None
    if total is not None:
        weights = weights_of_gpu(setting.model, setting.flags, setting.hardware.gpu_count)
        left = max(0.05 * total.gib, total.gib - (weights.gib if weights else 0.4 * total.gib) - 2.0)
        return Normal(left, 0.1 * total.gib if weights else 0.4 * total.gib), "table" if weights else "unknown"
    return UNKNOWN_BASE, "unknown"


def loads(start: Observation) -> tuple[float, float] | None:
    """Return SGLang's free memory before and after load, GiB, where both were logged and make sense."""
    if start.engine.name is not EngineName.SGLANG:
        return None
    before, after = logged_base(start), as_number(start.measurements.free_after_load_gib)
    return (before, after) if before is not None and after is not None and 0.0 < after < before else None


def _weights(
    setting: Setting, starts: Sequence[Observation], transfers: Sequence[Observation], base: Normal
) -> tuple[Normal, str]:
    """Return what is gone of the base before the pool: weights, and with vLLM the profiled peak."""
    if setting.scales_free_memory:
        return Normal(0.0, 0.002 * base.mean), "zero"
    logged = [found for start in starts if (found := _loaded_weights(start)) is not None]
    if logged:
        return Normal(median(n.mean for n in logged), min(n.sd for n in logged)), "logged"
    is_vllm = setting.engine.name is EngineName.VLLM
    extra = VLLM_EXTRA if is_vllm else SGLANG_EXTRA
    told = _told_weights(starts) or _told_weights([start for start in transfers if _loads_alike(setting, start)])
    if told is not None:
        return Normal(told.mean + extra.mean, hypot(told.sd, extra.sd)), "told"
    estimate = weights_of_gpu(setting.model, setting.flags, setting.hardware.gpu_count)
    if estimate is not None and estimate.by_dtype and estimate.gib > MOST_WEIGHTS * base.mean:
        estimate = estimate.assumed()
    if estimate is not None:
        doubt = hypot(estimate.gib * estimate.relative_sd, extra.sd)
        return Normal(estimate.gib + extra.mean, doubt), "config" if estimate.is_stated else "assumed"
    return Normal(0.45 * base.mean, 0.3 * base.mean), "unknown"


def _loaded_weights(start: Observation) -> Normal | None:
    """Return w from a log's own memory figures."""
    found = loads(start)
    if found is None:
        return None
    before, after = found
    graphs, doubt = (GRAPHS_GIB, GRAPHS_SD_GIB) if is_sized_after_capture(start.flags) else (0.0, 0.0)
    if has_states_of_their_own(start.model, start.flags):
        doubt = hypot(doubt, STATES_SD_GIB)
    doubt = hypot(doubt, LOGGED_WEIGHTS_SD * after)
    return Normal(before - after + graphs, hypot(doubt, PRINTED_SD_GIB * sqrt(2.0)))


def _told_weights(starts: Sequence[Observation]) -> Normal | None:
    """Return GiB that weights take of one GPU, as the newest start that logged them did."""
    for start in reversed(starts):
        value, found = as_number(start.measurements.weights_gib), loads(start)
        if found is not None:
            value = found[0] - found[1]
        if value is not None and 0.0 < value < 1e4:
            return Normal(value, 0.01 * value)
    return None


def _loads_alike(setting: Setting, start: Observation) -> bool:
    """Tell whether one GPU there holds the same share of the same weights."""
    here = parallel_layout(setting.flags, setting.hardware.gpu_count)
    there = parallel_layout(start.flags, start.hardware.gpu_count)
    same_spread = (here.tensor, here.pipeline) == (there.tensor, there.pipeline)
    named = setting.flags.get("quantization"), start.flags.get("quantization")
    return same_spread and start.engine.name is setting.engine.name and (None in named or named[0] == named[1])


def _named_crossings(starts: Sequence[Observation], base: Normal) -> list[Normal]:
    """Return the zero crossings that SGLang's refusals named ("minimum viable"), with their doubt in GiB."""
    named = [
        value * share_of(start)
        for start in starts
        if start.failure is not None
        and (value := as_number(start.failure.minimum_fraction)) is not None
        and 0.0 < value < 1.0
    ]
    return [Normal(median(named), 0.0005 * base.mean)] if named else []


def _cost(setting: Setting, transfers: Sequence[Observation]) -> tuple[Normal, str, float | None]:
    """Return log c before this deployment's own starts: from other hardware or from the model's config."""
    cost = token_cost(setting.model.facts, setting.engine, setting.flags, setting.hardware.gpu_count)
    formula = None if cost is None else price(cost.bytes_per_token, cost.relative_sd)
    moved = combined(
        [ratio for start in transfers if _prices_alike(setting, start) and (ratio := measured_price(start)) is not None]
    )
    if moved is not None:
        moved = Normal(moved.mean, hypot(moved.sd, TRANSFER_SD))
    alone = {**setting.flags, NAMES[setting.engine.name].speculation or "speculative": None}
    bare = token_cost(setting.model.facts, setting.engine, alone, setting.hardware.gpu_count)
    of_config = None if bare is None else bare.bytes_per_token
    if moved is not None and (formula is None or moved.sd < formula.sd):
        return moved, "transfer", of_config
    return (formula, "config", of_config) if formula is not None else (UNKNOWN_COST, "unknown", None)


def measured_price(start: Observation) -> Normal | None:
    """Return log c as one start's own log gives it."""
    found = [ratio for ratio in (_printed_price(start), _loaded_price(start)) if ratio is not None]
    return min(found, key=lambda ratio: ratio.sd, default=None)


def _printed_price(start: Observation) -> Normal | None:
    """Return log c from the KV memory that the engine printed, or from a refusal's own arithmetic."""
    tokens, printed = usable_tokens(start, start.measurements.pool_tokens), _budget_gib(start)
    if tokens is not None and printed is not None and 0.05 < printed < 1e5:
        return _ratio(printed, tokens)
    return _refused_price(start)


def _refused_price(start: Observation) -> Normal | None:
    """vLLM's refusal: so many GiB for its longest request, and so many tokens in what there is.

    Where these differ by more than rounding, a request takes something whatever its length: the dearer one is safe.
    """
    failure = start.failure
    if failure is None or start.engine.name is not EngineName.VLLM or not has_token_price(start.model):
        return None
    longest, fitting = (
        as_count(start.flags.get(NAMES[start.engine.name].context)),
        usable_tokens(start, failure.longest_tokens),
    )
    told = _told_gib(start) or as_number(failure.available_kv_cache_gib)
    found = [
        _ratio(gib, tokens)
        for gib, tokens in ((as_number(failure.needed_gib), longest), (told, fitting))
        if gib is not None and tokens is not None and 0.05 < gib < 1e5
    ]
    if not found:
        return None
    nearest, dearest = min(found, key=lambda ratio: ratio.sd), max(found, key=lambda ratio: ratio.mean)
    apart = dearest.mean - min(ratio.mean for ratio in found)
    is_rounding = apart <= 2.0 * hypot(*(ratio.sd for ratio in found))
    best = nearest if is_rounding else Normal(dearest.mean, max(dearest.sd, 0.5 * apart))
    return Normal(best.mean, hypot(best.sd, HYBRID_SD)) if keeps_states(start.model) else best


def _ratio(gib: float, tokens: int) -> Normal:
    return price(gib * GIB / tokens, hypot(LEAST_RATIO_SD, printed_sd(gib) / gib))


def printed_sd(gib: float) -> float:
    """Return the rounding of a printed figure; one with a single decimal may have been rounded to it."""
    return PRINTED_SD_GIB * (10.0 if round(gib, 1) == gib else 1.0)


def _told_gib(start: Observation) -> float | None:
    """Return the KV memory that a start was told to take, whatever the fraction."""
    given = (as_number(start.flags.get(name)) for name in NAMES[start.engine.name].bytes_flags)
    return next((value / GIB for value in given if value is not None and value > 0.0), None)


def _pool_gib(start: Observation) -> float | None:
    """Return the KV memory that a start was told to take, else what it printed."""
    told = _told_gib(start)
    return as_number(start.measurements.kv_cache_gib) if told is None else told


def _budget_gib(start: Observation) -> float | None:
    """Return the KV memory that all tokens together take of the budget, where the engine printed all of it.

    vLLM's figure is the budget. SGLang's is without an index, and with states only where their number is given; a draft
    priced in layers of its target is billed more than it takes, any other what its own pool takes.
    """
    printed = _pool_gib(start)
    if start.engine.name is not EngineName.SGLANG:
        return printed
    shape, algorithm = read_shape(start.model.facts), speculation(start.flags)
    is_partial = shape.index_head_dim is not None or (shape.is_hybrid and not is_pinned(start.flags))
    if is_partial or printed is None or algorithm is None or any(word in algorithm for word in BLOCK_DRAFTS):
        return None
    draft = as_number(start.measurements.draft_kv_cache_gib)
    return printed if algorithm == "" else None if draft is None else printed + draft


def _target_price(starts: Sequence[Observation]) -> Normal | None:
    """Return log c from what SGLang printed of the target's pool alone, where no config tells what a draft adds.

    The newest start that says so counts.
    """
    for start in reversed(starts):
        tokens, printed = (
            usable_tokens(start, start.measurements.pool_tokens),
            as_number(start.measurements.kv_cache_gib),
        )
        if start.engine.name is EngineName.SGLANG and tokens is not None and printed is not None and printed > 0.05:
            return price(printed * GIB / tokens * UNKNOWN_DRAFT_FACTOR, TARGET_COST_SD)
    return None


def _loaded_price(start: Observation) -> Normal | None:
    """Return log c from SGLang's free memory before and after load: K = A - T (1 - f).

    A pool that a flag capped, that was sized after graphs were captured, or that lies beside states of a size of their
    own, is not what is left then.
    """
    tokens, found, fraction = usable_tokens(start, start.measurements.pool_tokens), loads(start), fraction_of(start)
    if tokens is None or found is None or fraction is None or pool_cap(start, tokens) is not None:
        return None
    if is_sized_after_capture(start.flags) or has_states_of_their_own(start.model, start.flags):
        return None
    before, after = found
    left = before * (1.0 - fraction * share_of(start))
    budget = after - left
    if budget <= 0.05:
        return None
    return price(budget * GIB / tokens, hypot(LEAST_RATIO_SD, hypot(PRINTED_SD_GIB, LOGGED_SD * left) / budget))


def _prices_alike(setting: Setting, start: Observation) -> bool:
    """Tell whether a token costs the same there: engine, KV dtype, draft and, unless latent, attention layout."""
    if start.engine.name is not setting.engine.name:
        return False
    facts = setting.model.facts
    here = parallel_layout(setting.flags, setting.hardware.gpu_count)
    there = parallel_layout(start.flags, start.hardware.gpu_count)
    is_latent = read_shape(facts).latent_width is not None
    same_layout = is_latent or here.attention_tensor == there.attention_tensor
    same_draft = (speculation(setting.flags) or "") == (speculation(start.flags) or "")
    same_dtype = kv_element_bytes(setting.flags, facts) == kv_element_bytes(start.flags, facts)
    return same_layout and same_draft and same_dtype and here.pipeline == there.pipeline
