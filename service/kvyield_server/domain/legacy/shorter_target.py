"""The last lever: the longest prompt that the same flags would hold and survive with the asked confidence."""

from __future__ import annotations

from dataclasses import replace

from kvyield_server.domain.answers import Lever
from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.facts.observation import EngineName, Scalar
from kvyield_server.domain.legacy.case import Case
from kvyield_server.domain.legacy.demand import SGLANG_RESERVED_TOKENS, context_needed, longest_prompt
from kvyield_server.domain.legacy.headroom import LogNormal
from kvyield_server.domain.legacy.solution import Solution
from kvyield_server.domain.legacy.student import StudentT
from kvyield_server.domain.legacy.window import HIGHEST_STEP, Need, fraction_of, memory_probability, sure_tokens


def shorter_target(case: Case, solution: Solution) -> Lever | None:
    """Return the lower target with its flags and gains, or None where the asked one is met or none is known."""
    if solution.meets(case.question.confidence) or solution.free is None or solution.cap < 1:
        return None
    step = _longest_surviving(case, solution)
    pool, free = solution.trial.pool_at(step), solution.trial.free_at(step)
    tokens = _round_down(min(_target_held(case, solution, pool), case.question.target_tokens, _admitted(case)))
    if not 1 <= tokens < case.question.target_tokens or pool is None or free is None:
        return None
    need = case.need(solution.trial, tokens)
    joint = round(memory_probability(free, need) * case.question.confidence, 3)
    if joint <= 0.0:
        return None
    gain_gib = (free.loc - _middle(need)) - (solution.free.loc - _middle(solution.need))
    return Lever(
        flags=_flags(case, solution, step, tokens),
        gain_tokens=round(pool.loc - solution.pool.loc),
        gain_gib=round(gain_gib, 2),
        joint=joint,
        cost=f"a lower target: prompts of up to {tokens:,} tokens, not {case.question.target_tokens:,}",
        target_tokens=tokens,
    )


def _flags(case: Case, solution: Solution, step: int, tokens: int) -> dict[str, Scalar]:
    """Return the fraction; for vLLM the longest request too, which it would not accept with a smaller pool."""
    flags: dict[str, Scalar] = {case.fraction_flag: fraction_of(step)}
    name, admits = NAMES[case.engine].context, context_needed(case.engine, replace(case.question, target_tokens=tokens))
    running = positive(solution.flags, name) or case.running_context
    if case.engine is EngineName.VLLM and name not in case.held and (running is None or running > admits):
        flags[name] = admits
    return flags


def _admitted(case: Case) -> int:
    """Return the longest prompt that a held context length lets in."""
    held = positive(case.held, NAMES[case.engine].context)
    return case.question.target_tokens if held is None else longest_prompt(case.engine, case.question, held)


def _middle(need: Need) -> float:
    return need.median_gib if isinstance(need, LogNormal) else need


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
        return 1
    return max(1, int(solution.step - pool * (HIGHEST_STEP - solution.step) / (full.loc - pool)))


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
