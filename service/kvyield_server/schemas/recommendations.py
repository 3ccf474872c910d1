"""Recommendations on the wire: the question, and the answer as ``GET /recommend`` gives it."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from kvyield_server.domain.answers import Advice, Headline, Prefer, Question, Status, Window
from kvyield_server.domain.facts.observation import EngineName, Flags, Scalar
from kvyield_server.domain.records import StoredRecommendation
from kvyield_server.schemas.common import (
    EstimateOut,
    Gib,
    MemoryGib,
    WarningOut,
    estimate_out,
    rounded,
    size_faults,
    tokens_out,
    warnings_out,
)
from kvyield_server.schemas.facts import FactsIn
from kvyield_server.schemas.flags import flag_faults, kv_dtype_fault
from kvyield_server.schemas.pairs import BasisOut, basis_out
from kvyield_server.schemas.selectors import NamedIn, selector_faults
from kvyield_server.schemas.strict import Fault, first_faults

RenderFormat = Literal["args", "systemd", "docker", "compose", "kubernetes"]
AskedTokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]
ReplyTokens = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Concurrent = Annotated[int, Meta(ge=1, le=1_000_000)]
RunningRequests = Annotated[int, Meta(ge=1, le=1_000_000)]
Confidence = Annotated[float, Meta(ge=0.5, le=0.9999)]
ChunkTokens = Annotated[int, Meta(ge=-1, le=1_000_000_000)]
DtypeName = Annotated[str, Meta(min_length=1, max_length=50, pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.\-]*$(?!\n)")]


class QuestionIn(NamedIn, forbid_unknown_fields=True, kw_only=True):
    """A question: which pair, how long a prompt, and the flags that the asker wants held.

    Attributes:
        target_tokens: Longest prompt that the engine must serve, in tokens.
        reply_tokens: Tokens of the reply that the pool must hold with the prompt.
        concurrent: Number of such requests that the pool must hold at once.
        confidence: Probability that the pool, and that the memory, must each reach.
        prompt_need_gib: Memory that a prompt takes at its peak, in GiB, instead of the yield model's own prompt need.
        max_running_requests: Value at which to fix the engine's limit of running requests.
        kv_cache_dtype: Type of the KV cache to fix, one that the engine takes, such as `fp8_e4m3`.
        chunked_prefill_size: Tokens of a prefill chunk to fix; -1 turns chunks off.
        prefer: Which fraction to advise of those that answer the question.
    """

    target_tokens: AskedTokens
    reply_tokens: ReplyTokens = 0
    concurrent: Concurrent = 1
    confidence: Confidence = 0.95
    prompt_need_gib: Gib | None = None
    max_running_requests: RunningRequests | None = None
    kv_cache_dtype: DtypeName | None = None
    chunked_prefill_size: ChunkTokens | None = None
    prefer: Prefer = Prefer.KEEP


class RecommendQuery(QuestionIn, forbid_unknown_fields=True, kw_only=True):
    """The same question as query parameters.

    Attributes:
        format: Text to paste instead of JSON: command-line arguments, a systemd drop-in, a `docker run`, a compose file
            or a Kubernetes patch.
    """

    format: RenderFormat | None = None


class RecommendationIn(QuestionIn, forbid_unknown_fields=True, kw_only=True):
    """The same question as a body; with `facts` the pair may be one that was never recorded.

    Attributes:
        facts: Fields of the model's `config.json`, for a model that was never recorded.
        memory_gib: Total memory of one GPU, in GiB, instead of the recorded one.
        unified_memory: Whether the GPU uses the host's memory, instead of what is recorded.
    """

    facts: FactsIn | None = None
    memory_gib: MemoryGib | None = None
    unified_memory: bool | None = None


class FormatQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """How to give the answer.

    Attributes:
        format: Text to paste instead of JSON: command-line arguments, a systemd drop-in, a `docker run`, a compose file
            or a Kubernetes patch.
    """

    format: RenderFormat | None = None


class ChangeOut(Struct, frozen=True, kw_only=True, rename={"from_value": "from", "to_value": "to"}):
    """One flag that the advice changes.

    Attributes:
        flag: The engine's own name of the flag.
        from_value: Value that runs now; null when it is not known.
        to_value: Value to restart with.
        reason: Why it changes.
    """

    flag: str
    from_value: Scalar
    to_value: Scalar
    reason: str


class AdvicePredictionOut(Struct, frozen=True, kw_only=True):
    """What the advised flags are predicted to give; null when there is not enough evidence.

    Attributes:
        pool_tokens: Tokens that the KV pool will hold, per data-parallel rank.
        free_at_ready_gib: Free memory of the fullest GPU when the engine is ready, in GiB.
        headroom_gib: Free memory at ready minus the prompt need of the question, in GiB.
    """

    pool_tokens: EstimateOut | None
    free_at_ready_gib: EstimateOut | None
    headroom_gib: EstimateOut | None


class ProbabilityOut(Struct, frozen=True, kw_only=True):
    """Probabilities, 0 to 1; null where there is no evidence.

    Attributes:
        pool: Probability that the pool holds the target.
        memory: Probability that the memory suffices for the prompt.
        joint: Probability of both.
    """

    pool: float | None
    memory: float | None
    joint: float | None


class RestartsOut(Struct, frozen=True, kw_only=True):
    """What the advice costs in restarts.

    Attributes:
        expected: Expected number of restarts until the target is held; 0 when what runs is kept.
        minutes: Expected time of all of them, in minutes; null when no start was timed.
        minutes_each: Time of one restart, in minutes: the median of the starts; null when none was timed. Starts that
            compiled their graphs count only where no other was timed: the next one takes less.
    """

    expected: float | None
    minutes: float | None
    minutes_each: float | None


class LeverOut(Struct, frozen=True, kw_only=True):
    """Another change of flags.

    Attributes:
        flags: The flags of this alternative, the fraction included.
        gain_tokens: Tokens of pool that it gains over the advice.
        gain_gib: Headroom that it gains over the advice, in GiB; null when it is not known.
        joint: Probability that pool and memory both suffice, 0 to 1; null when it is not known.
        cost: What it costs, in a sentence.
    """

    flags: dict[str, Scalar]
    gain_tokens: int
    gain_gib: float | None
    joint: float | None
    cost: str


class AdviceOut(Struct, frozen=True, kw_only=True):
    """The answer to a question. All changes go into one restart.

    Attributes:
        headline: The answer in one sentence; null on answers that an older version stored.
        status: Whether the flags answer the question.
        engine: The engine that the flags are for.
        flags: The flags to restart with, by the engine's own names.
        command_line: The same flags as command-line arguments.
        changes: The flags that differ from what runs; empty when what runs is kept.
        prediction: What the flags are predicted to give.
        probability: How likely they are to suffice; null when there is not enough evidence.
        window: The fractions that answer the question; null when there is none.
        restarts: What the advice costs in restarts; null when it is not known.
        verification_seconds: Time that a verification of the question takes, in seconds; null when none was timed.
        basis: The evidence that the answer was made from.
        alternatives: Other changes of flags, most probability gained for its cost first; a lower target comes last.
        warnings: What to know before the flags are used.
        explanation: How the answer was found, in sentences for people.
        binding_constraint: What keeps the flags from answering the question, such as `pool`, `headroom`,
            `context_length` or `evidence`; null when nothing does.
        pair_id: UUID of the pair; null for a pair that was never recorded.
    """

    headline: Headline | None
    status: Status
    engine: EngineName
    flags: dict[str, Scalar]
    command_line: str
    changes: list[ChangeOut]
    prediction: AdvicePredictionOut
    probability: ProbabilityOut | None
    window: Window | None
    restarts: RestartsOut | None
    verification_seconds: float | None
    basis: BasisOut
    alternatives: list[LeverOut]
    warnings: list[WarningOut]
    explanation: str
    binding_constraint: str | None
    pair_id: UUID | None


class QuestionOut(Struct, frozen=True, kw_only=True):
    """A question as it was asked; null where a field was not given.

    Attributes:
        target_tokens: Longest prompt that the engine must serve, in tokens.
        reply_tokens: Tokens of the reply that the pool must hold with the prompt.
        concurrent: Number of such requests that the pool must hold at once.
        confidence: Probability that the pool, and that the memory, must each reach.
        prompt_need_gib: Memory that a prompt takes at its peak, in GiB.
        flags: Flags that the question fixed.
        engine_version: Version that was to be started.
        prefer: Which fraction to advise of those that answer the question.
    """

    target_tokens: int
    reply_tokens: int
    concurrent: int
    confidence: float
    prompt_need_gib: float | None
    flags: dict[str, Scalar]
    engine_version: str | None
    prefer: Prefer


class RecommendationOut(AdviceOut, frozen=True, kw_only=True):
    """A stored answer.

    Attributes:
        id: UUID of the recommendation, to be given as `recommendation_id` by the start that follows it.
        made_at: Time when it was made, UTC.
        question: The question as it was asked.
        observation_id: The start that settled it; null while none has.
        settled_at: Time when that start settled it, UTC; null while none has.
        settlement: Why the start that settled it does not count, such as other flags than advised; else null.
    """

    id: UUID
    made_at: datetime
    question: QuestionOut
    observation_id: UUID | None
    settled_at: datetime | None
    settlement: str | None


class SettlementIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which start followed the recommendation.

    Attributes:
        observation_id: UUID of the stored start.
    """

    observation_id: UUID


def recommendation_faults(body: QuestionIn, pointer: str = "", engine: EngineName | None = None) -> list[Fault]:
    """Return what the types cannot say; ``engine`` is the one that was found where the body names none."""
    need = size_faults(body, pointer, ("prompt_need_gib",))
    dtype = kv_dtype_fault(body.kv_cache_dtype, body.engine or engine, f"{pointer}/kv_cache_dtype")
    return first_faults(chain(selector_faults(body, pointer), need, flag_faults(_held(body), pointer), dtype))


def question_of(body: QuestionIn) -> Question:
    """Return the question; flags not given are not held."""
    return Question(
        target_tokens=body.target_tokens,
        reply_tokens=body.reply_tokens,
        concurrent=body.concurrent,
        confidence=body.confidence,
        prompt_need_gib=body.prompt_need_gib,
        flags=_held(body),
        prefer=body.prefer,
    )


def advice_out(advice: Advice, pair_id: UUID | None) -> AdviceOut:
    """Return an answer that is not stored."""
    return AdviceOut(**_fields(advice), pair_id=pair_id)


def recommendation_out(stored: StoredRecommendation, settlement: str | None = None) -> RecommendationOut:
    """Return a stored answer; ``settlement`` is what there is to say of the start that settled it."""
    return RecommendationOut(
        **_fields(stored.advice),
        pair_id=stored.pair_id,
        id=stored.id,
        made_at=stored.made_at,
        question=msgspec.convert(stored.question, QuestionOut, from_attributes=True),
        observation_id=stored.observation_id,
        settled_at=stored.settled_at,
        settlement=settlement,
    )


def _held(body: QuestionIn) -> Flags:
    names = ("max_running_requests", "kv_cache_dtype", "chunked_prefill_size")
    return {name: getattr(body, name) for name in names if getattr(body, name) is not None}


def _fields(advice: Advice) -> dict[str, Any]:
    prediction, chance, plan = advice.prediction, advice.probability, advice.restarts
    return {
        "headline": advice.headline,
        "status": advice.status,
        "engine": advice.engine,
        "flags": dict(advice.flags),
        "command_line": advice.command_line,
        "changes": [_change(change) for change in advice.changes],
        "prediction": AdvicePredictionOut(
            pool_tokens=tokens_out(prediction.pool_tokens),
            free_at_ready_gib=estimate_out(prediction.free_at_ready_gib, digits=2),
            headroom_gib=estimate_out(prediction.headroom_gib, digits=2),
        ),
        "probability": chance
        and ProbabilityOut(
            pool=rounded(chance.pool, 4), memory=rounded(chance.memory, 4), joint=rounded(chance.joint, 4)
        ),
        "window": advice.window,
        "restarts": plan
        and RestartsOut(
            expected=rounded(plan.expected, 2),
            minutes=rounded(plan.minutes, 1),
            minutes_each=rounded(plan.minutes_each, 1),
        ),
        "verification_seconds": advice.verification_seconds and round(advice.verification_seconds),
        "basis": basis_out(advice.basis),
        "alternatives": [_lever(lever) for lever in advice.alternatives],
        "warnings": warnings_out(advice.warnings),
        "explanation": advice.explanation,
        "binding_constraint": advice.binding_constraint,
    }


def _change(change: Any) -> ChangeOut:
    return ChangeOut(flag=change.flag, from_value=change.from_value, to_value=change.to_value, reason=change.reason)


def _lever(lever: Any) -> LeverOut:
    return LeverOut(
        flags=dict(lever.flags),
        gain_tokens=lever.gain_tokens,
        gain_gib=rounded(lever.gain_gib, 2),
        joint=rounded(lever.joint, 4),
        cost=lever.cost,
    )
