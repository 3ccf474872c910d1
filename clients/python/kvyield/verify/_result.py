"""What a verification found, in the wire's words, and what its failure says of the start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from kvyield._engine_http import EngineRefusedError, EngineTimeoutError
from kvyield._sent import AnswerName
from kvyield._wire import Verification
from kvyield.gpu import MemorySamples
from kvyield.verify._ask import Reading
from kvyield.verify._prompt import TOLERANCE, Prompt, is_answered

Outcome = Literal["oom_runtime", "failed"]
Number = TypeVar("Number", int, float)

_OUT_OF_GPU_MEMORY = re.compile(
    r"(?:CUDA|HIP|cuBLAS|NCCL)[^\n]{0,40}out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
    r"|hipErrorOutOfMemory|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Verified:
    """One verification. ``outcome`` is what the start became by it: None when the server survived."""

    verification: Verification
    outcome: Outcome | None = None
    message: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every prompt was served whole, with nothing from the prefix cache."""
        return self.verification.passed


@dataclass
class Sent:
    """One prompt that was sent, what came back, and how it broke off if it did."""

    prompt: Prompt
    reading: Reading
    asked_tokens: int
    counted_tokens: int | None = None
    error: Exception | None = None
    room: int | None = None
    """Tokens that the context length leaves beside the prompt."""

    @property
    def prompt_tokens(self) -> int | None:
        """The engine's count: reported with the answer, or by ``/tokenize``."""
        return self.reading.prompt_tokens or self.counted_tokens


def is_out_of_memory(text: str) -> bool:
    """Whether an engine's words mean that GPU memory ran out. A full KV pool is something else."""
    return _OUT_OF_GPU_MEMORY.search(text) is not None


def refusal_of(sent: Sequence[Sent]) -> str | None:
    """The engine's words when it took none of the prompts (4xx): nothing was served, so nothing was measured."""
    errors = [item.error for item in sent]
    refused = [error for error in errors if isinstance(error, EngineRefusedError) and error.status < 500]
    if len(refused) < len(sent) or any(is_out_of_memory(str(error)) for error in refused):
        return None
    return f"the engine did not take the prompt (HTTP {refused[0].status}): {refused[0]}"


def fault_of(sent: Sent) -> str | None:
    """Why one prompt did not pass, or None. What it was answered is another matter."""
    reading = sent.reading
    if sent.error is not None:
        return f"{_KINDS.get(type(sent.error), 'the connection broke')}: {sent.error}"
    cached, total = reading.cached_tokens or 0, sent.prompt_tokens or 0
    if cached > TOLERANCE * total:
        return (
            f"{cached:,} of {total:,} prompt tokens came from the prefix cache, so the prompt took less than its need"
        )
    return None


_KINDS: dict[type[Exception], str] = {
    EngineRefusedError: "the server answered with an error",
    EngineTimeoutError: "timed out",
}


def wrong_answer(sent: Sequence[Sent]) -> str | None:
    """What was answered instead of the hidden number, with how many prompts were; None when all were right."""
    wrong = [item for item in sent if not is_answered(item.prompt, item.reading.text)]
    if not wrong:
        return None
    first = wrong[0]
    text = f"wrong answer: {first.reading.text.strip()[:80]!r} instead of {first.prompt.expected}"
    return text if len(sent) == 1 else f"{len(wrong)} of {len(sent)} prompts were answered wrong; the first: {text}"


def answer_of(sent: Sequence[Sent], *, is_checked: bool) -> AnswerName | None:
    """Whether all answers hold the hidden number; None when one did not come whole."""
    if any(item.error for item in sent):
        return None
    if not is_checked:
        return "not_checked"
    return "wrong" if wrong_answer(sent) else "right"


def to_wire(
    sent: Sequence[Sent], samples: MemorySamples | None, error: str | None, answer: AnswerName | None
) -> Verification:
    """One verification of all prompts sent at once: the slowest, the fewest prompt tokens, the first fault's answer."""
    readings = [item.reading for item in sent]
    shown = next((item for item in sent if fault_of(item)), None)
    shown = shown or next((item for item in sent if not is_answered(item.prompt, item.reading.text)), sent[0])
    return Verification(
        prompt_tokens=min(item.prompt_tokens or item.asked_tokens for item in sent),
        passed=error is None,
        answer=answer,
        completion_tokens=_highest(reading.completion_tokens for reading in readings),
        cached_tokens=_highest(reading.cached_tokens for reading in readings),
        elapsed_seconds=_rounded(_highest(reading.elapsed_seconds for reading in readings)),
        time_to_first_token_seconds=_rounded(_highest(reading.first_token_seconds for reading in readings)),
        answer_expected=shown.prompt.expected,
        answer_received=shown.reading.text.strip()[:200] or None,
        lowest_free_gib=_rounded(samples.lowest_free_gib if samples else None),
        free_before_gib=_rounded(samples.free_before_gib if samples else None),
        concurrent=len(sent),
        memory_samples=samples.samples if samples else None,
        error=error,
    )


def summary(sent: Sequence[Sent]) -> str | None:
    """The first fault, with how many prompts share it; None when all passed."""
    faults = [fault for fault in map(fault_of, sent) if fault]
    if not faults:
        return None
    return faults[0] if len(sent) == 1 else f"{len(faults)} of {len(sent)} prompts failed; the first: {faults[0]}"


def _highest(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
