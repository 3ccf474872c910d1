"""What ``tune`` itself says of a start, where the log does not: that it ended, and how; whose end was not evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from kvyield._wire import Scalar
from kvyield.assemble import Assembled
from kvyield.tune import plan

CONTEXT_FLAGS = ("context_length", "max_model_len", "max_seq_len", "session_len")
_TELLING = (
    *("mem_fraction_static", "gpu_memory_utilization", "free_gpu_memory_fraction", "cache_max_entry_count"),
    *CONTEXT_FLAGS,
    *("max_running_requests", "max_num_seqs", "max_batch_size", "kv_cache_dtype", "quant_policy"),
    *("chunked_prefill_size", "max_num_batched_tokens", "max_num_tokens", "max_prefill_token_num"),
)
"""Flags that advice may change: what a start is told by, beside its deployment."""


def telling(flags: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The flags of a start that advice may change."""
    return {name: flags[name] for name in _TELLING if flags.get(name) is not None}


def same_flags(one: Mapping[str, Scalar], other: Mapping[str, Scalar]) -> bool:
    """Whether two sets of flags are alike in all that both tell."""
    return not plan.ignored(one, other) and not plan.ignored(other, one)


def holds(start: Assembled, tokens: int, concurrent: int) -> bool:
    """Whether pool and context length admit the prompts, as far as the start tells."""
    draft = start.draft
    pool, longest = draft["measurements"]["pool_tokens"], draft["measurements"]["longest_prompt_tokens"]
    context = next((draft["flags"][name] for name in CONTEXT_FLAGS if draft["flags"].get(name)), None)
    return (
        pool is not None
        and pool >= tokens * concurrent
        and (not isinstance(context, int) or context > tokens)
        and (longest is None or longest >= tokens)
    )


def is_dead(start: Assembled) -> bool:
    """Whether a start did not come up."""
    return bool(start.draft["outcome"] != "ready")


def ended(start: Assembled, outcome: str, phase: str, message: str) -> Assembled:
    """A start with an end that its log does not tell."""
    sent = start.draft["verifications"][-1]["prompt_tokens"] if start.draft["verifications"] else None
    failure = {"phase": phase, "message": message[:2000], "cause": None, "prompt_tokens": sent}
    return replace(start, draft={**start.draft, "outcome": outcome, "failure": failure})


def late(start: Assembled | None, seconds: float) -> Assembled | None:
    """A start that took too long."""
    return None if start is None else ended(start, "failed", "unknown", f"not ready after {seconds:.0f} s")


def unread(like: Assembled, flags: Mapping[str, Scalar], started_at: datetime | None) -> Assembled:
    """A start of which the log says nothing: what it was to be, with the flags that it was given.

    Without its time it would be as new as its arrival, and so newer than the start after it, whose log tells the time.
    """
    measured = dict.fromkeys(like.draft["measurements"])
    now = {"id": None, "observed_at": started_at, "source": "manual", "flags": {**like.draft["flags"], **flags}}
    return replace(like, draft={**like.draft, **now, "measurements": measured, "verifications": []})


def merged(end: Assembled, told: Assembled) -> Assembled:
    """What the log says of an end, with what was sent."""
    failure = {**told.draft["failure"], "prompt_tokens": (end.draft["failure"] or {}).get("prompt_tokens")}
    if failure["prompt_tokens"] is None and end.draft["verifications"]:
        failure["prompt_tokens"] = end.draft["verifications"][-1]["prompt_tokens"]
    draft = {**end.draft, "outcome": told.draft["outcome"], "failure": failure}
    return replace(end, draft=draft)


def no_evidence(start: Assembled) -> Assembled:
    """A start that failed while a process that was dying still held memory: its flags had no part in it."""
    failure = dict(start.draft["failure"] or {"phase": "unknown"})
    told = "made while a process that was ending still held GPU memory"
    failure |= {"cause": "error", "message": f"{told}: {failure.get('message') or 'no word of why'}"[:2000]}
    return replace(start, draft={**start.draft, "outcome": "failed", "failure": failure})
