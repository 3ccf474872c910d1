"""One set of flags put to one question: which fraction answers it, how surely, and what stands in the way."""

from __future__ import annotations

from dataclasses import dataclass

from kvyield_server.domain.engines.registry import NAMES, number, positive
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation, Outcome, Scalar
from kvyield_server.domain.legacy.case import Case, Trial
from kvyield_server.domain.legacy.demand import context_needed, lowered_context, pool_needed
from kvyield_server.domain.legacy.memory_failures import highest_survivable_step
from kvyield_server.domain.legacy.student import StudentT
from kvyield_server.domain.legacy.window import (
    HIGHEST_STEP,
    Need,
    PoolAt,
    fraction_of,
    last_step,
    memory_probability,
    probit,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best fraction for one set of flags. ``memory`` is None where nothing tells the card's memory.

    ``binding`` names what no fraction can get past; ``lowest`` is the smallest step that meets the confidence.
    """

    trial: Trial
    flags: dict[str, Scalar]
    step: float
    needed_tokens: int
    pool: StudentT
    free: StudentT | None
    need: Need
    pool_probability: float
    memory_probability: float | None
    lowest: int | None
    cap: int
    death: Observation | None
    binding: str | None

    @property
    def joint(self) -> float | None:
        """P(the pool holds the target and the prompt finds its memory)."""
        return None if self.memory_probability is None else self.pool_probability * self.memory_probability

    @property
    def chance(self) -> float:
        """The joint probability, zero where it is unknown or the engine refuses the prompt."""
        return 0.0 if self.binding == "context_length" else self.joint or 0.0

    def meets(self, confidence: float) -> bool:
        """Tell whether both probabilities reach the confidence and nothing stands in the way."""
        memory = self.memory_probability
        return self.binding is None and min(self.pool_probability, memory if memory is not None else 0.0) >= confidence


def solve(case: Case, trial: Trial, hint: int | None = None) -> Solution | None:
    """Return the best fraction under the trial's flags, or None when the pool cannot be predicted.

    The smallest fraction that holds the target with the asked confidence; where that is out of reach, the largest that
    leaves memory and still holds the target more likely than not; where there is none, ``binding`` says why.
    ``hint`` is a step that likely answers.
    """
    solution = _solve(case, trial, hint)
    if solution is None or case.engine is not EngineName.VLLM or NAMES[case.engine].context in case.held:
        return solution
    admitted = positive(trial.flags, NAMES[case.engine].context) or case.running_context
    if admitted is None or admitted <= context_needed(case.engine, case.question):
        return solution
    page = max(1, case.fit.capacity.page_tokens)
    if 1.0 - solution.pool.cdf(float(-(-admitted // page) * page + page)) >= case.question.confidence:
        return solution
    return _solve(case, case.under(lowered_context(case.engine, case.question, trial.flags)))


def highest_step(case: Case, solution: Solution) -> int | None:
    """Return the largest step that still meets the confidence in memory and lies below every death that counts."""
    if solution.lowest is None or not solution.meets(case.question.confidence):
        return None
    wanted = probit(case.question.confidence)

    def margin(step: int) -> float:
        free = solution.trial.free_at(step)
        return -1.0 if free is None else probit(memory_probability(free, solution.need)) - wanted

    last = last_step(margin, solution.lowest)
    return None if last is None else min(last, solution.cap)


def running_chance(case: Case) -> float | None:
    """Return the probability that the running flags hold the target, where both parts reach the confidence; else None.

    They must serve now, admit the request and as many at once, lie below every death, and be what the question holds.
    """
    running, flags = case.fit.running, dict(case.running)
    fraction, names = number(flags, case.fraction_flag), NAMES[case.engine]
    if running is None or running.outcome is not Outcome.READY or fraction is None or not 0.0 < fraction < 1.0:
        return None
    requests = positive(flags, names.requests)
    is_admitted = (case.running_context or 0) >= context_needed(case.engine, case.question)
    is_asked = all(key in flags and flags[key] == value for key, value in case.held.items())
    is_wide = requests is None or requests >= case.question.concurrent
    cap, _ = highest_survivable_step(case.engine, flags, case.deaths)
    if not (is_admitted and is_asked and is_wide) or fraction * 1000.0 > cap + 0.5:
        return None
    trial, target = case.under(flags), case.question.target_tokens
    pool, free = trial.pool.pool(fraction), trial.free.at_ready(fraction)
    if pool is None or free is None:
        return None
    needed = pool_needed(case.engine, case.question, trial.ranks, case.fit.capacity.page_tokens)
    holds, survives = 1.0 - pool.cdf(needed), memory_probability(free, case.need(trial, target))
    return holds * survives if min(holds, survives) >= case.question.confidence else None


def _solve(case: Case, trial: Trial, hint: int | None = None) -> Solution | None:
    needed = _needed(case, trial.ranks)
    pool_at = PoolAt(trial.pool_at, needed)
    if trial.pool_at(hint or HIGHEST_STEP) is None:
        return None
    cap, death = highest_survivable_step(case.engine, trial.flags, case.deaths)
    lowest = pool_at.lowest_step(case.question.confidence, hint)
    step, binding = _chosen(case, trial, pool_at, lowest, cap)
    fraction = fraction_of(step)
    pool, free, need = (
        trial.pool.pool(fraction),
        trial.free.at_ready(fraction),
        case.need(trial, case.question.target_tokens),
    )
    if pool is None:
        return None
    memory = None if free is None else memory_probability(free, need)
    return Solution(
        trial=trial,
        flags={**trial.flags, case.fraction_flag: fraction_of(step)},
        step=step,
        needed_tokens=needed,
        pool=pool,
        free=free,
        need=need,
        pool_probability=1.0 - pool.cdf(needed),
        memory_probability=memory,
        lowest=lowest,
        cap=cap,
        death=death,
        binding=_refused(case) or binding or _out_of_headroom(case, trial.flags, memory),
    )


def _needed(case: Case, ranks: int) -> int:
    page = case.fit.capacity.page_tokens
    needed = pool_needed(case.engine, case.question, ranks, page)
    held = positive(case.held, NAMES[case.engine].context)
    if case.engine is EngineName.VLLM and held is not None:
        needed = max(needed, -(-held // max(1, page)) * page + page)
    return needed


def _chosen(case: Case, trial: Trial, pool_at: PoolAt, lowest: int | None, cap: int) -> tuple[float, str | None]:
    held = number(case.held, case.fraction_flag)
    if held is not None:
        return held * 1000.0, "out_of_memory" if held * 1000.0 > cap + 0.5 else None
    if cap < 1:
        return 1, "out_of_memory"
    if lowest is not None and lowest <= cap:
        free = trial.free_at(lowest)
        if free is None or free.loc >= 0.0:
            return lowest, None
    roomiest = _last_with_memory(case, trial)
    step = max(1, min(cap, roomiest))
    if pool_at.probability(step) >= 0.5:
        return step, None
    if cap < min(roomiest, lowest or HIGHEST_STEP):
        return step, "out_of_memory"
    return step, "free_memory" if roomiest < HIGHEST_STEP else "pool"


def _last_with_memory(case: Case, trial: Trial) -> int:
    """Return the largest step with P(free memory > 0) >= 0.5, at the running context length whatever the target is."""
    context = NAMES[case.engine].context
    steady = {**trial.flags, context: case.held.get(context, case.running_context)}
    line = case.fit.free_memory.along(steady, trial.pool)

    def margin(step: int) -> float:
        free = line.at_ready(fraction_of(step))
        return 1.0 if free is None else free.loc

    return last_step(margin, 1) or 1


def _refused(case: Case) -> str | None:
    """Return ``context_length`` where a held context length is too short for the request."""
    held = positive(case.held, NAMES[case.engine].context)
    return "context_length" if held is not None and held < context_needed(case.engine, case.question) else None


def _out_of_headroom(case: Case, flags: Flags, memory: float | None) -> str | None:
    if memory is None or memory >= 0.5:
        return None
    known = case.question.prompt_need_gib is not None
    if known or case.fit.prompt_need.measured(case.question.target_tokens, flags):
        return "headroom"
    return None
