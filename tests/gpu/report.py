"""The trial's report: a table per question, in Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu.trial import Result, Start

AGREES_GIB = 0.01
"""Two readings of free memory this close are the same: allocations come in steps of 2 MiB."""


def table_of(result: Result) -> str:
    """The whole report."""
    parts = [_head(result), *(_prompts(number, start) for number, start in enumerate(result.starts, 1))]
    if result.advice is not None:
        parts.append(_advice(result))
    if len(result.starts) > 1:
        parts.append(_predicted(result, result.starts[1]))
    if result.notes:
        parts.append("Notes:\n" + "\n".join(f"- {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def agrees(client: float | None, sampler: float) -> bool:
    """Whether the client's lowest free memory is the sampler's."""
    return client is not None and abs(client - sampler) <= AGREES_GIB


def inside(value: float | None, interval: Mapping[str, Any] | None) -> bool | None:
    """Whether a measured value lies in a predicted interval; None when either is missing."""
    if value is None or interval is None:
        return None
    return bool(interval["low"] <= value <= interval["high"])


def _head(result: Result) -> str:
    doctor = [check["verdict"] for check in result.doctor]
    lines = [
        f"# GPU trial: {', '.join(sorted(set(result.gpus)))} x {len(result.gpus)}",
        "",
        f"Sampler: {result.readings:,} readings, longest gap {1000 * result.longest_gap_seconds:.0f} ms. "
        f"Doctor: {', '.join(f'{doctor.count(word)} {word}' for word in dict.fromkeys(doctor)) or 'not run'}.",
    ]
    for number, start in enumerate(result.starts, 1):
        seen = start.observation
        engine = f"{seen['engine']['name']} {seen['engine'].get('version') or 'of unknown version'}"
        lines.append(f"Start {number}: {engine}, {seen['outcome']}, `{shlex.join(start.words)}`")
    return "\n".join(lines)


def _prompts(number: int, start: Start) -> str:
    headings = ("prompts", "served", "answer", "first token, s", "lowest free: client", "sampler", "same")
    rows = []
    for one in start.prompts:
        found = one.verification or {}
        rows.append(
            (
                f"{one.concurrent} x {one.prompt_tokens:,}",
                ("yes" if found["passed"] else f"no: {found.get('error')}") if found else f"no: {one.note}",
                found.get("answer") or "-",
                _number(found.get("time_to_first_token_seconds")),
                _number(found.get("lowest_free_gib"), 4),
                _number(one.sampler_lowest_gib, 4),
                "yes" if agrees(found.get("lowest_free_gib"), one.sampler_lowest_gib) else "NO",
            )
        )
    title = f"## Start {number}: prompts (GiB)"
    return f"{title}\n\n{_table(headings, rows)}" if rows else f"{title}\n\nNone was sent."


def _advice(result: Result) -> str:
    advice = result.advice or {}
    changes = ", ".join(f"`{one['flag']}` {one['from']} -> {one['to']}" for one in advice["changes"]) or "none"
    lines = [
        f"## Advice for {result.concurrent} x {result.target_tokens or 0:,} tokens",
        "",
        f"{advice['status']}: {advice['headline']['text']}",
        f"Changes: {changes}.",
    ]
    if result.advice_after is not None:
        lines.append(f"Asked again after the restart: {result.advice_after['headline']['text']}")
    return "\n".join(lines)


def _predicted(result: Result, start: Start) -> str:
    headings = ("figure", "predicted", "interval", "measured", "inside")
    rows = [
        (
            name,
            _number(None if interval is None else interval["median"], digits),
            _span(interval, digits),
            _number(value, digits),
            _word(value, interval),
        )
        for name, interval, value, digits in _figures(result, start)
    ]
    return f"## Predicted and measured at the advised flags\n\n{_table(headings, rows)}"


def _figures(result: Result, start: Start) -> Iterator[tuple[str, Mapping[str, Any] | None, float | None, int]]:
    """Name, predicted interval, measured value and decimals."""
    advice = result.advice or {}
    prediction = advice.get("prediction") or {}
    measured = start.observation["measurements"]
    free, headroom = prediction.get("free_at_ready_gib"), prediction.get("headroom_gib")
    yield "pool, tokens", prediction.get("pool_tokens"), measured["pool_tokens"], 0
    yield "free at ready, GiB, as posted", free, measured.get("free_at_ready_gib"), 3
    yield "free at ready, GiB, by the sampler", free, start.sampler_free_gib, 3
    for one in start.prompts:
        found = one.verification or {}
        yield "lowest free (headroom), GiB, by the client", headroom, found.get("lowest_free_gib"), 3
        yield "lowest free (headroom), GiB, by the sampler", headroom, one.sampler_lowest_gib, 3
        if free and headroom and start.sampler_free_gib is not None:
            need = {"median": free["median"] - headroom["median"]}
            yield "taken at the peak, GiB", need, start.sampler_free_gib - one.sampler_lowest_gib, 3
    each = (advice.get("restarts") or {}).get("minutes_each")
    yield "start, s", None if each is None else {"median": 60 * each}, start.seconds_to_ready, 0


def _word(value: float | None, interval: Mapping[str, Any] | None) -> str:
    if interval is None or "low" not in interval:
        return "-"
    return {True: "yes", False: "NO", None: "-"}[inside(value, interval)]


def _span(interval: Mapping[str, Any] | None, digits: int) -> str:
    if interval is None or "low" not in interval:
        return "-"
    low, high = _number(interval["low"], digits), _number(interval["high"], digits)
    return f"{low} to {high} ({interval['level']:.0%})"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines)
