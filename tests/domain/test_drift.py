"""What changed between two versions: both lines at one fraction and the same flags, deployment by deployment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.test_versions import HISTORY, NEW, OLD, kimi, on_line
from kvyield_server.domain.answers import Drift
from kvyield_server.domain.facts.observation import Measurements, Observation
from kvyield_server.domain.model.drift import drifts
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

SLOPE = 1_303_889
ZERO = 0.77244


def found(*starts: Observation) -> list[Drift]:
    return list(drifts(fit_pair(PairEvidence(tuple(starts)))))


def newer(position: int, fraction: float, slope: float = SLOPE, free: float = 0.0) -> Observation:
    """Return a start of the new version on a line of its own."""
    start = kimi(position, fraction, round(slope * (fraction - ZERO)), NEW)
    measured = start.measurements
    gib = (measured.free_at_ready_gib or 0.0) + free
    return replace(start, measurements=replace(measured, free_at_ready_gib=gib))


def test_a_smaller_pool_is_told_in_tokens_with_its_interval() -> None:
    """A pool 2 % smaller and 0.8 GiB less free memory are found at the running fraction, and per 0.01."""
    later = [newer(9 + index, fraction, 0.98 * SLOPE, -0.8) for index, fraction in enumerate((0.86, 0.9, 0.94))]
    (change,) = found(*HISTORY, *later)
    lost = 0.02 * SLOPE * (0.94 - ZERO)
    assert (change.from_version, change.to_version, change.fraction) == (OLD, NEW, 0.94)
    assert (change.from_starts, change.to_starts) == (3, 3)
    assert change.pool_tokens == pytest.approx(-lost, rel=0.02)
    assert change.pool_low is not None
    assert change.pool_high is not None
    assert change.pool_low < -lost < change.pool_high < 0
    assert change.from_slope_tokens == pytest.approx(SLOPE / 100, rel=0.001)
    assert change.to_slope_tokens == pytest.approx(0.98 * SLOPE / 100, rel=0.001)
    assert change.free_gib == pytest.approx(-0.8, abs=0.1)
    assert change.from_slope_gib == pytest.approx(0.89, abs=0.02)
    assert change.deployment == "SGLang, TP 8, DFLASH"


def test_an_upgrade_that_changes_nothing_is_no_change() -> None:
    """Where the new version lies on the old line, the interval of the change includes zero."""
    (change,) = found(*HISTORY, *(newer(9 + index, fraction) for index, fraction in enumerate((0.86, 0.94))))
    assert change.pool_low is not None
    assert change.pool_high is not None
    assert change.pool_low <= 0 <= change.pool_high


def test_the_older_version_comes_first_however_late_it_ran() -> None:
    """Going back to the old version makes no new direction: versions are ordered by number, not by time."""
    (change,) = found(newer(1, 0.86, 0.98 * SLOPE), newer(2, 0.94, 0.98 * SLOPE), on_line(8, 0.88), on_line(9, 0.92))
    assert (change.from_version, change.to_version) == (OLD, NEW)
    assert change.pool_tokens is not None
    assert change.pool_tokens < 0


def test_versions_that_differ_in_more_are_not_compared() -> None:
    """Another layout under the new version is another deployment, not drift."""
    other = [replace(start, flags={**start.flags, "tp_size": 4}) for start in (newer(9, 0.86), newer(10, 0.94))]
    assert found(*HISTORY, *other) == []
    assert found(*HISTORY) == []


def test_what_is_not_known_of_one_version_is_not_compared() -> None:
    """Free memory that one version never measured has no change where nothing tells it; a refusal has no pool."""
    dead = replace(newer(9, 0.94), measurements=Measurements(pool_tokens=None))
    for change in found(*HISTORY, dead):
        assert change.to_starts == 0
        assert change.pool_low is None or change.pool_high is None or change.pool_low <= 0 <= change.pool_high
