"""Levers: changes of flags that gain pool or headroom, re-evaluated with the same model and ranked by price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvyield_server.domain.answers import Lever
from kvyield_server.domain.engines.registry import NAMES, number, positive
from kvyield_server.domain.engines.token_cost import kv_element_bytes, speculation
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.observation import EngineName, Flags, Scalar
from kvyield_server.domain.facts.scalars import is_on
from kvyield_server.domain.legacy.case import Case
from kvyield_server.domain.legacy.demand import context_needed
from kvyield_server.domain.legacy.headroom import LogNormal
from kvyield_server.domain.legacy.quantised import spared_share
from kvyield_server.domain.legacy.request_table import FEWEST_REQUESTS, SPECULATIVE_REQUESTS
from kvyield_server.domain.legacy.shorter_target import shorter_target
from kvyield_server.domain.legacy.solution import Solution, solve
from kvyield_server.domain.legacy.window import HIGHEST_STEP, Need, PoolAt, fraction_of, memory_probability

_LEAST_GAIN = 1e-4
_LEAST_GAIN_GIB = 0.05
_LEAST_GAIN_OF_RAISING = 0.005
_NO_PRICE = "no quality or speed"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A change with its price in words and as a weight: how much quality or speed it costs beside the others.

    ``frees`` is a flag that the asker held and that the change takes the hold off; ``lighter`` the share of the base by
    which it makes weights lighter.
    """

    flags: dict[str, Scalar]
    cost: str
    weight: float
    frees: str | None = None
    lighter: float = 0.0


def levers(case: Case, solution: Solution) -> tuple[Lever, ...]:
    """Return the levers that gain tokens, memory or probability, best gain of joint probability per cost first.

    Each is put to the model anew, with its own best fraction; gains are those of the restart with exactly its flags. A
    lower target comes last.
    """
    ranked: list[tuple[float, float, Lever]] = []
    for candidate in _candidates(case, solution):
        best = _solved(case, solution, candidate)
        if best is None:
            continue
        lever, gained = _lever(case, solution, candidate, best), best.chance - solution.chance
        if gained > _LEAST_GAIN or (solution.binding is not None and _helps(lever, gained)):
            ranked.append((max(0.0, gained) / candidate.weight, -candidate.weight, lever))
    ranked.sort(key=lambda item: item[:2], reverse=True)
    lower = shorter_target(case, solution)
    return (*(lever for _, _, lever in ranked), *((lower,) if lower else ()))


def _helps(lever: Lever, gained: float) -> bool:
    """Tell whether a lever brings an infeasible answer nearer: more tokens or memory, at no lower probability."""
    return gained > -_LEAST_GAIN and (lever.gain_tokens > 0 or (lever.gain_gib or 0.0) >= _LEAST_GAIN_GIB)


def _solved(case: Case, solution: Solution, candidate: _Candidate) -> Solution | None:
    """Return the best solution under a candidate's flags; a candidate that names a fraction is judged at that one."""
    changed = replace(case, lighter=candidate.lighter) if candidate.lighter else case
    flag = case.fraction_flag
    if flag in candidate.flags:
        changed = replace(changed, held={**changed.held, flag: candidate.flags[flag]})
        return solve(changed, solution.trial)
    if candidate.frees is not None:
        changed = replace(changed, held={key: value for key, value in case.held.items() if key != candidate.frees})
    return solve(changed, changed.under({**solution.trial.flags, **candidate.flags}), solution.lowest)


def _lever(case: Case, solution: Solution, candidate: _Candidate, best: Solution) -> Lever:
    moved = {key: value for key, value in best.flags.items() if solution.flags.get(key) != value}
    return Lever(
        flags={**candidate.flags, **moved, case.fraction_flag: best.flags[case.fraction_flag]},
        gain_tokens=round(best.pool.loc - solution.pool.loc),
        gain_gib=round(_headroom_gain(solution, best), 2),
        joint=round(best.chance, 3),
        cost=candidate.cost,
    )


def _headroom_gain(solution: Solution, best: Solution) -> float:
    if best.free is None or solution.free is None:
        return 0.0
    return (best.free.loc - _middle(best.need)) - (solution.free.loc - _middle(solution.need))


def _middle(need: Need) -> float:
    return need.median_gib if isinstance(need, LogNormal) else need


def _candidates(case: Case, solution: Solution) -> Iterator[_Candidate]:
    """Yield the changes that the engine offers and the asker has not fixed."""
    yield from _without_hold(case, solution)
    yield from _raised(case, solution)
    yield from _lighter_use(case, solution)
    yield from _costlier(case, solution.trial.flags)


def _without_hold(case: Case, solution: Solution) -> Iterator[_Candidate]:
    """Yield what the question's own held flags stand in the way of: another fraction, a longer context."""
    flag, context = case.fraction_flag, NAMES[case.engine].context
    if solution.binding == "context_length":
        needed: dict[str, Scalar] = {context: context_needed(case.engine, case.question)}
        yield _Candidate(needed, f"{_NO_PRICE}: a longer context than the one held", 1.0, frees=context)
    elif flag in case.held:
        best = solve(replace(case, held=_without(case.held, flag)), solution.trial)
        if best is not None and best.step != solution.step:
            way = "raised" if best.step > solution.step else "lowered"
            flags: dict[str, Scalar] = {flag: best.flags[flag]}
            yield _Candidate(flags, f"{_NO_PRICE}: a {way} fraction instead of the one held", 1.0)


def _without(held: Flags, key: str) -> Flags:
    return {name: value for name, value in held.items() if name != key}


def _raised(case: Case, solution: Solution) -> Iterator[_Candidate]:
    """Yield the raised fraction that makes the joint probability largest, where a surer pool is worth its memory."""
    free, memory = solution.free, solution.memory_probability
    doubt = (1.0 - solution.pool_probability) * (memory or 0.0)
    if case.fraction_flag in case.held or free is None or doubt < _LEAST_GAIN_OF_RAISING:
        return
    pool_at, trial = PoolAt(solution.trial.pool_at, solution.needed_tokens), solution.trial
    best, step, stride = solution.chance, int(solution.step), 1
    while step + stride <= min(solution.cap, HIGHEST_STEP):
        free = trial.free_at(step + stride)
        if free is None or free.loc <= 0.0:
            break
        joint = pool_at.probability(step + stride) * memory_probability(free, solution.need)
        if joint <= best:
            break
        best, step, stride = joint, step + stride, 2 * stride
    if best - solution.chance >= _LEAST_GAIN_OF_RAISING:
        raised: dict[str, Scalar] = {case.fraction_flag: fraction_of(step)}
        yield _Candidate(raised, f"{_NO_PRICE}: a raised fraction, out of the memory left for prompts", 1.0)


def _lighter_use(case: Case, solution: Solution) -> Iterator[_Candidate]:
    """Yield fewer requests, smaller chunks and fewer graphs: what they free the fraction can take."""
    names, flags = NAMES[case.engine], solution.trial.flags
    at_once = max(case.question.concurrent, 1)
    for key, value, floor, shrink, cost, weight in (
        (names.requests, _requests(case, flags), at_once, 4, "fewer requests run at the same time", 1.0),
        (names.chunk, positive(flags, names.chunk), 1024, 2, "slower prefill: smaller chunks of the prompt", 1.2),
        (names.graph_batch, _graph_batch(case, flags), 8, 4, "larger batches decode without graphs, and slower", 1.5),
    ):
        useless = key == names.chunk and case.fit.prompt_need.latent
        if key is not None and value is not None and value > floor and key not in case.held and not useless:
            yield _Candidate({key: max(floor, value // shrink)}, cost, weight)


def _requests(case: Case, flags: Flags) -> int | None:
    """Return how many requests run at the same time, by SGLang's own default where that is unset."""
    default = None
    if case.engine is EngineName.SGLANG:
        default = SPECULATIVE_REQUESTS if speculation(flags) else FEWEST_REQUESTS
    return positive(flags, NAMES[case.engine].requests) or default


def _graph_batch(case: Case, flags: Flags) -> int | None:
    """Return the largest batch that graphs are captured for, None where none are or requests bound it already."""
    names = NAMES[case.engine]
    limit, requests = positive(flags, names.graph_batch), _requests(case, flags)
    if limit is None or is_on(flags.get(names.graphs_off or "")):
        return None
    return limit if requests is None or requests > max(8, limit // 4) else None


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
    if (spared := _spared_share(case)) is not None:
        cost = "some accuracy: another checkpoint, or weights made 8-bit at load"
        yield _Candidate({"quantization": "fp8"}, cost, 6.0, lighter=spared)


def _kv_bytes(case: Case, flags: Flags) -> float:
    names = NAMES[case.engine]
    if names.kv_dtype == "quant_policy":
        return 2.0 if not number(flags, "quant_policy") else 1.0
    return kv_element_bytes(flags, case.fit.capacity.model.facts)


def _spared_share(case: Case) -> float | None:
    """Return half the weights as a share of the base, where they are known to be 16-bit."""
    if case.fraction_flag in case.held or "quantization" in case.held:
        return None
    return spared_share(case.fit.running, case.fit.capacity.base_gib, case.fit.capacity.model.facts)
