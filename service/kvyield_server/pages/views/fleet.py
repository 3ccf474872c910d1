"""All pairs with what runs now, and what changed between two versions of an engine, as rows to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from kvyield_server.domain.answers import Drift, Question
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Answer, Outcome
from kvyield_server.pages.views.observation import ANSWER_WORDS
from kvyield_server.pages.views.starts import AT_MOST
from kvyield_server.pages.views.words import (
    MINUS,
    UNKNOWN,
    engine_word,
    figure,
    flag_value,
    outcome_word,
    plural,
    token_count,
    tokens,
)
from kvyield_server.storage.records import (
    FleetRow,
    StoredDrift,
    Verdict,
    VersionChange,
)

VERDICT_WORDS = {Verdict.YES: "yes", Verdict.AT_RISK: "at risk", Verdict.NO: "no"}
VERDICT_CHIPS = {Verdict.YES: "good", Verdict.AT_RISK: "warm", Verdict.NO: "loud"}
HELD_FLAGS = ("max_running_requests", "kv_cache_dtype", "chunked_prefill_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """One pair. ``verdict`` is empty while nothing was asked; ``question`` says what was, ``answer`` leads to it."""

    id: UUID
    model: str
    hardware: str
    running: str
    fraction: str
    start_id: UUID | None
    started_at: datetime | None
    ended: str
    newest_id: UUID | None
    newest_at: datetime | None
    newest_outcome: str
    newest_word: str
    host: str
    pool: str
    free: str
    headroom: str
    headroom_note: str
    verified: str
    is_verified: bool
    has_failed: bool
    question: str
    verdict: str
    verdict_chip: str
    headline: str
    answer: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftView:
    """One deployment of a pair that ran both versions; slopes are per 0.01 of the fraction."""

    pair_id: UUID
    deployment_id: str
    model: str
    hardware: str
    deployment: str
    fraction: str
    starts: str
    pool_slope: str
    pool_change: str
    pool_span: str
    has_pool_changed: bool
    free_slope: str
    free_change: str
    free_span: str
    has_free_changed: bool


def fleet_view(row: FleetRow, question: Question | None) -> FleetView:
    """Return one line of the fleet; ``question`` is the last that was asked about the pair and kept."""
    engine = engine_word(row.engine) if row.engine else ""
    runs = row.observation_id is not None
    return FleetView(
        id=row.pair_id,
        model=row.model,
        hardware=f"{row.gpu_count} × {row.gpu}",
        running=f"{engine} {row.engine_version or ''}".strip(),
        fraction=f"{FRACTION_FLAG[row.engine]} {flag_value(row.fraction)}" if row.engine and row.fraction else "",
        start_id=row.observation_id,
        started_at=row.observed_at,
        ended=outcome_word(row.outcome) if row.outcome and row.outcome is not Outcome.READY else "",
        newest_id=row.newest_id,
        newest_at=row.newest_at,
        newest_outcome=row.newest_outcome or "",
        newest_word=outcome_word(row.newest_outcome) if row.newest_outcome else "",
        host=row.host or "",
        pool=tokens(row.pool_tokens),
        free=f"{AT_MOST if row.free_is_bound else ''}{figure(row.free_at_ready_gib)}",
        headroom=figure(row.headroom_gib, 1),
        headroom_note=_headroom_note(row),
        verified=_verified(row),
        is_verified=row.verified_tokens is not None,
        has_failed=row.verified_passed is False or row.verified_answer is Answer.WRONG,
        question=_asked(question),
        verdict=VERDICT_WORDS[row.verdict] if row.verdict else "",
        verdict_chip=VERDICT_CHIPS[row.verdict] if row.verdict else "",
        headline=row.headline or "",
        answer=f"/ui/pairs/{row.pair_id}?{_query(row, question)}" if question else f"/ui/pairs/{row.pair_id}",
        note=row.note or ("" if runs else "not looked at yet" if row.revision < 0 else "no start came up"),
    )


def _headroom_note(row: FleetRow) -> str:
    if row.headroom_gib is None or row.headroom_tokens is None:
        return ""
    return f"{'measured' if row.headroom_is_measured else 'predicted'}, {token_count(row.headroom_tokens)}"


def _verified(row: FleetRow) -> str:
    if row.verified_tokens is None:
        return "never" if row.observation_id else UNKNOWN
    passed = "passed" if row.verified_passed else "failed"
    answer = f", answer {ANSWER_WORDS[row.verified_answer]}" if row.verified_answer else ""
    return f"{token_count(row.verified_tokens)} {passed}{answer}"


def _asked(question: Question | None) -> str:
    if question is None:
        return ""
    at_once = f" × {question.concurrent}" if question.concurrent > 1 else ""
    return f"{token_count(question.target_tokens)}{at_once}"


def _query(row: FleetRow, question: Question) -> str:
    """Return the pair page's query for the same question; what is at its default is left out."""
    held = {name: question.flags[name] for name in HELD_FLAGS if question.flags.get(name) is not None}
    asked: dict[str, Any] = {
        "deployment": row.deployment_id,
        "target_tokens": question.target_tokens,
        "reply_tokens": question.reply_tokens or None,
        "concurrent": question.concurrent if question.concurrent != 1 else None,
        "confidence": question.confidence if question.confidence != 0.95 else None,
        "prompt_need_gib": question.prompt_need_gib,
        **held,
    }
    return urlencode({name: value for name, value in asked.items() if value is not None})


def change_text(change: VersionChange) -> str:
    """Return two versions of an engine and how much evidence there is of both."""
    pairs = plural(change.pairs, "pair")
    return f"{engine_word(change.engine)} {change.from_version} to {change.to_version} ({pairs})"


def summary_of(change: VersionChange) -> tuple[tuple[str, str, str], ...]:
    """Return what changed over all pairs: name, how many deployments, and from where to where."""
    pool = _range(change.lowest_pool_tokens, change.highest_pool_tokens, lambda value: signed(value, tokens), "tokens")
    free = _range(change.lowest_free_gib, change.highest_free_gib, lambda value: signed(value, figure), "GiB")
    return (
        ("Pool at the same flags", f"{change.pool_changed:,} of {change.deployments:,} changed", pool),
        ("Free memory at ready", f"{change.free_changed:,} of {change.deployments:,} changed", free),
    )


def _range(low: float | None, high: float | None, to_text: Any, unit: str) -> str:
    if low is None or high is None:
        return UNKNOWN
    first, last = to_text(low), to_text(high)
    return f"by {first} {unit}" if first == last else f"by {first} to {last} {unit}"


def drift_view(stored: StoredDrift) -> DriftView:
    """Return one line of the drift between two versions."""
    it: Drift = stored.drift
    return DriftView(
        pair_id=stored.pair_id,
        deployment_id=it.to_deployment_id,
        model=stored.model,
        hardware=f"{stored.gpu_count} × {stored.gpu}",
        deployment=it.deployment,
        fraction=flag_value(it.fraction),
        starts=f"{it.from_starts:,} → {it.to_starts:,}",
        pool_slope=_both(it.from_slope_tokens, it.to_slope_tokens, tokens),
        pool_change=signed(it.pool_tokens, tokens),
        pool_span=_span(it.pool_low, it.pool_high, tokens),
        has_pool_changed=_excludes_zero(it.pool_low, it.pool_high),
        free_slope=_both(it.from_slope_gib, it.to_slope_gib, figure),
        free_change=signed(it.free_gib, figure),
        free_span=_span(it.free_low, it.free_high, figure),
        has_free_changed=_excludes_zero(it.free_low, it.free_high),
    )


def signed(value: float | None, to_text: Any) -> str:
    """Return a change with its sign."""
    if value is None:
        return UNKNOWN
    text: str = to_text(abs(value))
    return text if text == "0" else f"{'+' if value > 0 else MINUS}{text}"


def _both(before: float | None, after: float | None, to_text: Any) -> str:
    return f"{to_text(before)} → {to_text(after)}"


def _span(low: float | None, high: float | None, to_text: Any) -> str:
    return UNKNOWN if low is None or high is None else f"{signed(low, to_text)} to {signed(high, to_text)}"


def _excludes_zero(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and (low > 0 or high < 0)


def sort_links(sorts: Mapping[str, str], current: str, given: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return for each column by which one may sort its address' query and its present direction, for ``aria-sort``.

    ``sorts`` maps each to its first direction: ``-`` for the largest first. A second press turns it round.
    """
    name, is_descending = current.removeprefix("-"), current.startswith("-")
    found = {}
    for key, first in sorts.items():
        turned = key if is_descending else f"-{key}"
        state = ("descending" if is_descending else "ascending") if key == name else ""
        wanted = {**given, "sort": turned if key == name else f"{first}{key}", "page": None}
        found[key] = {"query": urlencode({k: v for k, v in wanted.items() if v not in (None, "")}), "state": state}
    return found
