"""The Bayesian line: known answers, priors that are right or wrong, robustness and honest widths."""

from __future__ import annotations

from math import log, nan

import numpy as np
import pytest

from kvyield_server.domain.model.line import (
    GIB,
    Hypothesis,
    LinePosterior,
    LinePrior,
    NoiseScales,
    Normal,
    Points,
    fit_line,
)

SCALES = NoiseScales(
    relative=(0.0, 1e-4, 1e-3, 1e-2, 0.1),
    boot=(0.1, 0.3, 1.0, 2.0, 4.0),
    weight=(0.4, 0.3, 0.2, 0.08, 0.02),
    usual=5e-4,
)
BASE, WEIGHTS, PRICE = 80.0, 40.0, 65_536.0
SLOPE = BASE * GIB / PRICE
FLAT = LinePrior(base=Normal(BASE, 1e4), weights=Normal(WEIGHTS, 1e4), cost=Normal(log(PRICE), 3.0))
SURE = LinePrior(base=Normal(BASE, 0.05), weights=Normal(WEIGHTS, 0.05), cost=Normal(log(PRICE), 0.003))


def on(x: list[float], factors: list[float] | None = None) -> Points:
    """Return points on the line of SURE, each off by its factor."""
    at = np.array(x)
    tokens = SLOPE * (at - WEIGHTS / BASE) * np.array(factors or [1.0] * len(x))
    return Points(x=at, tokens=tokens, gib=np.full(len(x), nan), page_sd=0.3, print_sd=0.003)


def at(line: LinePosterior, x: float) -> tuple[float, float]:
    """Return mean and standard deviation of a further start's pool at x."""
    mean, sd, weight = line.tokens(np.array([x]))
    middle = float((weight * mean).sum())
    return middle, float(np.sqrt((weight * (sd**2 + (mean - middle) ** 2)).sum()))


def test_the_prior_alone_is_a_line() -> None:
    """Memory, weights and price give the pool before any start, as wide as they are doubtful."""
    mean, sd = at(fit_line(on([]), SURE, SCALES), 0.9)
    truth = SLOPE * (0.9 - 0.5)
    assert mean == pytest.approx(truth, rel=0.001)
    known = truth * float(np.hypot(0.003, 0.05 * np.hypot(0.9, 1.0) / 32.0))
    assert known < sd < truth * 0.015


def test_two_points_make_the_line_without_any_prior() -> None:
    """Between and beyond them the prediction is the chord, to what their scatter may be."""
    line = fit_line(on([0.7, 0.9]), FLAT, SCALES)
    for x in (0.75, 0.85, 0.95):
        assert at(line, x)[0] == pytest.approx(SLOPE * (x - 0.5), rel=0.01)


def test_one_point_without_a_prior_answers_for_itself_alone() -> None:
    line = fit_line(on([0.9]), FLAT, SCALES)
    own, elsewhere = at(line, 0.9), at(line, 0.7)
    assert own[0] == pytest.approx(SLOPE * 0.4, rel=1e-3)
    assert own[1] < 0.05 * own[0]
    assert elsewhere[1] > 0.2 * own[0]


def test_one_point_widens_with_distance() -> None:
    line = fit_line(on([0.9]), SURE, SCALES)
    near, middle, far = (at(line, x)[1] / (x - 0.5) for x in (0.9, 0.8, 0.6))
    assert near < middle < far


def test_far_points_overrule_a_wrong_price() -> None:
    """A price 5 % off, stated to 0.3 %, gives way to points 0.2 apart, since stated figures may be wrong."""
    wrong = LinePrior(
        base=Normal(BASE, 0.05),
        weights=Normal(WEIGHTS, 0.05),
        cost=Normal(log(PRICE * 1.05), 0.003),
        hypotheses=(Hypothesis("sound", 0.97), Hypothesis("cost", 0.03, cost_sd=0.5)),
    )
    line = fit_line(on([0.7, 0.8, 0.9]), wrong, SCALES)
    assert at(line, 0.95)[0] == pytest.approx(SLOPE * 0.45, rel=2e-3)
    assert line.sound < 0.2


def test_repeats_that_scatter_widen_and_repeats_that_agree_narrow() -> None:
    agreeing = fit_line(on([0.7, 0.8, 0.8, 0.9]), SURE, SCALES)
    scattered = fit_line(on([0.7, 0.8, 0.8, 0.9], [1.0, 1.01, 0.99, 1.0]), SURE, SCALES)
    assert at(scattered, 0.85)[1] > 10 * at(agreeing, 0.85)[1]


def test_a_printed_figure_in_gib_places_the_line() -> None:
    """Without tokens the line is told in GiB, to the rounding of the print."""
    x = np.array([0.8, 0.9])
    points = Points(x=x, tokens=np.full(2, nan), gib=BASE * x - WEIGHTS, page_sd=0.3, print_sd=0.003)
    mean, sd, weight = fit_line(points, FLAT, SCALES).gib(np.array([0.95]))
    assert float((weight * mean).sum()) == pytest.approx(BASE * 0.95 - WEIGHTS, abs=0.01)
    assert float((weight * sd).sum()) < 1.0


def test_a_bound_moves_only_what_it_contradicts() -> None:
    """A report that the pool at 0.9 is below what the line says pulls it down, and one far above says nothing."""
    line = fit_line(on([]), SURE, SCALES)
    row = np.array([1.0, 0.9, 0.0, 0.0])
    mean, sd = at(line, 0.9)
    assert at(line.below(row, mean + 8 * sd, 1.0, trust=0.9), 0.9)[0] == pytest.approx(mean, rel=1e-6)
    assert at(line.below(row, mean - 0.5 * sd, 1.0, trust=0.9), 0.9)[0] < mean - 0.05 * sd


def test_no_component_falls_with_the_fraction() -> None:
    """Points that fall give a flat line, never a falling one."""
    falling = Points(
        x=np.array([0.8, 0.9]),
        tokens=np.array([500_000.0, 300_000.0]),
        gib=np.full(2, nan),
        page_sd=0.3,
        print_sd=0.003,
    )
    mean, _, _ = fit_line(falling, FLAT, SCALES).tokens(np.linspace(0.1, 1.0, 50))
    assert (np.diff(mean, axis=1) >= -1e-6).all()


def test_a_straight_line_is_recovered_among_half_a_thousand_starts() -> None:
    random = np.random.default_rng(1)
    x = random.uniform(0.55, 0.95, 500)
    tokens = SLOPE * (x - 0.5) * (1.0 + 1e-3 * random.standard_normal(500))
    points = Points(x=x, tokens=tokens, gib=np.full(500, nan), page_sd=0.3, print_sd=0.003)
    line = fit_line(points, FLAT, SCALES)
    assert float(line.moments()[0][1]) == pytest.approx(SLOPE, rel=1e-3)


def test_a_start_off_the_line_tells_scatter_only_as_far_as_boots_scatter() -> None:
    """Three thousandths off is what boots may do, so that all are believed less firmly; a fifth has another cause."""
    line = fit_line(on([0.6, 0.7, 0.8, 0.9], [1.0005, 0.9996, 1.0005, 0.9995]), FLAT, SCALES)
    here = SLOPE * (0.75 - WEIGHTS / BASE)

    def width(off: float) -> float:
        return at(line.beside(np.array([0.75]), np.array([here * (1.0 + off)])), 0.85)[1]

    assert width(0.003) > 1.5 * width(0.0)
    assert width(-0.003) > 1.5 * width(0.0)
    assert width(0.2) < 1.3 * at(line, 0.85)[1]
