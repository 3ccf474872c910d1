"""What each start says about the capacity line: a point on it, only a bound, or nothing, and why."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from kvyield_server.domain.answers import EvidenceItem
from kvyield_server.domain.engines.fraction_share import is_sized_after_capture
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.facts.devices import free_before_load, has_unified_memory
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.observation import FRACTION_FLAG, EngineName, Observation, Outcome
from kvyield_server.domain.facts.scalars import as_count, as_number, is_on

CAP_FLAGS = {
    EngineName.SGLANG: ("max_total_tokens",),
    EngineName.TENSORRT_LLM: ("max_tokens", "kv_cache_max_tokens"),
}
FIXED_POOL_FLAGS = {
    EngineName.VLLM: ("num_gpu_blocks_override", "kv_cache_memory_bytes", "kv_cache_memory"),
    EngineName.TENSORRT_LLM: ("max_gpu_total_bytes",),
}
LARGEST_PAGE = 256
LEAST_GIB, MOST_GIB = 1e-5, 1e5
NEIGHBOUR_SHARE = 0.06
APART = 0.004


class Use(StrEnum):
    """How the fit used a start."""

    POINT = "point"
    BOUND = "bound"
    FREE_MEMORY_ONLY = "free_memory_only"
    SET_ASIDE = "set_aside"


class Label(StrEnum):
    """What a deployment's evidence is marked with."""

    CAPPED = "capped"
    CONFOUNDED = "confounded"
    DRIFT = "drift"
    NEIGHBOUR = "neighbour"
    OOM_RUNTIME = "oom_runtime"
    OOM_STARTUP = "oom_startup"
    OUTLIER = "outlier"
    POST_CAPTURE = "post_capture"
    REFUSED = "refused"
    SLOPE_DISAGREEMENT = "slope_disagreement"
    UNUSABLE = "unusable"
    UNIFIED_MEMORY = "unified_memory"


_NONE: frozenset[Label] = frozenset()
_OUTCOME_LABELS = {
    Outcome.REFUSED: frozenset({Label.REFUSED}),
    Outcome.OOM_STARTUP: frozenset({Label.OOM_STARTUP}),
    Outcome.OOM_RUNTIME: frozenset({Label.OOM_RUNTIME}),
}
_POINT_REASONS = {
    Outcome.READY: "a start that became ready",
    Outcome.REFUSED: "refused after the pool was sized: the figure counts",
    Outcome.OOM_STARTUP: "ran out of memory after the pool was sized: the figure counts",
    Outcome.OOM_RUNTIME: "ran out of memory while serving: the pool figure counts",
    Outcome.FAILED: "failed after the pool was sized: the figure counts",
}


class Evidence(NamedTuple):
    """One start as the capacity line sees it. Tokens and GiB are what the engine printed, where they are usable."""

    start: Observation
    use: Use
    reason: str
    fraction: float | None = None
    tokens: int | None = None
    kv_gib: float | None = None
    labels: frozenset[Label] = _NONE

    def item(self) -> EvidenceItem:
        return EvidenceItem(observation_id=self.start.id, use=self.use.value, reason=self.reason)

    def put(self, use: Use, reason: str, *labels: Label) -> Evidence:
        """Return the same start put to another use."""
        return self._replace(use=use, reason=reason, labels=self.labels | frozenset(labels))


def fraction_of(start: Observation) -> float | None:
    """Return the fraction where it is a usable number; LMDeploy's counts of blocks from 1 up are not fractions."""
    value = start.flags.get(FRACTION_FLAG[start.engine.name])
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0.0 < value <= 1.0 else None


def classify(start: Observation) -> Evidence:
    """Tell what one start says, from itself alone."""
    tokens = start.measurements.pool_tokens
    tokens = tokens if tokens is not None and 0 < tokens < 2**53 else None
    fraction, kv_gib, labels = fraction_of(start), _kv_gib(start), _labels(start)
    cap = pool_cap(start, tokens)
    if cap is not None:
        use, reason = Use.BOUND, f"the pool was set by {cap}: the line holds at least that much"
        labels |= {Label.CAPPED}
    elif fraction is None:
        use, reason = _rest(start), "the resolved fraction is not known"
    elif tokens is None and kv_gib is None:
        use, reason = _without_pool(start)
    else:
        use, reason = Use.POINT, _POINT_REASONS[start.outcome]
    return Evidence(start, use, reason, fraction, tokens, kv_gib, labels)


def _kv_gib(start: Observation) -> float | None:
    """Return the KV budget that vLLM printed, also in a refusal; elsewhere the figure belongs to parts of the pool."""
    if start.engine.name is EngineName.SGLANG:
        return None
    printed = as_number(start.measurements.kv_cache_gib)
    if printed is None and start.failure is not None:
        printed = as_number(start.failure.available_kv_cache_gib)
    is_usable = printed is not None and (printed == 0.0 or LEAST_GIB <= abs(printed) < MOST_GIB)
    return printed if is_usable else None


def pool_cap(start: Observation, tokens: int | None) -> str | None:
    """Return the flag that set the pool, whatever the fraction said, or None."""
    flags, engine = start.flags, start.engine.name
    for name in FIXED_POOL_FLAGS.get(engine, ()):
        if name in flags and is_on(flags[name]):
            return name
    for name in CAP_FLAGS.get(engine, ()):
        limit = as_count(flags.get(name)) if name in flags else None
        if limit is not None and tokens is not None and limit - LARGEST_PAGE < tokens <= limit:
            return name
    return _demand(start, tokens)


def _demand(start: Observation, tokens: int | None) -> str | None:
    """Return what set a pool that holds exactly the longest request as many times as requests may run."""
    names = NAMES[start.engine.name]
    requests = start.flags.get(names.requests)
    if tokens is None or not requests:
        return None
    asked, longest = as_count(requests), as_count(start.flags.get(names.context))
    is_demand = asked is not None and longest is not None and asked > 1 and tokens == asked * longest
    return f"{names.requests} times {names.context}" if is_demand else None


def _without_pool(start: Observation) -> tuple[Use, str]:
    failure = start.failure
    if failure is not None and as_number(failure.minimum_fraction) is not None:
        return Use.BOUND, "refused: the engine named the least fraction that it can start with"
    if start.outcome is Outcome.REFUSED:
        return Use.BOUND, "refused: at this fraction the pool would be empty or too small"
    return _rest(start), "no pool figure was recorded"


def _rest(start: Observation) -> Use:
    return Use.FREE_MEMORY_ONLY if start.measurements.free_at_ready_gib is not None else Use.SET_ASIDE


def _labels(start: Observation) -> frozenset[Label]:
    labels = _OUTCOME_LABELS.get(start.outcome, _NONE)
    if is_sized_after_capture(start.flags):
        labels |= {Label.POST_CAPTURE}
    if has_unified_memory(start.hardware):
        return labels | {Label.UNIFIED_MEMORY}
    return labels | {Label.NEIGHBOUR} if _has_neighbour(start) else labels


def _has_neighbour(start: Observation) -> bool:
    """Tell whether much less was free before load than an empty card of that kind has."""
    free = as_number(start.measurements.free_before_load_gib)
    if free is None or start.engine.name not in (EngineName.SGLANG, EngineName.VLLM):
        return False
    layout = parallel_layout(start.flags, start.hardware.gpu_count)
    empty = free_before_load(start.hardware, is_spread=layout.is_spread)
    return empty is not None and free < (1.0 - NEIGHBOUR_SHARE) * empty.gib


def mark_equal_pools(found: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Mark as capped the points that hold exactly the same pool at different fractions."""
    points = [item for item in found if item.use is Use.POINT and item.tokens is not None]
    if len({item.tokens for item in points}) == len(points):
        return tuple(found)
    fractions: dict[int | None, list[float]] = {}
    for item in points:
        fractions.setdefault(item.tokens, []).append(item.fraction or 0.0)
    capped = {tokens for tokens, at in fractions.items() if max(at) - min(at) >= APART}
    reason = "the same pool at another fraction: something else than the fraction set it"
    return tuple(
        item.put(Use.BOUND, reason, Label.CAPPED) if item.use is Use.POINT and item.tokens in capped else item
        for item in found
    )
