"""What the plots draw: all lines, and as many starts as a screen can tell apart."""

from __future__ import annotations

from kvyield_server.domain.facts.observation import Measurements, Outcome
from kvyield_server.pages.views.plot import fractions, line_view, starts_view, thinned
from pages.values import observation, prediction


def test_few_starts_are_all_drawn() -> None:
    """Nothing is thinned out, and nothing is said of it, while all starts fit."""
    shown = starts_view([observation(number) for number in range(1, 6)], most=5)
    assert (shown.shown, shown.total, shown.is_thinned) == (5, 5, False)


def test_many_starts_are_thinned_to_those_that_look_different() -> None:
    """Ten thousand starts become at most as many as asked; each fraction and each outcome stays visible."""
    starts = [
        observation(
            number,
            fraction=round(0.8 + number % 20 / 100, 2),
            outcome=Outcome.OOM_STARTUP if number % 1000 == 0 else Outcome.READY,
        )
        for number in range(1, 10_001)
    ]
    shown = starts_view(starts, most=100)
    assert shown.is_thinned
    assert shown.shown <= 100
    assert {item["fraction"] for item in shown.data} == {round(0.8 + step / 100, 2) for step in range(20)}
    assert shown.outcomes == (Outcome.READY, Outcome.OOM_STARTUP)


def test_of_starts_that_look_alike_the_newest_stays() -> None:
    """A dot leads to the newest start that it stands for."""
    starts = [observation(number) for number in range(1, 50)]
    assert [start.id.int for start in thinned(starts, 10)] == [49]


def test_the_lines_reach_all_that_must_be_seen() -> None:
    """The fractions cover the starts, the advised fraction and the window, and stay between 0 and 1."""
    along = fractions([observation(1, 0.9), observation(2, None)], [0.31, 0.97, None, True], 11)
    assert (along[0], along[-1], len(along)) == (0.26, 0.999, 13)
    assert {0.31, 0.97} < set(along)
    assert along == sorted(along)
    assert fractions([], [], 3) == [0.45, 0.7, 0.95]


def test_counts_of_blocks_have_an_axis_of_their_own() -> None:
    """LMDeploy's counts reach as far as what is advised, and no fraction is among them; nor a count among fractions."""
    starts = [observation(1, 0.7), observation(2, 2000.0), observation(3, None)]
    along = fractions(starts, [2000, 4782], 21)
    assert (along[0], along[-1]) == (1600.0, 5260.0)
    assert {2000.0, 4782.0} < set(along)
    assert all(each == int(each) for each in along)
    assert max(fractions(starts, [0.7], 21)) < 1
    assert fractions([observation(1, 1.5)], [1.2], 3)[0] == 1.0


def test_a_count_is_written_as_one_types_it() -> None:
    """A flag's value has no commas, also where it is a count in the thousands."""
    assert [row.fraction for row in line_view([(4782.0, prediction(1, 1.0))]).rows] == ["4782"]


def test_the_table_says_what_the_lines_draw() -> None:
    """Each line of the table holds the plot's own figures, with units; unknown ones are dashes."""
    view = line_view([(0.9, prediction(100_000, 6.0)), (0.95, prediction(None, None))])
    first, second = view.rows
    assert (first.fraction, first.pool, first.pool_span) == ("0.9", "100,000", "99,000 to 101,000")
    assert (first.free, first.free_span) == ("6 GiB", "5.9 to 6.1")
    assert (second.pool, second.free) == ("—", "—")
    assert view.data["pool"]["median"] == [100_000, None]


def test_the_table_leaves_out_no_fraction_that_is_told() -> None:
    """The advised and the running fraction are rows of the table, with the figures that the plots have there."""
    points = [(round(0.5 + step / 1000, 3), prediction(100_000 + step, 5.5)) for step in range(100)]
    view = line_view(points, (0.501, 0.598, None))
    assert {"0.501", "0.598"} <= {row.fraction for row in view.rows}
    assert [row.fraction for row in view.rows] == sorted(row.fraction for row in view.rows)


def test_an_upper_bound_has_a_mark_of_its_own() -> None:
    """Free memory that was read at pool end is told to the plots as a bound, and the legend is told of it."""
    bound = observation(1, measurements=Measurements(free_at_ready_gib=10.37, free_at_pool_end_gib=10.37))
    shown = starts_view([bound, observation(2)])
    assert ([item["bound"] for item in shown.data], shown.has_bounds) == ([True, False], True)
    assert not starts_view([observation(2)]).has_bounds


def test_a_line_that_nothing_is_known_of_is_not_drawn() -> None:
    """Without any estimate there is no band at all."""
    assert line_view([(0.9, prediction(None, 5.5))]).data["pool"] is None


def test_a_start_without_a_pool_keeps_its_place_on_the_axis() -> None:
    """A refused start has a fraction and no pool; it is drawn, not dropped."""
    refused = observation(1, outcome=Outcome.REFUSED, measurements=Measurements())
    (drawn,) = starts_view([refused]).data
    assert (drawn["fraction"], drawn["pool"], drawn["word"]) == (0.9, None, "refused")
