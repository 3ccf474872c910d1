"""Quoting of log lines: trimmed, without secrets, and what two ranks' lines have in common."""

from __future__ import annotations

import re
from functools import lru_cache

from kvyield._secrets import redacted

LONGEST_QUOTE = 240
LONGEST_MESSAGE = 600


def any_of(*patterns: str) -> re.Pattern[str]:
    """One pattern that matches what any of several does; the first of them wins."""
    return re.compile("|".join(patterns))


_TIME_OR_RANK = re.compile(
    r"(?i)\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\d]*|\b\d\d-\d\d \d\d:\d\d:\d\d\b|\b[\d.]+ s(?:econds)?\b"
    r"|\b(?:worker_?)?(?:tp|pp|dp|ep|cp|attn_\w\w)\d{1,4}\b|\b(?:rank|worker|pid)[ =:_]{0,2}\d{1,9}\b"
)


@lru_cache(maxsize=8)  # each value of a line asks for the same
def source_of(number: int, text: str) -> str:
    """Where a value came from: ``line 12: <text>``, trimmed."""
    return f"line {number}: {quote(text, LONGEST_QUOTE)}"


def quote(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """The text on one line, without secrets, at most ``longest`` characters."""
    clean = redacted(text[: longest * 2]).strip()
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


def message_of(text: str) -> str:
    """The text without times and ranks: equal for lines that say one thing for several ranks."""
    return _TIME_OR_RANK.sub("", text)
