"""How many restarts the advice takes, how long each, and how long a verification prompt."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from kvyield_server.domain.answers import Question, RestartPlan
from kvyield_server.domain.facts.observation import Observation

_SECOND_TRY = 0.95
"""After a miss the model has one more point at nearly the right place: the next restart seldom misses too."""


def restart_plan(joint: float | None, starts: Sequence[Observation], *, is_needed: bool = True) -> RestartPlan | None:
    """Return the expected number of restarts and minutes, from the probability that the first one succeeds.

    Minutes are that number times the median start-up time, None when none was recorded. A start that compiled its
    graphs counts only where no other was timed: the next one loads them (vLLM 0.26.0 on an H200: 108 s, then 66 s).
    None where a restart is needed and its probability is not known. Before the first start of all, one that is likely
    to succeed counts as one.
    """
    if joint is None and is_needed:
        return None
    misses = 1.0 - min(1.0, max(0.0, joint or 0.0))
    expected = 1.0 + misses / _SECOND_TRY if starts or misses > 0.1 else 1.0
    expected = round(expected, 1) if is_needed else 0.0
    timed = [start for start in starts if start.measurements.startup_seconds]
    warm = [start for start in timed if start.flags.get("compile_cache") != "cold"]
    seconds = [start.measurements.startup_seconds or 0.0 for start in warm or timed]
    if not seconds:
        return RestartPlan(expected=expected, minutes=None if is_needed else 0.0, minutes_each=None)
    each = median(seconds) / 60.0
    return RestartPlan(expected=expected, minutes=round(expected * each, 1), minutes_each=round(each, 1))


def verification_seconds(question: Question, starts: Sequence[Observation]) -> float | None:
    """Return the seconds that a verification of the question takes: all its prompt tokens, at the rate measured.

    The rate is that of the longest prompt that passed, the newest of several, with as many at once as were sent and
    without the tokens that came from a prefix cache. None where none was timed.
    """
    timed = [
        (
            (check.prompt_tokens, number),
            (check.prompt_tokens - (check.cached_tokens or 0)) * (check.concurrent or 1),
            check,
        )
        for number, start in enumerate(starts)
        for check in start.verifications
        if check.passed and check.elapsed_seconds
    ]
    rates = [(rank, tokens / (check.elapsed_seconds or 1.0)) for rank, tokens, check in timed if tokens > 0]
    if not rates:
        return None
    _, rate = max(rates)
    return float(round(question.target_tokens * question.concurrent / rate))
