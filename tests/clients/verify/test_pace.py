"""How long a prompt will take, and the lengths of a ramp."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvyield.verify._pace import PACE_TOKENS, estimate_seconds, fastest, is_suspicious, lengths_to_measure, ramp

# Runs on one H200 of 2026-11-30: tokens of each prompt, prompts at once, seconds to the last token.
DENSE = (
    *((60_000, 1, 3.4), (120_000, 1, 10.2), (8_192, 8, 1.9), (60_000, 4, 12.8), (60_000, 8, 25.2), (120_000, 6, 59.1)),
    *((100_000, 8, 57.7), (120_000, 1, 10.4), (110_000, 8, 68.4), (110_000, 1, 9.0)),  # SGLang, 8B, graphs
    *((60_000, 1, 3.9), (120_000, 1, 10.6), (60_000, 8, 25.6), (100_000, 8, 57.6), (110_000, 8, 67.8)),  # vLLM, 8B
)
LATENT = (
    *((32_768, 1, 3.1), (65_536, 1, 3.0), (120_000, 1, 6.2), (32_768, 4, 4.9)),  # SGLang, MLA, eager
    *((65_536, 1, 4.9), (120_000, 1, 6.7), (120_000, 4, 22.7)),
)
# Seconds to the first token of one prompt, by the runs above: overhead, per token, per square; then for each answer.
LAWS = {"dense": (DENSE, 0.02, 2.58e-5, 4.86e-10, 0.3), "latent": (LATENT, 0.03, 1.7e-5, 2.3e-10, 0.9)}


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


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("first_use_seconds", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("cold", [(), (8_192,), (32_768,), (8_192, 32_768)])
def test_estimates_of_real_runs_are_within_a_factor_of_two(
    law: str, first_use_seconds: float, cold: tuple[int, ...]
) -> None:
    """Three short prompts tell every run of the trial to a factor of two, also where a length's first use is slow."""
    runs, overhead, linear, square, answer_seconds = LAWS[law]

    def took(tokens: int, *, is_first: bool = False) -> float:
        compiling = first_use_seconds if is_first and tokens in cold else 0.0
        return overhead + linear * tokens + square * tokens * tokens + compiling

    for tokens, concurrent, elapsed in runs:
        measured = [(n, took(n, is_first=True)) for n in lengths_to_measure([], tokens)]
        if is_suspicious(measured):
            measured.append((measured[-1][0], took(measured[-1][0])))
        estimate = (estimate_seconds(measured, tokens, concurrent) or 0) + answer_seconds
        assert elapsed / 2 <= estimate <= 2 * elapsed, (tokens, concurrent, elapsed, estimate)


def test_what_was_measured_before_is_not_measured_again() -> None:
    """A quarter of the length is near enough; shorter ones are not, and a short prompt is told by half of itself."""
    assert lengths_to_measure([(32_768, 1.0)], 120_000) == []
    assert lengths_to_measure([(8_192, 1.0)], 120_000) == list(PACE_TOKENS)
    assert lengths_to_measure([], 40_000) == [2_048, 8_192]
    assert lengths_to_measure([], 1_000) == [500]


def test_of_one_length_the_fastest_counts() -> None:
    """Other traffic and first uses make a prompt slower, nothing makes it faster than the engine is."""
    assert fastest([(8_192, 0.7), (8_190, 0.2), (2_048, 0.1), (0, 5.0), (9, 0.0)]) == [(2_048, 0.1), (8_190, 0.2)]


def test_prompts_at_once_take_their_times_one_after_the_other() -> None:
    """Eight prompts take eight times as long as one of them."""
    assert estimate_seconds([(60_000, 3.3)], 60_000, 8) == pytest.approx(26.4)
