"""The advice in words: what to restart with comes first, and nothing is claimed that the advice does not hold."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kvyield_server.domain.answers import (
    AdvicePrediction,
    Caution,
    Change,
    Estimate,
    Headline,
    HeadlineCode,
    Lever,
    Probability,
    RestartPlan,
    Status,
)
from kvyield_server.pages.views.advice import AdviceView, advice_view
from kvyield_server.pages.views.plot import nothing_asked, overlay
from kvyield_server.schemas.common import EstimateOut
from kvyield_server.schemas.recommendations import advice_out
from pages.values import advice, window

PAIR = UUID(int=9)


def line(code: str) -> Headline:
    return Headline(code=HeadlineCode(code), estimate=False, text="As it is.")


def view(texts: dict[str, str] | None = None, **changes: Any) -> AdviceView:
    return advice_view(advice_out(advice(**changes), PAIR), target_tokens=200_000, texts=texts or {})


def test_the_worked_case_reads_as_it_is() -> None:
    """Flags, figures with units, intervals and probabilities of the worked case are all said."""
    shown = view({"args": "--mem-fraction-static 0.926", "systemd": "[Service]"})
    pool, free, headroom = shown.figures
    assert (shown.heading, shown.status_word) == ("Restart with, then verify", "at risk")
    assert (pool.value, pool.span, pool.note) == (
        "200,225 tokens",
        "200,144 to 200,306",
        "holds the target: > 99.9 %",
    )
    assert (free.value, free.span) == ("5.5 GiB", "5.2 to 5.8")
    assert (headroom.span, headroom.note) == ("−2.6 to 4.4", "survives 200,000 tokens: 84 %")
    assert (shown.restarts, shown.minutes, shown.verification) == ("1.2", "7.2 min", "2 min 33 s")
    assert [key for key, _, _ in shown.texts] == ["args", "systemd"]


@pytest.mark.parametrize(
    ("changes", "heading"),
    [
        ({"status": Status.OK, "window": window(0.92, 0.94)}, "Restart with"),
        ({"status": Status.OK, "headline": line("keep")}, "Keep what runs"),
        ({"status": Status.AT_RISK, "headline": line("keep")}, "Keep what runs, then verify"),
        ({"status": Status.INFEASIBLE, "flags": {}}, "No fraction holds this target"),
        ({"status": Status.NOT_ENOUGH_EVIDENCE, "flags": {}}, "Not enough evidence for advice"),
    ],
)
def test_each_status_has_its_own_heading(changes: dict[str, Any], heading: str) -> None:
    """A reader knows from the heading whether to restart, to stay, or that there is no advice."""
    assert view(**changes).heading == heading


def test_an_infeasible_target_names_what_stands_in_the_way() -> None:
    """The binding constraint is said in plain words."""
    shown = view(status=Status.INFEASIBLE, binding_constraint="free_memory")
    assert shown.summary == "Binding constraint: free memory."


def test_what_is_not_predicted_is_a_dash() -> None:
    """Without evidence there are no figures, no probabilities and no window; one unknown figure is a dash."""
    shown = view(status=Status.NOT_ENOUGH_EVIDENCE, prediction=AdvicePrediction(), probability=None, restarts=None)
    assert (shown.figures, shown.restarts, shown.minutes, shown.window) == ((), "—", "", "not known")
    pool = Estimate(median=1, low=0, high=2)
    shown = view(prediction=AdvicePrediction(pool_tokens=pool), probability=None)
    assert [(figure.value, figure.note) for figure in shown.figures] == [("1 token", ""), ("—", ""), ("—", "")]


def test_what_was_measured_has_no_interval() -> None:
    """What runs is kept with its own figures, said to be measured; a narrow interval has two ends."""
    pool, free = Estimate(median=218_484, low=218_484, high=218_484), Estimate(median=10.37, low=10.37, high=10.37)
    headroom = Estimate(median=5.52, low=5.51, high=5.53)
    shown = view(prediction=AdvicePrediction(pool_tokens=pool, free_at_ready_gib=free, headroom_gib=headroom)).figures
    assert [(figure.value, figure.span) for figure in shown] == [
        ("218,484 tokens", "measured"),
        ("10.37 GiB", "measured"),
        ("5.5 GiB", "5.51 to 5.53"),
    ]


def test_an_infeasible_target_plans_no_restart() -> None:
    """Its figures are those of the nearest fraction, by name; no restart and no verification are planned."""
    shown = view(status=Status.INFEASIBLE, headline=line("infeasible"))
    assert (shown.nearest, shown.restarts, shown.verification) == ("mem_fraction_static 0.926", "—", "—")
    assert view().nearest == ""


def test_nothing_is_said_twice() -> None:
    """A warning or an explanation that the headline has already is left out."""
    warnings = (Caution(code="a", detail="As it is."), Caution(code="b", detail="Another."))
    shown = view(headline=line("keep"), warnings=warnings, explanation="As it is.")
    assert (shown.warnings, shown.explanation) == (("Another.",), "")


@pytest.mark.parametrize(
    ("expected", "minutes", "text"),
    [(0.0, 0.0, ""), (1.0, 0.04, "under a minute"), (1.0, 0.9, "under a minute"), (1.2, 7.2, "7.2 min")],
)
def test_a_restart_never_takes_no_time(expected: float, minutes: float, text: str) -> None:
    """A restart of seconds is said to take under a minute, not 0 minutes."""
    assert view(restarts=RestartPlan(expected=expected, minutes=minutes, minutes_each=minutes)).minutes == text


def test_a_certain_advice_still_reads_as_uncertain() -> None:
    """Probabilities of 1 are shown as more than 99.9 % in every place of the advice."""
    shown = view(probability=Probability(pool=1.0, memory=1.0, joint=1.0))
    assert shown.summary == "probability that pool and memory both suffice: > 99.9 %"
    assert [figure.note[-8:] for figure in shown.figures if figure.note] == ["> 99.9 %"] * 2


def test_the_headline_is_shown_as_it_is() -> None:
    """The page prints the answer's own headline."""
    assert view(headline=line("keep")).headline == "As it is."


def test_gains_of_levers_have_their_sign() -> None:
    """A lever says its flags as one would type them, and what it gains with a sign."""
    (lever,) = view().levers
    assert (lever.flags, lever.gain_gib, lever.gain_tokens) == ("--max-running-requests 4", "+0.1", "0")


def test_a_lever_that_switches_something_off_says_to_remove_it() -> None:
    """What is off is not a value on a command line: the option is to be removed, and the others are set."""
    flags = {"mem_fraction_static": 0.93, "speculative_algorithm": None, "enable_torch_compile": False}
    off = Lever(flags=flags, gain_tokens=9_000, gain_gib=1.5, joint=0.97, cost="slower decoding")
    (shown,) = view(alternatives=(off,)).levers
    assert shown.flags == "--mem-fraction-static 0.93 remove --speculative-algorithm remove --enable-torch-compile"


def test_changes_leave_blank_what_was_not_set() -> None:
    """A flag that was not set is blank before, and one that is taken out is said to be removed."""
    changes = (
        Change(flag="chunked_prefill_size", from_value=None, to_value=4096, reason="less memory"),
        Change(flag="max_total_tokens", from_value=100_000, to_value=None, reason="it caps the pool"),
    )
    assert [(row.before, row.after) for row in view(changes=changes).changes] == [("", "4096"), ("100000", "removed")]


@pytest.mark.parametrize("status", [Status.INFEASIBLE, Status.NOT_ENOUGH_EVIDENCE])
def test_nothing_is_drawn_as_advised_where_nothing_is(status: Status) -> None:
    """An infeasible answer carries the fraction that came nearest; the plots do not call it advised."""
    out = advice_out(advice(status=status, flags={"mem_fraction_static": 0.97}), PAIR)
    assert overlay(out, running=0.94, target_tokens=200_000, need=None)["advised"] is None


def test_the_window_is_named_with_its_flag() -> None:
    """A window is said with the engine's own flag; an empty one is said to be empty."""
    assert view(window=window(0.92, 0.9412)).window == "mem_fraction_static 0.92 to 0.941"
    assert view().window == "empty at this confidence"


def test_the_plots_get_what_the_advice_says() -> None:
    """Target, window, advised and running fraction and the prompt need reach the plots unchanged."""
    need = EstimateOut(median=3.0, low=1.5, high=6.0, level=0.9)
    out = advice_out(advice(window=window(0.92, 0.94)), PAIR)
    drawn = overlay(out, running=0.94, target_tokens=200_000, need=need)
    assert (drawn["target"], drawn["window"], drawn["advised"]) == (200_000, [0.92, 0.94], 0.926)
    assert (drawn["running"], drawn["need"]) == (0.94, [1.5, 3.0, 6.0])
    assert set(nothing_asked(0.94)) == set(drawn)
