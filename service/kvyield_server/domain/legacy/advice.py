"""Advice: the smallest fraction that holds the target and survives the prompt, with its reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvyield_server.domain.answers import (
    Advice,
    AdvicePrediction,
    Basis,
    Caution,
    Change,
    Probability,
    Question,
    Status,
    Window,
)
from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.facts.observation import EngineName, Flags, Scalar
from kvyield_server.domain.legacy.case import Case, YieldModel, make_case, starting_flags
from kvyield_server.domain.legacy.cautions import cautions
from kvyield_server.domain.legacy.demand import advised_keys
from kvyield_server.domain.legacy.explanation import explain, explain_lack
from kvyield_server.domain.advice.render import command_line
from kvyield_server.domain.legacy.levers import levers
from kvyield_server.domain.legacy.restart_plan import restart_plan, verification_seconds
from kvyield_server.domain.legacy.solution import Solution, highest_step, solve
from kvyield_server.domain.legacy.window import HIGHEST_STEP, fraction_of, headroom_estimate, pool_estimate, rounded


def recommend(fit: YieldModel, question: Question) -> Advice:
    """Return which flags to restart with so that the pool holds the target and the prompt finds its memory.

    The smallest fraction on a 0.001 grid whose pool holds the target with the asked confidence. ``ok`` when memory
    reaches the confidence too, else ``at_risk``; ``infeasible`` names its binding constraint;
    ``not_enough_evidence`` says what to post next. All changes go into one restart.
    """
    case = make_case(fit, question)
    flags = starting_flags(case)
    solution = solve(case, case.under(flags))
    return _not_enough(case, flags) if solution is None else _answer(case, solution)


def _answer(case: Case, solution: Solution) -> Advice:
    status = _status(solution, case.question)
    starts = case.fit.starts
    changes = tuple(_changes(case, solution))
    seconds = verification_seconds(case.question.target_tokens, starts)
    infeasible = status is Status.INFEASIBLE
    advised = _stated(case, solution.flags, changes)
    return Advice(
        status=status,
        engine=case.engine,
        flags=advised,
        command_line="" if infeasible else command_line(case.engine, advised),
        changes=changes,
        prediction=_prediction(case, solution),
        probability=_probability(solution),
        window=_window(case, solution),
        restarts=None if infeasible else restart_plan(solution.joint or 0.0, starts, is_needed=bool(changes)),
        verification_seconds=seconds,
        basis=_basis(case),
        alternatives=levers(case, solution),
        warnings=cautions(case, solution, changes),
        explanation=explain(case, solution, status, seconds),
        binding_constraint=solution.binding,
        model_name=case.fit.capacity.model.name,
    )


def _status(solution: Solution, question: Question) -> Status:
    if solution.binding is not None:
        return Status.INFEASIBLE
    return Status.OK if solution.meets(question.confidence) else Status.AT_RISK


def _stated(case: Case, flags: Flags, changes: tuple[Change, ...]) -> dict[str, Scalar]:
    """Return the flags that the advice states: the fraction, the context length, requests, held and changed ones."""
    changed = {change.flag for change in changes}
    first = advised_keys(case.engine, case.question)
    caps = {*NAMES[case.engine].inert_with, NAMES[case.engine].pool_cap}
    return {key: flags[key] for key in first if key in changed or (flags.get(key) is not None and key not in caps)}


def _changes(case: Case, solution: Solution) -> Iterator[Change]:
    running = case.running if case.fit.running else {}
    for key in advised_keys(case.engine, case.question):
        now, then = solution.flags.get(key), running.get(key)
        if now != then and key in solution.flags:
            yield Change(flag=key, from_value=then, to_value=now, reason=_reason(case, solution, key))


def _reason(case: Case, solution: Solution, key: str) -> str:
    names = NAMES[case.engine]
    if key in case.held:
        return "as the question asks"
    if key == names.fraction:
        return _reason_of_fraction(case, solution)
    if key == names.context:
        return _reason_of_context(case, solution)
    if key == names.requests:
        return "as many requests are asked for at the same time"
    return f"take it out: with it the pool is not what {names.fraction} gives"


def _reason_of_fraction(case: Case, solution: Solution) -> str:
    needed = solution.needed_tokens
    if solution.step == solution.lowest:
        kept = "what the pool does not need stays free for prompts"
        return f"the smallest fraction whose pool holds {needed:,} tokens; {kept}"
    held = pool_estimate(solution.pool, case.fit.capacity.page_tokens).median
    beside = f"short of the {needed:,} needed" if held < needed else f"likely, not surely, the {needed:,} needed"
    return f"the largest fraction {_limit(solution)}: its pool of about {held:,.0f} tokens is {beside}"


def _limit(solution: Solution) -> str:
    if solution.death is not None and solution.step >= solution.cap:
        return f"below {solution.death.fraction}, which ran out of memory"
    return "there is" if solution.step >= HIGHEST_STEP else "that leaves memory free"


def _reason_of_context(case: Case, solution: Solution) -> str:
    target, now = case.question.target_tokens, positive(solution.flags, NAMES[case.engine].context)
    if case.engine is not EngineName.VLLM or now is None:
        return f"a prompt of {target:,} tokens is admitted with it; it does not grow the pool"
    reply = now - target
    return (
        f"a prompt of {target:,} tokens with {reply:,} of reply is admitted with it, and vLLM starts only with a pool "
        "that holds as much; it does not grow the pool"
    )


def _prediction(case: Case, solution: Solution) -> AdvicePrediction:
    free = solution.free
    return AdvicePrediction(
        pool_tokens=pool_estimate(solution.pool, case.fit.capacity.page_tokens),
        free_at_ready_gib=None if free is None else rounded(free.estimate(), 2),
        headroom_gib=None if free is None else rounded(headroom_estimate(free, solution.need), 2),
    )


def _probability(solution: Solution) -> Probability | None:
    if solution.memory_probability is None or solution.joint is None:
        return None
    pool, memory, joint = solution.pool_probability, solution.memory_probability, solution.joint
    return Probability(pool=round(pool, 3), memory=round(memory, 3), joint=round(joint, 3))


def _window(case: Case, solution: Solution) -> Window | None:
    highest = highest_step(case, solution)
    if highest is None or solution.lowest is None or highest < solution.lowest:
        return None
    return Window(lowest=fraction_of(solution.lowest), highest=fraction_of(highest))


def _basis(case: Case) -> Basis:
    return replace(case.fit.summary.basis, verified_prompt_tokens=case.fit.prompt_need.verified_prompt_tokens)


def _not_enough(case: Case, flags: Flags) -> Advice:
    lack = explain_lack(case)
    running = case.running if case.fit.running else {}
    stated = {case.fraction_flag: running.get(case.fraction_flag), **flags}
    advised = {key: stated[key] for key in advised_keys(case.engine, case.question) if stated.get(key) is not None}
    return Advice(
        status=Status.NOT_ENOUGH_EVIDENCE,
        engine=case.engine,
        flags=advised,
        command_line="",
        changes=(),
        prediction=AdvicePrediction(),
        probability=None,
        window=None,
        restarts=None,
        verification_seconds=verification_seconds(case.question.target_tokens, case.fit.starts),
        basis=_basis(case),
        alternatives=(),
        warnings=(Caution(code="not_enough_evidence", detail=lack), *case.fit.summary.warnings),
        explanation=lack,
        binding_constraint="evidence",
        model_name=case.fit.capacity.model.name,
    )
