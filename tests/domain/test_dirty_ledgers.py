"""Ledgers that something spoiled, simulated: the rules hold, and an `ok` is one."""

from __future__ import annotations

import pytest

from domain.dirty_tally import tally
from domain.dirty_world import dirty_world


@pytest.mark.parametrize("ledgers", [40, pytest.param(2_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])])
def test_advice_on_spoiled_ledgers_holds(ledgers: int) -> None:
    """No rule is broken, errors and intervals are honest, and what is `ok` succeeds at the first restart."""
    found = tally((seed, dirty_world(seed)) for seed in range(ledgers))
    assert found.broken == []
    assert found.median_error <= 0.001
    assert found.coverage >= 0.85
    assert found.success >= 0.90
    assert found.success >= found.stated - (0.02 if ledgers > 500 else 0.08)
    assert found.share_ok >= 0.60
