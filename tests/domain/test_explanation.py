"""The explanation of an advice: which starts it is based on, what physics and data say, and what would change it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.real_starts import KIMI, PRO_6000, observe, worked_case
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.advice.words import listed
from kvyield_server.domain.answers import Advice, Question, Status
from kvyield_server.domain.facts.observation import Engine, EngineName, Observation, Scalar, Verification
from kvyield_server.domain.model.fit import PairEvidence, cold_fit, fit_pair

QUESTION = Question(target_tokens=200_000)


def advised(*starts: Observation, question: Question = QUESTION) -> Advice:
    return recommend(fit_pair(PairEvidence(starts)).deployments[0], question)


def kimi(position: int, fraction: float, pool: int, **flags: int) -> Observation:
    return observe(
        f"explained-{position}",
        position,
        hardware=PRO_6000,
        model=KIMI,
        engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
        flags={"mem_fraction_static": fraction, "tp_size": 8, "speculative_algorithm": "DFLASH", **flags},
        pool_tokens=pool,
        free_at_ready_gib=4.2 - 89.0 * (fraction - 0.94),
    )


def on_line(position: int, fraction: float) -> Observation:
    return kimi(position, fraction, round(1_303_889 * (fraction - 0.77244)))


def test_it_names_the_starts_that_it_is_based_on() -> None:
    """The starts on the line are named by their fractions, and are those of the basis."""
    advice = advised(*worked_case())
    assert "3 starts on the line at 0.85, 0.92, 0.94" in advice.explanation
    assert set(advice.basis.observation_ids) == {start.id for start in worked_case()}


def test_it_names_what_was_set_aside_and_why() -> None:
    """An outlier and a capped start are named by their fractions, each with its reason."""
    steady = [on_line(position, f) for position, f in enumerate((0.85, 0.87, 0.89, 0.91, 0.93))]
    far, capped = kimi(-2, 0.905, 120_000), kimi(-1, 0.95, 100_000, max_total_tokens=100_000)
    explanation = advised(*steady, far, capped).explanation
    assert "5 starts on the line" in explanation
    assert "the start at 0.905 was set aside (far off the line of the other starts)" in explanation
    assert "the start at 0.95 is only a bound (the pool was set by max_total_tokens" in explanation


def test_it_says_what_physics_and_what_data_say() -> None:
    """The straight line with its slope and zero crossing, then tokens and memory at the advised fraction."""
    explanation = advised(*worked_case()).explanation
    for words in (
        "a straight line in mem_fraction_static: 13,039 tokens per 0.01, zero at 0.7724",
        "context_length does not affect it",
        "200,007 tokens are needed, and 0.926 gives 200,22",
        "GiB should be free at ready",
    ):
        assert words in explanation


def test_it_says_what_would_change_the_advice() -> None:
    """Unverified, it asks for a prompt of that length; once that was measured, it says so and asks no more."""
    first, second, third = worked_case()
    assert "send a verification prompt of 200,000 tokens" in advised(first, second, third).explanation
    check = Verification(prompt_tokens=200_000, passed=True, free_before_gib=4.2, lowest_free_gib=2.0)
    verified = advised(first, second, replace(third, verifications=(check,)))
    assert verified.status is Status.OK
    assert "verification prompt" not in verified.explanation
    assert "measured at this chunk and length" in verified.explanation


def test_an_infeasible_target_says_what_binds_and_where_to_look() -> None:
    """What stands in the way is said in words, with the alternatives as the way on."""
    advice = advised(*worked_case(), question=Question(target_tokens=290_000))
    assert advice.status is Status.INFEASIBLE
    assert "leaves no memory free" in advice.explanation
    assert "alternatives" in advice.explanation


@pytest.mark.parametrize("tokens", [None, 554 * 2**30])
def test_without_any_start_it_says_that_none_was_posted(tokens: int | None) -> None:
    """A cold answer is based on config and GPU, and says so, or says what to post."""
    facts = {**KIMI.facts, "total_size": tokens}
    fit = cold_fit(
        hardware=PRO_6000,
        model=replace(KIMI, facts=facts),
        engine=Engine(name=EngineName.SGLANG),
        flags={"tp_size": 8, "speculative_algorithm": None},
    )
    advice = recommend(fit, Question(target_tokens=50_000))
    assert ("no start of this deployment was posted" in advice.explanation) or ("Post the log" in advice.explanation)


def test_many_starts_are_counted_not_listed() -> None:
    """Beyond a handful, starts are a number: a list of forty fractions tells a reader nothing."""
    explanation = advised(*(on_line(position, 0.85 + 0.002 * position) for position in range(40))).explanation
    assert "40 starts on the line;" in explanation or "40 starts on the line." in explanation


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"mem_fraction_static": 0.9, "context_length": 8192}, "with --mem-fraction-static 0.9 --context-length 8192"),
        ({"max_total_tokens": None}, "without --max-total-tokens"),
        (
            {"disable_radix_cache": False, "max_total_tokens": None},
            "without --disable-radix-cache and --max-total-tokens",
        ),
        ({"max_total_tokens": None, "tp_size": 2}, "with --tp-size 2 and without --max-total-tokens"),
        ({}, ""),
    ],
)
def test_a_restart_is_said_with_what_is_set_and_without_what_is_taken_out(flags: dict[str, Scalar], said: str) -> None:
    assert listed(flags, EngineName.SGLANG) == said


def test_the_headline_of_a_cap_taken_out_is_grammatical() -> None:
    """The line holds the target where a start was capped: the cap goes, and nothing else changes."""
    line = [on_line(position, fraction) for position, fraction in enumerate((0.90, 0.92, 0.94))]
    capped = replace(
        on_line(3, 0.94), flags={**line[0].flags, "mem_fraction_static": 0.94, "max_total_tokens": 100_000}
    )
    capped = replace(capped, measurements=replace(capped.measurements, pool_tokens=100_000))
    question = Question(target_tokens=150_000)
    advice = advised(*line, capped, question=question)
    assert advice.headline is not None
    changed = {change.flag: change.to_value for change in advice.changes}
    assert changed["max_total_tokens"] is None
    assert advice.headline.text.startswith(f"Restart {listed(changed, EngineName.SGLANG)}: about ")
    assert "with without" not in advice.headline.text
