"""Rows, comparisons and the page of one start, from starts made by hand."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from kvyield_server.domain.facts.observation import Cause, Failure, Measurements, Outcome, Phase, Verification
from kvyield_server.domain.model.evidence import Label
from kvyield_server.pages.views.comparison import compare
from kvyield_server.pages.views.observation import memory_steps, observation_view
from kvyield_server.pages.views.pairs import QUIET, alerts_of, labels_of, memory_text, pair_row
from kvyield_server.pages.views.starts import minutes_text, note_of, start_row, told_apart, verification_text
from kvyield_server.pages.views.words import token_count
from kvyield_server.schemas.observations import HistoryEntryOut, ObservationOut
from kvyield_server.schemas.pairs import pair_out
from kvyield_server.storage.records import Pair
from pages.values import HARDWARE, NOON, kept, observation, summary

PASSED = Verification(prompt_tokens=60_010, passed=True, elapsed_seconds=45.9, lowest_free_gib=2.7, free_before_gib=5.4)
FAILED = Verification(prompt_tokens=180_000, passed=False, answer_expected="heron", answer_received="crane")


def test_a_row_holds_what_a_person_looks_for() -> None:
    """Fraction, pool, free memory, requests, context and start-up time are on one line."""
    row = start_row(kept(observation()))
    assert (row.fraction, row.pool_tokens, row.free_at_ready, row.requests) == ("0.9", "100,000", "5.5", "8")
    assert (row.context, row.startup_minutes, row.engine, row.note) == ("200,000", "6", "SGLang 0.5.12", "")


def test_verifications_are_summed_up() -> None:
    """The longest prompt that passed is named, and how many failed."""
    assert verification_text([PASSED, FAILED]) == "60,010 passed, 1 failed"
    assert verification_text([]) == "—"
    assert start_row(kept(observation(verifications=(PASSED, FAILED)))).has_passed is False


def test_a_note_says_what_the_figures_do_not() -> None:
    """A retraction's reason, the deadly prompt, or the engine's own words are shown, in that order."""
    failure = Failure(phase=Phase.SERVING, message="CUDA out of memory", prompt_tokens=180_000)
    dead = observation(outcome=Outcome.OOM_RUNTIME, failure=failure)
    assert note_of(kept(dead)) == "Failed on a prompt of 180,000 tokens"
    assert note_of(kept(dead, retracted_at=NOON, retraction_reason="neighbour")) == "Retracted: neighbour"
    assert note_of(kept(observation(failure=Failure(phase=Phase.GRAPH_CAPTURE)))) == "Failed in phase graph capture"


def test_a_comparison_puts_first_what_differs() -> None:
    """Only flags that differ are in the first table; measured changes have their sign and unit."""
    second = observation(2, 0.94, 218_484, measurements=Measurements(pool_tokens=218_484, free_at_ready_gib=4.2))
    found = compare(kept(observation(1, 0.92)), kept(second))
    assert [(row.name, row.first, row.second, row.change) for row in found.differing] == [
        ("mem_fraction_static", "0.92", "0.94", "+0.02")
    ]
    assert {row.name for row in found.same} == {"context_length", "max_running_requests"}
    assert [row.change for row in found.measured] == ["+118,484 tokens", "−1.3 GiB", ""]


def test_a_flag_that_one_start_does_not_know_differs() -> None:
    """Unset is blank, which is not unknown: a flag that is missing on one side is said to be not known."""
    found = compare(kept(observation(flags={"a": None})), kept(observation(2, flags={})))
    assert [(row.first, row.second) for row in found.differing] == [("", "not known")]


def test_the_page_of_a_start_says_where_values_come_from() -> None:
    """Source, use in the fit and its reason are told."""
    view = observation_view(kept(observation(source="log")), [summary()])
    assert (view.source, view.fit_use, view.fit_reason) == (
        "the engine's log",
        "a point on the line",
        "a start that became ready",
    )
    gone = observation_view(kept(observation(), retracted_at=NOON, retraction_reason="x"), [summary()])
    assert gone.fit_use == "left out"


def test_free_memory_is_drawn_through_the_start() -> None:
    """Bars run from before load to the lowest point of each prompt, in proportion; one figure alone draws nothing."""
    measured = Measurements(free_before_load_gib=90.0, free_at_ready_gib=4.5)
    steps = memory_steps(measured, (PASSED,))
    assert [step.gib for step in steps] == ["90 GiB", "4.5 GiB", "5.4 GiB", "2.7 GiB"]
    assert [step.share for step in steps] == [100.0, 5.0, 6.0, 3.0]
    assert memory_steps(Measurements(free_at_ready_gib=4.5), ()) == ()


def test_a_wrong_answer_is_shown_beside_the_right_one() -> None:
    """The expected answer is only said where the received one differs."""
    view = observation_view(kept(observation(verifications=(PASSED, FAILED))), [])
    assert [row.answer for row in view.verifications] == ["—", "crane (expected heron)"]
    assert view.verifications[0].prompt_need == "2.8 GiB"


BOUND = Measurements(free_before_load_gib=90.0, free_at_ready_gib=10.37, free_at_pool_end_gib=10.37)


def test_an_upper_bound_is_marked_wherever_it_is_shown() -> None:
    """Free memory read at pool end, before graphs, is at most that: in the history, the list, on the start's page."""
    start = kept(observation(measurements=BOUND, verifications=(PASSED,)))
    row, view = start_row(start), observation_view(start, [])
    assert (row.free_at_ready, row.is_bound) == ("≤ 10.37", True)
    shown = dict(view.measurements)
    assert shown["Free memory at ready"] == "≤ 10.37 GiB (at pool end, before graphs: an upper bound)"
    assert "at ready" not in {step.moment for step in view.memory}
    assert view.verifications[0].prompt_need == "≤ 7.67 GiB"
    pair = Pair(id=UUID(int=9), hardware=HARDWARE, model=observation().model, created_at=NOON)
    assert pair_row(pair_out(pair), start, [summary()], 0).free_at_ready == "≤ 10.37"


def test_no_difference_is_taken_from_an_upper_bound_without_saying_so() -> None:
    """From a bound the change is at least so much, to a bound at most, and between two bounds it is not known."""
    bound, other = kept(observation(measurements=BOUND)), replace(BOUND, free_at_ready_gib=9, free_at_pool_end_gib=9)
    point = kept(observation(2, measurements=Measurements(free_at_ready_gib=6.1)))

    def change(first: ObservationOut, second: ObservationOut) -> str:
        rows = {row.name: row.change for row in compare(first, second).measured}
        return rows["Free memory at ready"]

    assert (change(bound, point), change(point, bound)) == ("≥ −4.27 GiB", "≤ +4.27 GiB")
    assert change(bound, kept(observation(3, measurements=other))) == ""


@pytest.mark.parametrize(("seconds", "text"), [(None, "—"), (0.0, "0"), (2.0, "< 0.1"), (360.0, "6")])
def test_a_start_that_took_seconds_took_some_time(seconds: float | None, text: str) -> None:
    """A start-up of a few seconds never reads as no minutes."""
    assert minutes_text(seconds) == text


def test_a_failure_is_told_as_far_as_it_is_known() -> None:
    """Only known facts of a failure are listed, the phase always."""
    failure = Failure(phase=Phase.POOL, minimum_fraction=0.77)
    view = observation_view(kept(observation(outcome=Outcome.REFUSED, failure=failure)), [])
    assert view.failure == (("Phase", "pool"), ("Smallest fraction, as the engine said", "0.77"))


@pytest.mark.parametrize("name", [field.name for field in fields(Measurements)])
def test_every_measurement_has_words_and_a_unit(name: str) -> None:
    """Whatever a log told is shown on the start's page and in a comparison, with its unit."""
    one = kept(observation(measurements=Measurements(pool_tokens=100_000)))
    other = kept(observation(2, measurements=replace(Measurements(pool_tokens=100_000), **{name: 5})))
    shown = dict(observation_view(other, []).measurements)
    assert all(text.endswith((" GiB", " tokens", " s")) for text in shown.values())
    assert compare(one, other)


@pytest.mark.parametrize("name", [field.name for field in fields(Failure) if field.name != "phase"])
def test_every_fact_of_a_failure_is_shown(name: str) -> None:
    """Cause, figures and words of a failure are all on the start's page."""
    given = {"cause": Cause.HOST_MEMORY, "message": "out of memory"}
    failure = replace(Failure(phase=Phase.SERVING), **{name: given.get(name, 5)})
    view = observation_view(kept(observation(outcome=Outcome.OOM_RUNTIME, failure=failure)), [])
    assert len(view.failure) == 2


def test_a_pair_shouts_only_what_someone_should_look_at() -> None:
    """Drift comes first, each label once; what the count of failures says already is left out."""
    fits = [summary(labels=("confounded", "oom_startup")), summary(labels=("drift", "capped"))]
    assert alerts_of(fits) == ("drift", "confounded")
    assert [(label.word, label.is_loud) for label in labels_of(fits[1])] == [("drift", True), ("capped", False)]
    assert [(label.word, label.is_loud) for label in labels_of(fits[0])] == [("confounded", True)]


@pytest.mark.parametrize("label", sorted(set(Label) - QUIET))
def test_every_label_is_explained(label: Label) -> None:
    """What a fit is marked with has a sentence that says what it means."""
    (shown,) = labels_of(summary(labels=(label.value,)))
    assert shown.meaning.endswith(".")


def test_starts_whose_times_look_alike_are_told_apart() -> None:
    """Two starts within one second have the end of their id beside the time; others have not."""
    one, other = (kept(observation(number, observed_at=NOON + timedelta(milliseconds=number))) for number in (1, 2))
    rows = told_apart([start_row(one), start_row(other), start_row(kept(observation(3)))])
    assert [row.tail for row in rows] == ["000001", "000002", ""]


def test_of_many_prompts_and_changes_the_newest_are_shown() -> None:
    """A start's page does not grow with its verifications' bars or its corrections."""
    proofs = tuple(replace(PASSED, prompt_tokens=1_000 + number, lowest_free_gib=2.0) for number in range(40))
    start = kept(observation(verifications=proofs))
    entry = HistoryEntryOut(at=NOON, action="correction", actor="a", reason=None, changes=[])
    view = observation_view(msgspec.structs.replace(start, history=[entry] * 60), [])
    assert (view.older_prompts, view.older_changes, len(view.history)) == (28, 10, 50)
    assert view.memory[-1].moment == "lowest during the prompt of 1,039 tokens"
    assert len(view.memory) == 1 + 2 * 12


@pytest.mark.parametrize(("count", "text"), [(0, "0 tokens"), (1, "1 token"), (10**15, "1,000,000,000,000,000 tokens")])
def test_a_count_of_tokens_has_its_word(count: int, text: str) -> None:
    """One token is not plural."""
    assert token_count(count) == text


def test_a_pair_without_a_start_left_is_still_listed() -> None:
    """A pair whose starts are all retracted shows dashes, not an error."""
    pair = Pair(id=UUID(int=9), hardware=HARDWARE, model=observation().model, created_at=NOON)
    row = pair_row(pair_out(pair), None, [], 0)
    assert (row.pool_tokens, row.last_outcome, row.starts) == ("—", None, "0 starts")
    full = pair_row(pair_out(pair), kept(observation()), [summary()], 2)
    assert (full.hardware, full.fraction, full.failures) == ("8 × NVIDIA H200", "0.9", "2 failures")
    assert memory_text(HARDWARE) == "139.72 GiB per GPU"
