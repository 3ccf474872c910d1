"""Levers: changes of flags that gain pool or headroom, re-evaluated with the same model and ranked by price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvyield_server.domain.answers import Lever
from kvyield_server.domain.demand import SGLANG_RESERVED_TOKENS
from kvyield_server.domain.flags import NAMES, number, positive
from kvyield_server.domain.headroom import LogNormal
from kvyield_server.domain.model_facts import flat_facts
from kvyield_server.domain.observation import Flags, Scalar
from kvyield_server.domain.parallel import parallel_layout
from kvyield_server.domain.scalars import as_word, first_given, is_on
from kvyield_server.domain.solution import Case, Solution, Trial, solve
from kvyield_server.domain.student import StudentT
from kvyield_server.domain.token_cost import kv_element_bytes, speculation
from kvyield_server.domain.window import HIGHEST_STEP, Need, fraction_of, memory_probability, sure_tokens

_DEFAULT_REQUESTS = 256
_LEAST_GAIN = 1e-4
_WEIGHTS_COST = 6.0


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
        lever, joint = _evaluated(case, solution, candidate)
        gained = joint - (solution.joint or 0.0)
        if lever is not None and (gained > _LEAST_GAIN or lever.gain_tokens > 0 or lever.gain_gib >= 0.05):
            ranked.append((max(0.0, gained) / candidate.weight, -candidate.weight, lever))
    if (lighter := _lighter_weights(case, solution)) is not None:
        gained = max(0.0, lighter.joint - (solution.joint or 0.0))
        ranked.append((gained / _WEIGHTS_COST, -_WEIGHTS_COST, lighter))
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
    for key, floor, shrink, cost, weight in (
        (names.requests, max(case.question.concurrent, 1), 4, "fewer requests run at the same time", 1.0),
        (names.chunk, 1024, 2, "slower prefill: the prompt is worked through in smaller chunks", 1.2),
        (names.graph_batch, 8, 4, "batches above the limit decode without graphs, and slower", 1.5),
    ):
        reduced = _reduced(flags, key, floor, shrink)
        useless = key == names.chunk and case.fit.prompt_need.latent
        if reduced is not None and key is not None and key not in case.held and not useless:
            yield _Candidate({key: reduced}, cost, weight)
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


def _reduced(flags: Flags, key: str | None, floor: int, shrink: int) -> int | None:
    value = positive(flags, key)
    return max(floor, value // shrink) if value is not None and value > floor else None


def _evaluated(case: Case, solution: Solution, candidate: _Candidate) -> tuple[Lever | None, float]:
    """Return the lever and its joint probability: gains at the advised fraction, the joint at its own best one."""
    raises = case.fraction_flag in candidate.flags
    trial = solution.trial if raises else case.under({**solution.flags, **candidate.flags})
    best = solve(_unheld(case) if raises else case, trial, solution.lowest)
    if best is None:
        return None, 0.0
    step = best.step if raises else solution.step
    pool = trial.pool_at(step) or best.pool
    joint = (best.joint or 0.0) if best.binding is None else 0.0
    lever = Lever(
        flags={**candidate.flags, case.fraction_flag: best.flags[case.fraction_flag]},
        gain_tokens=round(pool.loc - solution.pool.loc),
        gain_gib=round(_headroom_gain(solution, trial, step, best.need), 2),
        joint=round(joint, 3),
        cost=candidate.cost,
    )
    return lever, joint


def _lighter_weights(case: Case, solution: Solution) -> Lever | None:
    """Return what 8-bit weights would gain where they are known to be 16-bit: half of them, at once to the pool."""
    base, spared = case.fit.capacity.base_gib, _spared_gib(case)
    cost = case.fit.capacity.bytes_per_token
    if base is None or cost is None or spared is None or case.fraction_flag in case.held:
        return None
    step = max(1.0, solution.step - 1000.0 * spared / base.loc)
    free = solution.trial.free_at(step)
    return Lever(
        flags={"quantization": "fp8", case.fraction_flag: round(fraction_of(step), 3)},
        gain_tokens=round(spared * 2**30 / cost.loc),
        gain_gib=0.0,
        joint=round(solution.pool_probability * memory_probability(free, solution.need), 3) if free else 0.0,
        cost="some accuracy: another checkpoint, or weights made 8-bit at load",
    )


def _spared_gib(case: Case) -> float | None:
    running = case.fit.running
    facts = flat_facts(case.fit.capacity.model.facts)
    wide = as_word(first_given(facts, "torch_dtype", "dtype")) in ("bfloat16", "float16")
    if running is None or not wide or facts.get("quantization_config") or is_on(running.flags.get("quantization")):
        return None
    weights = running.measurements.weights_gib
    before, after = running.measurements.free_before_load_gib, running.measurements.free_after_load_gib
    if weights is None and before is not None and after is not None:
        weights = before - after
    return 0.5 * weights if weights is not None and weights > 0.0 else None


def _unheld(case: Case) -> Case:
    return replace(case, held={key: value for key, value in case.held.items() if key != case.fraction_flag})


def _headroom_gain(solution: Solution, trial: Trial, step: float, need: Need) -> float:
    free = trial.free_at(step)
    if free is None or solution.free is None:
        return 0.0
    return (free.loc - _middle(need)) - (solution.free.loc - _middle(solution.need))


def _middle(need: Need) -> float:
    return need.median_gib if isinstance(need, LogNormal) else need


def _shorter_target(case: Case, solution: Solution) -> Lever | None:
    """Return the longest prompt that the same flags would hold with the asked confidence, as the last resort."""
    if solution.meets(case.question.confidence) or solution.free is None or solution.binding == "context_length":
        return None
    step = _longest_surviving(case, solution)
    pool, free = solution.trial.pool_at(step), solution.trial.free_at(step)
    tokens = min(_target_held(case, solution, pool), case.question.target_tokens)
    if tokens < 1 or pool is None or free is None:
        return None
    need = case.need(solution.trial, tokens)
    return Lever(
        flags={case.fraction_flag: fraction_of(step)},
        gain_tokens=round(pool.loc - solution.pool.loc),
        gain_gib=round(_headroom_gain(solution, solution.trial, step, need), 2),
        joint=round(memory_probability(free, need) * case.question.confidence, 3),
        cost=f"a lower target: prompts of up to {_round_down(tokens):,} tokens, not {case.question.target_tokens:,}",
    )


def _longest_surviving(case: Case, solution: Solution) -> int:
    """Return the largest step at which the longest prompt that the pool holds also finds its memory.

    Between an empty pool and the advised step, both lines are straight: two steps stand for all.
    """
    low, high = _emptiest(solution), int(min(solution.step, solution.cap)) + 1
    trial, first, last = solution.trial, low, high
    pools, frees = (trial.pool_at(low), trial.pool_at(high)), (trial.free_at(low), trial.free_at(high))
    while high - low > 1:
        middle = (low + high) // 2
        share = (middle - first) / (last - first)
        free, tokens = _between(frees, share), _target_held(case, solution, _between(pools, share))
        survives = free is not None and memory_probability(free, case.need(trial, max(1, tokens)))
        low, high = (middle, high) if survives and survives >= case.question.confidence else (low, middle)
    return low


def _emptiest(solution: Solution) -> int:
    """Return a step below which the pool is about empty."""
    pool, full = solution.pool.loc, solution.trial.pool_at(HIGHEST_STEP)
    if full is None or full.loc <= pool or solution.step >= HIGHEST_STEP:
        return 0
    return max(0, int(solution.step - pool * (HIGHEST_STEP - solution.step) / (full.loc - pool)))


def _between(ends: tuple[StudentT | None, StudentT | None], share: float) -> StudentT | None:
    low, high = ends
    if low is None or high is None:
        return None
    loc, scale = low.loc + share * (high.loc - low.loc), low.scale + share * (high.scale - low.scale)
    return StudentT(loc, scale, min(low.df, high.df))


def _target_held(case: Case, solution: Solution, pool: StudentT | None) -> int:
    """Return the longest prompt that a pool holds with the confidence, reply and other requests beside."""
    if pool is None:
        return 0
    each = sure_tokens(pool, case.question.confidence) / -(-case.question.concurrent // solution.trial.ranks)
    return max(0, int(each) - max(case.question.reply_tokens, SGLANG_RESERVED_TOKENS))


def _round_down(tokens: int) -> int:
    return tokens // 1000 * 1000 if tokens >= 10_000 else tokens
