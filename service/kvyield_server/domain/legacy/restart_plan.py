"""How many restarts the advice will take, how long each, and how long a verification prompt."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from kvyield_server.domain.answers import RestartPlan
from kvyield_server.domain.facts.observation import Observation

_SECOND_TRY = 0.95
"""After a miss the model has one more point at nearly the right place: the next restart seldom misses too."""


def restart_plan(joint: float, starts: Sequence[Observation], *, is_needed: bool = True) -> RestartPlan:
    """Return the expected number of restarts and minutes, from the chance that the first one succeeds.

    Minutes are the expected number times the median start-up time; None when no start-up time was recorded.
    """
    misses = 1.0 - min(1.0, max(0.0, joint))
    expected = round(1.0 + misses / _SECOND_TRY, 1) if is_needed else 0.0
    seconds = [start.measurements.startup_seconds for start in starts if start.measurements.startup_seconds]
    if not seconds:
        return RestartPlan(expected=expected, minutes=None, minutes_each=None)
    each = median(seconds) / 60.0
    return RestartPlan(expected=expected, minutes=round(expected * each, 1), minutes_each=round(each, 1))


def verification_seconds(prompt_tokens: int, starts: Sequence[Observation]) -> float | None:
    """Return the seconds that a prompt of this length should take, at the rate of the longest one that passed."""
    timed = [
        (check.prompt_tokens, check.elapsed_seconds)
        for start in starts
        for check in start.verifications
        if check.passed and check.elapsed_seconds and check.prompt_tokens >= 1
    ]
    if not timed:
        return None
    tokens, seconds = max(timed)
    return float(round(prompt_tokens / tokens * seconds))
