"""How long a prompt will take, from prompts that were measured."""

from __future__ import annotations

from collections.abc import Sequence

FIRST_RAMP_TOKENS = 32_768
PACE_TOKENS = (2_048, 8_192, 32_768)
"""Lengths that are measured: the shortest tells the time for each token, the longest what its square adds."""
LONGEST_SHARE = 0.75
NEAR_SHARE = 0.25
SLOWER = 1.5
"""A length whose time per token is this much above a shorter one's is measured again: a first time compiles kernels."""


def estimate_seconds(measured: Sequence[tuple[int, float]], tokens: int, concurrent: int = 1) -> float | None:
    """Seconds to prefill ``concurrent`` prompts of ``tokens`` tokens, from (tokens, seconds) of one; None without any.

    One length scales in proportion. Two or more give t = a n + b n^2 by least squares with a, b >= 0: attention makes
    long prompts dearer than their length. Of one length the fastest counts, since nothing makes an engine too fast.
    Engines work on the chunks of prompts that come at once one after the other, so the times add up.
    """
    points = fastest(measured)
    if not points:
        return None
    linear, square = _least_squares([(float(n), seconds) for n, seconds in points])
    return concurrent * (linear * tokens + square * tokens * tokens)


def fastest(measured: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The shortest time of each length, shortest length first; lengths within 1 % are one."""
    points: list[tuple[int, float]] = []
    for n, seconds in sorted((n, seconds) for n, seconds in measured if n > 0 and seconds > 0):
        if points and n <= 1.01 * points[-1][0]:
            points[-1] = (points[-1][0], min(points[-1][1], seconds))
        else:
            points.append((n, seconds))
    return points


def lengths_to_measure(measured: Sequence[tuple[int, float]], longest_tokens: int) -> list[int]:
    """Lengths to send first: none when a quarter of the longest prompt, or more, was measured before."""
    if any(n >= NEAR_SHARE * longest_tokens for n, _ in fastest(measured)):
        return []
    shorter = [tokens for tokens in PACE_TOKENS if tokens <= LONGEST_SHARE * longest_tokens]
    return shorter or [longest_tokens // 2]


def is_suspicious(measured: Sequence[tuple[int, float]]) -> bool:
    """Whether the longest length took so much longer per token than the one before that it is measured again."""
    points = fastest(measured)
    if len(points) < 2:
        return False
    (n, seconds), (longest, most) = points[-2:]
    return most / longest > SLOWER * seconds / n


def _least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    s2, s3, s4 = (sum(n**power for n, _ in points) for power in (2, 3, 4))
    t1, t2 = (sum(seconds * n**power for n, seconds in points) for power in (1, 2))
    determinant = s2 * s4 - s3 * s3
    if len(points) > 1 and determinant > 1e-9 * s2 * s4:
        linear, square = (t1 * s4 - t2 * s3) / determinant, (s2 * t2 - s3 * t1) / determinant
        if linear >= 0 and square >= 0:
            return linear, square
        if linear < 0:
            return 0.0, t2 / s4
    return t1 / s2, 0.0


def ramp(target_tokens: int) -> list[int]:
    """Prompt lengths from 32,768 tokens, doubling, to the target."""
    steps = []
    tokens = FIRST_RAMP_TOKENS
    while tokens < target_tokens:
        steps.append(tokens)
        tokens *= 2
    return [*steps, target_tokens]
