"""Observations and verifications on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import chain
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from kvyield_server.domain.facts.accounts import FieldChange
from kvyield_server.domain.facts.observation import (
    Answer,
    Cause,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Observation,
    Outcome,
    Phase,
    Scalar,
    Verification,
)
from kvyield_server.schemas.common import (
    Count,
    Fraction,
    Gib,
    GpuCount,
    Instant,
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
    """GPU model (with its MIG profile) times count; ``memory_gib`` is one GPU's as the framework sees it."""

    gpu: Name
    gpu_count: GpuCount
    memory_gib: MemoryGib | None = None
    unified_memory: bool | None = None
    driver_memory_gib: MemoryGib | None = None


class ModelIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A model by the name that it was served as; ``facts`` are fields of its ``config.json``."""

    name: ModelName
    revision: ShortText | None = None
    facts: FactsIn = msgspec.field(default_factory=dict)


class EngineIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The engine; a fork names its parent, and itself in ``variant``."""

    name: EngineName
    version: ShortText | None = None
    variant: ShortText | None = None


class MeasurementsIn(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What the engine logged: GiB, minima over ranks; ``pool_tokens`` per data-parallel rank."""

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
    """How a start failed, in the engine's own words."""

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
    """A long prompt sent to the running server, memory sampled meanwhile.

    ``passed``: the whole prompt was served without an error. ``answer``: right, wrong or not_checked.
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
    """One engine start, as posted. ``id`` and ``observed_at`` are made by the server when absent."""

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
    """A line of an export: what the service added to a start is taken and not looked at when it is posted."""

    pair_id: UUID | None = None
    received_at: Instant | None = None
    retracted_at: Instant | None = None
    retraction_reason: ShortText | None = None
    history: list[dict[str, Any]] | None = None
    archive: dict[str, Any] | None = None


_canonical = msgspec.json.Encoder(order="deterministic")
_NOTHING_MEASURED = MeasurementsIn()


class FieldChangeOut(Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """A field that changed, by its dotted name, such as ``hardware.memory_gib``."""

    field: str
    before: Any
    after: Any


class HistoryEntryOut(Struct, frozen=True, kw_only=True):
    """What a further account of the start (``merge``) or a person (``correction``) changed, who and when."""

    at: datetime
    actor: str
    action: Literal["merge", "correction"]
    reason: str | None
    changes: list[FieldChangeOut]


class ObservationOut(Struct, frozen=True, kw_only=True):
    """One engine start, as kept: what was posted, and what the service added."""

    id: UUID
    observed_at: datetime
    host: str | None
    source: str | None
    hardware: Hardware
    model: dict[str, Any]
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


class Kept(Protocol):
    """An observation as a store hands it out."""

    @property
    def observation(self) -> Observation: ...
    @property
    def pair_id(self) -> UUID: ...
    @property
    def received_at(self) -> datetime: ...
    @property
    def retracted_at(self) -> datetime | None: ...
    @property
    def retraction_reason(self) -> str | None: ...
    @property
    def history(self) -> Sequence[Entry]: ...


class Entry(Protocol):
    """An entry of the history as a store hands it out."""

    @property
    def at(self) -> datetime: ...
    @property
    def actor(self) -> str: ...
    @property
    def action(self) -> Literal["merge", "correction"]: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def changes(self) -> Sequence[FieldChange]: ...


class RetractionIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Why an observation is not to be believed."""

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


def from_domain(stored: Kept) -> ObservationOut:
    """Return a stored observation in its wire form."""
    start = stored.observation
    return ObservationOut(
        id=start.id,
        observed_at=start.observed_at,
        host=start.host,
        source=start.source,
        hardware=start.hardware,
        model={"name": start.model.name, "revision": start.model.revision, "facts": dict(start.model.facts)},
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


def _entry_out(entry: Entry) -> HistoryEntryOut:
    changes = [FieldChangeOut(field=each.field, before=each.before, after=each.after) for each in entry.changes]
    return HistoryEntryOut(at=entry.at, actor=entry.actor, action=entry.action, reason=entry.reason, changes=changes)


def _time_faults(moment: datetime | None) -> Iterator[Fault]:
    if moment is not None and not 2000 <= moment.year < 2200:
        yield Fault("/observed_at", f"observed_at is in the year {moment.year}; the start of an engine is meant.")
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
        yield Fault("/failure", "failure must be null when outcome is ready; say oom_runtime if it died later.")


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
