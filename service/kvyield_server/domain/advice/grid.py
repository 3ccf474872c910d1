"""The grid of fractions, evaluated whole, and the fraction of it that answers a question best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, isfinite

import numpy as np

from kvyield_server.domain.advice.option import Option, evaluate, fits, needed_tokens
from kvyield_server.domain.advice.question import (
    Case,
    begun_flags,
    blocks_of_context,
    context_needed,
    context_of,
    fits_its_context,
    held_fraction,
)
from kvyield_server.domain.answers import Estimate, Prefer
from kvyield_server.domain.engines.registry import positive
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation, Scalar, Verification
from kvyield_server.domain.model.evidence import usable_tokens
from kvyield_server.domain.model.interface import Floats, Mask, Measured, Predicted
from kvyield_server.domain.model.pool import LEAST_FRACTION

FRACTIONS: Floats = np.round(np.arange(1, 1000) / 1000.0, 3)
COARSE: Floats = FRACTIONS[4::10]
"""For levers, which are evaluated finely near the fraction advised only."""
MOST_GIB = 1000.0
"""More than any GPU has, where its memory is not known."""
LEAST_JOINT = 0.05
"""A chance below this is not advice."""
_SAME_POOL, _SAME_GIB = 0.005, 1.0
"""Figures of equal starts that differ by no more do not contradict one another."""
_MANY_TIMES = 10
_OUT_OF_REACH = 1e-4
"""Below it the tails of the fitted distributions would choose, which a fraction of almost nothing wins."""
_SPARE = 1.02
"""Bytes or blocks that fix the pool are set this much larger than the need, for whole blocks and padding."""
_MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The fraction chosen for an option: its index, whether it meets the confidence, the window, and what binds."""

    option: Option
    index: int
    is_met: bool = False
    window: tuple[float, float] | None = None
    binding: str | None = None
    unserved: Verification | None = None

    @property
    def measured(self) -> Measured | None:
        """What was measured at exactly these flags."""
        return self.option.measured if self.index == self.option.measured_at else None

    @property
    def is_proven(self) -> bool:
        """Whether such a prompt passed at exactly these flags."""
        return self.option.is_proven and self.index == self.option.measured_at

    @cached_property
    def pool_tokens(self) -> Estimate | None:
        """The pool, measured or predicted, in whole pages."""
        if self.has_impossible_pool:
            return None
        if self.measured is not None and self.measured.pool_tokens is not None:
            tokens = float(self.measured.pool_tokens)
            return Estimate(median=tokens, low=tokens, high=tokens)
        pool, page = self.option.predicted.pool, max(1, self.option.case.model.page_tokens)
        return None if pool is None else _whole_pages(pool.estimate(self.index), page)

    @cached_property
    def free_at_ready_gib(self) -> Estimate | None:
        """Free memory at ready, measured or predicted, GiB."""
        if self.measured is not None and self.measured.free_at_ready_gib is not None:
            gib = self.measured.free_at_ready_gib
            return Estimate(median=gib, low=gib, high=gib)
        return None if self.predicted_free is None or self.impossible_gib is not None else self.predicted_free

    @cached_property
    def predicted_free(self) -> Estimate | None:
        """Free memory at ready as predicted, GiB."""
        free = self.option.predicted.free
        return None if free is None else free.estimate(self.index)

    @property
    def has_impossible_pool(self) -> bool:
        """Whether the pool measured at these flags is larger than any that the GPU can hold."""
        measured = self.measured
        if measured is None or measured.pool_tokens is None:
            return False
        return usable_tokens(measured.newest, measured.pool_tokens) is None

    @property
    def disputed_pools(self) -> tuple[int, ...]:
        """Pools measured under these very flags where the newest is not borne out: not by most of them, nor by the one
        before it. Of one alone, it and the largest of other flags where it is many times as large."""
        pools = () if self.measured is None else self.measured.pools
        if not pools or self.is_proven:
            return ()
        if len(pools) == 1:
            others = (start.measurements.pool_tokens or 0 for start in self.option.case.model.starts if start.came_up)
            largest = max((pool for pool in others if pool != pools[0]), default=0)
            return (largest, *pools) if 0 < largest * _MANY_TIMES < pools[0] else ()
        alike = [abs(pool - pools[-1]) <= _SAME_POOL * max(pool, pools[-1]) for pool in pools]
        return () if _is_borne_out(alike) else pools

    @property
    def disputed_free_gib(self) -> tuple[float, ...]:
        """Free memory measured under these very flags where the newest is enough, others are not, and it is not borne
        out by most of them, nor by the one before it."""
        found, need = () if self.measured is None else self.measured.free_gib, self.option.need
        if len(found) < 2 or self.is_proven:
            return ()
        confidence = self.option.case.question.confidence
        alike = [gib >= found[-1] - _SAME_GIB or fits(need, gib) >= confidence for gib in found]
        return () if _is_borne_out(alike) else found

    @property
    def impossible_need_gib(self) -> float | None:
        """What a prompt would take where that is more than the GPU has; None where it can be."""
        need, total = self.option.need, self.option.case.model.hardware.memory_gib or MOST_GIB
        taken = need if isinstance(need, int | float) else need.median_gib
        return taken if taken > total else None

    @property
    def is_sensible(self) -> bool:
        """Whether the fraction is one that somebody would start with: of usual size, asked for, or tried before."""
        case = self.option.case
        if self.fraction >= LEAST_FRACTION or case.fraction_flag in case.held:
            return True
        return any(start.fraction == self.fraction for start in case.model.starts)

    @property
    def impossible_gib(self) -> float | None:
        """Predicted free memory that is beyond the GPU's, above or below zero; None where it can be."""
        total, free = self.option.case.model.hardware.memory_gib, self.predicted_free
        return free.median if free is not None and abs(free.median) > (total or MOST_GIB) else None

    @cached_property
    def predicted_tokens(self) -> float:
        """The pool as predicted, whatever was measured; 0 where nothing tells it. Levers are compared by it."""
        pool = self.option.predicted.pool
        return 0.0 if pool is None else pool.median(self.index)

    @cached_property
    def predicted_headroom_gib(self) -> float:
        """Free memory at ready less the need, as predicted medians; 0 where nothing tells it."""
        free, need = self.option.predicted.free, self.option.need
        taken = need if isinstance(need, int | float) else need.median_gib
        return 0.0 if free is None else free.median(self.index) - taken

    @property
    def fraction(self) -> float:
        return float(self.option.fractions[self.index])

    @property
    def flags(self) -> dict[str, Scalar]:
        """The flags with the fraction, which comes first."""
        fraction = self.fraction if self.fraction <= 1.0 else int(self.fraction)  # a number of blocks
        return {self.option.case.fraction_flag: fraction, **self.option.flags}

    @property
    def holds(self) -> float:
        return float(self.option.holds[self.index])

    @property
    def survives(self) -> float | None:
        return None if self.option.survives is None else float(self.option.survives[self.index])

    @property
    def joint(self) -> float | None:
        return None if self.survives is None else self.holds * self.survives

    @property
    def chance(self) -> float:
        """What levers are compared by: the joint probability, 0 where the engine refuses the prompt."""
        refused = self.binding in ("context_length", "input_limit")
        return 0.0 if refused else float(self.option.joint[self.index])


def _is_borne_out(alike: Sequence[bool]) -> bool:
    """Tell whether the newest of some figures (the last) is that of most of them, or that of the one before it."""
    return len(alike) > 1 and (alike[-2] or 2 * sum(alike) > len(alike))


def solve(case: Case, flags: dict[str, Scalar] | None = None, fractions: Floats = FRACTIONS) -> Choice | None:
    """Return the best fraction under these flags, by default those that advice begins from; None without a pool.

    The context length is lowered to the request only where its own cost stands in the way: a pool that vLLM would
    refuse, or SGLang's request table.
    """
    begun = begun_flags(case) if flags is None else flags
    first = _solved(case, begun, fractions)
    lowered = _lowered(case, begun)
    if first is None or lowered is None or _admits_its_context(case, first) or _is_stopped_by_a_death(first):
        return first
    second = _solved(case, lowered, fractions)
    if second is None:
        return first
    if case.engine is EngineName.VLLM:
        return second
    is_better = second.is_met and not first.is_met
    return second if is_better or second.chance > first.chance + LEAST_JOINT else first


def _solved(case: Case, begun: dict[str, Scalar], fractions: Floats) -> Choice | None:
    """Return the best fraction under flags; where one that sizes the pool was moved, the fraction stays if it holds."""
    flags, grid = resized(case, begun), _grid(case, begun, fractions)
    if flags != begun and case.question.prefer == Prefer.KEEP and held_fraction(case) is None and grid.size > 1:
        kept = evaluate(case, flags, np.array([anchor_fraction(case)]))
        if kept is not None and kept.holds[0] >= case.question.confidence and kept.is_allowed[0]:
            return choose(kept)
    option = evaluate(case, flags, _grid(case, flags, fractions))
    return None if option is None else choose(option)


def _grid(case: Case, flags: Flags, fractions: Floats) -> Floats:
    """Return the fractions to try: the held one, the one kept beside a flag that fixes the pool, or all."""
    held, anchor = held_fraction(case), case.anchor
    if held is not None:
        return np.array([held])
    if anchor is None or anchor.fraction is None:
        return fractions
    kept = np.array([anchor.fraction])
    if anchor.fraction > 1.0:
        return np.array([_entries(case, flags, anchor.fraction)])
    if any(flags.get(name) is not None for name in case.names.inert_with):
        return kept
    return np.union1d(fractions, kept) if anchor.fraction not in fractions else fractions


def _entries(case: Case, flags: Flags, entries: float) -> float:
    """Return the number of blocks that runs, or the one that the need takes where it is more."""
    pool, needed = case.model.at(flags, np.array([entries])).pool, needed_tokens(case, flags)
    holds = 0.0 if pool is None else pool.median(0)
    return entries if holds >= needed or holds <= 0.0 else float(ceil(entries * needed / holds * _SPARE))


def choose(option: Option) -> Choice:
    """Return the fraction that answers: of the window by preference, else the least bad one with what binds."""
    confidence = option.case.question.confidence
    sure = option.is_allowed & (option.holds >= confidence)
    meets = np.zeros_like(sure) if option.survives is None else sure & (option.survives >= confidence)
    refused = _refused(option)
    if refused is None and meets.any():
        index = _preferred(option, np.flatnonzero(meets))
        window = _run_around(option, meets, index)
        return _choice(option, index, is_met=True, window=window)
    able = option.is_allowed if option.starts is None else option.is_allowed & (option.starts >= 0.5)
    index = _least_bad(option, able, sure)
    return _choice(option, index, binding=refused or _binding(option, able, index))


def surest(choice: Choice, slack: float) -> Choice:
    """Return the choice at the fraction nearest to what runs among those that meet the confidence and are, within
    ``slack``, the likeliest; itself where none meets it."""
    option, confidence = choice.option, choice.option.case.question.confidence
    if not choice.is_met or option.survives is None or option.fractions.size == 1:
        return choice
    meets = option.is_allowed & (option.holds >= confidence) & (option.survives >= confidence)
    joint = np.where(meets, option.joint, -1.0)
    found = np.flatnonzero(meets & (joint >= joint.max() - slack))
    index = int(found[np.argmin(np.abs(option.fractions[found] - anchor_fraction(option.case)))])
    return _choice(option, index, is_met=True, window=_run_around(option, meets, index))


def _has_measured_memory(case: Case) -> bool:
    """Tell whether free memory at ready was measured at any start, by its engine or before a prompt."""
    return any(
        start.measurements.free_at_ready_gib is not None
        or any(check.free_before_gib is not None for check in start.verifications)
        for start in case.model.starts
    )


def _choice(
    option: Option,
    index: int,
    *,
    is_met: bool = False,
    window: tuple[float, float] | None = None,
    binding: str | None = None,
) -> Choice:
    case = option.case
    flags = {**option.flags, case.fraction_flag: float(option.fractions[index])}
    unserved = case.model.unserved(flags, case.question.target_tokens, case.question.concurrent)
    return Choice(option=option, index=index, is_met=is_met, window=window, binding=binding, unserved=unserved)


def as_it_runs(case: Case, start: Observation) -> Choice | None:
    """Return a start's own flags and fraction as a choice, None where its pool is not known.

    Where free memory was never measured, a doubtful probability of it is no more than a prior's: it counts as unknown.
    """
    if start.fraction is None:
        return None
    flags = {key: value for key, value in case.base.items() if key != case.fraction_flag}
    option = evaluate(case, flags, np.array([start.fraction]))
    if option is None:
        return None
    confidence = case.question.confidence
    survives = 0.0 if option.survives is None else float(option.survives[0])
    if LEAST_JOINT <= survives < confidence and not _has_measured_memory(case):
        option = replace(option, survives=None)
    sure = min(option.holds[0], 0.0 if option.survives is None else option.survives[0])
    return _choice(option, 0, is_met=bool(sure >= confidence), binding=_refused(option))


def _refused(option: Option) -> str | None:
    """Return what makes the engine refuse the prompt whatever the fraction."""
    case = option.case
    held = positive(case.held, case.names.context)
    if held is not None and held < context_needed(case.engine, case.question):
        return "context_length"
    return "input_limit" if option.limit is not None else None


def _preferred(option: Option, found: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    prefer = option.case.question.prefer
    if prefer == Prefer.HEADROOM:
        return int(found[0])
    if prefer == Prefer.POOL:
        return int(found[-1])
    near = anchor_fraction(option.case)
    return int(found[np.argmin(np.abs(option.fractions[found] - near))])


def anchor_fraction(case: Case) -> float:
    """Return the fraction that advice stays near: what runs, the newest start's, else the engine's default."""
    anchor = case.anchor
    return anchor.fraction if anchor is not None and anchor.fraction is not None else case.names.default_fraction


def _run_around(option: Option, meets: Mask, index: int) -> tuple[float, float]:
    """Return the ends of the unbroken run of fractions around ``index`` that meet the confidence."""
    low = high = index
    while low > 0 and meets[low - 1]:
        low -= 1
    while high + 1 < meets.size and meets[high + 1]:
        high += 1
    return float(option.fractions[low]), float(option.fractions[high])


def _least_bad(option: Option, able: Mask, sure: Mask) -> int:
    """Return the smallest fraction whose pool holds with the confidence, else the one with the best joint chance.

    One that a start was made with stays where a smaller one would hardly be likelier. Where no pool comes near
    the target it is the largest at which the engine would start.
    """
    joint = option.joint
    holding = np.flatnonzero(able & sure)
    if holding.size and joint[holding[0]] >= LEAST_JOINT:
        near = int(np.argmin(np.abs(option.fractions - anchor_fraction(option.case))))
        is_free = option.case.question.prefer == Prefer.KEEP and option.case.anchor is not None
        stays = is_free and near in holding and joint[near] >= joint[holding[0]] - LEAST_JOINT
        return near if stays else int(holding[0])
    if able.any():
        best = int(np.argmax(np.where(able, joint, -1.0)))
        is_reachable = bool(option.holds[able].max() >= _OUT_OF_REACH)
        if option.fractions.size == 1 or (is_reachable and joint[best] > 0.0):
            return best
        return int(np.flatnonzero(able)[-1])
    return int(np.argmax(joint)) if option.is_allowed.any() and option.starts is None else 0


def _binding(option: Option, able: Mask, index: int) -> str | None:
    """Return what makes the answer infeasible, None where it is only at risk."""
    case, survives = option.case, option.survives
    held = held_fraction(case)
    if held is None and not (able & (option.holds >= 0.5)).any():
        return _what_binds(option)
    if held is not None and not option.is_allowed[index]:
        return "out_of_memory"
    if survives is not None and survives[index] < 0.5 and _is_measured(option):
        return "headroom"
    if held is None and option.joint[index] < LEAST_JOINT:
        return "pool" if survives is None or option.holds[index] < survives[index] else _short_memory(option, index)
    return None


def _what_binds(option: Option) -> str:
    holding = option.holds >= 0.5
    if not holding.any():
        return "pool"
    if not (option.is_allowed & holding).any():
        return "out_of_memory"
    return "free_memory"


def _short_memory(option: Option, index: int) -> str:
    return "free_memory" if option.starts is not None and option.starts[index] < 0.5 else "headroom"


def _is_measured(option: Option) -> bool:
    return isinstance(option.need, int | float) or option.need.is_measured


def _lowered(case: Case, flags: dict[str, Scalar]) -> dict[str, Scalar] | None:
    """Return the flags with the context length cut to the request; None where it is held or no longer than that."""
    name, needed, admitted = case.names.context, context_needed(case.engine, case.question), context_of(case, flags)
    if case.engine not in (EngineName.VLLM, EngineName.SGLANG) or name in case.held:
        return None
    return {**flags, name: needed} if admitted is not None and admitted > needed else None


def _admits_its_context(case: Case, choice: Choice) -> bool:
    """Tell whether the context length may stay: vLLM's when the pool holds it, SGLang's when the confidence is met."""
    if case.engine is not EngineName.VLLM:
        return choice.is_met
    admitted, pool = context_of(case, choice.option.flags), choice.option.predicted.pool
    if fits_its_context(case, choice.option.flags):
        return True
    if admitted is None or pool is None or (choice.fraction == anchor_fraction(case) and _is_running(case, choice)):
        return True
    wanted = blocks_of_context(admitted, case.model.page_tokens)
    return float(pool.above(float(wanted))[choice.index]) >= case.question.confidence


def _is_stopped_by_a_death(choice: Choice) -> bool:
    """Tell whether a death alone rules out what memory would allow, which a shorter context length is no way around."""
    option, confidence = choice.option, choice.option.case.question.confidence
    if option.case.engine is EngineName.VLLM or option.survives is None or option.is_allowed.all():
        return False
    starts = option.survives if option.starts is None else option.starts
    return bool((~option.is_allowed & (option.holds >= confidence) & (starts >= 0.5)).any())


def _is_running(case: Case, choice: Choice) -> bool:
    return case.runs is not None and case.model.measured(choice.flags) is not None


def resized(case: Case, flags: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return the flags with one that fixes or caps the pool below the need moved: taken out, or set to the need."""
    fraction = anchor_fraction(case) if held_fraction(case) is None else held_fraction(case)
    at = np.array([fraction])
    for name in _pool_flags(case, flags):
        predicted, needed = case.model.at(flags, at), needed_tokens(case, flags)
        if predicted.pool is None or float(predicted.pool.above(float(needed))[0]) >= case.question.confidence:
            continue
        flags = {**flags, name: _larger(case, flags, name, predicted, needed)}
    return flags


def _pool_flags(case: Case, flags: Flags) -> Iterator[str]:
    names = case.names
    for name in (*names.inert_with, *names.other_caps, *((names.pool_cap,) if names.pool_cap else ())):
        if flags.get(name) is not None and name not in case.held:
            yield name


def _larger(case: Case, flags: Flags, name: str, predicted: Predicted, needed: int) -> int | None:
    """Return what a flag that fixes the pool is set to, or None to take it out: a cap, or where the line holds."""
    confidence = case.question.confidence
    line_holds = predicted.line is not None and float(predicted.line.above(float(needed))[0]) >= confidence
    if name in (case.names.pool_cap, *case.names.other_caps) or (line_holds and name not in case.names.bytes_flags):
        return None
    if name in case.names.bytes_flags:
        cost = case.model.bytes_per_token(flags)
        return None if cost is None else ceil(needed * cost.median * _SPARE / _MEBIBYTE) * _MEBIBYTE
    return ceil(needed * _SPARE / max(1, case.model.page_tokens))


def _whole_pages(estimate: Estimate, page: int) -> Estimate:
    """Return the pool as engines report it: whole pages, never negative."""
    low, median, high = (
        float(max(0, floor(tokens / page + 1e-9) * page)) if isfinite(tokens) else 0.0
        for tokens in (estimate.low, estimate.median, estimate.high)
    )
    return Estimate(median=median, low=low, high=high, level=estimate.level)
