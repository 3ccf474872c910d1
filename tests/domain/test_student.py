"""Sums of a learned and a known doubt, against the sum itself."""

from __future__ import annotations

import numpy as np
import pytest

from kvyield_server.domain.legacy.student import joined


@pytest.mark.parametrize("df", [4.0, 5.5, 12.0, 400.0])
@pytest.mark.parametrize("fixed", [0.0, 0.25, 1.0, 4.0, 16.0])
def test_the_interval_of_a_sum_holds_nine_tenths_of_it(df: float, fixed: float) -> None:
    """The 90 % interval of a scaled t and a normal together holds 89.5 to 90.5 % of a million draws of their sum."""
    random = np.random.default_rng(7)
    draws = random.standard_t(df, 1_000_000) + np.sqrt(fixed) * random.standard_normal(1_000_000)
    estimate = joined(0.0, 1.0, fixed, df).estimate()
    share = float(np.mean((draws >= estimate.low) & (draws <= estimate.high)))
    assert share == pytest.approx(0.9, abs=0.005)


def test_the_parts_alone_keep_their_own_tails() -> None:
    """Only learned it is the Student-t itself, only known a normal, and nothing at all a point."""
    assert joined(1.0, 4.0, 0.0, 6.0).df == 6.0
    assert joined(1.0, 0.0, 4.0, 6.0).quantile(0.95) == pytest.approx(1.0 + 2.0 * 1.6448536)
    assert joined(1.0, 0.0, 0.0, 6.0).quantile(0.95) == 1.0
    assert joined(1.0, 1.0, 3.0, 6.0).scale == pytest.approx(2.0)
