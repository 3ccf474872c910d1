"""The advice in plain sentences: what physics says, what the data says, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from kvyield_server.domain.answers import Basis, Status
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.legacy.case import Case
from kvyield_server.domain.legacy.headroom import LogNormal
from kvyield_server.domain.legacy.solution import Solution
from kvyield_server.domain.legacy.window import HIGHEST_STEP, pool_estimate, stated

MOST_NAMED = 8
_BINDING = {
    "pool": "even a fraction just below 1 does not hold the target",
    "free_memory": "the fraction that the target needs leaves no memory free",
    "headroom": "the memory that is left is less than what such a prompt was measured (or said) to take",
    "out_of_memory": "the fraction that the target needs is not below one that already ran out of memory",
    "context_length": "the context length held by the question is shorter than the request",
}


def explain(case: Case, solution: Solution, status: Status, verification_seconds: float | None) -> str:
    """Return the explanation of an advice."""
    sentences = (
        *_physics(case, solution),
        *_data(case),
        *_pool(case, solution, status),
        *_memory(case, solution),
        *_what_would_change_it(case, solution, status, verification_seconds),
    )
    return " ".join(sentences)


def explain_lack(case: Case) -> str:
    """Return what to post next when the pool cannot be predicted."""
    labels = case.fit.summary.labels
    flag = case.fraction_flag
    if "confounded" in labels:
        return (
            "The starts posted differ in more than the fraction, so no line can be drawn through them. "
            f"Post two starts of this deployment that differ in {flag} alone."
        )
    if "capped" in labels:
        return (
            "The pools posted were capped, so they are only lower bounds. "
            f"Post a start without a cap on the tokens, with its {flag} and its log."
        )
    return (
        "One figure for the pool predicts no other fraction unless something tells the bytes per token and the memory. "
        "Post the log of a start with free memory before and after load; or the model's config.json with the card's "
        f"memory; or a second start that differs in {flag} alone."
    )


def _physics(case: Case, solution: Solution) -> Iterator[str]:
    flag = case.fraction_flag
    here, there = solution.trial.pool.pool(0.5), solution.trial.pool.pool(0.9)
    if here is None or there is None or there.loc <= here.loc:
        return
    slope = (there.loc - here.loc) / 0.4
    zero = 0.9 - there.loc / slope
    origin = f"and none at {zero:.4g}" if zero > 0.01 else "from zero"
    context = NAMES[case.engine].context
    yield (
        f"By the engine's own arithmetic the pool is a straight line in {flag}: {slope / 100:,.0f} tokens per 0.01, "
        f"{origin}; {context} is not in it."
    )


def _data(case: Case) -> Iterator[str]:
    summary = case.fit.summary
    points = [item.observation_id for item in summary.evidence if item.use == "point"]
    used = points or list(summary.basis.observation_ids)
    kind = summary.basis.kind.value.replace("_", " ")
    if not summary.evidence and not used:
        yield f"Evidence: {kind}; no start of this deployment was posted."
        return
    parts = [f"{len(used)} {'start is' if len(used) == 1 else 'starts are'} on it{_at(case, used)}"]
    for use, words in (("bound", "only bounds it"), ("free_memory_only", "tells free memory only")):
        parts.extend(_put_aside(case, use, words))
    parts.extend(_put_aside(case, "set_aside", "was set aside"))
    yield f"Evidence ({kind}): {'; '.join(parts)}.{_loan(summary.basis)}"


def _loan(basis: Basis) -> str:
    if not basis.lent_starts:
        return ""
    starts, others = basis.lent_starts, basis.lent_deployments
    who = f"{starts} {'start' if starts == 1 else 'starts'} of {others} other"
    verb = "lends" if starts == 1 else "lend"
    return f" {who} {'deployment' if others == 1 else 'deployments'} of this pair {verb} the slope."


def _put_aside(case: Case, use: str, words: str) -> Iterator[str]:
    """Yield each reason with the starts that it holds for."""
    reasons: dict[str, list[UUID]] = {}
    for item in case.fit.summary.evidence:
        if item.use == use:
            reasons.setdefault(item.reason, []).append(item.observation_id)
    for reason, ids in reasons.items():
        who = f"the start{_at(case, ids)}" if len(ids) == 1 else f"each of {len(ids)} starts{_at(case, ids)}"
        yield f"{who} {words} ({reason})"


def _at(case: Case, ids: Sequence[UUID]) -> str:
    """Return at which fractions the named starts were, the newest few of them."""
    wanted = set(ids)
    starts = sorted((start for start in case.fit.starts if start.id in wanted), key=lambda start: start.observed_at)
    fractions = [f"{start.fraction:.4g}" for start in starts if start.fraction is not None][-MOST_NAMED:]
    return f" at {', '.join(fractions)}" if fractions and len(ids) <= MOST_NAMED else ""


def _pool(case: Case, solution: Solution, status: Status) -> Iterator[str]:
    pool = pool_estimate(solution.pool, case.fit.capacity.page_tokens)
    fraction = solution.flags[case.fraction_flag]
    if status is Status.INFEASIBLE:
        why = _BINDING.get(solution.binding or "", "the window of fractions is empty")
        given = f"{fraction} gives {pool.median:,.0f} of {solution.needed_tokens:,} tokens"
        yield f"Infeasible: {why}. The nearest: {given}."
        return
    smallest = "the smallest fraction that does" if solution.lowest == solution.step else "the best within reach"
    yield (
        f"{solution.needed_tokens:,} tokens are needed, and {fraction} gives {pool.median:,.0f} "
        f"({pool.low:,.0f} to {pool.high:,.0f}; probability {stated(solution.pool_probability, 3)}): {smallest}."
    )


def _memory(case: Case, solution: Solution) -> Iterator[str]:
    if solution.free is None or solution.memory_probability is None:
        yield "Nothing tells how much memory stays free."
        return
    target = case.question.target_tokens
    yield (
        f"{solution.free.loc:.1f} GiB should be free at ready; a prompt of {target:,} tokens takes {_need(solution)} "
        f"at its peak ({_source(case, solution)}): probability {stated(solution.memory_probability, 2)} that it fits."
    )


def _need(solution: Solution) -> str:
    need = solution.need
    if not isinstance(need, LogNormal):
        return f"{need:.1f} GiB"
    return f"{need.median_gib:.1f} GiB ({need.quantile(0.05):.1f} to {need.quantile(0.95):.1f})"


def _source(case: Case, solution: Solution) -> str:
    need = case.fit.prompt_need
    if case.question.prompt_need_gib is not None:
        return "as the question says"
    if need.measured(case.question.target_tokens, solution.flags):
        return "measured at this chunk and length"
    if need.verified_prompt_tokens is None:
        return "from the kind of attention alone: no prompt was verified"
    if need.verified_prompt_tokens >= case.question.target_tokens:
        return f"a prompt of {need.verified_prompt_tokens:,} tokens passed, its memory not measured"
    return f"not measured at this length: the longest verified prompt had {need.verified_prompt_tokens:,} tokens"


def _what_would_change_it(
    case: Case, solution: Solution, status: Status, verification_seconds: float | None
) -> Iterator[str]:
    if status is Status.INFEASIBLE:
        yield "The alternatives say what would gain pool or memory."
        return
    need, target = case.fit.prompt_need, case.question.target_tokens
    if case.question.prompt_need_gib is None and not need.measured(target, solution.flags):
        lasting = f", about {verification_seconds:.0f} s," if verification_seconds else ""
        yield f"A verification prompt of {target:,} tokens{lasting} with memory sampled meanwhile would settle it."
    if solution.lowest is None or solution.step < solution.lowest <= HIGHEST_STEP:
        yield "One more start near this fraction would narrow the pool's interval."
