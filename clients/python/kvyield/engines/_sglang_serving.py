"""What SGLang was prefilling when it ran out of memory, from the lines just before."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PREFILL = re.compile(
    r"Prefill batch(?: \[\d{1,18}\])?[.,] #new-seq: (\d{1,9}), #new-token: (\d{1,12}), #cached-token: (\d{1,12})"
)
_PENDING = re.compile(r"#pending-token: (\d{1,12})")
_QUEUED = re.compile(r"#queue-req: (\d{1,9})")
_FINISHED = re.compile(r"Decode batch|Cache flushed|\"POST /\S{1,80} HTTP/[\d.]{1,4}\" 200")


def prompt_in_flight(lines: Iterable[bytes], chunk: int | None) -> int | None:
    """Tokens of the prompt that was being prefilled at the end of ``lines``; None when no line tells.

    Up to 0.5.8 a line is printed as its batch begins, from 0.5.9 on when it is done, then with ``cuda graph:`` (source:
    managers/scheduler.py, scheduler_output_processor_mixin.py). A done batch shows a prompt only while tokens are
    pending. A chunk as long as the engine's chunk size goes on, so that without a count of what is pending the
    prompt's length is unknown; a shorter one ended its prompt, and was not it if a request was served since."""
    total: int | None = None
    finished = False
    for raw in reversed(list(lines)):
        line = raw[:4000].decode("utf-8", "replace")
        match = _PREFILL.search(line)
        if match is None:
            finished = finished or _FINISHED.search(line) is not None
            continue
        sequences, new, cached = int(match[1]), int(match[2]), int(match[3])
        pending, queued = _count(_PENDING, line), _count(_QUEUED, line)
        if total is None:
            is_known = _goes_on(pending, queued) or not (
                finished or "cuda graph: " in line or _is_full(new, chunk, pending)
            )
            if sequences != 1 or not is_known:
                return None
            total = new + cached + (pending or 0)
            continue
        if not chunk or chunk < 0 or sequences != 1 or new < chunk or total >= 1 << 40:
            break
        total += new + cached
    return total


def _goes_on(pending: int | None, queued: int | None) -> bool:
    """Whether what is pending is the rest of this one prompt."""
    return bool(pending) and not queued


def _is_full(new: int, chunk: int | None, pending: int | None) -> bool:
    """Whether the prompt may be longer than the batch shows."""
    return bool(pending) or (pending is None and (chunk is None or chunk <= 0 or new >= chunk))


def _count(pattern: re.Pattern[str], line: str) -> int | None:
    match = pattern.search(line)
    return int(match[1]) if match else None
