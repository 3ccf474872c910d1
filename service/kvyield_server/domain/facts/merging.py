"""What the accounts of one start make together, and what a correction makes of it: pure functions of the set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeVar

from kvyield_server.domain.facts.accounts import AT_ONCE, Account, FieldChange, served
from kvyield_server.domain.facts.observation import (
    EngineName,
    Failure,
    Flags,
    Observation,
    Outcome,
    Phase,
    Scalar,
    Verification,
)

T = TypeVar("T")

_OUTCOME_RANKS = {Outcome.OOM_RUNTIME: 3, Outcome.OOM_STARTUP: 2, Outcome.REFUSED: 1}
_SERVING_FIGURES = ("free_at_ready_gib", "startup_seconds")


def merged(accounts: Sequence[Account]) -> tuple[Observation, bool]:
    """Return the start that the accounts tell together, and whether any of them says its time.

    A log is believed before an endpoint and an endpoint before a person; among equals the account that says more. What
    the believed account does not say is filled from the next. The order of accounts does not matter.
    """
    ranked = sorted(accounts, key=_belief, reverse=True)
    timed = [account for account in ranked if account.is_timed]
    told = [account.observation for account in ranked]
    outcome, failure = _outcome(ranked)
    measurements = _filled([each.measurements for each in told])
    if outcome is not Outcome.READY and not served(outcome, failure):
        # figures of serving come from an account that took an unfinished start for a ready one
        dead = _filled([each.measurements for each in told if each.outcome is not Outcome.READY])
        measurements = replace(measurements, **{name: getattr(dead, name) for name in _SERVING_FIGURES})
    observation = Observation(
        id=told[0].id,
        observed_at=_time(timed) if timed else min(each.observed_at for each in told),
        hardware=_filled([each.hardware for each in told]),
        model=replace(_filled([each.model for each in told]), facts=_facts(told)),
        engine=_filled([each.engine for each in told]),
        outcome=outcome,
        flags=merged_flags([each.flags for each in told]),
        measurements=measurements,
        failure=failure,
        verifications=_verifications(told),
        host=_first(each.host for each in told),
        source=_first(each.source for each in told),
        recommendation_id=_first(each.recommendation_id for each in told),
        log_excerpt=_first(each.log_excerpt for each in told),
    )
    return observation, bool(timed)


def merged_flags(told: Sequence[Flags]) -> Flags:
    """Return each flag as the first that gives it: a value before ``auto``, ``auto`` before null."""
    result: dict[str, Scalar] = {}
    for flags in told:
        for name, value in flags.items():
            known = result.get(name)
            if name not in result or known is None or (known == "auto" and value is not None):
                result[name] = value
    return result


def with_changes(start: Observation, changes: Iterable[FieldChange]) -> Observation:
    """Return a start after changes of its hardware, model, engine or flags."""
    for change in changes:
        part, _, name = change.field.partition(".")
        if part == "flags":
            start = replace(start, flags={**start.flags, name: change.after})  # type: ignore[dict-item]  # a scalar
        elif name.startswith("facts."):
            facts = {**start.model.facts, name.removeprefix("facts."): change.after}
            start = replace(start, model=replace(start.model, facts=facts))
        else:
            value = EngineName(str(change.after)) if change.field == "engine.name" else change.after
            start = replace(start, **{part: replace(getattr(start, part), **{name: value})})
    return start


def differences(before: Observation, after: Observation) -> tuple[FieldChange, ...]:
    """Return what two accounts of a start say otherwise, but for ids and verifications, by field."""
    old, new = _flat(before), _flat(after)
    return tuple(
        FieldChange(name, old.get(name), new.get(name))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    )


def _flat(start: Observation) -> dict[str, object]:
    parts: dict[str, Any] = {
        "hardware": start.hardware,
        "engine": start.engine,
        "measurements": start.measurements,
        "failure": start.failure,
    }
    flat: dict[str, object] = {
        f"{part}.{each.name}": getattr(record, each.name)
        for part, record in parts.items()
        if record is not None
        for each in fields(record)
    }
    flat |= {"model.name": start.model.name, "model.revision": start.model.revision}
    flat |= {f"model.facts.{name}": value for name, value in start.model.facts.items()}
    flat |= {f"flags.{name}": value for name, value in start.flags.items()}
    names = ("outcome", "observed_at", "host", "source", "recommendation_id", "log_excerpt")
    return flat | {name: getattr(start, name) for name in names}


def _belief(account: Account) -> tuple[int, int, str]:
    return account.rank, _said(account.observation), account.digest


def _said(start: Observation) -> int:
    """Count what an account says."""
    parts: Iterable[Any] = (start.hardware, start.engine, start.measurements, *filter(None, [start.failure]))
    told = sum(getattr(part, each.name) is not None for part in parts for each in fields(part))
    return told + sum(value is not None for value in start.flags.values()) + len(start.model.facts)


def _outcome(ranked: Sequence[Account]) -> tuple[Outcome, Failure | None]:
    """Return what became of a start: a death that some account explains, else ready, else whatever is said."""
    told = [account.observation for account in ranked]
    deaths = [each for each in ranked if _tells_a_death(each.observation)]
    if not deaths:
        if any(each.outcome is Outcome.READY for each in told):
            return Outcome.READY, None
        return told[0].outcome, told[0].failure
    deaths.sort(key=lambda each: (each.rank, _OUTCOME_RANKS.get(each.observation.outcome, 0)), reverse=True)
    outcome = deaths[0].observation.outcome
    failures = [each.observation.failure for each in deaths if each.observation.failure is not None]
    failure = _filled(failures) if failures else Failure()
    phases = [each.phase for each in failures if each.phase is not Phase.UNKNOWN]
    phase = phases[0] if phases else Phase.UNKNOWN
    was_ready = any(each.outcome is Outcome.READY for each in told)
    if phase is Phase.UNKNOWN and was_ready and outcome in (Outcome.OOM_RUNTIME, Outcome.FAILED):
        phase = Phase.SERVING
    return outcome, replace(failure, phase=phase)


def _tells_a_death(start: Observation) -> bool:
    """A ``failed`` without a cause, a phase or a word is of a log that ends in the middle of a start."""
    if start.outcome is Outcome.FAILED:
        return start.failure is not None and start.failure != Failure()
    return start.outcome is not Outcome.READY


def _time(ranked: Sequence[Account]) -> datetime:
    """Return the believed account's time, one whose zone is known before others; where zones differ, the latest's."""
    believed = [account for account in ranked if account.rank == ranked[0].rank]
    best = [account for account in believed if account.is_zoned] or believed
    times = [account.observation.observed_at for account in best]
    if max(times) - min(times) > AT_ONCE:
        return max(best, key=lambda account: (account.received_at, account.digest)).observation.observed_at
    return times[0]


def _facts(told: Sequence[Observation]) -> dict[str, object]:
    result: dict[str, object] = {}
    for each in reversed(told):
        result |= {name: value for name, value in each.model.facts.items() if value is not None}
    return result


def _verifications(told: Sequence[Observation]) -> tuple[Verification, ...]:
    every = [verification for each in told for verification in each.verifications]
    return tuple(each for index, each in enumerate(every) if each not in every[:index])


def _filled(told: Sequence[T]) -> T:
    """Return the first of some records, each field that it leaves null filled from the next that says it."""
    known: Any = told[0]
    values = {each.name: _first(getattr(record, each.name) for record in told) for each in fields(known)}
    filled: T = replace(known, **values)
    return filled


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)
