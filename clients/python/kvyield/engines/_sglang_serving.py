"""What SGLang was prefilling when it ran out of memory, from the lines just before."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PREFILL = re.compile(
    r"Prefill batch(?: \[\d{1,18}\])?[.,] #new-seq: (\d{1,9}), #new-token: (\d{1,12}), #cached-token: (\d{1,12})"
    r"(?:.{0,200}?#pending-token: (\d{1,12}))?"
)


def prompt_in_flight(lines: Iterable[bytes], chunk: int | None) -> int | None:
    """Tokens of the prompt whose chunks come last: at least what was sent to the engine of it, None when no line tells.

    A chunk as long as the engine's chunk size is followed by the same prompt's next one; a shorter one ended its
    prompt."""
    total: int | None = None
    for line in reversed(list(lines)):
        match = _PREFILL.search(line.decode("utf-8", "replace"), 0, 4000)
        if match is None:
            continue
        sequences, new, cached, pending = int(match[1]), int(match[2]), int(match[3]), int(match[4] or 0)
        if total is None:
            if sequences != 1 or chunk is None or chunk <= 0:
                return new + cached + pending if sequences == 1 else None
            total = new + cached + pending
            continue
        if chunk is None or sequences != 1 or new < chunk or total >= 1 << 40:
            break
        total += new + cached
    return total
