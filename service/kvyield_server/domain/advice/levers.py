"""Levers: changes of flags that gain pool or memory, each evaluated with the same model and ranked by what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvyield_server.domain.advice.grid import COARSE, FRACTIONS, Choice, solve, surest
from kvyield_server.domain.advice.option import Option, evaluate
from kvyield_server.domain.advice.question import (
    Case,
    context_needed,
    context_of,
    held_fraction,
    pool_needed,
    ranks_of,
)
from kvyield_server.domain.answers import Lever
from kvyield_server.domain.engines.registry import number, positive
from kvyield_server.domain.engines.token_cost import kv_element_bytes, speculation
from kvyield_server.domain.facts.deployment import requests_move_pool
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import is_latent_attention
from kvyield_server.domain.facts.observation import EngineName, Observation, Scalar
from kvyield_server.domain.facts.scalars import as_number, is_on

_LEAST_GAIN = 0.005
_LEAST_CHANCE = 0.001
"""Below this a lever would be shown as "< 0.1 %": it does not help by itself."""
_LEAST_GAIN_GIB, _LEAST_GAIN_TOKENS = 0.5, 0.02
_AROUND = 60
"""Steps of 0.001 on each side of the fraction advised at which a lever is evaluated; beyond, in steps of 0.01."""
_SPECULATIVE_REQUESTS, _FEWEST_REQUESTS = 48, 2048
"""SGLang's own running requests with and without a draft model, where none are set."""
_FREE = "no loss of quality or speed"
_REFUSED = "longer requests are refused"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A change with its price in words and as a weight: how much quality or speed it costs beside the others.

    ``frees`` is a flag that the question holds and that the change no longer holds.
    """

    flags: dict[str, Scalar]
    cost: str
    weight: float
    frees: str | None = None


def levers(case: Case, choice: Choice) -> tuple[Lever, ...]:
    """Return the levers that help, the likeliest to succeed first, of equal ones the cheapest; a lower target is last.

    Each is evaluated with its own best fraction. One that gains neither probability nor, for an infeasible answer, pool
    or memory is left out, and so is one that leaves success next to impossible.
    """
    if choice.binding is None and _chance(choice) > 1.0 - _LEAST_GAIN:
        return ()
    ranked: list[tuple[float, float, Lever]] = []
    for candidate in _candidates(case, choice):
        best = _solved(case, choice, candidate)
        gained = -1.0 if best is None else _chance(best) - _chance(choice)
        if best is None or gained < (_LEAST_GAIN if choice.binding is None else -1e-4):
            continue
        lever = _lever(choice, candidate, best)
        is_of_use = best.is_sensible and (gained >= _LEAST_GAIN or _helps(lever, choice.option.needed_tokens))
        achieved = round(best.chance, 3)
        if is_of_use and achieved >= _LEAST_CHANCE:
            ranked.append((achieved, -candidate.weight, lever))
    ranked.sort(key=lambda item: item[:2], reverse=True)
    lower = _lower_target(case, choice)
    return (*(lever for _, _, lever in ranked), *((lower,) if lower else ()))


def _chance(choice: Choice) -> float:
    """Return the joint probability; half of it where such a prompt failed under these or lighter flags."""
    return choice.chance * (0.5 if choice.unserved is not None else 1.0)


def _helps(lever: Lever, needed_tokens: int) -> bool:
    """Tell whether a lever brings an infeasible answer nearer: by 2 % of the pool needed, or by half a GiB."""
    gained = lever.gain_tokens >= _LEAST_GAIN_TOKENS * needed_tokens or (lever.gain_gib or 0.0) >= _LEAST_GAIN_GIB
    return gained and bool(lever.flags)


def _solved(case: Case, choice: Choice, candidate: _Candidate) -> Choice | None:
    """Return the best choice under a candidate's flags: fine steps around the fraction advised, coarse ones beyond."""
    held = {key: value for key, value in case.held.items() if key != candidate.frees and key not in candidate.flags}
    changed, flag = replace(case, held=held), case.fraction_flag
    flags: dict[str, Scalar] = {**choice.option.flags, **candidate.flags}
    fixed = number(flags, flag)
    flags.pop(flag, None)
    if fixed is not None:
        return solve(changed.holding({flag: fixed}), flags)
    middle = min(max(round(1000.0 * choice.fraction), 0), 999)
    near = FRACTIONS[max(0, middle - _AROUND) : middle + _AROUND]
    found = solve(changed, flags, np.union1d(COARSE, near))
    return None if found is None else surest(found, _LEAST_GAIN)


def _lever(choice: Choice, candidate: _Candidate, best: Choice) -> Lever:
    moved = {key: value for key, value in best.flags.items() if choice.flags.get(key) != value}
    context = best.option.case.names.context
    is_cut = context in moved and context not in candidate.flags and _is_less(moved[context], choice.flags.get(context))
    return Lever(
        flags={**candidate.flags, **moved},
        gain_tokens=round(best.predicted_tokens - choice.predicted_tokens),
        gain_gib=round(best.predicted_headroom_gib - choice.predicted_headroom_gib, 2),
        joint=round(best.chance, 3),
        cost=f"{candidate.cost}; {_REFUSED}" if is_cut else candidate.cost,
    )


def _is_less(value: Scalar, than: Scalar) -> bool:
    one, other = as_number(value), as_number(than)
    return one is not None and (other is None or one < other)


def lighter_use_of(case: Case, start: Observation) -> tuple[Lever, ...]:
    """Return what would leave more memory to a prompt at a start's own pool, where no line predicts another fraction.

    Only flags that move free memory alone: what they gain is not known, so gain and probability are None.
    """
    names, flags = case.names, start.flags
    if case.engine is not EngineName.SGLANG or requests_move_pool(case.model.model, case.model.engine, flags):
        return ()
    found = []
    for candidate in _lighter_use(case, dict(flags)):
        if set(candidate.flags) <= {names.chunk, names.requests, names.graph_batch}:
            kept = {case.fraction_flag: flags.get(case.fraction_flag), **candidate.flags}
            found.append(Lever(flags=kept, gain_tokens=0, gain_gib=None, joint=None, cost=candidate.cost))
    found.sort(key=lambda lever: names.chunk not in lever.flags)  # a prompt's peak scales with its chunk above all
    return tuple(found)


def _candidates(case: Case, choice: Choice) -> Iterator[_Candidate]:
    """Yield the changes that the engine offers and the question does not rule out."""
    yield from _without_hold(case, choice)
    yield from _raised(case, choice)
    yield from _lighter_use(case, choice.option.flags)
    yield from _costlier(case, choice)


def _without_hold(case: Case, choice: Choice) -> Iterator[_Candidate]:
    """Yield what the question's own held flags stand in the way of: another fraction, a longer context."""
    flag, context = case.fraction_flag, case.names.context
    if choice.binding == "context_length":
        needed: dict[str, Scalar] = {context: context_needed(case.engine, case.question)}
        yield _Candidate(needed, f"{_FREE}: a longer context than the one fixed", 1.0, frees=context)
    elif flag in case.held:
        yield _Candidate({}, f"{_FREE}: another fraction than the one fixed", 1.0, frees=flag)


def _raised(case: Case, choice: Choice) -> Iterator[_Candidate]:
    """Yield the fraction with the best joint probability, where a surer pool is worth its memory."""
    option = choice.option
    if held_fraction(case) is not None or option.survives is None or option.fractions.size == 1:
        return
    best = int(np.argmax(np.where(option.is_allowed, option.joint, -1.0)))
    if option.joint[best] - option.joint[choice.index] >= _LEAST_GAIN:
        way = "raised" if best > choice.index else "lowered"
        raised: dict[str, Scalar] = {case.fraction_flag: float(option.fractions[best])}
        yield _Candidate(raised, f"{_FREE}: a {way} fraction, where pool and memory most likely suffice", 1.0)


def _lighter_use(case: Case, flags: dict[str, Scalar]) -> Iterator[_Candidate]:
    """Yield fewer requests, smaller chunks, fewer graphs and a shorter context, also as relatives ran with."""
    names = case.names
    at_once = max(case.question.concurrent, 1)
    # By the config alone: a report of GLM-5.3-Flash, latent by its name, was cured by a smaller chunk.
    is_latent = is_latent_attention(case.model.model.facts)
    useless = {names.chunk} if is_latent and case.engine is EngineName.SGLANG else set()
    for key, value, floor, cost, weight in (
        (names.requests, _requests(case, flags), at_once, "fewer requests at the same time", 1.0),
        (names.chunk, positive(flags, names.chunk), 1024, "slower prefill: smaller chunks", 1.2),
        (names.graph_batch, _graph_batch(case, flags), 8, "larger batches decode without graphs, and slower", 1.5),
    ):
        if key is None or value is None or value <= floor or key in case.held or key in useless:
            continue
        seen = {positive(start.flags, key) for other in case.model.relatives for start in other.starts}
        for less in sorted({max(floor, value // 4), *(size for size in seen if size and floor <= size < value)}):
            yield _Candidate({key: less}, cost, weight)
    needed, admitted = context_needed(case.engine, case.question), context_of(case, flags)
    if names.context not in case.held and admitted is not None and admitted > needed:
        yield _Candidate({names.context: needed}, _REFUSED, 1.0)


def _requests(case: Case, flags: dict[str, Scalar]) -> int | None:
    """Return how many requests run at the same time, by SGLang's own default where that is unset."""
    default = None
    if case.engine is EngineName.SGLANG:
        default = _SPECULATIVE_REQUESTS if speculation(flags) else _FEWEST_REQUESTS
    return positive(flags, case.names.requests) or default


def _graph_batch(case: Case, flags: dict[str, Scalar]) -> int | None:
    """Return the largest batch that graphs are captured for; None where there are none or fewer requests bound it."""
    names = case.names
    if is_on(flags.get(names.graphs_off or "")):
        return None
    requests = positive(flags, names.requests)
    limit = positive(flags, names.graph_batch) or (_VLLM_GRAPHS if case.engine is EngineName.VLLM else None)
    return limit if limit is None or requests is None or requests > max(8, limit // 4) else None


_VLLM_GRAPHS = 512
"""vLLM captures batches up to the smaller of this and twice its sequences, where nothing is set."""


def _costlier(case: Case, choice: Choice) -> Iterator[_Candidate]:
    names, flags, gpus = case.names, choice.option.flags, case.model.hardware.gpu_count
    if names.kv_dtype not in case.held and _kv_bytes(case, flags) > 1.0:
        yield _Candidate({names.kv_dtype: names.half_kv}, "some accuracy: 8-bit keys and values", 3.0)
    if names.speculation is not None and speculation(flags) and names.speculation not in case.held:
        option = f"--{names.speculation.replace('_', '-')}"
        yield _Candidate({names.speculation: None}, f"slower decoding: remove {option}, no draft model", 3.0)
    layout = parallel_layout(flags, gpus)
    if names.tensor_parallel not in case.held and layout.tensor * 2 * layout.pipeline * layout.data <= gpus:
        yield _Candidate({names.tensor_parallel: layout.tensor * 2}, "twice the GPUs for one copy of the model", 4.0)
    if "quantization" not in case.held and not is_on(flags.get("quantization")) and held_fraction(case) is None:
        cost = "some accuracy: another checkpoint, or weights made 8-bit at load"
        yield _Candidate({"quantization": "fp8"}, cost, 6.0)


def _kv_bytes(case: Case, flags: dict[str, Scalar]) -> float:
    if case.names.kv_dtype == "quant_policy":
        return 2.0 if not number(flags, "quant_policy") else 1.0
    return kv_element_bytes(flags, case.model.model.facts)


def _lower_target(case: Case, choice: Choice) -> Lever | None:
    """Return the longest prompt that some fraction's pool holds and that meets the confidence under these flags."""
    option, question = choice.option, case.question
    pool, held = option.predicted.pool, positive(case.held, case.names.context)
    if choice.is_met or pool is None or option.survives is None or not option.is_allowed.any():
        return None
    reserved = context_needed(case.engine, question) - question.target_tokens
    limits = [option.limit, None if held is None else held - reserved]
    longest = min(limit for limit in (*limits, question.target_tokens) if limit is not None)
    lengths = [tokens for tokens in _lengths(question.target_tokens) if tokens <= longest]
    first, last, best = 0, len(lengths), None
    while first < last:  # a shorter prompt needs less pool and less memory
        middle = (first + last) // 2
        found = _evaluated(case, option, lengths[middle])
        first, last, best = (first, middle, found) if found is not None else (middle + 1, last, best)
    return None if best is None else _lever_of_target(case, choice, best)


def _lengths(target_tokens: int) -> Iterator[int]:
    """Yield shorter prompts, longest first, in steps of about 4 %, as round numbers."""
    tokens = float(target_tokens)
    while tokens > 1000.0:
        tokens *= 0.96
        digits = 10 ** max(0, len(str(int(tokens))) - 3)
        yield int(tokens) // digits * digits


def _evaluated(case: Case, option: Option, tokens: int) -> Choice | None:
    """Return a shorter prompt at the smallest fraction whose pool holds it, where it finds its memory there."""
    shorter = replace(case, question=replace(case.question, target_tokens=tokens))
    pool, confidence = option.predicted.pool, case.question.confidence
    if pool is None:
        return None
    needed = pool_needed(case.engine, shorter.question, ranks_of(option.flags), case.model.page_tokens)
    able = option.is_allowed & (pool.above(float(needed)) >= confidence)
    if not able.any():
        return None
    flags = {**option.flags}
    if case.engine is EngineName.VLLM and case.names.context not in case.held:
        flags[case.names.context] = context_needed(case.engine, shorter.question)
    index = int(np.argmax(able))
    is_known = flags == option.flags and option.predicted.pool_flag is None and option.predicted.dropped is None
    predicted = option.predicted.at(index) if is_known else None
    found = evaluate(shorter, flags, option.fractions[index : index + 1], predicted)
    if found is None or found.survives is None or found.survives[0] < confidence or found.holds[0] < confidence:
        return None
    return Choice(option=found, index=0, is_met=True)


def _lever_of_target(case: Case, choice: Choice, lower: Choice) -> Lever:
    tokens = lower.option.case.question.target_tokens
    moved = {key: value for key, value in lower.flags.items() if choice.flags.get(key) != value}
    return Lever(
        flags={case.fraction_flag: lower.fraction, **moved},
        gain_tokens=round(lower.predicted_tokens - choice.predicted_tokens),
        gain_gib=round(lower.predicted_headroom_gib - choice.predicted_headroom_gib, 2),
        joint=round(lower.chance, 3),
        cost=f"a lower target: prompts of up to {tokens:,} tokens, not {case.question.target_tokens:,}",
        target_tokens=tokens,
    )
