"""Recommend: keep what runs where it answers the question, else the flags for one restart, with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import hypot

from kvyield_server.domain.advice import words
from kvyield_server.domain.advice.grid import Choice, as_it_runs, solve
from kvyield_server.domain.advice.levers import levers, lighter_use_of
from kvyield_server.domain.advice.plan import restart_plan, verification_seconds
from kvyield_server.domain.advice.question import (
    Case,
    anchor_flags,
    begun_flags,
    context_needed,
    context_of,
    input_limit,
    make_case,
    pool_needed,
    ranks_of,
)
from kvyield_server.domain.advice.render import command_line
from kvyield_server.domain.advice.warnings import cautions, versions
from kvyield_server.domain.answers import (
    Advice,
    AdvicePrediction,
    Caution,
    Change,
    Estimate,
    Lever,
    Prefer,
    Probability,
    Question,
    Status,
    Window,
)
from kvyield_server.domain.engines.registry import positive
from kvyield_server.domain.facts.observation import NO_MEMORY_FLAGS, Observation, Outcome, Scalar
from kvyield_server.domain.facts.scalars import first_given
from kvyield_server.domain.model.evidence import Label, differing_flags
from kvyield_server.domain.model.interface import YieldModel
from kvyield_server.domain.model.pool import LEAST_FRACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """What is answered: a choice, whether it is what runs, whether the evidence is in doubt, and what comes first."""

    choice: Choice
    is_kept: bool = False
    is_doubtful: bool = False
    first: str = ""


def recommend(model: YieldModel, question: Question) -> Advice:
    """Return which flags to keep or to restart with, so that the pool holds the target and a prompt finds its memory.

    ``ok`` when both probabilities reach the confidence (or were measured), else ``at_risk``; ``infeasible`` names its
    binding constraint; ``not_enough_evidence`` says what to post next. A live start that holds the target answers for
    its own flags before all of that. All changes go into one restart.
    """
    case = make_case(model, question)
    case, first = _without_newest(case)
    kept = _what_runs(case)
    implausible = None if case.runs is None else model.implausible(case.runs)
    is_enough = kept is not None and (kept.is_met or kept.survives is None or model.drifted is not None)
    if kept is not None and is_enough and question.prefer == Prefer.KEEP:
        is_doubtful = implausible is not None
        return _answer(
            case, _Decision(choice=kept, is_kept=_is_running(model, kept), is_doubtful=is_doubtful, first=first)
        )
    contradiction = model.contradiction(begun_flags(case)) or implausible
    choice = None if contradiction else solve(case)
    contradiction = contradiction or _sign_of_a_wrong_model(case, choice)
    if choice is None or contradiction is not None or choice.binding is not None:
        holder = kept or _holder(case)
        if holder is not None:
            kept_runs = holder is kept and _is_running(model, holder)  # another version's flags are for a restart
            return _answer(case, _Decision(choice=holder, is_kept=kept_runs, is_doubtful=True, first=first))
        outlived = _contradicted_holder(case) if choice is not None and choice.binding == "out_of_memory" else None
        if outlived is not None:
            first = first or words.check_gpu()
            kept_runs = _is_running(model, outlived)
            return _answer(case, _Decision(choice=outlived, is_kept=kept_runs, is_doubtful=True, first=first))
        limited = None if choice is not None or case.runs is None else as_it_runs(case, case.runs)
        limited = None if limited is None else _bound_by_its_death(case, limited)
        if limited is not None and limited.binding is not None:
            return _answer(case, _Decision(choice=limited, first=first))
        if choice is None or contradiction is not None:
            return _not_enough(case, contradiction)
    if kept is not None and not choice.is_met and choice.fraction != kept.fraction:
        first = " ".join(
            part for part in (first, words.verify_first(case, verification_seconds(question, model.starts))) if part
        )
    return _answer(case, _Decision(choice=choice, is_kept=_equals_what_runs(case, choice), first=first))


def _without_newest(case: Case) -> tuple[Case, str]:
    """Return the case as before a newest start that the others contradict, and what to look at first.

    Where that start came up and holds the target it still answers for itself.
    """
    drifted = case.model.drifted
    if drifted is None:
        return case, ""
    first = words.look_first(drifted.fraction)
    if case.runs is None or drifted.id != case.runs.id or _what_runs(case) is not None:
        return case, first
    earlier = [start for start in case.model.starts if start.came_up and start.id != drifted.id]
    if not earlier:
        return case, first
    return replace(case, runs=earlier[-1], base=earlier[-1].flags), first


def _is_running(model: YieldModel, choice: Choice) -> bool:
    """Tell whether a choice is what runs, not what ran before it."""
    return (
        model.runs is not None and choice.option.case.runs is not None and model.runs.id == choice.option.case.runs.id
    )


def _what_runs(case: Case) -> Choice | None:
    """Return what runs as a choice where it holds the target, whatever its memory."""
    return None if case.runs is None else _held_by(case, case.runs)


def _holder(case: Case) -> Choice | None:
    """Return the newest live start that holds the target; one of another version than asked for answers too."""
    asked = replace(case, question=replace(case.question, engine_version=None))
    return (_what_runs(asked) if case.is_other_version else None) or _older_holder(asked)


def _older_holder(case: Case) -> Choice | None:
    """Return the newest live start that came up and holds the target, with its own flags."""
    seen: set[tuple[object, ...]] = set()
    for start in reversed(case.model.starts):
        pool = start.measurements.pool_tokens
        if not start.came_up or pool is None or start is case.runs:
            continue
        kind = (start.fraction, pool, frozenset(start.flags.items()))
        if kind in seen:
            continue
        seen.add(kind)
        if len(seen) > _MOST_HOLDERS:
            return None
        found = _held_by(replace(case, runs=start, base=start.flags), start)
        if found is not None:
            return found
    return None


_MOST_HOLDERS = 32


def _contradicted_holder(case: Case) -> Choice | None:
    """Return what runs where it holds the target and a later start died no higher: either start may be the odd one.

    A death while it served is no contradiction of a start that came up.
    """
    runs = case.runs
    choice = None if runs is None else _held_by(case, runs, but_for_deaths=True)
    death = None if choice is None else choice.option.death
    is_later = runs is not None and death is not None and death.observed_at >= runs.observed_at
    return choice if is_later and death is not None and death.outcome is Outcome.OOM_STARTUP else None


def _held_by(case: Case, start: Observation, *, but_for_deaths: bool = False) -> Choice | None:
    """Return a start's own flags as a choice where it ran with all that is asked, admits the request and holds it.

    Its measured pool counts, and a death that rules out its fraction forbids it, unless deaths are left out.
    """
    question, flags = case.question, start.flags
    if start.fraction is None or any(flags.get(key, ...) != value for key, value in case.held.items()):
        return None
    admitted, requests, limit = context_of(case, flags), positive(flags, case.names.requests), input_limit(start)
    if admitted is not None and admitted < context_needed(case.engine, question):
        return None
    if (requests is not None and requests < question.concurrent) or (
        limit is not None and limit < question.target_tokens
    ):
        return None
    choice = _at_its_own_limit(case, start, as_it_runs(case, start))
    if choice is None or choice.binding is not None or not (but_for_deaths or choice.option.is_allowed[0]):
        return None
    measured = choice.measured.pool_tokens if choice.measured is not None else start.measurements.pool_tokens
    needed = pool_needed(case.engine, question, ranks_of(flags), case.model.page_tokens)
    return choice if measured is not None and measured >= needed and choice.holds == 1.0 else None


def _at_its_own_limit(case: Case, start: Observation, choice: Choice | None) -> Choice | None:
    """Return a start's own flags as a choice, bound by an input limit only where these very flags printed one."""
    if choice is None or choice.binding != "input_limit":
        return choice
    alike = (
        other
        for other in reversed(case.model.starts)
        if other.came_up and other.fraction == start.fraction and not differing_flags(other.flags, start.flags)
    )
    printed = (other.measurements.longest_prompt_tokens for other in alike)
    limit = next((tokens for tokens in printed if tokens is not None), None)
    is_admitted = limit is None or limit >= case.question.target_tokens
    return replace(choice, binding=None) if is_admitted else choice


def _bound_by_its_death(case: Case, choice: Choice) -> Choice:
    """Return what runs, bound by a death that counts at its own flags where its measured pool holds the target."""
    runs = case.runs
    is_asked = runs is not None and all(runs.flags.get(key, ...) == value for key, value in case.held.items())
    if choice.binding is not None or not is_asked or choice.option.is_allowed[0] or choice.holds < 1.0:
        return choice
    return replace(choice, binding="out_of_memory")


def _sign_of_a_wrong_model(case: Case, choice: Choice | None) -> str | None:
    """Return why an answer shows that the line is not that of a real GPU, None where it may be."""
    if choice is None or case.names.scales_free_memory or case.model.weights_are_stated:
        return None
    if choice.binding in ("pool", "free_memory", "headroom"):
        if not case.model.summary.basis.observation_ids:
            return None if _exceeds_the_gpu(case, choice) else words.too_heavy()
        pool = choice.option.predicted.pool
        highest = 0.0 if pool is None else pool.median(choice.option.fractions.size - 1)
        return words.too_heavy() if choice.binding == "pool" and highest <= 0.0 else None
    is_tiny = choice.fraction < LEAST_FRACTION and case.fraction_flag not in case.held
    return words.too_small(case, choice.fraction) if is_tiny else None


def _exceeds_the_gpu(case: Case, choice: Choice) -> bool:
    """Tell whether the pool needed is more than the whole memory of a GPU, whatever the weights take."""
    cost, memory = case.model.bytes_per_token(choice.flags), case.model.hardware.memory_gib
    return cost is not None and memory is not None and choice.option.needed_tokens * cost.low > memory * 2**30


def _equals_what_runs(case: Case, choice: Choice) -> bool:
    """Tell whether a choice is what runs without any change."""
    return choice.measured is not None and case.runs is case.model.runs and not tuple(_changes(case, choice))


def _status(case: Case, decision: _Decision) -> Status:
    choice = decision.choice
    if choice.binding is not None:
        return Status.INFEASIBLE
    labels = case.model.summary.labels
    is_sure = choice.is_met and choice.unserved is None and not decision.is_doubtful and not case.is_other_version
    is_sure &= case.model.failed(choice.flags) is None
    is_sure &= not (choice.has_impossible_pool or choice.disputed_free_gib)
    if Label.CONFOUNDED in labels:  # what contradicts itself is no reason for a restart
        is_sure &= decision.is_kept and (choice.is_proven or not choice.disputed_pools)
    return Status.OK if is_sure and "drift" not in labels and case.model.drifted is None else Status.AT_RISK


def _answer(case: Case, decision: _Decision) -> Advice:
    choice, model = decision.choice, case.model
    case = replace(choice.option.case, question=case.question)
    status = _status(case, decision)
    infeasible = status is Status.INFEASIBLE
    changes = () if decision.is_kept else tuple(_changes(case, choice))
    stated = _stated(case, choice, changes)
    is_shown = not infeasible or choice.is_sensible
    if not is_shown:
        stated.pop(case.fraction_flag, None)
        changes = tuple(change for change in changes if change.flag != case.fraction_flag)
    answer = Advice(
        status=status,
        engine=case.engine,
        flags=stated,
        command_line="" if infeasible else command_line(case.engine, stated),
        changes=changes,
        prediction=_prediction(choice) if is_shown else AdvicePrediction(),
        probability=_probability(choice),
        window=_window(case, decision),
        restarts=None if infeasible else restart_plan(choice.joint, model.starts, is_needed=not decision.is_kept),
        verification_seconds=verification_seconds(case.question, model.starts),
        basis=model.summary.basis,
        alternatives=() if decision.is_kept and status is Status.OK else _alternatives(case, choice),
        warnings=cautions(case, choice, changes, is_kept=decision.is_kept),
        explanation="",
        binding_constraint=choice.binding,
        model_name=_model_that_ran(case),
    )
    told = words.explanation(case, choice, answer, is_kept=decision.is_kept, first=decision.first)
    headline = words.headline(case, choice, answer, is_kept=decision.is_kept, first=decision.first)
    return replace(answer, explanation=told, headline=headline)


def _model_that_ran(case: Case) -> str:
    """Return the model as the command line named it, a path perhaps, else the pair's name for it."""
    told = first_given({**case.base, **case.held}, "model_path", "model")
    return told if isinstance(told, str) and told.strip() else case.model.model.name


def _stated(case: Case, choice: Choice, changes: tuple[Change, ...]) -> dict[str, Scalar]:
    """Return the flags that the advice states: fraction, context length, requests, those that size the pool, held and
    changed ones."""
    names, flags = case.names, choice.flags
    changed = [change.flag for change in changes]
    sizing = (*names.inert_with, *names.other_caps, *((names.pool_cap,) if names.pool_cap else ()))
    keys = dict.fromkeys((names.fraction, names.context, names.requests, *case.held, *sizing, *changed))
    return {key: flags[key] for key in keys if key in changed or flags.get(key) is not None}


def _changes(case: Case, choice: Choice) -> Iterator[Change]:
    """Yield what differs from what runs; of the flags of an older start, those that what runs is known to have."""
    runs, pool = case.model.runs, choice.pool_tokens
    is_older = runs is not None and case.runs is not None and case.runs.id != runs.id
    now = case.model.flags if is_older else anchor_flags(case)
    for key, value in choice.flags.items():
        if is_older and (key not in now or key in NO_MEMORY_FLAGS):
            continue
        if value != now.get(key):
            why = words.reason(case, choice, key, 0.0 if pool is None else pool.median)
            yield Change(flag=key, from_value=now.get(key), to_value=value, reason=why)


def _prediction(choice: Choice) -> AdvicePrediction:
    free, need = choice.free_at_ready_gib, choice.option.need
    taken = need if isinstance(need, int | float) else need.estimate()
    return AdvicePrediction(
        pool_tokens=choice.pool_tokens,
        free_at_ready_gib=None if free is None else _rounded(free),
        headroom_gib=None if free is None or choice.impossible_need_gib is not None else _rounded(_less(free, taken)),
    )


def _less(free: Estimate, need: Estimate | float) -> Estimate:
    """Return free memory less a need: medians differ, and each side's half widths add up as independent errors do."""
    if isinstance(need, int | float):
        need = Estimate(median=need, low=need, high=need)
    median = free.median - need.median
    return Estimate(
        median=median,
        low=median - hypot(free.median - free.low, need.high - need.median),
        high=median + hypot(free.high - free.median, need.median - need.low),
        level=free.level,
    )


def _rounded(estimate: Estimate, digits: int = 2) -> Estimate:
    low, median, high = (round(value, digits) for value in (estimate.low, estimate.median, estimate.high))
    return Estimate(median=median, low=low, high=high, level=estimate.level)


def _probability(choice: Choice) -> Probability:
    memory, joint = choice.survives, choice.joint
    return Probability(
        pool=round(choice.holds, 3),
        memory=None if memory is None else round(memory, 3),
        joint=None if joint is None else round(joint, 3),
    )


def _window(case: Case, decision: _Decision) -> Window | None:
    """Return the window around the choice; of what runs, the one that the fractions around it make."""
    choice = decision.choice
    if decision.is_kept and choice.option.fractions.size == 1 and not decision.is_doubtful:
        found = solve(case)
        window = found.window if found is not None else None
    else:
        window = choice.window
    return None if window is None else Window(lowest=window[0], highest=window[1])


def _alternatives(case: Case, choice: Choice) -> tuple[Lever, ...]:
    """Return the levers; where a death binds and no line evaluates any, the lighter flags at its own pool."""
    return levers(case, choice) or (_lighter(case) if choice.binding == "out_of_memory" else ())


def _lighter(case: Case) -> tuple[Lever, ...]:
    """Return lighter flags at what runs, where its pool holds the target and only its memory is in doubt."""
    runs = case.runs
    if runs is None or runs.measurements.pool_tokens is None:
        return ()
    needed = pool_needed(case.engine, case.question, ranks_of(runs.flags), case.model.page_tokens)
    return lighter_use_of(case, runs) if runs.measurements.pool_tokens >= needed else ()


def _not_enough(case: Case, contradiction: str | None) -> Advice:
    lack = words.lack(case, contradiction)
    keys = dict.fromkeys((case.names.fraction, case.names.context, case.names.requests, *case.held))
    flags = {**anchor_flags(case), **begun_flags(case)}
    flags[case.names.fraction] = {**anchor_flags(case), **case.held}.get(case.names.fraction)
    answer = Advice(
        status=Status.NOT_ENOUGH_EVIDENCE,
        engine=case.engine,
        flags={key: flags[key] for key in keys if flags.get(key) is not None},
        command_line="",
        changes=(),
        prediction=AdvicePrediction(),
        probability=None,
        window=None,
        restarts=None,
        verification_seconds=verification_seconds(case.question, case.model.starts),
        basis=case.model.summary.basis,
        alternatives=_lighter(case),
        warnings=(Caution(code="not_enough_evidence", detail=lack), *versions(case), *case.model.summary.warnings),
        explanation=lack,
        binding_constraint="evidence",
        model_name=_model_that_ran(case),
    )
    return replace(answer, headline=words.headline(case, None, answer, is_kept=False))
