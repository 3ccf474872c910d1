"""What a service answers, as lenient structs: fields that a newer service adds are tolerated.

Names, units and optionality are those of the API. Times are aware and UTC; ``_gib`` is 2^30 bytes.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct, field

from kvyield._sent import (
    Engine,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Verification,
)


class Received(Struct, kw_only=True):
    """Base of what a service answers; unknown fields are tolerated."""


class HardwareOut(Hardware, forbid_unknown_fields=False):
    """Hardware as the service tells it."""


class ModelOut(Model, forbid_unknown_fields=False):
    """A model as the service tells it."""


class EngineOut(Engine, forbid_unknown_fields=False):
    """An engine as the service tells it."""


class MeasurementsOut(Measurements, forbid_unknown_fields=False):
    """Measurements as the service tells them."""


class FailureOut(Failure, forbid_unknown_fields=False):
    """A failure as the service tells it."""


class VerificationOut(Verification, forbid_unknown_fields=False):
    """A verification as the service tells it."""


class FieldChange(Received, kw_only=True, rename={"before": "from", "after": "to"}):
    """A field of a start that changed; ``field`` is its dotted name, such as ``hardware.memory_gib``."""

    field: str
    before: object = None
    after: object = None


class HistoryEntry(Received, kw_only=True):
    """What a further account of a start (``merge``) or a person (``correction``) changed, who and when."""

    action: str
    at: datetime | None = None
    actor: str | None = None
    reason: str | None = None
    changes: list[FieldChange] = field(default_factory=list)


class StoredObservation(Observation, kw_only=True, forbid_unknown_fields=False):
    """An observation in the ledger. ``archive`` is what the service's own export keeps beside it."""

    hardware: HardwareOut
    model: ModelOut
    engine: EngineOut
    measurements: MeasurementsOut = field(default_factory=MeasurementsOut)
    failure: FailureOut | None = None
    verifications: list[VerificationOut] = field(default_factory=list)  # type: ignore[assignment]  # list is invariant
    pair_id: UUID | None = None
    received_at: datetime | None = None
    retracted_at: datetime | None = None
    retraction_reason: str | None = None
    history: list[HistoryEntry] = field(default_factory=list)
    archive: dict[str, object] | None = None


class Fault(Received, kw_only=True):
    """One fault of a refused body; ``pointer`` is a JSON pointer."""

    pointer: str = ""
    detail: str = ""


class Problem(Received, kw_only=True):
    """Why the service refused or failed (RFC 9457)."""

    type: str = "about:blank"
    title: str | None = None
    status: int | None = None
    detail: str | None = None
    instance: str | None = None
    errors: list[Fault] = field(default_factory=list)
    request_id: str | None = None
    nearest: list[str] = field(default_factory=list)
    matches: list[dict[str, object]] = field(default_factory=list)


class BatchItem(Received, kw_only=True):
    """What became of one observation of a batch: 201 stored, 200 known already, else ``problem`` says why not."""

    index: int
    status: int
    id: UUID | None = None
    problem: Problem | None = None
    retracted_at: datetime | None = None
    retraction_reason: str | None = None


class Estimate(Received, kw_only=True):
    """A median and a central interval that holds the truth with probability ``level``."""

    median: int | float
    low: int | float
    high: int | float
    level: float = 0.9


class Caution(Received, kw_only=True):
    """A first-class warning: a stable ``code`` and a sentence for people."""

    code: str
    detail: str = ""


class Basis(Received, kw_only=True):
    """What an answer is based on."""

    kind: str
    deployment: str | None = None
    observation_ids: list[UUID] = field(default_factory=list)
    verified_prompt_tokens: int | None = None


class Prediction(Received, kw_only=True):
    """Pool and free memory of one set of flags; an estimate is None when there is not enough evidence."""

    flags: dict[str, object] = field(default_factory=dict)
    pool_tokens: Estimate | None = None
    kv_cache_gib: Estimate | None = None
    free_at_ready_gib: Estimate | None = None
    basis: Basis | None = None
    warnings: list[Caution] = field(default_factory=list)


class Change(Received, kw_only=True, rename={"from_value": "from", "to_value": "to"}):
    """A flag that changes, and why."""

    flag: str
    from_value: object = None
    to_value: object = None
    reason: str = ""


class Probability(Received, kw_only=True):
    """Of the pool holding the target, of the memory sufficing, and of both."""

    pool: float | None = None
    memory: float | None = None
    joint: float | None = None


class Window(Received, kw_only=True):
    """The fractions that satisfy both conditions."""

    lowest: float
    highest: float


class RestartPlan(Received, kw_only=True):
    """How many restarts to expect and how long they take."""

    expected: float | None = None
    minutes: float | None = None
    minutes_each: float | None = None


class Lever(Received, kw_only=True):
    """A change of flags that gains pool or headroom, with what it is predicted to gain and what it costs."""

    flags: dict[str, object] = field(default_factory=dict)
    gain_tokens: int | float | None = None
    gain_gib: float | None = None
    joint: float | None = None
    cost: str | None = None


class AdvicePrediction(Received, kw_only=True):
    """What the advised flags are predicted to give."""

    pool_tokens: Estimate | None = None
    free_at_ready_gib: Estimate | None = None
    headroom_gib: Estimate | None = None


class Headline(Received, kw_only=True):
    """The answer in one sentence: ``code`` is keep, change, at_risk, infeasible or not_enough_evidence.

    ``estimate`` is true when no start was used.
    """

    code: str
    estimate: bool = False
    text: str = ""


class Recommendation(Received, kw_only=True):
    """The answer to ``recommend``. ``status``: ok, at_risk, infeasible or not_enough_evidence.

    ``headline`` is None from a service that does not make one yet.
    """

    status: str
    headline: Headline | None = None
    engine: str | None = None
    id: UUID | None = None
    flags: dict[str, object] = field(default_factory=dict)
    command_line: str | None = None
    changes: list[Change] = field(default_factory=list)
    prediction: AdvicePrediction | None = None
    probability: Probability | None = None
    window: Window | None = None
    restarts: RestartPlan | None = None
    verification_seconds: float | None = None
    basis: Basis | None = None
    alternatives: list[Lever] = field(default_factory=list)
    warnings: list[Caution] = field(default_factory=list)
    explanation: str | None = None
    binding_constraint: str | None = None
    pair_id: UUID | None = None


class Pair(Received, kw_only=True):
    """One hardware and one model."""

    id: UUID
    hardware: HardwareOut
    model: ModelOut
    observation_count: int | None = None
    last_observed_at: datetime | None = None
    engines: list[str] = field(default_factory=list)
    created_at: datetime | None = None
    revision: int | None = None


class Fit(Received, kw_only=True):
    """One fitted deployment: parameters by name with unit, evidence used and set aside, labels."""

    deployment: str
    deployment_id: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    parameters: dict[str, Estimate | None] = field(default_factory=dict)
    basis: Basis | None = None
    evidence: list[dict[str, object]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    warnings: list[Caution] = field(default_factory=list)
    last_observed_at: datetime | None = None


class Health(Received, kw_only=True):
    """Whether the service can work: ``status`` and what was checked."""

    status: str = ""
    checks: dict[str, object] = field(default_factory=dict)
    version: str | None = None


class MessageError(Received, kw_only=True):
    """Why a message of the Model Context Protocol was refused: a code of JSON-RPC 2.0 and a sentence."""

    code: int = 0
    message: str = ""
    data: object = None


class RefusalError(Received, kw_only=True):
    """The problem that an error of JSON-RPC 2.0 carries."""

    data: Problem | None = None


class Refusal(Problem, kw_only=True):
    """A problem as it comes, or within an error of JSON-RPC 2.0."""

    error: RefusalError | None = None


class Message(Received, kw_only=True):
    """What a message of the Model Context Protocol is answered: one of the two."""

    result: dict[str, object] | None = None
    error: MessageError | None = None


class Receipt(Received, kw_only=True):
    """What became of a posted observation: the stored one's id (the first one's, when the content was known).

    ``note`` is the client's own word on a start that is stored with other content.
    """

    id: UUID
    pair_id: UUID | None = None
    received_at: datetime | None = None
    created: bool = True
    note: str | None = None
    retracted_at: datetime | None = None
    retraction_reason: str | None = None
    recommendation_id: UUID | None = None


class BatchAnswer(Received, kw_only=True):
    """One item for each observation of a batch."""

    items: list[BatchItem]


class ObservationPage(Received, kw_only=True):
    """A page of the ledger, newest first."""

    items: list[StoredObservation]
    next_page_token: str | None = None


class PairPage(Received, kw_only=True):
    """A page of pairs."""

    items: list[Pair]
    next_page_token: str | None = None


class FitList(Received, kw_only=True):
    """The fits of a pair, one a deployment."""

    items: list[Fit]


class PredictionList(Received, kw_only=True):
    """Predictions in the order of the flags that were asked about."""

    items: list[Prediction]


class CurvePoint(Received, kw_only=True):
    """Medians and bands at one fraction."""

    fraction: float
    pool_tokens: Estimate | None = None
    kv_cache_gib: Estimate | None = None
    free_at_ready_gib: Estimate | None = None


class CurveStart(Received, kw_only=True):
    """A start that the curve can be compared with."""

    observation_id: UUID
    observed_at: datetime | None = None
    outcome: str | None = None
    fraction: float | None = None
    pool_tokens: int | None = None
    kv_cache_gib: float | None = None
    free_at_ready_gib: float | None = None


class Curve(Received, kw_only=True):
    """A deployment's yield curve; ``flags`` are held while the fraction moves."""

    points: list[CurvePoint]
    pair_id: UUID | None = None
    deployment: str | None = None
    deployment_id: str | None = None
    engine: str | None = None
    fraction_flag: str | None = None
    flags: dict[str, object] = field(default_factory=dict)
    starts: list[CurveStart] = field(default_factory=list)
    warnings: list[Caution] = field(default_factory=list)


class StoredRecommendation(Recommendation, kw_only=True):
    """A stored answer with what was asked; ``observation_id`` is the start that settled it."""

    made_at: datetime | None = None
    question: dict[str, object] = field(default_factory=dict)
    observation_id: UUID | None = None
    settled_at: datetime | None = None
    settlement: str | None = None
