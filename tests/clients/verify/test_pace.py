"""How long a prompt will take, and the lengths of a ramp."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvyield.verify._pace import estimate_seconds, ramp


def test_one_prompt_scales_with_the_length() -> None:
    """60,010 tokens in 45.9 s make 200,000 tokens about 153 s."""
    assert estimate_seconds([(60_010, 45.9)], 200_000) == pytest.approx(153, abs=0.1)


@settings(deadline=None)
@given(st.floats(1e-6, 1e-3), st.floats(0, 1e-8))
def test_a_slowdown_with_length_is_learned_from_two_prompts(linear: float, square: float) -> None:
    """Times that grow with the square of the length are told exactly from two lengths."""
    measured = [(n, linear * n + square * n * n) for n in (2_000, 32_768)]
    assert estimate_seconds(measured, 200_000) == pytest.approx(linear * 200_000 + square * 4e10, rel=1e-3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e4)), min_size=1, max_size=6), st.integers(1, 10**6))
def test_an_estimate_is_never_negative(measured: list[tuple[int, float]], tokens: int) -> None:
    """Whatever was measured, a longer prompt is not estimated to take no time."""
    seconds = estimate_seconds(measured, tokens)
    assert seconds is not None
    assert 0 < seconds < estimate_seconds(measured, 2 * tokens)  # type: ignore[operator]  # measured is not empty


def test_nothing_measured_gives_no_estimate() -> None:
    """Without a measured prompt the time is unknown, not zero."""
    assert estimate_seconds([], 1000) is None


@pytest.mark.parametrize(
    ("target", "steps"),
    [(200_000, [32_768, 65_536, 131_072, 200_000]), (65_536, [32_768, 65_536]), (32_768, [32_768]), (500, [500])],
)
def test_a_ramp_doubles_up_to_the_target(target: int, steps: list[int]) -> None:
    """A ramp begins at 32,768 tokens and ends at the target itself."""
    assert ramp(target) == steps
