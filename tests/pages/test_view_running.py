"""What runs now: measured figures where there are any, predicted ones that say so, and no advice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvyield_server.domain.facts.observation import Measurements, Observation, Outcome, Verification
from kvyield_server.pages.views.running import RunningView, running_view
from kvyield_server.schemas.common import EstimateOut
from pages.values import observation

POOL = EstimateOut(median=200_225, low=200_144, high=200_306, level=0.9)
FREE = EstimateOut(median=5.5, low=5.2, high=5.8, level=0.9)
PROOF = Verification(prompt_tokens=60_010, passed=True)


def view(start: Observation, verified: int | None = 60_010) -> RunningView:
    return running_view(start, pool=POOL, free=FREE, headroom=FREE, verified_tokens=verified)


def test_what_was_measured_is_shown_as_measured() -> None:
    """Pool, free memory and the lowest point of the longest verified prompt are the start's own."""
    proof = replace(PROOF, lowest_free_gib=2.7)
    shown = view(observation(verifications=(proof,)))
    assert [(figure.value, figure.note) for figure in shown.figures] == [
        ("100,000 tokens", "measured"),
        ("5.5 GiB", "measured"),
        ("2.7 GiB", "60,010 tokens, measured"),
    ]
    assert shown.flags == "--mem-fraction-static 0.9 --context-length 200000 --max-running-requests 8"


def test_what_was_not_measured_is_predicted_and_says_so() -> None:
    """Without measurements the fit's figures stand in, with their intervals."""
    shown = view(observation(measurements=Measurements(), verifications=(PROOF,)))
    assert [(figure.value, figure.span, figure.note) for figure in shown.figures] == [
        ("200,225 tokens", "200,144 to 200,306", "predicted"),
        ("5.5 GiB", "5.2 to 5.8", "predicted"),
        ("5.5 GiB", "5.2 to 5.8", "60,010 tokens, predicted"),
    ]


def test_a_bound_is_no_free_memory_at_ready() -> None:
    """Free memory read at pool end is shown as an upper bound."""
    bound = Measurements(pool_tokens=1, free_at_ready_gib=10.37, free_at_pool_end_gib=10.37)
    free = view(observation(measurements=bound)).figures[1]
    assert (free.value, free.note) == ("≤ 10.37 GiB", "at pool end, before graphs: an upper bound")


@pytest.mark.parametrize(
    ("outcome", "ended"),
    [(Outcome.READY, ""), (Outcome.OOM_RUNTIME, "OOM at run time"), (Outcome.FAILED, "failed")],
)
def test_what_came_up_and_died_is_not_said_to_run(outcome: Outcome, ended: str) -> None:
    """A start that ran out of memory while serving says so where its flags are shown."""
    assert view(observation(outcome=outcome)).ended == ended


def test_no_prompt_no_headroom() -> None:
    """While no prompt was verified, headroom is a dash and says why."""
    headroom = view(observation(), verified=None).figures[2]
    assert (headroom.value, headroom.note) == ("—", "no prompt verified yet")
