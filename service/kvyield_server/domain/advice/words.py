"""Advice in plain sentences: why each flag changes, what physics and data say, and the headline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from kvyield_server.domain.advice.grid import Choice
from kvyield_server.domain.advice.question import Case, anchor_flags, context_moves_pool, input_limit
from kvyield_server.domain.advice.render import command_line, flag_words
from kvyield_server.domain.answers import Advice, Basis, Headline, HeadlineCode, Status, percent
from kvyield_server.domain.engines.registry import positive
from kvyield_server.domain.facts.deployment import requests_move_pool
from kvyield_server.domain.facts.observation import EngineName, Flags, Outcome, Phase
from kvyield_server.domain.model.evidence import Label, held_by_others
from kvyield_server.domain.model.interface import Need

MOST_NAMED = 8
_BINDING = {
    "pool": "no fraction gives a pool that holds the target",
    "free_memory": "the fraction that the target needs leaves no memory free",
    "headroom": "the memory left free is less than what such a prompt takes",
    "out_of_memory": "the fraction that the target needs is not below one that already ran out of memory",
    "context_length": "the context length that the question fixes is shorter than the request",
    "input_limit": "the engine printed an input limit that is shorter than the prompt",
}


def listed(flags: Flags, engine: EngineName) -> str:
    """Return how to restart with these flags: with those that are set, without those that are taken out or off."""
    removed = [
        word
        for key, value in flags.items()
        if value is None or value is False
        for word in flag_words(engine, {key: True})
    ]
    given = command_line(engine, flags)
    parts = [f"with {given}" if given else "", f"without {' and '.join(removed)}" if removed else ""]
    return " and ".join(part for part in parts if part)


def reason(case: Case, choice: Choice, key: str, pool_tokens: float) -> str:
    """Return why a flag changes."""
    names, target = case.names, case.question.target_tokens
    if key in case.held:
        return "as the question asks"
    if key == names.fraction:
        return _reason_of_fraction(choice, pool_tokens)
    if key == names.context:
        return _reason_of_context(case, choice)
    if key == names.requests:
        return "the question asks for as many requests at the same time"
    if choice.flags.get(key) is None:
        return f"remove it: with it the pool is not what {names.fraction} gives"
    return f"it sets the pool, and prompts of {target:,} tokens need {choice.option.needed_tokens:,} tokens of pool"


def _reason_of_fraction(choice: Choice, pool_tokens: float) -> str:
    needed, prefer = choice.option.needed_tokens, choice.option.case.question.prefer
    if choice.is_met:
        which = {
            "headroom": "the smallest fraction whose pool holds {0} tokens; the rest stays free for prompts",
            "pool": "the largest fraction whose pool holds {0} tokens with memory left for a prompt",
        }.get(prefer, "the nearest fraction whose pool holds {0} tokens with memory left for a prompt")
        return which.format(f"{needed:,}")
    if choice.holds >= choice.option.case.question.confidence:
        return f"the smallest fraction whose pool holds {needed:,} tokens; a prompt may not have enough memory"
    beside = (
        f"short of the {needed:,} needed" if pool_tokens < needed else f"probably, not certainly, the {needed:,} needed"
    )
    death = choice.option.death
    limit = (
        f"below {death.fraction}, which ran out of memory"
        if _is_at_death(choice) and death
        else "that leaves memory free"
    )
    return f"the best fraction {limit}: its pool of about {pool_tokens:,.0f} tokens is {beside}"


def _is_at_death(choice: Choice) -> bool:
    allowed = choice.option.is_allowed
    return choice.index + 1 < allowed.size and not allowed[choice.index + 1]


def _reason_of_context(case: Case, choice: Choice) -> str:
    target, now = case.question.target_tokens, positive(choice.flags, case.names.context)
    then = positive(anchor_flags(case), case.names.context) or case.model.context_tokens
    if now is not None and then is not None and now < then:
        cost = (
            "its request table takes memory"
            if case.engine is EngineName.SGLANG
            else "the pool must hold one such request"
        )
        return f"lowered to what a prompt of {target:,} tokens needs: {cost}"
    effect = "" if context_moves_pool(case, choice.flags) else "; it does not grow the pool"
    return f"admits a prompt of {target:,} tokens{effect}"


def explanation(case: Case, choice: Choice, answer: Advice, *, is_kept: bool, first: str) -> str:
    """Return the explanation of an advice; ``first`` comes before anything else."""
    sentences = (
        *((first,) if first else ()),
        *_pool(case, choice, answer, is_kept=is_kept),
        *_memory(case, choice, answer),
        *_what_would_change_it(case, choice, answer),
        *_physics(case),
        *_data(case),
    )
    return " ".join(sentences)


def lack(case: Case, contradiction: str | None) -> str:
    """Return why nothing is advised and what to post next."""
    flag, labels = case.fraction_flag, case.model.summary.labels
    if contradiction is not None:
        end = "" if contradiction.endswith("?") else "."
        return (
            f"The evidence contradicts itself: {contradiction}{end} Post the whole log of a start, or a second start "
            f"that differs in {flag} alone."
        )
    if "confounded" in labels:
        return (
            "The starts posted contradict one another, so no line can be drawn through them. "
            f"Post two starts of this deployment that differ in {flag} alone."
        )
    if "capped" in labels:
        return (
            "The pools posted were capped, so they are only lower bounds. "
            f"Post a start without a cap on the tokens, with its {flag} and its log."
        )
    if not case.model.starts:
        return (
            "No start was posted, and GPU and model config are not enough to predict one. Post the log "
            "of a start, or the model's config.json and the GPU's memory."
        )
    if not any(start.measurements.pool_tokens or start.measurements.kv_cache_gib for start in case.model.starts):
        return (
            f"No start that was posted shows a pool.{_next_start(case)} Post the log of a start that came up, or the "
            "model's config.json with the GPU's memory."
        )
    return (
        "One measured pool predicts no other fraction without the bytes per token and the memory. Post the log of a "
        "start with free memory before and after load; or the model's config.json with the GPU's memory; or a second "
        f"start that differs in {flag} alone."
    )


def _next_start(case: Case) -> str:
    """Return what the newest start, where it failed, says of the next one."""
    newest = case.model.starts[-1]
    if newest.came_up or newest.fraction is None:
        return ""
    flag, phase = case.fraction_flag, None if newest.failure is None else newest.failure.phase
    if held_by_others(newest):
        end = "began while another process held GPU memory: free that first"
    elif newest.outcome is Outcome.REFUSED:
        end = f"was refused for want of a pool: try a larger {flag}"
    elif newest.death is None:
        return ""
    elif phase is Phase.LOAD:
        remedies = "more GPUs, smaller chunks or a smaller checkpoint"
        end = f"ran out of GPU memory before it had a pool: no {flag} helps, but {remedies}"
    else:
        end = f"ran out of GPU memory after the weights were loaded: try a smaller {flag}"
    return f" The newest, at {newest.fraction:g}, {end}."


def too_small(case: Case, fraction: float) -> str:
    """Return why a tiny fraction is a sign of a wrong model."""
    return (
        f"by what is known {case.fraction_flag} {fraction:g} would hold the target, which leaves no room for the "
        "weights, and nothing states what they take"
    )


def too_heavy() -> str:
    """Return why weights that fill the GPU give no answer when neither log nor config states their size."""
    return "what the weights take is assumed, stated neither by a log nor by the config, and decides the answer"


def _physics(case: Case) -> Iterator[str]:
    flag, parameters = case.fraction_flag, case.model.summary.parameters
    slope, zero = parameters.get("slope_tokens_per_fraction"), parameters.get("zero_fraction")
    if slope is None or slope.median <= 0.0:
        return
    origin = f"zero at {zero.median:.4g}" if zero is not None and zero.median > 0.01 else "from zero"
    moves = requests_move_pool(case.model.model, case.model.engine, case.model.flags)
    context = "" if moves else f"; {case.names.context} does not affect it"
    yield (
        f"By the engine's own arithmetic the pool is a straight line in {flag}: {slope.median / 100:,.0f} tokens per "
        f"0.01, {origin}{context}."
    )


def _data(case: Case) -> Iterator[str]:
    summary = case.model.summary
    points = [item.observation_id for item in summary.evidence if item.use == "point"]
    used = points or list(summary.basis.observation_ids)
    kind = summary.basis.kind.value.replace("_", " ")
    if not summary.evidence and not used:
        yield f"Evidence: {kind}; no start of this deployment was posted."
        return
    parts = [f"{len(used)} {'start' if len(used) == 1 else 'starts'} on the line{_at(case, used)}"]
    for use, words in (
        ("bound", "is only a bound"),
        ("free_memory_only", "counts for free memory only"),
        ("set_aside", "was set aside"),
    ):
        parts.extend(_put_aside(case, use, words))
    yield f"Evidence ({kind}): {'; '.join(parts)}.{_loan(summary.basis)}"


def _loan(basis: Basis) -> str:
    if not basis.lent_starts:
        return ""
    who = f"{basis.lent_starts} {'start' if basis.lent_starts == 1 else 'starts'} of {basis.lent_deployments} other"
    return (
        f" {who} {'deployment' if basis.lent_deployments == 1 else 'deployments'} of this pair also inform the slope."
    )


def _put_aside(case: Case, use: str, words: str) -> Iterator[str]:
    """Yield each reason with the starts that it holds for."""
    reasons: dict[str, list[UUID]] = {}
    for item in case.model.summary.evidence:
        if item.use == use:
            reasons.setdefault(item.reason, []).append(item.observation_id)
    for why, ids in reasons.items():
        who = f"the start{_at(case, ids)}" if len(ids) == 1 else f"each of {len(ids)} starts{_at(case, ids)}"
        yield f"{who} {words} ({why})"


def _at(case: Case, ids: Sequence[UUID]) -> str:
    """Return at which fractions the named starts were, the newest few of them."""
    wanted = set(ids)
    known = dict.fromkeys(start.fraction for start in case.model.starts if start.id in wanted)
    fractions = list(dict.fromkeys(f"{fraction:.4g}" for fraction in known if fraction is not None))
    return f" at {', '.join(fractions)}" if fractions and len(fractions) <= MOST_NAMED else ""


def _pool(case: Case, choice: Choice, answer: Advice, *, is_kept: bool) -> Iterator[str]:
    pool, fraction, needed = answer.prediction.pool_tokens, choice.fraction, choice.option.needed_tokens
    tokens = 0.0 if pool is None else pool.median
    if answer.status is Status.INFEASIBLE:
        limit = _printed_limit(case) if choice.binding == "input_limit" else ""
        nearest = f"The nearest: {fraction:g} gives {tokens:,.0f} of {needed:,} tokens"
        if tokens <= 0.0:
            nearest = "No fraction at which the engine would start gives a pool"
        yield f"Infeasible: {_BINDING[choice.binding or 'pool']}{limit}. {nearest}."
        return
    if choice.measured is not None and choice.measured.pool_tokens is not None and is_kept:
        held = f"what runs at {fraction:g} has {tokens:,.0f}, as measured"
        held = held if pool is not None else f"what runs at {fraction:g} was posted with more than its GPU can hold"
        yield f"{needed:,} tokens are needed, and {held}: no restart is needed."
        return
    low, high = (0.0, 0.0) if pool is None else (pool.low, pool.high)
    yield (
        f"{needed:,} tokens are needed, and {fraction:g} gives {tokens:,.0f} ({low:,.0f} to {high:,.0f}; probability "
        f"{percent(choice.holds)})."
    )


def _printed_limit(case: Case) -> str:
    limits = [limit for start in case.model.starts if (limit := input_limit(start)) is not None]
    return f" ({limits[-1]:,} tokens)" if limits else ""


def _memory(case: Case, choice: Choice, answer: Advice) -> Iterator[str]:
    free = answer.prediction.free_at_ready_gib
    if free is None or choice.survives is None:
        if choice.impossible_gib is not None:
            yield f"Free memory would be {choice.impossible_gib:,.0f} GiB, which is impossible."
            return
        guess = "" if free is None else f"; {free.low:.1f} to {free.high:.1f} GiB are expected"
        yield f"Free memory at ready was never measured{guess}."
        return
    measured = choice.measured is not None and choice.measured.free_at_ready_gib is not None
    word = "were" if measured else "should be"
    yield (
        f"{free.median:.1f} GiB {word} free at ready; a prompt of {case.question.target_tokens:,} tokens takes "
        f"{_need(choice.option.need)} at its peak ({_source(case, choice)}): probability {percent(choice.survives)} "
        "that it fits."
    )


def _need(need: Need | float) -> str:
    if isinstance(need, int | float):
        return f"{need:.1f} GiB"
    estimate = need.estimate()
    return f"{estimate.median:.1f} GiB ({estimate.low:.1f} to {estimate.high:.1f})"


def _source(case: Case, choice: Choice) -> str:
    need, target = choice.option.need, case.question.target_tokens
    longest = case.model.summary.basis.verified_prompt_tokens
    if isinstance(need, int | float):
        return "as the question says"
    if choice.is_proven:
        return "such a prompt passed at these flags"
    if need.is_measured:
        return "measured at this chunk and length"
    if longest is None:
        return "estimated from the kind of attention: no prompt was verified"
    if longest >= target:
        return f"a prompt of {longest:,} tokens passed, under other flags or without its memory measured"
    return f"not measured at this length: the longest verified prompt had {longest:,} tokens"


def _what_would_change_it(case: Case, choice: Choice, answer: Advice) -> Iterator[str]:
    if answer.status is Status.INFEASIBLE:
        if answer.alternatives:
            yield "The alternatives say what would gain pool or memory."
        return
    need, seconds = choice.option.need, answer.verification_seconds
    if not isinstance(need, int | float) and not need.is_measured and not choice.is_proven:
        lasting = f", about {seconds:.0f} s," if seconds else ""
        target = case.question.target_tokens
        yield f"To be sure, send a verification prompt of {target:,} tokens{lasting} while memory is sampled."
    if not choice.is_met and choice.holds < case.question.confidence:
        yield "One more start near this fraction would narrow the pool's interval."


def headline(case: Case, choice: Choice | None, answer: Advice, *, is_kept: bool, first: str = "") -> Headline:
    """Return the answer in one line: not enough evidence, infeasible, keep, at risk or change, in this precedence."""
    if answer.status in (Status.OK, Status.AT_RISK):
        otherwise = HeadlineCode.CHANGE if answer.status is Status.OK else HeadlineCode.AT_RISK
        code = HeadlineCode.KEEP if is_kept else otherwise
    else:
        code = HeadlineCode(answer.status.value)
    text = _line(case, choice, answer, code)
    if first:
        text = f"{text} {first}" if code is HeadlineCode.KEEP else f"{first} {text}"
    is_estimate = not answer.basis.observation_ids and not is_kept
    if is_estimate and code is not HeadlineCode.NOT_ENOUGH_EVIDENCE:
        lack = "no start gave a point on the line" if case.model.starts else "no start was used"
        text = f"Estimate, {lack}. {text}"
    return Headline(code=code, estimate=is_estimate, text=text)


def _line(case: Case, choice: Choice | None, answer: Advice, code: HeadlineCode) -> str:
    if choice is None or code is HeadlineCode.NOT_ENOUGH_EVIDENCE:
        return f"Not enough evidence. {answer.explanation}"
    needed, pool = choice.option.needed_tokens, answer.prediction.pool_tokens
    tokens = 0.0 if pool is None else pool.median
    if code is HeadlineCode.INFEASIBLE:
        limit = _printed_limit(case) if choice.binding == "input_limit" else ""
        return f"Infeasible: {_BINDING[choice.binding or 'pool']}{limit}."
    if code is HeadlineCode.KEEP:
        risk = "" if answer.status is Status.OK else f" At risk: {_risk(case, choice)}."
        pool_words = f"its pool of {tokens:,.0f} tokens holds the {needed:,} needed"
        pool_words = pool_words if pool is not None else "it was posted with more tokens than its GPU can hold"
        return f"Keep what runs ({case.fraction_flag} {choice.fraction:g}): {pool_words}.{risk}"
    changed = {change.flag: answer.flags.get(change.flag) for change in answer.changes}
    again = "Restart" if case.anchor is not None else "Start"
    what = f"{again} {listed(changed, case.engine) or 'with the same flags'}"
    pool_words = f"about {tokens:,.0f} tokens of pool for the {needed:,} needed"
    risk = f" At risk: {_risk(case, choice)}." if code is HeadlineCode.AT_RISK else ""
    return f"{what}: {pool_words}.{risk}"


def _risk(case: Case, choice: Choice) -> str:
    """Return in a clause what makes an answer at risk."""
    return next(_risks(case, choice))


def _risks(case: Case, choice: Choice) -> Iterator[str]:
    """Yield what makes an answer at risk, the weightiest first."""
    if choice.unserved is not None:
        yield f"a prompt of {choice.unserved.prompt_tokens:,} tokens failed under these or lighter flags"
    failed = case.model.failed(choice.flags)
    if failed is not None:
        yield (
            "the newest start under these flags ran out of memory, part of which other processes held"
            if failed.came_up
            else "no start under these flags has come up"
        )
    death = choice.option.death
    if death is not None and not choice.option.is_allowed[choice.index]:
        yield f"a later start ran out of memory at {death.fraction:g}, although this one came up"
    if choice.has_impossible_pool:
        yield "no GPU of this kind holds such a pool"
    if Label.CONFOUNDED in case.model.summary.labels and (choice.measured is None or choice.disputed_pools):
        yield "the starts contradict one another"
    if choice.disputed_free_gib:
        yield "other starts under the same flags left less memory free"
    if choice.survives is None:
        yield "free memory at ready was never measured"
    if choice.holds < case.question.confidence:
        yield f"probability {percent(choice.holds)} that the pool holds it"
    if choice.survives is not None and choice.survives < case.question.confidence:
        yield f"probability {percent(choice.survives)} that a prompt of {case.question.target_tokens:,} tokens fits"
    yield "the evidence is of another version or no longer certain"


def verify_first(case: Case, seconds: float | None) -> str:
    """Return the sentence that puts a verification of what runs before a restart."""
    lasting = f" (about {seconds:.0f} s)" if seconds else ""
    target = case.question.target_tokens
    return f"Verify what runs first: its pool holds the target; send a prompt of {target:,} tokens{lasting}."


def check_gpu() -> str:
    """Return the sentence that comes before any advice where a later start died no higher than one that came up."""
    return "Check what else uses the GPU before anything else."


def look_first(fraction: float | None) -> str:
    """Return the sentence that comes before any advice when the newest start contradicts the others."""
    at = "" if fraction is None else f" at {fraction:g}"
    return f"The newest start{at} contradicts the others, which agree: check what else uses the GPU."
