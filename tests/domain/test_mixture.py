"""Mixtures of normals: quantiles, tails and caps against draws."""

from __future__ import annotations

import numpy as np
import pytest

from kvyield_server.domain.model.mixture import Mixture, fixed


def mixed() -> tuple[Mixture, np.ndarray]:
    """Return a skewed mixture at two fractions, and a million draws of the first."""
    mean, sd = np.array([[10.0, 20.0], [14.0, 24.0]]), np.array([[1.0, 2.0], [3.0, 1.0]])
    weight = np.array([[0.7, 0.5], [0.3, 0.5]])
    random = np.random.default_rng(7)
    which = random.random(1_000_000) < 0.7
    draws = np.where(which, random.normal(10.0, 1.0, which.size), random.normal(14.0, 3.0, which.size))
    return Mixture(mean=mean, sd=sd, weight=weight), draws


@pytest.mark.parametrize("share", [0.025, 0.25, 0.5, 0.9, 0.975])
def test_quantiles_are_those_of_draws(share: float) -> None:
    quantity, draws = mixed()
    expected = float(np.quantile(draws, share))
    assert float(quantity.quantile(share)[0]) == pytest.approx(expected, abs=0.02)
    assert quantity.quantiles(0, (share,))[0] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("threshold", [8.0, 10.0, 13.0, 18.0])
def test_chances_are_those_of_draws(threshold: float) -> None:
    quantity, draws = mixed()
    assert float(quantity.above(threshold)[0]) == pytest.approx(float(np.mean(draws >= threshold)), abs=0.002)


def test_the_central_interval_holds_its_level() -> None:
    quantity, draws = mixed()
    for level in (0.5, 0.9, 0.95):
        estimate = quantity.estimate(0, level)
        held = float(np.mean((draws >= estimate.low) & (draws <= estimate.high)))
        assert held == pytest.approx(level, abs=0.003)


def test_a_cap_acts_in_chances_and_quantiles() -> None:
    quantity, _ = mixed()
    capped = Mixture(mean=quantity.mean, sd=quantity.sd, weight=quantity.weight, ceiling=11.0)
    assert float(capped.above(11.5)[0]) == 0.0
    assert float(capped.above(9.0)[0]) == pytest.approx(float(quantity.above(9.0)[0]))
    assert capped.estimate(0).high == 11.0


def test_pages_round_down_and_never_below_nothing() -> None:
    assert fixed(1_000.0, 1, page=64).estimate().median == 960.0
    assert fixed(-5.0, 1, page=64).estimate().low == 0.0
