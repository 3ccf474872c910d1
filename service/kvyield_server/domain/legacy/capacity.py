"""The capacity line: pool tokens and KV memory of one GPU as functions of the flags.

    K(f) = m f - w   GiB,      N(f) = K(f) 2^30 / c   tokens

It is fitted as one straight line in the fraction. Flags that change what a token costs by a known ratio (KV dtype,
tensor parallel size, draft) are answered by the same line; any other change only widens the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import hypot, inf, sqrt

from kvyield_server.domain.engines.fraction_share import fraction_share
from kvyield_server.domain.engines.token_cost import TokenCost, token_cost
from kvyield_server.domain.facts.deployment import (
    Key,
    agrees,
    deployment_key,
    differing_fields,
    key_fields,
    requests_move_pool,
)
from kvyield_server.domain.facts.devices import MemoryFigure
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import read_shape
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Engine, Flags, Model, Scalar
from kvyield_server.domain.facts.scalars import as_number
from kvyield_server.domain.legacy.capacity_change import (
    NO_CHANGE,
    SHIFT_SD_GIB,
    UNKNOWN_SHIFT_SD_GIB,
    VERSION_COST_SD,
    Change,
    Ratio,
    dtype_ratio,
)
from kvyield_server.domain.legacy.regression import LinePosterior
from kvyield_server.domain.legacy.student import StudentT

GIB = float(2**30)
DISCRETE_NOISE = 0.0002
SHARED_NOISE = 0.02

MOST_CHANGES_KEPT = 256


@dataclass(frozen=True, slots=True)
class Noise:
    """The scatter of starts that ought to be equal.

    A part of the pool, the rounding to whole pages, and by how much the memory beside the pool differs between boots.
    """

    relative: float
    rounding: float
    boot: float = 0.0

    def sd(self, value: float) -> float:
        """Return the standard deviation of a pool of about ``value``."""
        return hypot(self.rounding + self.relative * max(value, 0.0), self.boot)


@dataclass(frozen=True, kw_only=True)
class CapacityLine:
    """The fitted line of one deployment.

    ``posterior`` is in tokens over the fraction, or in GiB where no start and no config tells tokens
    (``tokens_per_gib`` is None then). ``flags`` are those of the running start: they stand in for flags not given.
    ``widening_tokens`` is added scatter, as after drift. ``is_other_version`` says that the line answers for another
    engine version than its evidence is of. ``bend`` is how much flatter than its slope the line may be where another
    pipeline stage decides. It is drawn over the share of the fraction that the engine applies.
    """

    model: Model
    engine: Engine
    gpu_count: int
    flags: Flags
    posterior: LinePosterior | None
    tokens_per_gib: Ratio | None
    counts_tokens: bool
    base: MemoryFigure | None
    page_tokens: int
    noise: Noise
    widening_tokens: float = 0.0
    is_other_version: bool = False
    is_amd: bool = False
    bend: float = 0.0

    def pool(self, flags: Flags) -> StudentT | None:
        """Return pool tokens before rounding down to pages, or None when nothing tells."""
        along = self.along(flags)
        return None if along.fraction is None else along.pool(along.fraction)

    def kv_gib(self, flags: Flags) -> StudentT | None:
        """Return the KV budget of one GPU in GiB, or None when nothing tells what a token costs."""
        along = self.along(flags)
        return None if along.fraction is None else along.kv_gib(along.fraction)

    def along(self, flags: Flags) -> CapacityAlong:
        """Return the line under these flags as a function of the fraction, their differences worked out once."""
        merged = {**self.flags, **flags}
        change = self._change(merged)
        if self.is_other_version:
            change = change.widened(SHIFT_SD_GIB["version"], VERSION_COST_SD)
        fraction = as_number(merged.get(FRACTION_FLAG[self.engine.name]))
        return CapacityAlong(self, change, self._tokens(change.shift_sd_gib), fraction, self.share(merged))

    def share(self, flags: Flags) -> float:
        """Return what the engine multiplies the fraction by under these flags."""
        if not self.is_amd:
            return 1.0
        context = read_shape(self.model.facts).context_length
        return fraction_share(self.engine, flags, amd=True, context_tokens=context)

    @property
    def base_gib(self) -> StudentT | None:
        """The memory that the fraction multiplies: free before load (SGLang) or the device's total (vLLM), GiB."""
        return None if self.base is None else StudentT(self.base.gib, self.base.gib * self.base.relative_sd, inf)

    @property
    def bytes_per_token(self) -> StudentT | None:
        """Bytes that one token takes of the KV budget of one GPU."""
        if self.tokens_per_gib is None:
            return None
        value = GIB / self.tokens_per_gib.value
        return StudentT(value, value * self.tokens_per_gib.relative_sd, inf)

    @property
    def zero_fraction(self) -> StudentT | None:
        """The fraction at which the pool would be empty."""
        return None if self.posterior is None else self.posterior.zero_crossing()

    @property
    def slope(self) -> StudentT | None:
        """Pool tokens (or GiB) per 1.0 of the fraction."""
        return None if self.posterior is None else self.posterior.slope_estimate()

    @property
    def noise_tokens(self) -> float:
        """The scatter of equal starts at the middle of the evidence, one standard deviation."""
        if self.posterior is None:
            return self.noise.rounding
        return self.noise.sd(self.posterior.line.level) * sqrt(self.posterior.tau2)

    def _tokens(self, gib: float) -> float:
        """Return GiB in the unit of the line."""
        if not gib or not self.counts_tokens:
            return gib
        if self.tokens_per_gib is not None:
            return gib * self.tokens_per_gib.value
        slope = self.slope
        return gib * slope.loc / self.base.gib if slope is not None and self.base is not None else 0.0

    @cached_property
    def _key(self) -> Key:
        """The deployment's key; a KV dtype that nothing names is the engine's own choice."""
        return {"kv_dtype": "auto", **deployment_key(self.model, self.engine, self.flags, self.gpu_count)}

    @cached_property
    def _cost(self) -> TokenCost | None:
        """What a token costs by the model's config under the deployment's own flags."""
        return token_cost(self.model.facts, self.engine, self.flags, self.gpu_count)

    @cached_property
    def _key_flags(self) -> frozenset[str]:
        """The flags that the key is read from."""
        moves = requests_move_pool(self.model, self.engine, self.flags)
        fields = key_fields(self.engine.name, requests_move_pool=moves)
        return frozenset(name for names in fields.values() for name in names)

    @cached_property
    def _changes(self) -> dict[frozenset[tuple[str, Scalar]], Change]:
        """The changes worked out so far, by the flags that differ."""
        return {}

    def _change(self, flags: Flags) -> Change:
        """Return what the differences between these flags and the deployment's do to the line."""
        own, key_flags = self.flags, self._key_flags
        differing = frozenset(
            item for item in flags.items() if item[0] in key_flags and own.get(item[0], ...) != item[1]
        )
        if not differing:
            return NO_CHANGE
        change = self._changes.get(differing)
        if change is None:
            change = self._worked_out(flags)
            if len(self._changes) < MOST_CHANGES_KEPT:
                self._changes[differing] = change
        return change

    def _worked_out(self, flags: Flags) -> Change:
        asked = deployment_key(self.model, self.engine, flags, self.gpu_count)
        if agrees(self._key, asked):
            return NO_CHANGE
        changed = differing_fields(self._key, asked)
        shift = max(SHIFT_SD_GIB.get(field, UNKNOWN_SHIFT_SD_GIB) for field in changed)
        return Change(self._cost_ratio(flags, changed), shift, self._weight_shift(flags, changed))

    def _cost_ratio(self, flags: Flags, changed: frozenset[str]) -> Ratio:
        """Return tokens at the asked flags over tokens at the deployment's, for the same memory."""
        if not changed & {"kv_dtype", "tp", "dp", "dp_attention", "pp", "dcp", "speculation", "draft"}:
            return Ratio(1.0, 0.0)
        before = self._cost
        after = token_cost(self.model.facts, self.engine, flags, self.gpu_count)
        if before is None or after is None:
            return dtype_ratio(self.flags, flags) if changed <= {"kv_dtype"} else Ratio(1.0, 0.5)
        doubt = 0.0 if changed <= {"kv_dtype", "tp"} else hypot(before.relative_sd, after.relative_sd)
        return Ratio(before.bytes_per_token / after.bytes_per_token, doubt)

    def _weight_shift(self, flags: Flags, changed: frozenset[str]) -> float:
        """Return how far the zero crossing moves, in fraction, when weights spread over another number of GPUs."""
        zero = self.zero_fraction
        if not changed & {"tp", "pp"} or zero is None:
            return 0.0
        before, after = parallel_layout(self.flags, self.gpu_count), parallel_layout(flags, self.gpu_count)
        share = before.tensor * before.pipeline / (after.tensor * after.pipeline)
        return zero.loc * (1.0 - share)


def _times(value: StudentT, ratio: Ratio) -> StudentT:
    """Return a distribution times a figure that is itself doubtful."""
    scale = hypot(value.scale, value.loc * ratio.relative_sd)
    return StudentT(value.loc, scale, value.df).scaled(ratio.value)


@dataclass(frozen=True, slots=True)
class CapacityAlong:
    """A capacity line under fixed flags: what is left to say is the fraction."""

    line: CapacityLine
    change: Change
    shift_sd_tokens: float
    fraction: float | None
    share: float = 1.0

    def pool(self, fraction: float) -> StudentT | None:
        """Return pool tokens before rounding down to pages, or None when nothing tells."""
        value = self._value(fraction, in_memory=False)
        if value is None or self.line.counts_tokens:
            return value
        return None if self.line.tokens_per_gib is None else _times(value, self.line.tokens_per_gib)

    def kv_gib(self, fraction: float) -> StudentT | None:
        """Return the KV budget of one GPU in GiB, or None when nothing tells what a token costs."""
        value = self._value(fraction, in_memory=True)
        if value is None or not self.line.counts_tokens:
            return value
        per_gib = self.line.tokens_per_gib
        if per_gib is None:
            return None
        return _times(value, Ratio(1.0 / per_gib.value, per_gib.relative_sd))

    def budget_gib(self, fraction: float) -> float | None:
        """Return the median of ``kv_gib`` alone, which costs far less than the whole distribution."""
        posterior, per_gib = self.line.posterior, self.line.tokens_per_gib
        is_known = per_gib is not None or not self.line.counts_tokens
        if posterior is None or not is_known or not 0.0 <= fraction <= 1.0:
            return None
        median = posterior.median(fraction * self.share + self.change.fraction_shift)
        return median if median is None or per_gib is None or not self.line.counts_tokens else median / per_gib.value

    def _value(self, fraction: float, *, in_memory: bool) -> StudentT | None:
        posterior = self.line.posterior
        if posterior is None or not 0.0 <= fraction <= 1.0:
            return None
        x = fraction * self.share + self.change.fraction_shift
        noise = self.line.noise.sd(posterior.line.at(x))
        wider = hypot(self.shift_sd_tokens, self.line.widening_tokens)
        if self.line.bend:
            wider = hypot(wider, self.line.bend * posterior.beyond(x))
        value = posterior.at(x, noise, wider)
        if value is None or in_memory or self.change.is_none:
            return value
        return _times(value, self.change.ratio)
