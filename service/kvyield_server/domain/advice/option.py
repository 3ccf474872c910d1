"""A set of flags under a question, evaluated at each of some fractions: chances of pool and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kvyield_server.domain.advice.question import Case, blocks_of_context, context_of, pool_needed, ranks_of
from kvyield_server.domain.engines.registry import positive
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation, Scalar
from kvyield_server.domain.model.evidence import is_no_lighter
from kvyield_server.domain.model.interface import Floats, Mask, Measured, Need, Predicted

_LIMIT_SLACK = 64
"""Engines keep some tokens of the pool back: a limit this close to it is the pool's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A set of flags (fraction apart) at n fractions; arrays have shape (n,).

    ``holds`` is P(pool >= needed), ``survives`` P(free - need >= 0) and ``starts`` P(free >= 0), both None where
    nothing tells free memory. ``is_allowed`` leaves out fractions that a death rules out. ``limit`` is the longest
    prompt that the engine takes, where it printed one below the target. ``measured`` is what
    live starts at the fraction with index ``measured_at`` measured; ``is_proven`` says that such a prompt passed there.
    """

    case: Case
    flags: dict[str, Scalar]
    needed_tokens: int
    predicted: Predicted
    need: Need | float
    holds: Floats
    survives: Floats | None
    starts: Floats | None
    is_allowed: Mask
    death: Observation | None
    limit: int | None = None
    measured: Measured | None = None
    measured_at: int | None = None
    is_proven: bool = False

    @property
    def fractions(self) -> Floats:
        return self.predicted.fractions

    @property
    def joint(self) -> Floats:
        """P(pool and memory); the pool's alone where nothing tells free memory."""
        return self.holds if self.survives is None else self.holds * self.survives


def evaluate(
    case: Case, flags: dict[str, Scalar], fractions: Floats, predicted: Predicted | None = None
) -> Option | None:
    """Return a set of flags evaluated at each fraction, or None where nothing tells the pool.

    At the flags of what runs the measured pool and free memory stand in for predicted ones, and a prompt that passed
    there for the probability that it fits. ``predicted`` is what the model predicts there, where it is at hand.
    """
    model, question = case.model, case.question
    predicted = model.at(flags, fractions) if predicted is None else predicted
    at_runs = _measured(case, flags, fractions)
    is_measured_alone = fractions.size == 1 and at_runs[1] is not None and at_runs[1].pool_tokens is not None
    if predicted.pool is None and not is_measured_alone:
        return None
    needed = needed_tokens(case, flags)
    need = (
        question.prompt_need_gib if question.prompt_need_gib is not None else model.need(flags, question.target_tokens)
    )
    holds = np.zeros_like(fractions) if predicted.pool is None else np.array(predicted.pool.above(float(needed)))
    survives = model.survives(flags, predicted, need, question.target_tokens)
    survives = None if survives is None else np.array(survives)
    barred, death = model.forbidden(flags, fractions, question.target_tokens, question.concurrent)
    measured_at, measured, is_proven = at_runs
    starts = None if predicted.free is None else np.asarray(predicted.free.above(0.0), dtype=np.float64).copy()
    if measured_at is not None and measured is not None:
        if measured.pool_tokens is not None:
            holds[measured_at] = float(measured.pool_tokens >= needed)
        if survives is None and (measured.free_at_ready_gib is not None or is_proven):
            survives = np.zeros_like(holds)
        if survives is not None and measured.free_at_ready_gib is not None:
            survives[measured_at] = fits(need, measured.free_at_ready_gib)
        if survives is not None and is_proven:
            survives[measured_at] = 1.0
        if starts is not None:
            starts[measured_at] = 1.0
    survives = _no_surer_above(case, flags, predicted, need, survives)
    return Option(
        case=case,
        flags=flags,
        needed_tokens=needed,
        predicted=predicted,
        need=need,
        holds=holds,
        survives=survives,
        starts=starts,
        is_allowed=~barred,
        death=death,
        limit=_limit(case, flags),
        measured=measured,
        measured_at=measured_at,
        is_proven=is_proven,
    )


def _no_surer_above(
    case: Case, flags: dict[str, Scalar], predicted: Predicted, need: Need | float, survives: Floats | None
) -> Floats | None:
    """Return the chances, none above what runs higher than what is left there as measured: free memory never rises.

    That holds for flags that ask no less of memory than what runs, and where SGLang cannot leave out graphs.
    """
    runs, names = case.runs, case.names
    if survives is None or runs is None or runs.fraction is None or predicted.dropped is not None:
        return survives
    measured = None if case.is_other_version else case.model.measured(runs.flags)
    changed = {key for key in flags.keys() | case.base.keys() if flags.get(key) != case.base.get(key)}
    may_change = {names.fraction, names.context, names.requests}
    if measured is None or measured.free_at_ready_gib is None or changed - may_change:
        return survives
    if not is_no_lighter(case.engine, flags, case.base):
        return survives
    passed = case.model.passed(runs.flags, case.question.target_tokens, 1)
    there = 1.0 if passed is not None else fits(need, measured.free_at_ready_gib)
    capped: Floats = np.where(predicted.fractions >= runs.fraction - 1e-9, np.minimum(survives, there), survives)
    return capped


def needed_tokens(case: Case, flags: Flags) -> int:
    """Return the pool tokens needed of one data-parallel rank."""
    page = max(1, case.model.page_tokens)
    needed = pool_needed(case.engine, case.question, ranks_of(flags), page)
    held = positive(case.held, case.names.context)
    return max(needed, blocks_of_context(held, page)) if case.engine is EngineName.VLLM and held is not None else needed


def _limit(case: Case, flags: Flags) -> int | None:
    """Return the input limit that the newest start printed, where it is below the target and holds for these flags.

    One that is the pool's own size, or that vLLM fitted to the pool, grows with the pool; one that a shorter context
    length made does not hold for a longer one.
    """
    start = case.model.limited
    limit = None if start is None else start.measurements.longest_prompt_tokens
    if start is None or limit is None or limit >= case.question.target_tokens:
        return None
    now, then = context_of(case, flags), context_of(case, start.flags)
    is_raised = now is not None and then is not None and now > then
    pool = start.measurements.pool_tokens
    is_pool = pool is not None and 0 <= pool - limit <= _LIMIT_SLACK
    return None if is_pool or is_raised else limit


def _measured(case: Case, flags: Flags, fractions: Floats) -> tuple[int | None, Measured | None, bool]:
    """Return where among the fractions what runs stands, what was measured there, and whether such a prompt passed."""
    runs = case.runs
    if runs is None or runs.fraction is None or case.is_other_version:
        return None, None, False
    found = np.flatnonzero(np.abs(fractions - runs.fraction) < 1e-9)
    at = {**flags, case.fraction_flag: runs.fraction}
    if at == {**case.base, case.fraction_flag: runs.fraction}:
        at = dict(runs.flags)  # with what the engine chose by itself, which the standing-in flags leave out
    measured = case.model.measured(at) if found.size else None
    if measured is None:
        return None, None, False
    drifted = case.model.drifted
    beside = None if drifted is None or drifted.id == runs.id else case.model.measured(drifted.flags)
    if drifted is not None and drifted.came_up and beside is not None and beside.newest.id == measured.newest.id:
        figures = runs.measurements
        measured = replace(measured, pool_tokens=figures.pool_tokens, free_at_ready_gib=figures.free_at_ready_gib)
    # One prompt proves several at once: engines work on their chunks one at a time (at most 0.015 GiB more, measured).
    passed = case.model.passed(at, case.question.target_tokens, 1)
    return int(found[0]), measured, passed is not None


def fits(need: Need | float, free_gib: float) -> float:
    """Return P(need <= free_gib)."""
    return float(need <= free_gib) if isinstance(need, int | float) else need.at_most(free_gib)
