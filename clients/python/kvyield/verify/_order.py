"""What is asked of a verification, what it says on the way, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvyield.verify._ask import RouteName
from kvyield.verify._result import Outcome, Verified
from kvyield.verify._server import Server

Stage = Literal["found", "note", "counting", "warm_up", "pace", "waiting", "sending", "first_token", "done"]


@dataclass(frozen=True)
class Order:
    """A verification to be made. ``prompt_tokens`` is each prompt's length, ``concurrent`` how many are sent at once.

    With ``ramp`` shorter prompts come first, from 32,768 tokens doubling, and the first failure ends it. ``pace`` is
    what earlier prompts of this start took, as (tokens, seconds to the first token) of one prompt alone: with lengths
    near the order's none are sent to measure it. Without a timeout each prompt may take five times its estimate and a
    minute, at least two minutes. ``seed`` makes the same prompts again. After a broken answer the server is watched for
    ``grace_seconds`` before it counts as alive. For ``flush_seconds`` other requests are waited for, so that the prefix
    cache can be emptied.
    """

    prompt_tokens: int
    concurrent: int = 1
    ramp: bool = False
    completion_tokens: int = 16
    check_answer: bool = True
    timeout_seconds: float | None = None
    model: str | None = None
    route: RouteName | None = None
    seed: int | None = None
    pace: tuple[tuple[int, float], ...] = ()
    grace_seconds: float = 5.0
    flush_seconds: float = 30.0


@dataclass(frozen=True)
class Progress:
    """One step forward. ``seconds`` is the estimate when sending, the time taken at ``first_token`` and ``done``."""

    stage: Stage
    text: str
    step: int = 0
    steps: int = 0
    seconds: float | None = None


OnProgress = Callable[[Progress], None]
OnResult = Callable[[Verified], None]


@dataclass(frozen=True)
class Report:
    """What came of an order. ``server`` is None when the address did not answer as an engine does.

    ``refusal`` says why a prompt was not sent, or not taken by the engine: that is not a verification.
    """

    server: Server | None
    results: tuple[Verified, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: str | None = None

    @property
    def passed(self) -> bool:
        """Whether all that was ordered was served whole."""
        return self.refusal is None and bool(self.results) and all(result.passed for result in self.results)

    @property
    def answered(self) -> bool:
        """Whether no answer was wrong; answers that were not checked are not."""
        return all(result.verification.answer != "wrong" for result in self.results)

    @property
    def outcome(self) -> Outcome | None:
        """What the start became by the verification: None when the server survived it."""
        return next((result.outcome for result in self.results if result.outcome), None)
