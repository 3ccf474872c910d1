"""What each start says about the pool line: a point on it, only a bound, or nothing, and why.

Also which flags are heavier than others, which decides where a death or a passed prompt counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from math import isfinite
from typing import NamedTuple

from kvyield_server.domain.answers import Caution, EvidenceItem
from kvyield_server.domain.engines.fraction_share import is_sized_after_capture
from kvyield_server.domain.engines.registry import NAMES, number
from kvyield_server.domain.engines.token_cost import speculation
from kvyield_server.domain.engines.vllm import is_counted_in_requests
from kvyield_server.domain.facts.devices import free_before_load, has_unified_memory
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import STATES_FACT
from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
    NO_MEMORY_FLAGS,
    Cause,
    EngineName,
    Flags,
    Observation,
    Outcome,
    Phase,
)
from kvyield_server.domain.facts.scalars import as_count, as_number, is_on

LARGEST_PAGE = 256
LEAST_GIB, MOST_GIB = 1e-5, 1e5
LEAST_TOKEN_BYTES = 256
"""No token takes less of a GPU: over all recorded starts the least is 13,000 of all that the fraction covers."""
NEIGHBOUR_SHARE = 0.06
"""Free memory before load this much under an empty GPU's means that another process held some of it."""
APART = 0.004
SAME_FRACTION = 1e-6


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
    """One start as the pool line sees it. Tokens and GiB are what the engine printed, where they are usable."""

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


def size_of(start: Observation) -> float | None:
    """Return the fraction, or where the engine takes one instead, the count of blocks, which is over 1."""
    value = start.fraction
    is_count = NAMES[start.engine.name].counts_blocks is not None and value is not None and value > 1.0
    return value if is_count else fraction_of(start)


def usable_tokens(start: Observation, tokens: int | None) -> int | None:
    """Return a count of tokens where the pool of a start's GPU can have so many, else None."""
    memory = start.hardware.memory_gib or MOST_GIB
    return tokens if tokens is not None and 0 < tokens < min(2**53, memory * 2**30 / LEAST_TOKEN_BYTES) else None


def usable_free(start: Observation, gib: float | None) -> float | None:
    """Return GiB free at one moment of a start where its GPU can have that much, else None."""
    if gib is None or not isfinite(gib):
        return None
    total = start.hardware.memory_gib
    return gib if -1.0 <= gib <= (MOST_GIB if total is None else 1.1 * total) else None


def impossible_figures(starts: Sequence[Observation]) -> Iterator[Caution]:
    """Yield what a GPU cannot have had: the newest such figure of free memory, and of pools."""
    for start in reversed(starts):
        free = start.measurements.free_at_ready_gib
        if free is not None and usable_free(start, free) is None:
            detail = f"A start has {free:g} GiB free at ready, which its GPU cannot have: the figure is not counted."
            yield Caution(code="impossible_free_memory", detail=detail)
            break
    for start in reversed(starts):
        tokens = start.measurements.pool_tokens
        if tokens and usable_tokens(start, tokens) is None:
            detail = f"A start has a pool of {tokens:,} tokens, which its GPU cannot hold: the figure is not counted."
            yield Caution(code="impossible_pool", detail=detail)
            break


def classify(start: Observation) -> Evidence:
    """Tell what one start says, from itself alone."""
    measured = start.measurements
    tokens = usable_tokens(start, measured.pool_tokens)
    fraction, kv_gib, labels = fraction_of(start), _kv_gib(start), _labels(start)
    cap = pool_cap(start, tokens)
    if cap is not None:
        labels |= {Label.CAPPED}
        uncapped = usable_tokens(start, measured.uncapped_pool_tokens)
        if uncapped is not None and fraction is not None and tokens is not None and uncapped >= tokens:
            reason = f"capped by {cap}: what the engine had counted before counts"
            return Evidence(start, Use.POINT, reason, fraction, uncapped, None, labels)
        reason = f"the pool was set by {cap}: the line holds at least that much"
        return Evidence(start, Use.BOUND, reason, fraction, tokens, kv_gib, labels)
    if fraction is None:
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
    flags, spec = start.flags, NAMES[start.engine.name]
    for name in spec.inert_with:
        if name in flags and is_on(flags[name]):
            return name
    if spec.counts_blocks is not None and start.fraction is not None and start.fraction > 1.0:
        return f"{spec.fraction}, a number of blocks"
    for name in spec.caps:
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
        if held_by_others(start):
            return Use.SET_ASIDE, "refused on memory that another process held: it says nothing about the fraction"
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
    return labels | {Label.NEIGHBOUR} if held_by_others(start) else labels


def held_by_others(start: Observation) -> bool:
    """Tell whether much less was free before load than an empty GPU of that kind has."""
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


def mark_blocked(found: Sequence[Evidence]) -> tuple[tuple[Evidence, ...], list[Caution]]:
    """Set aside refusals and deaths at start-up under flags that came up before or after: memory was held elsewhere.

    The caution goes with the newest start, for whoever sees it fail now.
    """
    failed = (Outcome.REFUSED, Outcome.OOM_STARTUP)
    if not any(item.start.outcome in failed for item in found):
        return tuple(found), []
    up = [item for item in found if item.start.came_up and item.fraction is not None]
    reason = (
        "the same flags came up before or after: another process held the GPU, so it says nothing about the fraction"
    )
    marked: list[Evidence] = []
    for item in found:
        is_blocked = item.start.outcome in failed and (
            held_by_others(item.start) or any(_are_alike(item, other) for other in up)
        )
        has_figures = item.tokens is not None or item.kv_gib is not None
        marked.append(item.put(Use.SET_ASIDE, reason) if is_blocked and not has_figures else item)
    cautions = []
    if found and marked[-1] is not found[-1]:
        what = "was refused" if found[-1].start.outcome is Outcome.REFUSED else "ran out of memory"
        detail = (
            f"The newest start {what} where the same flags came up, or with much less free than the GPU has: check "
            "what else uses it; most often an engine that has not ended."
        )
        cautions.append(Caution(code="memory_held_elsewhere", detail=detail))
    return tuple(marked), cautions


def _are_alike(one: Evidence, other: Evidence) -> bool:
    if one.fraction is None or other.fraction is None or abs(one.fraction - other.fraction) > SAME_FRACTION:
        return False
    names = differing_flags(one.start.flags, other.start.flags)
    return all(name not in one.start.flags or name not in other.start.flags for name in names)


def counted_once(starts: Iterable[Observation]) -> tuple[Observation, ...]:
    """Return the starts oldest first, each once: equal posts are one, and a ready start reported dead later is dead.

    One that failed for want of GPU memory gets the outcome that says so. Two rows are one start where host and time are
    known and equal, and engine, fraction and pool as well.
    """
    ordered = sorted(map(_named_by_cause, starts), key=lambda start: (start.observed_at, start.id.int))
    by_id = {start.id: start for start in ordered}
    if len({start.observed_at for start in by_id.values()}) == len(by_id):
        return tuple(by_id.values())
    kept: dict[tuple[object, ...], Observation] = {}
    for start in by_id.values():
        same = (start.host, start.observed_at, start.engine, fraction_of(start), start.measurements.pool_tokens)
        key = same if start.host is not None else (*same, _content(start))
        known = kept.get(key)
        kept[key] = start if known is None else _united(known, start)
    return tuple(kept.values())


def states_told(starts: tuple[Observation, ...]) -> tuple[Observation, ...]:
    """Return the starts; where most of their pools show that the model keeps states, with that among its facts."""
    counted = [
        is_counted_in_requests(start.engine.version, start.flags, start.measurements.pool_tokens)
        for start in starts
        if start.engine.name is EngineName.VLLM and start.measurements.pool_tokens
    ]
    if 2 * sum(counted) <= len(counted):
        return starts
    facts = {STATES_FACT: True}
    return tuple(replace(s, model=replace(s.model, facts={**s.model.facts, **facts})) for s in starts)


def _named_by_cause(start: Observation) -> Observation:
    death = start.death
    return start if death is None or death is start.outcome else replace(start, outcome=death)


def _content(start: Observation) -> tuple[object, ...]:
    flags = tuple(sorted((name, repr(value)) for name, value in start.flags.items()))
    return start.outcome, start.measurements, start.failure, start.verifications, flags


def _united(one: Observation, other: Observation) -> Observation:
    """Return one row for two accounts of a start: the death, with the verifications and figures of both."""
    dead, alive = (one, other) if one.outcome is not Outcome.READY else (other, one)
    if dead.outcome is Outcome.READY and len(alive.verifications) > len(dead.verifications):
        dead, alive = alive, dead
    checks = (*dead.verifications, *(check for check in alive.verifications if check not in dead.verifications))
    measured = dead.measurements
    if measured.free_at_ready_gib is None and alive.measurements.free_at_ready_gib is not None:
        measured = alive.measurements
    return replace(dead, verifications=checks, measurements=measured)


def differing_flags(one: Flags, other: Flags) -> list[str]:
    """Return the flags of memory, other than the fraction, whose recorded values differ."""
    ignored = {*FRACTION_FLAG.values(), *NO_MEMORY_FLAGS}
    names = sorted({*one, *other} - ignored)
    return [name for name in names if repr(one.get(name)) != repr(other.get(name))]


def is_lighter(engine: EngineName, flags: Flags, then: Flags) -> bool:
    """Tell whether the flags take less memory beside the pool than those of another start: one less, none more."""
    lighter, heavier = _compared(engine, flags, then)
    return lighter and not heavier


def is_no_lighter(engine: EngineName, flags: Flags, then: Flags) -> bool:
    """Tell whether the flags take at least as much memory beside the pool as those of another start."""
    return not _compared(engine, flags, then)[0]


def _compared(engine: EngineName, flags: Flags, then: Flags) -> tuple[bool, bool]:
    names = NAMES[engine]
    lighter = heavier = False
    for key in (names.requests, names.chunk, names.graph_batch, names.context):
        now_value, then_value = number(flags, key), number(then, key)
        if now_value is None or then_value is None:
            continue
        is_context = key == names.context
        has_table = engine is EngineName.SGLANG and now_value <= 0.5 * then_value
        lighter |= now_value < then_value and (has_table or not is_context)
        heavier |= now_value > then_value * (1.01 if is_context else 1.0)
    for now_on, then_on in _switches(engine, flags, then):
        lighter |= then_on and not now_on
        heavier |= now_on and not then_on
    return lighter, heavier


def _switches(engine: EngineName, flags: Flags, then: Flags) -> list[tuple[bool, bool]]:
    off = NAMES[engine].graphs_off
    switches = [(bool(speculation(flags)), bool(speculation(then)))]
    if off is not None:
        switches.append((not is_on(flags.get(off)), not is_on(then.get(off))))
    return switches


def is_death(start: Observation) -> bool:
    """Tell whether a start ran out of GPU memory in a way that may rule its fraction out.

    One that died while it loaded weights had no pool yet; host memory on a discrete GPU is not evidence either.
    """
    if start.outcome not in (Outcome.OOM_STARTUP, Outcome.OOM_RUNTIME) or size_of(start) is None:
        return False
    failure = start.failure
    if failure is None:
        return True
    if failure.cause is Cause.HOST_MEMORY and not has_unified_memory(start.hardware):
        return False
    return start.outcome is Outcome.OOM_RUNTIME or failure.phase is not Phase.LOAD
