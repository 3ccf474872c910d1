"""The rules that hold whatever a ledger contains, as checks of one answer against its ledger.

Each check is one-sided: where a rule leaves room, or where telling whether it applies would need the model itself, it
says nothing. The deaths, holders and limits are found from the observations alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

from domain.door import advise, fitted, question
from domain.ledgers import advised_fraction, codes, is_kept
from kvyield_server.domain.answers import Advice, Estimate, Status
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Cause, EngineName, Observation, Outcome, Phase

ANSWERED = (Status.OK, Status.AT_RISK)
CONTEXT = {EngineName.SGLANG: "context_length", EngineName.VLLM: "max_model_len"}
REQUESTS = {EngineName.SGLANG: "max_running_requests", EngineName.VLLM: "max_num_seqs"}
CHUNK = {EngineName.SGLANG: "chunked_prefill_size", EngineName.VLLM: "max_num_batched_tokens"}
POOL_FLAGS = ("max_total_tokens", "num_gpu_blocks_override", "kv_cache_memory_bytes", "max_tokens")
GRANULE_GIB = 0.05
"""A line of free memory is told to no less, at steps of 0.031."""
PAGES = 512
"""More tokens than any engine rounds a demand up by."""


@dataclass(frozen=True)
class Asked:
    """One question and its answer on one ledger; ``agreeing`` are the ids known to lie on the true line."""

    starts: tuple[Observation, ...]
    target: int
    concurrent: int
    prefer: str
    advice: Advice
    agreeing: frozenset[Any] = frozenset()

    @property
    def in_order(self) -> list[Observation]:
        return sorted(self.starts, key=lambda start: (start.observed_at, start.id.int))


def ask(
    starts: Sequence[Observation],
    target: int,
    concurrent: int = 1,
    prefer: str = "keep",
    agreeing: frozenset[Any] = frozenset(),
) -> Asked:
    """Ask and keep the question beside the answer."""
    advice = advise(starts, target, concurrent=concurrent, prefer=prefer)
    return Asked(tuple(starts), target, concurrent, prefer, advice, agreeing)


def came_up(start: Observation) -> bool:
    """Return whether a start became ready, whatever became of it later."""
    served = start.failure is not None and start.failure.phase is Phase.SERVING
    return start.outcome in (Outcome.READY, Outcome.OOM_RUNTIME) or (start.outcome is Outcome.FAILED and served)


def violations(asked: Asked) -> list[str]:
    """Return what the answer breaks, each as a sentence."""
    checks: tuple[Callable[[Asked], Iterator[str]], ...] = (
        _figures,
        _first,
        _third,
        _fourth,
        _fifth,
        _sixth,
        _seventh,
        _eighth,
        _ninth,
    )
    return [broken for check in checks for broken in check(asked)]


def _estimates(advice: Advice) -> Iterator[Estimate]:
    prediction = advice.prediction
    for each in (prediction.pool_tokens, prediction.free_at_ready_gib, prediction.headroom_gib):
        if each is not None:
            yield each


def _figures(asked: Asked) -> Iterator[str]:
    """All figures are finite and in order, and what is answered can be typed."""
    advice = asked.advice
    for each in _estimates(advice):
        if not all(isfinite(value) for value in (each.low, each.median, each.high)):
            yield f"figures: not finite: {each}"
        if not each.low <= each.median <= each.high:
            yield f"figures: out of order: {each}"
    if advice.probability is not None:
        shares = (advice.probability.pool, advice.probability.memory, advice.probability.joint)
        if any(share is not None and not 0.0 <= share <= 1.0 for share in shares):
            yield f"figures: no probability: {advice.probability}"
    if advice.window is not None and advice.window.lowest > advice.window.highest:
        yield f"figures: a window upside down: {advice.window}"
    if advice.status in ANSWERED and not advice.command_line:
        yield "figures: an answer without a command line"
    fraction = advice.flags.get(FRACTION_FLAG[advice.engine])
    is_tried = any(start.fraction == fraction for start in asked.starts)
    if advice.status is Status.INFEASIBLE and isinstance(fraction, float) and fraction < 0.05 and not is_tried:
        yield f"figures: infeasible at {fraction}"
    memory = 1.1 * max((start.hardware.memory_gib or 1_000.0 for start in asked.starts), default=1_000.0)
    for each in (advice.prediction.free_at_ready_gib, advice.prediction.headroom_gib):
        if each is not None and abs(each.median) > memory:
            yield f"figures: {each.median} GiB on a GPU of {memory:.0f}"
    if advice.status in ANSWERED and not 0.0 < _stated(asked) <= 1.0:
        yield f"figures: no fraction: {_stated(asked)}"


def _stated(asked: Asked) -> float:
    return advised_fraction(asked.advice)


def _flag(start: Observation, names: dict[EngineName, str]) -> int | None:
    value = start.flags.get(names.get(start.engine.name, ""))
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def holds(start: Observation, target: int, concurrent: int) -> bool:
    """Return whether a start surely held so many prompts: pool, context, printed limit and requests admit them."""
    pool, limit = start.measurements.pool_tokens, start.measurements.longest_prompt_tokens
    context, requests = _flag(start, CONTEXT), _flag(start, REQUESTS)
    return (
        pool is not None
        and pool >= concurrent * target + PAGES
        and context is not None
        and context >= target + 8
        and (limit is None or limit >= target)
        and (requests is None or requests >= concurrent)
    )


def _first(asked: Asked) -> Iterator[str]:
    """Rule 1: a live start that came up and holds the target answers for its own flags."""
    if asked.advice.status in ANSWERED:
        return
    deaths = [start for start in asked.starts if _died(start)]
    own = {start.id for start in fitted(asked.starts).starts}
    up = [start for start in asked.starts if came_up(start) and start.measurements.pool_tokens is not None]
    up = [start for start in up if start.id in own]
    for holder in up:
        if not holds(holder, asked.target, asked.concurrent) or any(_may_forbid(d, holder, asked) for d in deaths):
            continue
        if _contradicting(holder, asked) or (len(up) > 3 and holder.id not in asked.agreeing):
            continue
        if any(other.fraction == holder.fraction and _is_newer(other, holder) for other in up):
            continue  # of several starts at a fraction the newest's figures count, which is asked about in its turn
        yield f"rule 1: {asked.advice.status.value} though {holder.fraction} held {holder.measurements.pool_tokens:,}"
        return


def _is_newer(one: Observation, other: Observation) -> bool:
    return (one.observed_at, one.id.int) > (other.observed_at, other.id.int)


def _died(start: Observation) -> bool:
    """Return whether a start ran out of the GPU's memory, or may have."""
    is_named = start.outcome in (Outcome.OOM_STARTUP, Outcome.OOM_RUNTIME, Outcome.REFUSED)
    by_cause = start.failure is not None and start.failure.cause is Cause.GPU_MEMORY
    return is_named or (start.outcome is Outcome.FAILED and by_cause)


def _may_forbid(death: Observation, holder: Observation, asked: Asked) -> bool:
    """Return whether a death may count against the holder's flags at this prompt."""
    if death.fraction is None or holder.fraction is None or death.fraction > holder.fraction + 1e-9:
        return False
    if death.death is Outcome.OOM_RUNTIME:
        prompt = death.failure.prompt_tokens if death.failure else None
        return prompt is None or prompt <= asked.target
    return death.observed_at > holder.observed_at


def _contradicting(start: Observation, asked: Asked) -> bool:
    """Return whether three or more others, known to agree, may have set this start aside."""
    return bool(asked.agreeing) and start.id not in asked.agreeing and len(asked.agreeing) >= 3


def _third(asked: Asked) -> Iterator[str]:
    """Rule 3: no fraction at or above a death that counts, and no `ok` where a prompt was not served."""
    advice = asked.advice
    if advice.status not in ANSWERED:
        return
    stated = _stated(asked)
    for death in asked.starts:
        if death.failure is not None and death.failure.cause not in (None, Cause.GPU_MEMORY):
            continue
        if death.failure is not None and death.failure.phase is Phase.LOAD:
            continue  # it had no pool yet: the fraction had no part in it
        if death.fraction is None or stated < death.fraction - 1e-9 or _is_lighter(advice, death):
            continue
        if death.death is Outcome.OOM_RUNTIME and _counts_while_serving(death, asked):
            yield f"rule 3: {stated} though {death.fraction} ran out of memory while serving"
        if death.death is Outcome.OOM_STARTUP and _counts_at_start(death, asked):
            yield f"rule 3: {stated} though {death.fraction} ran out of memory at start-up"
    if advice.status is Status.OK:
        for start in asked.starts:
            if start.fraction is None or stated < start.fraction - 1e-9 or _is_lighter(advice, start):
                continue
            for position, check in enumerate(start.verifications):
                is_unserved = not check.passed and check.error and check.prompt_tokens <= asked.target
                if is_unserved and not _passed_since(start, position, check.prompt_tokens, asked):
                    yield f"rule 3: ok at {stated} though {check.prompt_tokens:,} tokens were not served"


def _is_lighter(advice: Advice, start: Observation) -> bool:
    """Return whether the answer's flags may be lighter than a start's were."""
    for names in (CONTEXT, REQUESTS, CHUNK):
        name = names.get(start.engine.name, "")
        then, now = start.flags.get(name), advice.flags.get(name)
        if name in advice.flags and now != then:
            return True
    return any(
        flag not in (FRACTION_FLAG[start.engine.name],) and advice.flags[flag] != start.flags.get(flag)
        for flag in advice.flags
    )


def _on_held_memory(death: Observation) -> bool:
    """Return whether other processes may have held memory when such a start began: it says nothing then."""
    before, memory = death.measurements.free_before_load_gib, death.hardware.memory_gib
    return before is not None and (memory is None or before < 0.95 * memory)


def _counts_while_serving(death: Observation, asked: Asked) -> bool:
    if _on_held_memory(death):
        return False
    prompt = (death.failure.prompt_tokens if death.failure else None) or 0
    if prompt > asked.target:
        return False
    return not any(
        check.passed and check.prompt_tokens >= prompt
        for start in asked.starts
        if start.observed_at >= death.observed_at
        for check in start.verifications
    )


def _counts_at_start(death: Observation, asked: Asked) -> bool:
    """Return whether a death at start-up surely counts: none came up there later, and nothing else held the GPU."""
    if death.fraction is None or death.measurements.free_before_load_gib is not None:
        return False
    up = [start for start in asked.starts if came_up(start) and start.fraction is not None]
    return not any((start.fraction or 0.0) >= death.fraction - 1e-9 for start in up)


def _passed_since(start: Observation, position: int, prompt: int, asked: Asked) -> bool:
    later = [check for other in asked.starts if other.observed_at > start.observed_at for check in other.verifications]
    return any(
        check.passed and check.prompt_tokens >= prompt for check in (*start.verifications[position + 1 :], *later)
    )


def _fourth(asked: Asked) -> Iterator[str]:
    """Rule 4: free memory never rises with the fraction but for SGLang's own step; the pool never falls."""
    fit = fitted(asked.starts)
    flag = FRACTION_FLAG[fit.summary.engine]
    grid = [0.3037 + 0.031 * step for step in range(22)]
    found = [fit.predict({flag: fraction}) for fraction in grid]
    pools = [each.pool_tokens.median for each in found if each.pool_tokens is not None]
    frees = [each.free_at_ready_gib.median for each in found if each.free_at_ready_gib is not None]
    for each in found:
        for estimate in (each.pool_tokens, each.free_at_ready_gib, each.kv_cache_gib):
            if estimate is not None and not estimate.low <= estimate.median <= estimate.high:
                yield f"rule 4: out of order or not finite: {estimate}"
    if any(later < earlier - 1e-6 * abs(earlier) - 1 for earlier, later in pairwise(pools)):
        yield f"rule 4: the pool falls with the fraction: {pools}"
    rises = [later - earlier for earlier, later in pairwise(frees) if later > earlier + GRANULE_GIB]
    step = fit.summary.engine is EngineName.SGLANG and len(rises) == 1 and rises[0] < 2.5
    if rises and not step:
        yield f"rule 4: free memory rises with the fraction: {frees}"


def _fifth(asked: Asked) -> Iterator[str]:
    """Rule 5: no fraction below 0.05 for SGLang and vLLM, but where one ran there or weights are stated."""
    advice = asked.advice
    if advice.engine not in (EngineName.SGLANG, EngineName.VLLM) or advice.status not in ANSWERED:
        return
    ran = min((start.fraction or 1.0 for start in asked.starts if came_up(start)), default=1.0)
    figures = [(start.measurements.weights_gib, start.measurements.free_after_load_gib) for start in asked.starts]
    if ran >= 0.05 > _stated(asked) and all(each == (None, None) for each in figures):
        yield f"rule 5: a fraction of {_stated(asked)}"


def _sixth(asked: Asked) -> Iterator[str]:
    """Rule 6: a capped pool is never predicted above its cap."""
    fit = fitted(asked.starts)
    if fit.summary.engine is not EngineName.SGLANG:
        return
    for fraction in (0.55, 0.75, 0.95):
        pool = fit.predict({"mem_fraction_static": fraction, "max_total_tokens": 12_345}).pool_tokens
        if pool is not None and pool.high > 12_345:
            yield f"rule 6: {pool} at {fraction} with a cap of 12,345"


def _seventh(asked: Asked) -> Iterator[str]:
    """Rule 7: flags at which the engine printed a shorter limit are not kept."""
    newest = next((start for start in reversed(asked.in_order) if came_up(start)), None)
    limit = None if newest is None else newest.measurements.longest_prompt_tokens
    is_short = newest is not None and limit is not None and limit < asked.target
    if is_short and newest is not None and is_kept(asked.advice, newest.fraction or 0.0):
        yield f"rule 7: kept though prompts end at {limit:,}"


def _eighth(asked: Asked) -> Iterator[str]:
    """Rule 8: less than five per cent is not advised, and what is unknown is null."""
    advice = asked.advice
    demanded = asked.target * asked.concurrent
    held = any(came_up(start) and (start.measurements.pool_tokens or 0) >= demanded for start in asked.starts)
    chance = advice.probability
    if (
        advice.status in ANSWERED
        and chance is not None
        and chance.joint is not None
        and chance.joint < 0.05
        and not held
    ):
        yield f"rule 8: {advice.status.value} with a joint chance of {chance.joint}"
    passed = any(c.passed and c.prompt_tokens >= asked.target for start in asked.starts for c in start.verifications)
    if advice.status is Status.OK and chance is not None and chance.memory is None and not passed:
        yield "rule 8: ok though nothing tells the memory"


def _ninth(asked: Asked) -> Iterator[str]:
    """Rule 9: order and repetition change nothing."""
    turned = [*reversed(asked.starts), *asked.starts[:1]]
    again = advise(turned, asked.target, concurrent=asked.concurrent, prefer=asked.prefer)
    if said(again) != said(asked.advice):
        yield f"rule 9: {said(again)} after turning and repeating, {said(asked.advice)} before"


def said(advice: Advice) -> tuple[Any, ...]:
    """Return what an answer says, for comparison; figures rounded to what can be told apart."""
    pool = advice.prediction.pool_tokens
    return (
        advice.status.value,
        tuple(sorted((key, str(value)) for key, value in advice.flags.items())),
        None if pool is None else (round(pool.median), round(pool.low), round(pool.high)),
        tuple(sorted(codes(advice))),
    )


def second(before: Asked, after: Asked, *, is_newest: bool) -> Iterator[str]:
    """Rule 2: one contradicting start beside three or more that agree changes little; the newest is drift by name."""
    old, new = before.advice, after.advice
    if old.status not in ANSWERED:
        return
    if new.status not in ANSWERED or (old.status is Status.AT_RISK and new.status is Status.OK):
        yield f"rule 2: {old.status.value} became {new.status.value}"
        return
    moved = abs(advised_fraction(new) - advised_fraction(old))
    if is_newest:
        if new.status is not Status.AT_RISK:
            yield f"rule 2: {new.status.value} though the newest start contradicts the others"
        if "drift" not in fitted(after.starts).summary.labels:
            yield "rule 2: no drift by name"
        last = next(start for start in reversed(before.in_order) if came_up(start))
        is_held = holds(last, after.target, after.concurrent)
        fractions = {start.fraction for start in after.starts if came_up(start)}
        if after.prefer == "keep" and is_held and advised_fraction(new) not in fractions:
            yield f"rule 2: {advised_fraction(new)}, at which nothing came up"
    elif moved > 0.005 + 1e-9:
        yield f"rule 2: {advised_fraction(old)} became {advised_fraction(new)}"


__all__ = ["ANSWERED", "Asked", "ask", "came_up", "holds", "question", "said", "second", "violations"]
