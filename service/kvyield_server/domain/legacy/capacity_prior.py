"""What is known of a capacity line before its points: tokens per GiB, the base memory and the zero crossing.

Best source first: the engine's own log, other hardware, the model's config, the device table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt

from kvyield_server.domain.engines.fraction_share import is_sized_after_capture, share_of
from kvyield_server.domain.engines.token_cost import (
    has_states_of_their_own,
    kv_element_bytes,
    speculation,
    token_cost,
)
from kvyield_server.domain.facts.devices import LOGGED_SD, MemoryFigure, free_before_load, usable_memory
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import read_shape
from kvyield_server.domain.facts.observation import Engine, EngineName, Flags, Hardware, Model, Observation
from kvyield_server.domain.facts.scalars import as_number
from kvyield_server.domain.facts.weights import weights_gib_per_gpu
from kvyield_server.domain.legacy.capacity import GIB
from kvyield_server.domain.legacy.capacity_change import Ratio
from kvyield_server.domain.legacy.evidence import fraction_of, pool_cap
from kvyield_server.domain.legacy.refusals import raised, refused_up_to
from kvyield_server.domain.legacy.regression import Anchor, SlopePrior

PRINTED_SD_GIB = 0.003
GRAPHS_GIB, GRAPHS_SD_GIB = 1.5, 0.8
STATES_SD_GIB = 3.0
TRANSFER_SD = 0.005
NEWEST = 32
LEAST_RATIO_SD = 0.0002
WEIGHT_SD = 0.05
VLLM_EXTRA_GIB, VLLM_EXTRA_SD_GIB = 1.5, 1.0
SGLANG_EXTRA_GIB, SGLANG_EXTRA_SD_GIB = 0.1, 0.3


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
        return self.engine.name in (EngineName.TENSORRT_LLM, EngineName.LMDEPLOY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPrior:
    """Prior knowledge of one line, each piece None where nothing tells; ``is_transferred`` says other hardware did."""

    base: MemoryFigure | None
    tokens_per_gib: Ratio | None
    anchor: Anchor | None
    slope_tokens: SlopePrior | None
    expected_slope: SlopePrior | None = None
    is_transferred: bool = False

    def slope(self, *, counts_tokens: bool) -> SlopePrior | None:
        """Return what is known of the slope, in tokens or in GiB per 1.0 of the fraction."""
        if counts_tokens:
            return self.slope_tokens
        return None if self.base is None else SlopePrior(self.base.gib, self.base.gib * self.base.relative_sd)


def physics_prior(setting: Setting, starts: Sequence[Observation], transfers: Sequence[Observation]) -> CapacityPrior:
    """Return what logs, other hardware, config and card say together about a deployment's line.

    SGLang's load lines place the zero crossing; the price of a token that follows from them is the same knowledge
    over again, so that it never enters the slope beside them. The newest starts are enough: their logs say the same.
    """
    starts = starts[-NEWEST:]
    base = base_memory(setting, starts)
    per_gib, is_transferred = _tokens_per_gib(setting, starts, transfers)
    loaded = _mean_ratio([ratio for start in starts if (ratio := _loaded_ratio(start)) is not None], 0.0)
    slope = _slope(base, per_gib)
    check = _slope(base, loaded) if loaded is not None else None
    return CapacityPrior(
        base=base,
        tokens_per_gib=_better(per_gib, loaded),
        anchor=_independent(_anchor(setting, starts, transfers, base), slope, starts),
        slope_tokens=slope,
        expected_slope=check if check is not None and (slope is None or check.sd < slope.sd) else slope,
        is_transferred=is_transferred,
    )


def _slope(base: MemoryFigure | None, ratio: Ratio | None) -> SlopePrior | None:
    """Return base memory times tokens per GiB."""
    if base is None or ratio is None:
        return None
    mean = base.gib * ratio.value
    return SlopePrior(mean, mean * hypot(base.relative_sd, ratio.relative_sd))


def _better(one: Ratio | None, other: Ratio | None) -> Ratio | None:
    return min((r for r in (one, other) if r is not None), key=lambda ratio: ratio.relative_sd, default=None)


def _independent(anchor: Anchor | None, slope: SlopePrior | None, starts: Sequence[Observation]) -> Anchor | None:
    """Return the anchor unless a slope that hangs on the same logged base memory says as much more closely."""
    fractions = [fraction for start in starts if (fraction := fraction_of(start)) is not None]
    if anchor is None or slope is None or slope.mean <= 0.0 or not fractions:
        return anchor
    reach = sum(fractions) / len(fractions) - anchor.x
    has_points = any(_tokens(start) is not None for start in starts)
    return None if has_points and reach > 0.0 and slope.sd / slope.mean <= anchor.sd / reach else anchor


def base_memory(setting: Setting, starts: Sequence[Observation]) -> MemoryFigure | None:
    """Return the memory that the fraction multiplies, as the newest start logged it, else as the card has it."""
    logged = next((value for start in reversed(starts) if (value := logged_base(start)) is not None), None)
    if logged is not None:
        return MemoryFigure(logged, LOGGED_SD)
    if setting.engine.name is EngineName.VLLM:
        return usable_memory(setting.hardware)
    if setting.engine.name is EngineName.SGLANG:
        layout = parallel_layout(setting.flags, setting.hardware.gpu_count)
        return free_before_load(setting.hardware, is_spread=layout.is_spread)
    return None


def logged_base(start: Observation) -> float | None:
    """Return the base memory that a start's own log gives, GiB."""
    measured, engine = start.measurements, start.engine.name
    if engine is EngineName.SGLANG:
        value = as_number(measured.free_before_load_gib)
    elif engine is EngineName.VLLM:
        value = as_number(measured.device_memory_gib)
    else:
        value = as_number(measured.free_after_load_gib)
    return value if value is not None and 0.1 < value < 1e4 else None


def measured_ratio(start: Observation) -> Ratio | None:
    """Return tokens per GiB of KV budget from one start's own log."""
    found = (_printed_ratio(start), _loaded_ratio(start))
    return min((r for r in found if r is not None), key=lambda ratio: ratio.relative_sd, default=None)


def _tokens(start: Observation) -> int | None:
    tokens = start.measurements.pool_tokens
    return tokens if tokens is not None and 0 < tokens < 2**53 else None


def _printed_ratio(start: Observation) -> Ratio | None:
    """Return the ratio from the KV memory that the engine printed."""
    tokens, printed = _tokens(start), _pool_gib(start)
    if tokens is None or printed is None or not 0.05 < printed < 1e5 or not _prints_budget(start):
        return None
    return Ratio(tokens / printed, hypot(LEAST_RATIO_SD, _printed_sd(printed) / printed))


def _pool_gib(start: Observation) -> float | None:
    """Return the KV memory that a start printed, or that vLLM was told to take, whatever the fraction."""
    printed, told = as_number(start.measurements.kv_cache_gib), as_number(start.flags.get("kv_cache_memory_bytes"))
    return told / GIB if printed is None and told is not None and start.engine.name is EngineName.VLLM else printed


def _loaded_ratio(start: Observation) -> Ratio | None:
    """Return the ratio from SGLang's free memory before and after load: rest = A - T (1 - f).

    A pool that a flag capped, that was sized after graphs were captured, or that lies beside states of a size of their
    own, is not what is left then.
    """
    tokens, (before, after, fraction) = _tokens(start), _loads(start)
    if tokens is None or before is None or after is None or fraction is None or pool_cap(start, tokens) is not None:
        return None
    if is_sized_after_capture(start.flags) or has_states_of_their_own(start.model, start.flags):
        return None
    budget = after - before * (1.0 - fraction)
    if budget <= 0.05:
        return None
    doubt = hypot(PRINTED_SD_GIB, LOGGED_SD * before * (1.0 - fraction))
    return Ratio(tokens / budget, hypot(LEAST_RATIO_SD, doubt / budget))


def _printed_sd(gib: float) -> float:
    """Return the rounding of a printed figure; one with a single decimal may have been rounded to it."""
    return PRINTED_SD_GIB * (10.0 if round(gib, 1) == gib else 1.0)


def _prints_budget(start: Observation) -> bool:
    """Tell whether the printed KV memory is the budget: vLLM's is; SGLang's only without draft, index or states."""
    if start.engine.name is not EngineName.SGLANG:
        return True
    shape = read_shape(start.model.facts)
    return speculation(start.flags) == "" and not shape.is_hybrid and shape.index_head_dim is None


def _loads(start: Observation) -> tuple[float | None, float | None, float | None]:
    """Return SGLang's free memory before and after load with the fraction applied; None each where not logged."""
    if start.engine.name is not EngineName.SGLANG:
        return None, None, None
    after = as_number(start.measurements.free_after_load_gib)
    fraction = fraction_of(start)
    applied = None if fraction is None else fraction * share_of(start)
    return logged_base(start), after if after is None or after > 0 else None, applied


def _tokens_per_gib(
    setting: Setting, starts: Sequence[Observation], transfers: Sequence[Observation]
) -> tuple[Ratio | None, bool]:
    own = _mean_ratio([ratio for start in starts if (ratio := _printed_ratio(start)) is not None], 0.0)
    cost = token_cost(setting.model.facts, setting.engine, setting.flags, setting.hardware.gpu_count)
    formula = None if cost is None else Ratio(GIB / cost.bytes_per_token, cost.relative_sd)
    moved = _mean_ratio(
        [
            ratio
            for start in transfers
            if _prices_alike(setting, start) and (ratio := measured_ratio(start)) is not None
        ],
        TRANSFER_SD,
    )
    best = min((r for r in (own, moved, formula) if r is not None), key=lambda r: r.relative_sd, default=None)
    return best, best is not None and best is moved


def _mean_ratio(ratios: Sequence[Ratio], doubt: float) -> Ratio | None:
    """Return the weighted mean; its doubt is the best start's, since their errors are of one kind."""
    if not ratios:
        return None
    weights = [ratio.relative_sd**-2 for ratio in ratios]
    mean = sum(ratio.value * weight for ratio, weight in zip(ratios, weights, strict=True)) / sum(weights)
    return Ratio(mean, hypot(min(ratio.relative_sd for ratio in ratios), doubt))


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


def _anchor(
    setting: Setting, starts: Sequence[Observation], transfers: Sequence[Observation], base: MemoryFigure | None
) -> Anchor | None:
    """Return the best knowledge of the zero crossing."""
    if setting.scales_free_memory:
        return Anchor(0.0, 0.002)
    logged = [anchor for start in starts if (anchor := _logged_anchor(start)) is not None]
    if logged:
        weights = [anchor.sd**-2 for anchor in logged]
        mean = sum(a.x * w for a, w in zip(logged, weights, strict=True)) / sum(weights)
        return Anchor(mean, min(anchor.sd for anchor in logged))
    anchor = None if base is None else _weight_anchor(setting, starts, transfers, base)
    bound = refused_up_to(starts)
    return anchor if anchor is None or bound is None else raised(anchor, bound)


def _logged_anchor(start: Observation) -> Anchor | None:
    """Return w/m from a log's own memory figures, or from a refusal that names the least fraction."""
    named = None if start.failure is None else as_number(start.failure.minimum_fraction)
    if named is not None and 0.0 < named < 1.0:
        return Anchor(named, 0.0005)
    before, after, _ = _loads(start)
    if before is None or after is None or not 0.0 < after < before:
        return None
    graphs, more_sd = (GRAPHS_GIB, GRAPHS_SD_GIB) if is_sized_after_capture(start.flags) else (0.0, 0.0)
    if has_states_of_their_own(start.model, start.flags):
        more_sd = hypot(more_sd, STATES_SD_GIB)
    doubt = hypot(LOGGED_SD * after / before, PRINTED_SD_GIB * sqrt(2.0) / before)
    return Anchor(1.0 - (after - graphs) / before, hypot(doubt, more_sd / before))


def _weight_anchor(
    setting: Setting, starts: Sequence[Observation], transfers: Sequence[Observation], base: MemoryFigure
) -> Anchor | None:
    """Return the zero crossing from what weights take: logged here, logged elsewhere, or the checkpoint's size."""
    weights = _logged_weights(starts) or _logged_weights([s for s in transfers if _loads_alike(setting, s)])
    if weights is None:
        estimate = weights_gib_per_gpu(setting.model, setting.flags, setting.hardware.gpu_count)
        if estimate is None:
            return None
        weights = (estimate, WEIGHT_SD * estimate)
    is_vllm = setting.engine.name is EngineName.VLLM
    extra, extra_sd = (VLLM_EXTRA_GIB, VLLM_EXTRA_SD_GIB) if is_vllm else (SGLANG_EXTRA_GIB, SGLANG_EXTRA_SD_GIB)
    crossing = (weights[0] + extra) / base.gib
    doubt = hypot(hypot(weights[1], extra_sd) / base.gib, crossing * base.relative_sd)
    return Anchor(crossing, doubt)


def _logged_weights(starts: Sequence[Observation]) -> tuple[float, float] | None:
    """Return GiB that weights take of one GPU, and its standard deviation, as the newest start logged it."""
    for start in reversed(starts):
        value = as_number(start.measurements.weights_gib)
        before, after, _ = _loads(start)
        if before is not None and after is not None and before > after:
            value = before - after
        if value is not None and 0.0 < value < 1e4:
            return value, 0.01 * value
    return None


def _loads_alike(setting: Setting, start: Observation) -> bool:
    """Tell whether one GPU there holds the same share of the same weights."""
    here = parallel_layout(setting.flags, setting.hardware.gpu_count)
    there = parallel_layout(start.flags, start.hardware.gpu_count)
    same_spread = (here.tensor, here.pipeline) == (there.tensor, there.pipeline)
    named = setting.flags.get("quantization"), start.flags.get("quantization")
    return same_spread and start.engine.name is setting.engine.name and (None in named or named[0] == named[1])
