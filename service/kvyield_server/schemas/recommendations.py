"""Recommendations on the wire: the question, and the answer as ``GET /recommend`` gives it."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from kvyield_server.domain.answers import Advice, Headline, Prefer, Question, Status, Window
from kvyield_server.domain.facts.observation import EngineName, Flags, Scalar
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

    ``prompt_need_gib`` is used instead of the model's own prompt need; ``confidence`` applies to pool and memory each;
    ``prefer``: keep what runs where it answers, else the nearest fraction; headroom: the smallest; pool: the largest.
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
    """The same question as query parameters; ``format`` asks for text to paste instead of JSON."""

    format: RenderFormat | None = None


class RecommendationIn(QuestionIn, forbid_unknown_fields=True, kw_only=True):
    """The same question as a body; with ``facts`` of the model's config the pair may be one never recorded."""

    facts: FactsIn | None = None
    memory_gib: MemoryGib | None = None
    unified_memory: bool | None = None


class FormatQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    format: RenderFormat | None = None


class ChangeOut(Struct, frozen=True, kw_only=True, rename={"from_value": "from", "to_value": "to"}):
    """One flag that the advice changes; ``from`` is null when the running value is not known."""

    flag: str
    from_value: Scalar
    to_value: Scalar
    reason: str


class AdvicePredictionOut(Struct, frozen=True, kw_only=True):
    pool_tokens: EstimateOut | None
    free_at_ready_gib: EstimateOut | None
    headroom_gib: EstimateOut | None


class ProbabilityOut(Struct, frozen=True, kw_only=True):
    pool: float | None
    memory: float | None
    joint: float | None


class RestartsOut(Struct, frozen=True, kw_only=True):
    expected: float | None
    minutes: float | None
    minutes_each: float | None


class LeverOut(Struct, frozen=True, kw_only=True):
    """Another change of flags, what it is predicted to gain and what it costs."""

    flags: dict[str, Scalar]
    gain_tokens: int
    gain_gib: float | None
    joint: float | None
    cost: str


class AdviceOut(Struct, frozen=True, kw_only=True):
    """The answer to a question. All changes go into one restart; ``window`` is null when it is empty."""

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


class RecommendationOut(AdviceOut, frozen=True, kw_only=True):
    """A stored answer; ``observation_id`` is the start that settled it.

    ``settlement`` says so when that start does not count: it was started with other flags than advised.
    """

    id: UUID
    made_at: datetime
    question: dict[str, Any]
    observation_id: UUID | None
    settled_at: datetime | None
    settlement: str | None


class SettlementIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which stored start followed the recommendation."""

    observation_id: UUID


class KeptRecommendation(Protocol):
    """A recommendation as a store hands it out."""

    @property
    def id(self) -> UUID: ...
    @property
    def made_at(self) -> datetime: ...
    @property
    def pair_id(self) -> UUID | None: ...
    @property
    def question(self) -> Question: ...
    @property
    def advice(self) -> Advice: ...
    @property
    def observation_id(self) -> UUID | None: ...
    @property
    def settled_at(self) -> datetime | None: ...


def recommendation_faults(body: QuestionIn, pointer: str = "") -> list[Fault]:
    """Return what the types cannot say."""
    need = size_faults(body, pointer, ("prompt_need_gib",))
    dtype = kv_dtype_fault(body.kv_cache_dtype, body.engine, f"{pointer}/kv_cache_dtype")
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


def recommendation_out(kept: KeptRecommendation, settlement: str | None = None) -> RecommendationOut:
    """Return a stored answer; ``settlement`` is what there is to say of the start that settled it."""
    return RecommendationOut(
        **_fields(kept.advice),
        pair_id=kept.pair_id,
        id=kept.id,
        made_at=kept.made_at,
        question=msgspec.to_builtins(kept.question),
        observation_id=kept.observation_id,
        settled_at=kept.settled_at,
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
