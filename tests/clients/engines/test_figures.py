"""Of all figures that real logs hold at least 98 % are read rightly, and none is invented."""

from __future__ import annotations

from _figures import compared, figures, report_figures, tally

LEAST_RIGHT = 0.98


def test_figures_of_real_logs_are_right_and_none_is_invented():
    """Reports, public logs and the H200's starts: what is not right is named, and what is not in a log is not read."""
    found = list(figures())
    count = tally(found)
    told = count["right"] + count["wrong"] + count["missing"]
    not_right = [figure for figure in found if figure.verdict != "right"]
    assert told > 1400
    assert count["invented"] == 0, not_right
    assert count["right"] / told >= LEAST_RIGHT, not_right


def test_every_published_value_of_the_reports_is_right():
    """What was published for 25 logs of public reports is what is read of them, with the options of their readers."""
    assert [figure for figure in report_figures() if figure.verdict != "right"] == []


def test_the_verdicts_tell_what_is_wrong():
    """A value of another log is wrong, one that is not read is missing, one that no log holds is invented."""
    known = {"measurements.pool_tokens": 5, "measurements.kv_cache_gib": 4.67, "failure.phase": "pool"}
    read = {"measurements.pool_tokens": 6, "measurements.kv_cache_gib": 4.6677, "measurements.graph_gib": 0.5}
    verdicts = {figure.name: figure.verdict for figure in compared("case", known, read, closed=True)}
    assert verdicts == {
        "measurements.pool_tokens": "wrong",
        "measurements.kv_cache_gib": "right",
        "failure.phase": "missing",
        "measurements.graph_gib": "invented",
    }
