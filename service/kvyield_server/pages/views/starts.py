"""Starts as rows of a history: what a person looks for in a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
    EngineName,
    Measurements,
    Outcome,
    Scalar,
    Verification,
)
from kvyield_server.pages.views.words import (
    UNKNOWN,
    engine_word,
    figure,
    flag_value,
    moment,
    outcome_word,
    plural,
    tokens,
)
from kvyield_server.schemas.observations import ObservationOut

CONTEXT_FLAGS = ("context_length", "max_model_len", "max_seq_len", "session_len")
REQUEST_FLAGS = ("max_running_requests", "max_num_seqs", "max_batch_size")
AT_MOST, AT_LEAST = "≤ ", "≥ "
BOUND_NOTE = "at pool end, before graphs: an upper bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRow:
    """One line of the history; texts are ready to show, with their unit in the column's head."""

    id: UUID
    at: datetime
    outcome: Outcome
    outcome_word: str
    engine: str
    fraction: str
    context: str
    requests: str
    pool_tokens: str
    free_at_ready: str
    is_bound: bool
    startup_minutes: str
    verification: str
    has_passed: bool | None
    host: str
    note: str
    is_retracted: bool
    tail: str = ""
    """The end of the id, where another start is shown beside it with the same time."""


def told_apart(rows: Sequence[StartRow]) -> list[StartRow]:
    """Return starts that are shown together; those whose times look alike have the end of their id beside them."""
    counts = Counter(moment(row.at) for row in rows)
    return [replace(row, tail=str(row.id)[-6:]) if counts[moment(row.at)] > 1 else row for row in rows]


def start_row(start: ObservationOut) -> StartRow:
    """Return the line of one start."""
    measured, seconds = start.measurements, start.measurements.startup_seconds
    return StartRow(
        id=start.id,
        at=start.observed_at,
        outcome=start.outcome,
        outcome_word=outcome_word(start.outcome),
        engine=engine_text(start),
        fraction=fraction_text(start.engine.name, start.flags),
        context=_count(start.flags, CONTEXT_FLAGS),
        requests=_count(start.flags, REQUEST_FLAGS),
        pool_tokens=tokens(measured.pool_tokens),
        free_at_ready=free_at_ready_text(measured),
        is_bound=is_bound(measured),
        startup_minutes=minutes_text(seconds),
        verification=verification_text(start.verifications),
        has_passed=all(item.passed for item in start.verifications) if start.verifications else None,
        host=start.host or UNKNOWN,
        note=note_of(start),
        is_retracted=start.retracted_at is not None,
    )


def is_bound(measured: Measurements) -> bool:
    """Tell whether free memory at ready is only the earlier figure at pool end: graphs took their share after it."""
    return measured.free_at_ready_gib is not None and measured.free_at_ready_gib == measured.free_at_pool_end_gib


def free_at_ready_text(measured: Measurements, unit: str = "") -> str:
    """Return free memory at ready; an upper bound is marked as one."""
    text = figure(measured.free_at_ready_gib)
    return text if text == UNKNOWN else f"{AT_MOST if is_bound(measured) else ''}{text}{unit}"


def minutes_text(seconds: float | None) -> str:
    """Return a start-up time in minutes; what took any time never reads as none."""
    if seconds is None:
        return UNKNOWN
    text = figure(seconds / 60, 1)
    return "< 0.1" if text == "0" and seconds > 0 else text


def engine_text(start: ObservationOut) -> str:
    """Return engine, version and fork in one phrase."""
    engine = start.engine
    parts = [engine_word(engine.name), engine.version or "", f"({engine.variant})" if engine.variant else ""]
    return " ".join(part for part in parts if part)


def fraction_text(engine: EngineName, flags: Mapping[str, Scalar]) -> str:
    """Return the engine's pool flag, as resolved."""
    value = flags.get(FRACTION_FLAG[engine])
    return flag_value(value) if value is not None else UNKNOWN


def verification_text(verifications: Sequence[Verification]) -> str:
    """Return what prompts have shown: the longest that passed, and how many failed."""
    if not verifications:
        return UNKNOWN
    passed = max((item.prompt_tokens for item in verifications if item.passed), default=None)
    failed = sum(not item.passed for item in verifications)
    parts = [f"{tokens(passed)} passed"] if passed is not None else []
    return ", ".join(parts + ([f"{failed} failed"] if failed else []))


def note_of(start: ObservationOut) -> str:
    """Return the one thing about a start that its figures do not say."""
    if start.retraction_reason:
        return f"Retracted: {start.retraction_reason}"
    if start.failure is None:
        return ""
    if start.failure.prompt_tokens is not None:
        return f"Failed on a prompt of {plural(start.failure.prompt_tokens, 'token')}"
    return start.failure.message or f"Failed in phase {start.failure.phase.value}".replace("_", " ")


def _count(flags: Mapping[str, Scalar], names: Sequence[str]) -> str:
    value = next((flags[name] for name in names if flags.get(name) is not None), None)
    is_count = isinstance(value, int | float) and not isinstance(value, bool)
    return tokens(float(value)) if is_count else UNKNOWN  # type: ignore[arg-type]  # is_count narrows it
