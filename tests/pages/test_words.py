"""Figures read well, carry their unit and never claim certainty."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kvyield_server.pages.views.words import (
    duration,
    figure,
    flag_parts,
    flag_value,
    gib,
    moment,
    percent,
    plural,
    tokens,
)


@pytest.mark.parametrize(("value", "text"), [(None, "—"), (200225.0, "200,225"), (-57500, "−57,500"), (0, "0")])
def test_tokens_are_whole_with_thousands_apart(value: float | None, text: str) -> None:
    """A count of tokens is whole, its thousands are apart, and what is not known is a dash."""
    assert tokens(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(5.5, "5.5 GiB"), (10.37, "10.37 GiB"), (-2.6, "−2.6 GiB"), (0.0, "0 GiB"), (-0.001, "0 GiB")]
)
def test_memory_has_its_unit_and_no_idle_zeros(value: float, text: str) -> None:
    """Memory is in GiB, without zeros at the end and without a negative zero."""
    assert gib(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "> 99.9 %"),
        (0.9996, "> 99.9 %"),
        (0.993, "99.3 %"),
        (0.84, "84 %"),
        (0.004, "0.4 %"),
        (0.0, "< 0.1 %"),
        (None, "—"),
    ],
)
def test_no_probability_reads_as_certain(value: float | None, text: str) -> None:
    """A probability is never shown as 0 % or 100 %, and has a decimal where that tells something."""
    assert percent(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "—"), (45.9, "45.9 s"), (153, "2 min 33 s"), (360, "6 min"), (3700, "1 h 1 min"), (7200, "2 h")],
)
def test_time_spans_use_the_two_largest_units(seconds: float | None, text: str) -> None:
    """A time span is said in at most two units, without empty ones."""
    assert duration(seconds) == text


def test_figures_that_are_not_finite_are_not_known() -> None:
    """NaN and infinities never reach a reader."""
    assert [figure(float("nan")), figure(float("inf")), figure(1234.5)] == ["—", "—", "1,234.5"]


def test_halves_go_up_as_they_do_in_the_browser() -> None:
    """Decimal halves are rounded away from zero, whatever their binary form, so that script and server agree."""
    assert [figure(value, 1) for value in (5.25, 5.35, -5.25, -0.04)] == ["5.3", "5.4", "−5.3", "0"]


def test_flags_read_as_people_say_them() -> None:
    """Not set is blank, off reads as off, and fractions keep their digits."""
    assert [flag_value(value) for value in (None, False, True, 0.926, 8, "DFLASH")] == [
        "",
        "off",
        "on",
        "0.926",
        "8",
        "DFLASH",
    ]


def test_one_thing_is_not_plural() -> None:
    """One start is a start, several are starts."""
    assert [plural(1, "start"), plural(10_000, "start")] == ["1 start", "10,000 starts"]


def test_two_starts_of_one_minute_do_not_look_alike() -> None:
    """A time has its seconds."""
    first, second = (datetime(2026, 5, 30, 22, 0, second, tzinfo=UTC) for second in (23, 51))
    assert (moment(first), moment(second)) == ("2026-05-30 22:00:23 UTC", "2026-05-30 22:00:51 UTC")
    assert moment(None) == "—"


def test_a_flag_is_not_torn_from_its_value() -> None:
    """A command line is cut before each flag only, and joined again it is the same line."""
    line = "--mem-fraction-static 0.926 --speculative-config '{\"a\": -1}' --enable-x"
    assert flag_parts(line) == ["--mem-fraction-static 0.926", "--speculative-config '{\"a\": -1}'", "--enable-x"]
    assert " ".join(flag_parts(line)) == line
    removed = "--mem-fraction-static 0.93 remove --speculative-algorithm"
    assert flag_parts(removed) == ["--mem-fraction-static 0.93", "remove --speculative-algorithm"]
