"""Levers: changes of flags that gain pool or headroom, re-evaluated with the same model and ranked by price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvyield_server.domain.answers import Lever
from kvyield_server.domain.demand import SGLANG_RESERVED_TOKENS
from kvyield_server.domain.flags import NAMES, number, positive
from kvyield_server.domain.headroom import LogNormal
from kvyield_server.domain.observation import Flags, Scalar
from kvyield_server.domain.parallel import parallel_layout
from kvyield_server.domain.solution import Case, Solution, Trial, solve
from kvyield_server.domain.token_cost import kv_element_bytes, speculation
from kvyield_server.domain.window import Need, PoolAt, fraction_of, memory_probability

_DEFAULT_REQUESTS = 256
_LEAST_GAIN = 1e-4


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A change with its price in words and as a weight: how much quality or speed it costs beside the others."""

    flags: dict[str, Scalar]
    cost: str
    weight: float


def levers(case: Case, solution: Solution) -> tuple[Lever, ...]:
    """Return the levers that gain tokens, memory or probability, best gain of joint probability per cost first."""
    ranked: list[tuple[float, float, Lever]] = []
    for candidate in _candidates(case, solution):
        lever = _evaluated(case, solution, candidate)
        if lever is None:
            continue
        gained = lever.joint - (solution.joint or 0.0)
        if gained > _LEAST_GAIN or lever.gain_tokens > 0 or lever.gain_gib >= 0.05:
            ranked.append((max(0.0, gained) / candidate.weight, -candidate.weight, lever))
    ranked.sort(key=lambda item: item[:2], reverse=True)
    shorter = _shorter_target(case, solution)
    return (*(lever for _, _, lever in ranked), *((shorter,) if shorter else ()))


def _candidates(case: Case, solution: Solution) -> Iterator[_Candidate]:
    """Yield the changes that the engine offers and the asker has not fixed."""
    names = NAMES[case.engine]
    flags = solution.flags
    if case.fraction_flag in case.held and solution.lowest is not None:
        raised: dict[str, Scalar] = {case.fraction_flag: fraction_of(solution.lowest)}
        yield _Candidate(raised, "none beyond the memory that it takes: a raised fraction instead of the one held", 1.0)
    for key, floor, cost, weight in (
        (names.requests, max(case.question.concurrent, 1), "fewer requests run at the same time", 1.0),
        (names.chunk, 1024, "slower prefill: the prompt is worked through in smaller chunks", 1.2),
        (names.graph_batch, 8, "batches above the limit decode without graphs, and slower", 1.5),
    ):
        halved = _halved(flags, key, floor)
        if halved is not None and key is not None and key not in case.held:
            yield _Candidate({key: halved}, cost, weight)
    yield from _costlier(case, flags)


def _costlier(case: Case, flags: Flags) -> Iterator[_Candidate]:
    names = NAMES[case.engine]
    running = case.fit.running
    if names.kv_dtype not in case.held and _kv_bytes(case, flags) > 1.0:
        yield _Candidate({names.kv_dtype: names.half_kv}, "some accuracy: keys and values are kept in 8 bits", 3.0)
    if names.speculation is not None and speculation(flags) and names.speculation not in case.held:
        yield _Candidate({names.speculation: None}, "slower decoding: no draft model", 3.0)
    layout = parallel_layout(flags, running.hardware.gpu_count if running else 1)
    wider = layout.tensor * 2
    if running and names.tensor_parallel not in case.held and wider * layout.pipeline <= running.hardware.gpu_count:
        yield _Candidate({names.tensor_parallel: wider}, "twice the GPUs for one copy of the model", 4.0)


def _kv_bytes(case: Case, flags: Flags) -> float:
    names = NAMES[case.engine]
    if names.kv_dtype == "quant_policy":
        return 2.0 if not number(flags, "quant_policy") else 1.0
    return kv_element_bytes(flags, case.fit.capacity.model.facts)


def _halved(flags: Flags, key: str | None, floor: int) -> int | None:
    value = positive(flags, key)
    return max(floor, value // 2) if value is not None and value > floor else None


def _evaluated(case: Case, solution: Solution, candidate: _Candidate) -> Lever | None:
    """Return the lever: gains at the advised fraction, joint probability at its own best fraction."""
    raises = case.fraction_flag in candidate.flags
    trial = solution.trial if raises else case.under({**solution.flags, **candidate.flags})
    best = solve(_unheld(case) if raises else case, trial)
    if best is None:
        return None
    fraction = fraction_of(best.step if raises else solution.step)
    pool = trial.pool.pool(fraction) or best.pool
    joint = (best.joint or 0.0) if best.binding is None else 0.0
    return Lever(
        flags={**candidate.flags, case.fraction_flag: best.flags[case.fraction_flag]},
        gain_tokens=round(pool.loc - solution.pool.loc),
        gain_gib=round(_headroom_gain(solution, trial, fraction, best.need), 2),
        joint=round(joint, 3),
        cost=candidate.cost,
    )


def _unheld(case: Case) -> Case:
    return replace(case, held={key: value for key, value in case.held.items() if key != case.fraction_flag})


def _headroom_gain(solution: Solution, trial: Trial, fraction: float, need: Need) -> float:
    free = trial.free.at_ready(fraction)
    if free is None or solution.free is None:
        return 0.0
    return (free.loc - _middle(need)) - (solution.free.loc - _middle(solution.need))


def _middle(need: Need) -> float:
    return need.median_gib if isinstance(need, LogNormal) else need


def _shorter_target(case: Case, solution: Solution) -> Lever | None:
    """Return the longest prompt that the same flags would hold with the asked confidence, as the last resort."""
    if solution.meets(case.question.confidence) or solution.free is None or solution.binding == "context_length":
        return None
    low, high = 0, int(min(solution.step, solution.cap)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _survives(case, solution, middle) else (low, middle)
    tokens = min(_target_held(case, solution, low), case.question.target_tokens)
    pool, free = solution.trial.pool.pool(fraction_of(low)), solution.trial.free.at_ready(fraction_of(low))
    if tokens < 1 or pool is None or free is None:
        return None
    need = case.need(solution.trial, tokens)
    return Lever(
        flags={case.fraction_flag: fraction_of(low)},
        gain_tokens=round(pool.loc - solution.pool.loc),
        gain_gib=round(_headroom_gain(solution, solution.trial, fraction_of(low), need), 2),
        joint=round(memory_probability(free, need) * case.question.confidence, 3),
        cost=f"a lower target: prompts of up to {_round_down(tokens):,} tokens, not {case.question.target_tokens:,}",
    )


def _survives(case: Case, solution: Solution, step: int) -> bool:
    """Tell whether the longest prompt that the pool holds at a step also finds its memory, with the confidence."""
    tokens = _target_held(case, solution, step)
    free = solution.trial.free.at_ready(fraction_of(step))
    if free is None:
        return False
    return memory_probability(free, case.need(solution.trial, max(1, tokens))) >= case.question.confidence


def _target_held(case: Case, solution: Solution, step: int) -> int:
    """Return the longest prompt that the pool at a step holds with the confidence, reply and other requests beside."""
    pool_at = PoolAt(lambda at: solution.trial.pool.pool(fraction_of(at)), 0)
    tokens = pool_at.margin(max(1, step), case.question.confidence) / -(
        -case.question.concurrent // solution.trial.ranks
    )
    return max(0, int(tokens) - max(case.question.reply_tokens, SGLANG_RESERVED_TOKENS))


def _round_down(tokens: int) -> int:
    return tokens // 1000 * 1000 if tokens >= 10_000 else tokens
