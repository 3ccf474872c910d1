"""Everything known of one start, in the order in which a person asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from kvyield_server.domain.answers import FitSummary
from kvyield_server.domain.facts.observation import Answer, Measurements, Verification
from kvyield_server.pages.views.comparison import MEASUREMENT_WORDS, measured_text
from kvyield_server.pages.views.starts import AT_MOST, is_bound
from kvyield_server.pages.views.words import UNKNOWN, duration, flag_value, gib, label_word, token_count, tokens
from kvyield_server.schemas.observations import HistoryEntryOut, ObservationOut

SOURCE_WORDS = {
    "log": "the engine's log",
    "endpoint": "the engine's endpoints",
    "import": "an imported log",
    "manual": "entered by hand",
}
USE_WORDS = {
    "point": "a point on the line",
    "bound": "a bound",
    "free_memory_only": "used for free memory only",
    "set_aside": "set aside",
}


ANSWER_WORDS = {Answer.RIGHT: "right", Answer.WRONG: "wrong", Answer.NOT_CHECKED: "not checked"}
ACTION_WORDS = {"merge": "Merged with another account", "correction": "Corrected"}


MOST_PROMPTS, MOST_CHANGES = 12, 50
"""What of a start's prompts is drawn, and how much of its history is shown, the newest; the JSON has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedField:
    """A field of a start that changed, with its value before and after as people read it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One change of a stored start: what was done, by whom, when and why."""

    at: datetime
    action: str
    actor: str
    reason: str
    changes: tuple[ChangedField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStep:
    """Free memory at one moment; ``share`` of the highest, from 0 to 100, is the length of its bar."""

    moment: str
    gib: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRow:
    """One long prompt."""

    prompt_tokens: str
    concurrent: str
    has_passed: bool
    elapsed: str
    first_token: str
    cached: str
    lowest_free: str
    prompt_need: str
    answer: str
    answer_word: str
    is_wrong: bool
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationView:
    """``source`` says where the values came from, ``fit_use`` what the fit made of the start."""

    source: str
    measurements: tuple[tuple[str, str], ...]
    flags: tuple[tuple[str, str], ...]
    failure: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]
    verifications: tuple[VerificationRow, ...]
    memory: tuple[MemoryStep, ...]
    older_prompts: int
    history: tuple[HistoryRow, ...]
    older_changes: int
    fit_use: str
    fit_reason: str


def observation_view(start: ObservationOut, fits: Sequence[FitSummary]) -> ObservationView:
    """Return all that is known of a start, and what became of it in the fits of its pair."""
    use, reason = _fit_use(start, fits)
    return ObservationView(
        source=SOURCE_WORDS.get(start.source or "", "not said"),
        measurements=_measurements(start.measurements),
        flags=tuple((name, flag_value(start.flags[name])) for name in sorted(start.flags)),
        failure=_failure(start),
        facts=tuple((name, _fact(value)) for name, value in sorted(start.model.facts.items())),
        verifications=tuple(_verification(item, start.measurements) for item in start.verifications),
        memory=memory_steps(start.measurements, start.verifications),
        older_prompts=max(0, len(start.verifications) - MOST_PROMPTS),
        history=tuple(_history(entry) for entry in reversed(start.history[-MOST_CHANGES:])),
        older_changes=max(0, len(start.history) - MOST_CHANGES),
        fit_use=use,
        fit_reason=reason,
    )


def memory_steps(measured: Measurements, verifications: tuple[Verification, ...]) -> tuple[MemoryStep, ...]:
    """Return free memory from before load to the lowest point of each prompt; nothing for one figure alone.

    Of many prompts the newest are drawn. What is only known at pool end is drawn there, and not at ready again.
    """
    known = [
        ("before load", measured.free_before_load_gib),
        ("after load", measured.free_after_load_gib),
        ("at pool end, before graphs", measured.free_at_pool_end_gib),
        ("at ready", None if is_bound(measured) else measured.free_at_ready_gib),
    ]
    for item in verifications[-MOST_PROMPTS:]:
        known.append((f"before the prompt of {token_count(item.prompt_tokens)}", item.free_before_gib))
        known.append((f"lowest during the prompt of {token_count(item.prompt_tokens)}", item.lowest_free_gib))
    steps = [(moment, value) for moment, value in known if value is not None]
    if len(steps) < 2:
        return ()
    highest = max((value for _, value in steps), default=0.0) or 1.0
    return tuple(MemoryStep(moment=m, gib=gib(v), share=round(max(0.0, v) / highest * 100, 2)) for m, v in steps)


def _measurements(measured: Measurements) -> tuple[tuple[str, str], ...]:
    names = [field.name for field in fields(Measurements) if getattr(measured, field.name) is not None]
    return tuple((MEASUREMENT_WORDS[name], measured_text(name, measured)) for name in names)


def _failure(start: ObservationOut) -> tuple[tuple[str, str], ...]:
    failure = start.failure
    if failure is None:
        return ()
    rows = (
        ("Phase", label_word(failure.phase.value)),
        ("Cause", None if failure.cause is None else label_word(failure.cause.value)),
        ("Smallest fraction, as the engine said", _shown(flag_value, failure.minimum_fraction)),
        ("Longest prompt in flight", _shown(_in_tokens, failure.prompt_tokens)),
        ("KV cache that it had", _shown(gib, failure.available_kv_cache_gib)),
        ("KV cache that it needed", _shown(gib, failure.needed_gib)),
        ("Longest context that would have fitted", _shown(_in_tokens, failure.longest_tokens)),
        ("Allocation that failed", _shown(gib, failure.wanted_gib)),
        ("Free then", _shown(gib, failure.free_gib)),
        ("Rank", _shown(str, failure.rank)),
        ("In its own words", failure.message),
    )
    return tuple((name, text) for name, text in rows if text)


def _shown(to_text: Callable[[Any], str], value: object) -> str | None:
    return None if value is None else to_text(value)


def _in_tokens(count: int) -> str:
    return token_count(count)


def _verification(item: Verification, measured: Measurements) -> VerificationRow:
    before = measured.free_at_ready_gib
    need = before - item.lowest_free_gib if before is not None and item.lowest_free_gib is not None else None
    return VerificationRow(
        prompt_tokens=tokens(item.prompt_tokens),
        concurrent=str(item.concurrent or 1),
        has_passed=item.passed,
        elapsed=duration(item.elapsed_seconds),
        first_token=duration(item.time_to_first_token_seconds),
        cached=tokens(item.cached_tokens),
        lowest_free=gib(item.lowest_free_gib),
        prompt_need=f"{AT_MOST if need is not None and is_bound(measured) else ''}{gib(need)}",
        answer=_answer(item),
        answer_word=ANSWER_WORDS[item.answer] if item.answer else "",
        is_wrong=item.answer is Answer.WRONG,
        error=item.error or "",
    )


def _answer(item: Verification) -> str:
    if item.answer_received is None:
        return "" if item.answer else UNKNOWN
    if item.answer_expected is None or item.answer_expected == item.answer_received:
        return item.answer_received
    return f"{item.answer_received} (expected {item.answer_expected})"


def _history(entry: HistoryEntryOut) -> HistoryRow:
    return HistoryRow(
        at=entry.at,
        action=ACTION_WORDS.get(entry.action, label_word(entry.action)),
        actor=entry.actor,
        reason=entry.reason or "",
        changes=tuple(
            ChangedField(name=change.field, before=_changed(change.before), after=_changed(change.after))
            for change in entry.changes
        ),
    )


def _changed(value: Any) -> str:
    return UNKNOWN if value is None else _fact(value)


def _fit_use(start: ObservationOut, fits: Sequence[FitSummary]) -> tuple[str, str]:
    if start.retracted_at is not None:
        return "left out", "It was retracted."
    for fit in fits:
        for item in fit.evidence:
            if item.observation_id == start.id:
                return USE_WORDS.get(item.use, label_word(item.use)), item.reason
    return "not used", ""


def _fact(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_fact(item) for item in value)
    return flag_value(value) if isinstance(value, bool | int | float | str) or value is None else str(value)
