"""Two starts side by side: the flags that differ, what was measured, what prompts have shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kvyield_server.domain.facts.observation import Measurements, Scalar
from kvyield_server.pages.views.starts import (
    AT_LEAST,
    AT_MOST,
    BOUND_NOTE,
    engine_text,
    free_at_ready_text,
    is_bound,
    verification_text,
)
from kvyield_server.pages.views.words import MINUS, UNKNOWN, figure, flag_value, gib, outcome_word, token_count
from kvyield_server.schemas.observations import ObservationOut

MEASUREMENT_WORDS = {
    "pool_tokens": "Pool",
    "free_at_ready_gib": "Free memory at ready",
    "free_at_pool_end_gib": "Free memory at pool end, before graphs",
    "free_before_load_gib": "Free memory before load",
    "free_after_load_gib": "Free memory after load",
    "kv_cache_gib": "KV cache",
    "draft_kv_cache_gib": "Draft KV cache",
    "weights_gib": "Weights",
    "graph_gib": "Graphs",
    "device_memory_gib": "Device memory",
    "startup_seconds": "Start-up time",
    "uncapped_pool_tokens": "Pool before the cap",
    "swa_pool_tokens": "Sliding-window pool",
    "longest_prompt_tokens": "Longest prompt that the engine takes",
    "draft_weights_gib": "Draft weights",
    "fitted_max_model_len": "Context length fitted by the engine",
}

COUNTED = ("_tokens", "_len")
"""How the names of measurements end that are counts of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One property of both starts; ``change`` is from the first to the second, empty when it means nothing."""

    name: str
    first: str
    second: str
    change: str = ""
    differs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``differing`` flags come first on the page; ``same`` can be opened."""

    heading: tuple[ComparedRow, ...]
    differing: tuple[ComparedRow, ...]
    same: tuple[ComparedRow, ...]
    measured: tuple[ComparedRow, ...]


def compare(first: ObservationOut, second: ObservationOut) -> Comparison:
    """Return what differs between two starts."""
    flags = [_flag(name, first.flags, second.flags) for name in sorted({*first.flags, *second.flags})]
    return Comparison(
        heading=_heading(first, second),
        differing=tuple(row for row in flags if row.differs),
        same=tuple(row for row in flags if not row.differs),
        measured=_measured(first.measurements, second.measurements),
    )


def measurement_text(name: str, value: float | None) -> str:
    """Return a measurement with its unit."""
    if name.endswith(COUNTED):
        return UNKNOWN if value is None else token_count(value)
    if name == "startup_seconds":
        return UNKNOWN if value is None else f"{figure(value, 1)} s"
    return gib(value)


def measured_text(name: str, measured: Measurements) -> str:
    """Return a measurement of a start; free memory that is an upper bound says so."""
    if name == "free_at_ready_gib" and is_bound(measured):
        return f"{free_at_ready_text(measured, ' GiB')} ({BOUND_NOTE})"
    return measurement_text(name, getattr(measured, name))


def _heading(first: ObservationOut, second: ObservationOut) -> tuple[ComparedRow, ...]:
    pairs = (
        ("Outcome", outcome_word(first.outcome), outcome_word(second.outcome)),
        ("Engine", engine_text(first), engine_text(second)),
        ("Host", first.host or UNKNOWN, second.host or UNKNOWN),
        ("Verification", verification_text(first.verifications), verification_text(second.verifications)),
    )
    return tuple(ComparedRow(name=name, first=one, second=two, differs=one != two) for name, one, two in pairs)


def _flag(name: str, first: Mapping[str, Scalar], second: Mapping[str, Scalar]) -> ComparedRow:
    one, two = (flag_value(flags[name]) if name in flags else "not known" for flags in (first, second))
    change = _change(first.get(name), second.get(name))
    return ComparedRow(name=name, first=one, second=two, change=change, differs=one != two)


def _measured(first: Measurements, second: Measurements) -> tuple[ComparedRow, ...]:
    rows = []
    for field in fields(Measurements):
        one, two = getattr(first, field.name), getattr(second, field.name)
        if one is None and two is None:
            continue
        rows.append(
            ComparedRow(
                name=MEASUREMENT_WORDS[field.name],
                first=measured_text(field.name, first),
                second=measured_text(field.name, second),
                change=_measured_change(field.name, first, second),
                differs=one != two,
            )
        )
    return tuple(rows)


def _measured_change(name: str, first: Measurements, second: Measurements) -> str:
    """Return the change; from an upper bound it is the least that it can be, to one the most, between two unknown."""
    change = _with_unit(name, _change(getattr(first, name), getattr(second, name)))
    if name != "free_at_ready_gib" or not change:
        return change
    marks = {(False, False): "", (True, False): AT_LEAST, (False, True): AT_MOST}
    mark = marks.get((is_bound(first), is_bound(second)))
    return "" if mark is None else f"{mark}{change}"


def _change(one: Scalar, two: Scalar) -> str:
    if not _is_number(one) or not _is_number(two) or one == two:
        return ""
    difference = float(two) - float(one)  # type: ignore[arg-type]  # both are numbers
    return f"{'+' if difference > 0 else MINUS}{figure(abs(difference), 4)}"


def _with_unit(name: str, change: str) -> str:
    unit = "tokens" if name.endswith(COUNTED) else "s" if name.endswith("_seconds") else "GiB"
    return f"{change} {unit}" if change else ""


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
