"""The Bayesian straight line: known answers, priors, robustness and honest widths."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from kvyield_server.domain.legacy.regression import (
    Anchor,
    SlopePrior,
    fit_line,
    interval_half_width,
    line_from_prior,
)
from kvyield_server.domain.legacy.straight_line import Points


def points(x: list[float], y: list[float], sd: float = 1.0) -> Points:
    return Points(np.array(x), np.array(y), np.full(len(x), sd))


def test_no_point_gives_no_line() -> None:
    """Nothing measured is not fitted."""
    assert fit_line(points([], []), SlopePrior(1.0, 1.0), None) is None


def test_one_point_without_prior_answers_for_itself_alone() -> None:
    """A flat prior predicts the same abscissa and no other."""
    fit = fit_line(points([0.5], [100.0]), None, None)
    assert fit is not None
    assert fit.at(0.6, 1.0) is None
    here = fit.at(0.5, 1.0)
    assert here is not None
    assert here.loc == 100.0
    assert fit.slope_estimate() is None
    assert fit.zero_crossing() is None


def test_one_point_with_a_slope_widens_with_distance() -> None:
    """The prediction's variance is noise twice over plus the slope's doubt times distance, squared."""
    fit = fit_line(points([0.5], [100.0]), SlopePrior(1000.0, 10.0), None)
    assert fit is not None
    ahead = fit.at(0.7, 1.0)
    assert ahead is not None
    assert ahead.loc == pytest.approx(300.0)
    assert ahead.scale == pytest.approx((2.0 + 4.0) ** 0.5)


def test_one_point_and_a_zero_crossing_make_a_line() -> None:
    """Without any slope prior, the crossing and the point give the chord between them."""
    fit = fit_line(points([0.5], [100.0]), None, Anchor(0.4, 0.0001))
    assert fit is not None
    ahead = fit.at(0.6, 1.0)
    assert ahead is not None
    assert ahead.loc == pytest.approx(200.0, rel=1e-6)
    zero = fit.zero_crossing()
    assert zero is not None
    assert zero.loc == pytest.approx(0.4, abs=1e-6)


def test_two_far_points_overrule_a_wrong_prior() -> None:
    """The medians follow the points; the interval still knows of the prior's doubt."""
    fit = fit_line(points([0.5, 0.6], [100.0, 200.0]), SlopePrior(1010.0, 5.0), None)
    assert fit is not None
    ahead = fit.at(0.9, 1.0)
    assert ahead is not None
    assert ahead.loc == pytest.approx(500.0)
    assert fit.believed.slope == pytest.approx(1008.9, abs=0.1)


def test_close_points_leave_the_slope_to_the_prior() -> None:
    """Two points 0.005 apart do not pin the slope by themselves."""
    fit = fit_line(points([0.5, 0.505], [100.0, 110.0]), SlopePrior(1000.0, 10.0), None)
    assert fit is not None
    assert fit.line.slope == pytest.approx(1000.0, abs=5.0)


def test_agreeing_repeats_tighten_the_noise_and_scattered_ones_widen_it() -> None:
    """The learned noise factor falls below its prior with exact repeats and rises with scatter."""
    x = [0.5, 0.6, 0.7, 0.8, 0.9]
    exact = fit_line(points(x, [1000 * f for f in x]), None, None)
    scattered = fit_line(points(x, [1000 * f + e for f, e in zip(x, (3, -3, 3, -3, 3), strict=True)]), None, None)
    assert exact is not None
    assert scattered is not None
    assert exact.tau2 < 1.0 < scattered.tau2


def test_a_far_point_loses_its_weight_from_four_points_on() -> None:
    """One point fifty standard deviations off does not move the others' line."""
    x = [0.5, 0.6, 0.7, 0.8, 0.9]
    y = [1000 * f for f in x]
    y[2] += 50.0
    fit = fit_line(points(x, y), None, None)
    assert fit is not None
    assert fit.weights[2] < 1e-3
    assert fit.line.slope == pytest.approx(1000.0, abs=0.01)


def test_the_prior_alone_is_a_line() -> None:
    """Slope and crossing give a prediction with normal tails before any start."""
    fit = line_from_prior(SlopePrior(1000.0, 100.0), Anchor(0.4, 0.01))
    ahead = fit.at(0.9, 0.0)
    assert ahead is not None
    assert ahead.loc == pytest.approx(500.0)
    assert ahead.scale == pytest.approx((10.0**2 + 50.0**2) ** 0.5)
    assert ahead.df == inf
    assert interval_half_width(ahead) == pytest.approx(1.645 * ahead.scale, rel=1e-3)
