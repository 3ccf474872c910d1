"""Observations as lines: NDJSON as the API gives them, and flat CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from kvyield_server.domain.records import StoredObservation
from kvyield_server.schemas.common import as_utc
from kvyield_server.schemas.observations import (
    ExportedIn,
    MeasurementsIn,
    content_digest,
    from_domain,
    observation_faults,
    posted,
    to_domain,
)
from kvyield_server.schemas.strict import Fault, FaultyBodyError, decode

_MEASURED = MeasurementsIn.__struct_fields__
COLUMNS = (
    *("id", "observed_at", "host", "source", "gpu", "gpu_count", "memory_gib", "unified_memory"),
    *("model", "model_revision", "engine", "engine_version", "engine_variant", "fraction", "outcome"),
    *_MEASURED,
    *("failure_phase", "failure_message", "verified_prompt_tokens", "verifications", "flags", "model_facts"),
    *("recommendation_id", "pair_id", "received_at", "retracted_at", "retraction_reason"),
)
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def ndjson(observations: Iterable[StoredObservation]) -> bytes:
    """Return one JSON object a line."""
    return b"".join(msgspec.json.encode(from_domain(stored)) + b"\n" for stored in observations)


class ReadLine(NamedTuple):
    """A line of an export: the fields of a stored start, None on a line of answers alone, and its archive."""

    start: dict[str, Any] | None
    archive: dict[str, Any]


def archive_line(stored: StoredObservation | None, archive: Any) -> bytes:
    """Return a line that holds a start and what belongs to it."""
    start = {} if stored is None else msgspec.to_builtins(from_domain(stored))
    return msgspec.json.encode({**start, "archive": archive}) + b"\n"


def read_line(text: bytes) -> ReadLine:
    """Return what a line of an export holds; lines of the API's own export have no archive.

    Raises:
        FaultyBodyError, MalformedJsonError: it is not a line of an export.
    """
    if text.startswith(b'{"archive":'):
        return ReadLine(None, decode(text, AnswersIn).archive)
    line = decode(text, ExportedIn)
    body = posted(line)
    if faults := observation_faults(body):
        raise FaultyBodyError(faults)
    now = datetime.now(UTC)
    received = as_utc(line.received_at or now)
    start = {
        "observation": to_domain(body, new_id=UUID(int=0), now=received),
        "content_digest": content_digest(body),
        "received_at": received,
        "retracted_at": line.retracted_at and as_utc(line.retracted_at),
        "retraction_reason": line.retraction_reason,
    }
    if body.id is None:
        raise FaultyBodyError([Fault("/id", "id is needed: every start of an export has one.")])
    return ReadLine(start, line.archive or {})


class AnswersIn(msgspec.Struct, forbid_unknown_fields=True):
    """A line of answers that belong to no start."""

    archive: dict[str, Any]


def csv_head() -> bytes:
    """Return the line of column names."""
    return _line(COLUMNS)


def csv_lines(observations: Iterable[StoredObservation]) -> bytes:
    """Return one line per observation; a text that a spreadsheet would run as a formula gets a leading quote."""
    return b"".join(_line(_safe(row[name]) for name in COLUMNS) for row in map(table_row, observations))


def table_row(stored: StoredObservation) -> dict[str, Any]:
    """Return an observation as one flat row, with more than the columns; nested parts are JSON text."""
    start = stored.observation
    wire = msgspec.to_builtins(from_domain(stored))
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
