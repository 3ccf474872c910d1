"""How long a prompt will take, from prompts that were measured."""

from __future__ import annotations

from collections.abc import Sequence

FIRST_RAMP_TOKENS = 32_768


def estimate_seconds(measured: Sequence[tuple[int, float]], tokens: int) -> float | None:
    """Seconds to prefill ``tokens`` tokens, from (tokens, seconds) pairs; None without any.

    One pair scales with the length. Two or more give t = a n + b n^2 by least squares with a, b >= 0: attention makes
    long prompts dearer than their length.
    """
    points = [(float(n), seconds) for n, seconds in measured if n > 0 and seconds > 0]
    if not points:
        return None
    linear, square = _least_squares(points)
    return linear * tokens + square * tokens * tokens


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
