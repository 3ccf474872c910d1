"""What verifications and run-time failures of a start say about the need of a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation, Outcome, Verification

DEFAULT_CHUNK_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Drop:
    """What a passed prompt took: at least ``own_gib`` by itself, at most ``since_ready_gib`` with those before it."""

    prompt_tokens: int
    chunk_tokens: int
    own_gib: float
    since_ready_gib: float
    longest_so_far: bool

    @property
    def worked_tokens(self) -> int:
        """The tokens of its largest chunk."""
        return min(self.prompt_tokens, self.chunk_tokens)


@dataclass(frozen=True, slots=True)
class Limit:
    """A prompt that passed (or died of memory) with ``free_gib`` free at ready, its own need not measured."""

    prompt_tokens: int
    chunk_tokens: int
    free_gib: float
    passed: bool


def drops_of(start: Observation) -> Iterable[Drop]:
    """Return what each passed prompt with sampled memory took, in the order sent."""
    chunk = chunk_tokens(start.engine.name, start.flags)
    seen = [check for check in start.verifications if check.lowest_free_gib is not None]
    firsts = [value for value in (_highest_before(seen), start.measurements.free_at_ready_gib) if value is not None]
    longest = 0
    for check in seen:
        lowest = check.lowest_free_gib
        before = check.free_before_gib if check.free_before_gib is not None else (firsts[0] if firsts else None)
        if lowest is None or before is None or not check.passed or check.prompt_tokens < 1:
            continue
        own = max(0.0, before - lowest)
        since_ready = max(own, max(firsts, default=before) - lowest)
        yield Drop(check.prompt_tokens, chunk, own, since_ready, check.prompt_tokens >= longest)
        longest = max(longest, check.prompt_tokens)


def _highest_before(checks: Sequence[Verification]) -> float | None:
    """Return the highest figure read before any prompt: sampled as the lows were, so the two compare."""
    return max((check.free_before_gib for check in checks if check.free_before_gib is not None), default=None)


def limits_of(start: Observation) -> Iterable[Limit]:
    """Return passed prompts whose memory was not sampled, and the prompt that the server ran out of memory with."""
    free = start.measurements.free_at_ready_gib
    if free is None or free <= 0.0:
        return
    chunk = chunk_tokens(start.engine.name, start.flags)
    for check in start.verifications:
        if check.passed and check.lowest_free_gib is None and check.prompt_tokens >= 1:
            yield Limit(check.prompt_tokens, chunk, free, passed=True)
    prompt = start.failure.prompt_tokens if start.failure else None
    if start.outcome is Outcome.OOM_RUNTIME and prompt is not None and prompt >= 1:
        yield Limit(prompt, chunk, free, passed=False)


def chunk_tokens(engine: EngineName, flags: Flags) -> int:
    """Return the tokens of one prefill chunk, by the engine's usual default where it is unset or off."""
    return positive(flags, NAMES[engine].chunk) or DEFAULT_CHUNK_TOKENS
