"""Observations and verifications on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import chain
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from kvyield_server.domain.facts.observation import (
    Answer,
    Cause,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Phase,
    Scalar,
    Verification,
)
from kvyield_server.domain.records import HistoryEntry, StoredObservation
from kvyield_server.schemas.common import (
    Count,
    Fraction,
    Gib,
    GpuCount,
    Instant,
    JsonObject,
    JsonValue,
    LogText,
    LongText,
    MemoryGib,
    ModelName,
    Name,
    PositiveGib,
    Seconds,
    ShortText,
    SignedGib,
    Tokens,
    TokensOrNone,
    as_utc,
    size_faults,
)
from kvyield_server.schemas.facts import FactsIn, fact_faults
from kvyield_server.schemas.flags import FlagsIn, flag_faults, fraction_fault, normalised
from kvyield_server.schemas.strict import Fault, first_faults

MAX_VERIFICATIONS = 100
DIGEST_BYTES = 20
FURTHEST_AHEAD = timedelta(days=1)


class HardwareIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """GPU model times count. The client reads it from the engine's log and from the driver.

    Attributes:
        gpu: GPU model as its driver names it, with the MIG profile where there is one.
        gpu_count: Number of GPUs that the engine runs on.
        memory_gib: Total memory of one GPU as the framework sees it, in GiB.
        unified_memory: Whether the GPU uses the host's memory instead of its own.
        driver_memory_gib: Total memory of one GPU as the driver reports it, in GiB.
    """

    gpu: Name
    gpu_count: GpuCount
    memory_gib: MemoryGib | None = None
    unified_memory: bool | None = None
    driver_memory_gib: MemoryGib | None = None


class ModelIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The model that the engine served.

    Attributes:
        name: Name that the model was served as, such as `moonshotai/Kimi-K2.6`.
        revision: Revision of the model on its hub, where one was pinned.
        facts: Fields of the model's own `config.json`, such as `num_hidden_layers`; up to 20,000 values.
    """

    name: ModelName
    revision: ShortText | None = None
    facts: FactsIn = msgspec.field(default_factory=dict)


class EngineIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The engine that was started.

    Attributes:
        name: The engine; for a fork, the engine that it was forked from.
        version: Version as the engine logs it, such as `0.5.12`.
        variant: Name of the fork; null for the engine itself.
    """

    name: EngineName
    version: ShortText | None = None
    variant: ShortText | None = None


class MeasurementsIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What the engine logged and the client measured. Null is not known, which is not 0.

    Attributes:
        pool_tokens: Tokens that the KV pool holds, as logged, per data-parallel rank.
        free_at_ready_gib: Free memory when the engine was ready, in GiB, the minimum over ranks.
        free_at_pool_end_gib: Free memory after the pool was allocated and before graphs were captured, in GiB: an upper
            bound of free at ready.
        free_before_load_gib: Free memory before the weights were loaded, in GiB, the minimum over ranks.
        free_after_load_gib: Free memory after the weights were loaded, in GiB, the minimum over ranks.
        kv_cache_gib: Size of the KV cache, in GiB, the minimum over ranks.
        draft_kv_cache_gib: Size of the draft model's KV cache, in GiB.
        weights_gib: Memory that the weights take, in GiB, the maximum over ranks.
        graph_gib: Memory that the captured graphs take, in GiB, the maximum over ranks.
        device_memory_gib: Total memory of one GPU as the engine logged it, in GiB.
        startup_seconds: Time from exec to ready, in seconds.
        uncapped_pool_tokens: Tokens that the engine counted for the pool before a flag capped it.
        swa_pool_tokens: Tokens of the sliding-window pool beside the full one.
        longest_prompt_tokens: Longest prompt that the engine accepts, as it printed it, in tokens.
        draft_weights_gib: Memory that the draft model's weights take, in GiB.
        fitted_max_model_len: Context length that vLLM fitted to the pool when asked to, in tokens.
    """

    pool_tokens: Tokens | None = None
    free_at_ready_gib: Gib | None = None
    free_at_pool_end_gib: Gib | None = None
    free_before_load_gib: Gib | None = None
    free_after_load_gib: Gib | None = None
    kv_cache_gib: PositiveGib | None = None
    draft_kv_cache_gib: Gib | None = None
    weights_gib: Gib | None = None
    graph_gib: Gib | None = None
    device_memory_gib: MemoryGib | None = None
    startup_seconds: Seconds | None = None
    uncapped_pool_tokens: Tokens | None = None
    swa_pool_tokens: Tokens | None = None
    longest_prompt_tokens: Tokens | None = None
    draft_weights_gib: Gib | None = None
    fitted_max_model_len: Tokens | None = None


class FailureIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """How a start failed, with the figures in the engine's own message.

    Attributes:
        phase: Where in its life the start failed.
        message: The engine's own words.
        minimum_fraction: Smallest fraction that the engine says would leave room for a pool (SGLang).
        prompt_tokens: Longest prompt in flight when memory ran out at run time, in tokens.
        available_kv_cache_gib: Memory that vLLM had for the KV cache when it refused, in GiB; below 0
            when the weights alone took more than there was.
        cause: Why the start failed; `outcome` says what happened.
        wanted_gib: Size of the allocation that failed, in GiB.
        free_gib: Free memory when that allocation failed, in GiB.
        needed_gib: Memory that the engine says its KV cache needs, in GiB.
        longest_tokens: Longest context that the engine says would have fitted, in tokens.
        rank: Rank whose figures these are, counted from 0.
    """

    phase: Phase = Phase.UNKNOWN
    message: LongText | None = None
    minimum_fraction: Fraction | None = None
    prompt_tokens: Tokens | None = None
    available_kv_cache_gib: SignedGib | None = None
    cause: Cause | None = None
    wanted_gib: Gib | None = None
    free_gib: Gib | None = None
    needed_gib: Gib | None = None
    longest_tokens: Tokens | None = None
    rank: Annotated[int, Meta(ge=0, le=100_000)] | None = None


class VerificationIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A long prompt sent to the running server, memory sampled meanwhile. `kvyield verify` fills it.

    Attributes:
        prompt_tokens: Length of the prompt, in tokens, as the engine counted it.
        passed: Whether the whole prompt was served without an error.
        completion_tokens: Tokens that the engine generated.
        cached_tokens: Tokens of the prompt that the engine took from its prefix cache; at most `prompt_tokens`.
        elapsed_seconds: Time from the request to the end of the answer, in seconds.
        time_to_first_token_seconds: Time from the request to the first token of the answer, in seconds.
        answer_expected: Text that a right answer holds.
        answer_received: Text that the engine answered with.
        lowest_free_gib: Lowest free memory of any GPU while the prompt ran, in GiB.
        free_before_gib: Free memory of the fullest GPU just before the prompt, in GiB.
        concurrent: Number of such prompts that were sent at the same time.
        memory_samples: Number of times that free memory was read while the prompt ran.
        error: What the engine or the connection said, where the prompt failed.
        answer: Whether the answer was right.
    """

    prompt_tokens: Tokens
    passed: bool
    completion_tokens: TokensOrNone | None = None
    cached_tokens: TokensOrNone | None = None
    elapsed_seconds: Seconds | None = None
    time_to_first_token_seconds: Seconds | None = None
    answer_expected: LongText | None = None
    answer_received: LongText | None = None
    lowest_free_gib: Gib | None = None
    free_before_gib: Gib | None = None
    concurrent: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    memory_samples: Count | None = None
    error: LongText | None = None
    answer: Answer | None = None


class ObservationIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One engine start, as posted.

    Attributes:
        hardware: What the engine ran on.
        model: The model that was served.
        engine: The engine that was started.
        outcome: How the start ended. All but `failed` need the engine's fraction flag; `ready` needs `pool_tokens` or
            `kv_cache_gib` too.
        id: UUID that the client makes, version 7 for preference; the service makes one when it is absent.
        observed_at: Time of the start, with its zone; the time of arrival when it is absent.
        host: Name of the machine that the engine ran on.
        source: Where the figures come from; of two accounts of one start `log` beats `endpoint`, which beats `manual`.
        flags: Up to 500 flags by the engine's own names with their values as resolved. Any JSON scalar is kept; names
            that look like secrets are refused.
        measurements: What was measured at the start.
        failure: How the start failed; null when `outcome` is `ready`.
        verifications: Prompts that were sent to the running server; at most 100.
        recommendation_id: StoredObservation recommendation that this start followed and is compared with.
        log_excerpt: Lines of the engine's log that the figures were read from.
    """

    hardware: HardwareIn
    model: ModelIn
    engine: EngineIn
    outcome: Outcome
    id: UUID | None = None
    observed_at: Instant | None = None
    host: Name | None = None
    source: Literal["log", "endpoint", "import", "manual"] | None = None
    flags: FlagsIn = msgspec.field(default_factory=dict)
    measurements: MeasurementsIn | None = None
    failure: FailureIn | None = None
    verifications: list[VerificationIn] | None = None
    recommendation_id: UUID | None = None
    log_excerpt: LogText | None = None


class ExportedIn(ObservationIn, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A start as posted, or a line of an export: what the service adds to a start is taken and ignored.

    Attributes:
        pair_id: Ignored: the service finds the pair by its names.
        received_at: Ignored: the time of arrival counts.
        retracted_at: Ignored: a start is retracted by its own request.
        retraction_reason: Ignored, as `retracted_at`.
        history: Ignored: the service keeps a start's history itself.
        archive: Ignored: what `kvyield-server export` adds for `kvyield-server import`.
    """

    pair_id: UUID | None = None
    received_at: Instant | None = None
    retracted_at: Instant | None = None
    retraction_reason: ShortText | None = None
    history: list[JsonObject] | None = None
    archive: JsonObject | None = None


DESCRIBED_BY: Mapping[type, type] = {
    Hardware: HardwareIn,
    Engine: EngineIn,
    Measurements: MeasurementsIn,
    Failure: FailureIn,
    Verification: VerificationIn,
}
"""Value types of answers, and the wire types whose fields they have."""

_canonical = msgspec.json.Encoder(order="deterministic")
_NOTHING_MEASURED = MeasurementsIn()


class FieldChangeOut(Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """A field that changed.

    Attributes:
        field: Dotted name of the field, such as `hardware.memory_gib`.
        before: Value before the change; null when it was not known.
        after: Value since the change.
    """

    field: str
    before: JsonValue
    after: JsonValue


class HistoryEntryOut(Struct, frozen=True, kw_only=True):
    """One change of a stored start.

    Attributes:
        at: Time of the change, UTC.
        actor: Name of the token that changed it, `cli`, or `loopback` where no token exists.
        action: `merge`: a further account of the start filled or replaced fields; `correction`: a person did.
        reason: Why it was corrected; null for a merge.
        changes: The fields that changed.
    """

    at: datetime
    actor: str
    action: Literal["merge", "correction"]
    reason: str | None
    changes: list[FieldChangeOut]


class ModelOut(Struct, frozen=True, kw_only=True):
    """A model with all that is known of it.

    Attributes:
        name: Name that the model was served as.
        revision: Revision of the model on its hub, where one was pinned.
        facts: Fields of the model's own `config.json`, as far as they are known.
    """

    name: str
    revision: str | None
    facts: JsonObject


class ObservationOut(Struct, frozen=True, kw_only=True):
    """One engine start, as stored: what was posted, and what the service added.

    Attributes:
        id: UUID of the start.
        observed_at: Time of the start, UTC.
        host: Name of the machine that the engine ran on.
        source: Where the figures come from: `log`, `endpoint`, `import` or `manual`.
        hardware: What the engine ran on.
        model: The model that was served.
        engine: The engine that was started.
        flags: The engine's own flag names with their values as resolved; null is known to be off, a missing name is
            not known.
        outcome: How the start ended.
        measurements: What was measured at the start.
        failure: How the start failed; null when it did not.
        verifications: Prompts that were sent to the running server, in the order of their arrival.
        recommendation_id: StoredObservation recommendation that this start followed.
        log_excerpt: Lines of the engine's log that the figures were read from; null in lists.
        pair_id: The pair of the start, found by the service.
        received_at: Time when the service stored the start, UTC.
        retracted_at: Time when the start was retracted, UTC; null while it counts.
        retraction_reason: Why the start was retracted.
        history: Changes of the start by merges and corrections, oldest first.
    """

    id: UUID
    observed_at: datetime
    host: str | None
    source: str | None
    hardware: Hardware
    model: ModelOut
    engine: Engine
    flags: dict[str, Scalar]
    outcome: Outcome
    measurements: Measurements
    failure: Failure | None
    verifications: tuple[Verification, ...]
    recommendation_id: UUID | None
    log_excerpt: str | None
    pair_id: UUID
    received_at: datetime
    retracted_at: datetime | None
    retraction_reason: str | None
    history: list[HistoryEntryOut]


class RetractionIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Why an observation is not to be believed.

    Attributes:
        reason: Why, in a sentence of at most 200 characters.
    """

    reason: ShortText


def observation_faults(body: ObservationIn) -> list[Fault]:
    """Return what the types cannot say: secrets, known flags, and what each outcome needs."""
    return first_faults(
        chain(
            _time_faults(body.observed_at),
            fact_faults(body.model.facts, "/model/facts"),
            flag_faults(body.flags, "/flags"),
            _outcome_faults(body),
            size_faults(body.measurements, "/measurements"),
            size_faults(body.failure, "/failure"),
            _verification_list_faults(body.verifications or []),
        )
    )


def verification_faults(body: VerificationIn, pointer: str = "") -> Iterator[Fault]:
    """Yield what the types cannot say of a verification."""
    yield from size_faults(body, pointer)
    if body.cached_tokens is not None and body.cached_tokens > body.prompt_tokens:
        detail = f"cached_tokens is {body.cached_tokens}, more than prompt_tokens, {body.prompt_tokens}."
        yield Fault(f"{pointer}/cached_tokens", detail)


def posted(body: ExportedIn) -> ObservationIn:
    """Return what a line of an export says of the start alone."""
    return ObservationIn(**{name: getattr(body, name) for name in ObservationIn.__struct_fields__})


def content_digest(body: ObservationIn) -> str:
    """Return a digest of all that was posted but ``id``: absent, null and empty are the same, except in ``flags``.

    Fields at their defaults are left out, so that a field that a later version adds changes no digest. The start's time
    comes first: new starts then lie side by side in the index of digests, which else is written all over the disk.
    """
    content = msgspec.structs.replace(
        body,
        id=None,
        observed_at=body.observed_at and as_utc(body.observed_at),
        model=_said_of_model(body.model),
        flags=normalised(body.flags),
        measurements=None if body.measurements == _NOTHING_MEASURED else body.measurements,
        verifications=body.verifications or None,
    )
    begun = int(body.observed_at.timestamp() * 1000) if body.observed_at else 0
    return f"{begun:012x}{blake2b(_canonical.encode(content), digest_size=DIGEST_BYTES).hexdigest()}"


def to_domain(body: ObservationIn, *, new_id: UUID, now: datetime) -> Observation:
    """Return the observation that a body means; ``new_id`` and ``now`` stand in for what it leaves out."""
    whole = msgspec.structs.replace(
        body,
        id=body.id or new_id,
        observed_at=as_utc(body.observed_at or now),
        flags=normalised(body.flags),
        measurements=body.measurements or _NOTHING_MEASURED,
        verifications=body.verifications or (),
    )
    return msgspec.convert(whole, Observation, from_attributes=True)


def verification_to_domain(body: VerificationIn) -> Verification:
    return msgspec.convert(body, Verification, from_attributes=True)


def from_domain(stored: StoredObservation) -> ObservationOut:
    """Return a stored observation in its wire form."""
    start = stored.observation
    return ObservationOut(
        id=start.id,
        observed_at=start.observed_at,
        host=start.host,
        source=start.source,
        hardware=start.hardware,
        model=model_out(start.model),
        engine=start.engine,
        flags=dict(start.flags),
        outcome=start.outcome,
        measurements=start.measurements,
        failure=start.failure,
        verifications=start.verifications,
        recommendation_id=start.recommendation_id,
        log_excerpt=start.log_excerpt,
        pair_id=stored.pair_id,
        received_at=stored.received_at,
        retracted_at=stored.retracted_at,
        retraction_reason=stored.retraction_reason,
        history=[_entry_out(entry) for entry in stored.history],
    )


def model_out(model: Model) -> ModelOut:
    return ModelOut(name=model.name, revision=model.revision, facts=dict(model.facts))


def _entry_out(entry: HistoryEntry) -> HistoryEntryOut:
    changes = [FieldChangeOut(field=each.field, before=each.before, after=each.after) for each in entry.changes]
    return HistoryEntryOut(at=entry.at, actor=entry.actor, action=entry.action, reason=entry.reason, changes=changes)


def _time_faults(moment: datetime | None) -> Iterator[Fault]:
    if moment is not None and not 2000 <= moment.year < 2200:
        yield Fault(
            "/observed_at", f"observed_at is in the year {moment.year}; give the time at which the engine was started."
        )
    elif moment is not None and moment > datetime.now(UTC) + FURTHEST_AHEAD:
        detail = f"observed_at is {moment.isoformat()}, more than a day ahead of this service's clock."
        yield Fault("/observed_at", detail)


def _outcome_faults(body: ObservationIn) -> Iterator[Fault]:
    if body.outcome is not Outcome.FAILED:
        yield from fraction_fault(body.flags, body.engine.name, "/flags")
    if body.outcome is not Outcome.READY:
        return
    measured = body.measurements or MeasurementsIn()
    if measured.pool_tokens is None and measured.kv_cache_gib is None:
        detail = "pool_tokens or kv_cache_gib is needed when outcome is ready: it is what the start yielded."
        yield Fault("/measurements/pool_tokens", detail)
    if body.failure is not None:
        yield Fault(
            "/failure",
            "failure must be null when outcome is ready; give oom_runtime if the engine ran out of memory later.",
        )


def _verification_list_faults(items: list[VerificationIn]) -> Iterator[Fault]:
    if len(items) > MAX_VERIFICATIONS:
        yield Fault("/verifications", f"verifications has {len(items)} items; at most {MAX_VERIFICATIONS} are kept.")
    for index, item in enumerate(items):
        yield from verification_faults(item, f"/verifications/{index}")


def _said(value: Any) -> Any:
    """Return what an object or list says: nulls and empty objects and lists within objects say nothing."""
    if isinstance(value, list):
        return [_said(item) if isinstance(item, dict | list) else item for item in value]
    inner = {name: _said(item) if isinstance(item, dict | list) else item for name, item in value.items()}
    return {name: item for name, item in inner.items() if item not in (None, {}, [])}


def _said_of_model(model: ModelIn) -> ModelIn:
    is_flat = all(isinstance(fact, int | float | str) for fact in model.facts.values())
    return model if is_flat else msgspec.structs.replace(model, facts=_said(model.facts))
