"""Observations as lines: NDJSON as the API gives them, and flat CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

import msgspec

from kvyield_server.schemas.observations import Kept, MeasurementsIn, from_domain

_MEASURED = MeasurementsIn.__struct_fields__
COLUMNS = (
    *("id", "observed_at", "host", "source", "gpu", "gpu_count", "memory_gib", "unified_memory"),
    *("model", "model_revision", "engine", "engine_version", "engine_variant", "fraction", "outcome"),
    *_MEASURED,
    *("failure_phase", "failure_message", "verified_prompt_tokens", "verifications", "flags", "model_facts"),
    *("recommendation_id", "pair_id", "received_at", "retracted_at", "retraction_reason"),
)
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def ndjson(observations: Iterable[Kept]) -> bytes:
    """Return one JSON object a line."""
    return b"".join(msgspec.json.encode(from_domain(kept)) + b"\n" for kept in observations)


def csv_head() -> bytes:
    """Return the line of column names."""
    return _line(COLUMNS)


def csv_lines(observations: Iterable[Kept]) -> bytes:
    """Return one line per observation; a text that a spreadsheet would run as a formula gets a leading quote."""
    return b"".join(_line(_safe(row[name]) for name in COLUMNS) for row in map(_row, observations))


def _row(kept: Kept) -> dict[str, Any]:
    start = kept.observation
    wire = msgspec.to_builtins(from_domain(kept))
    hardware, engine, failure = wire["hardware"], wire["engine"], wire["failure"] or {}
    passed = [item.prompt_tokens for item in start.verifications if item.passed]
    return {
        **wire,
        **hardware,
        **wire["measurements"],
        "model": start.model.name,
        "model_revision": start.model.revision,
        "model_facts": _json(wire["model"]["facts"]),
        "engine": engine["name"],
        "engine_version": engine["version"],
        "engine_variant": engine["variant"],
        "fraction": start.fraction,
        "failure_phase": failure.get("phase"),
        "failure_message": failure.get("message"),
        "verified_prompt_tokens": max(passed, default=None),
        "verifications": _json(wire["verifications"]),
        "flags": _json(wire["flags"]),
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _safe(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value if isinstance(value, str) and value.startswith(_FORMULA_SIGNS) else value


def _line(cells: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().encode()
