"""What the domain answers with, as plain data: estimates, fits, advice; and how a probability is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from kvyield_server.domain.facts.observation import EngineName, Flags, Observation, Scalar


def percent(probability: float) -> str:
    """Return a probability as everything that people read writes it: what is not certain is never 0 % or 100 %."""
    if probability >= 0.9995:
        return "> 99.9 %"
    if probability < 0.0005:
        return "< 0.1 %"
    text = f"{100.0 * probability:.{0 if 0.01 <= probability <= 0.99 else 1}f}"
    return f"{text.removesuffix('.0')} %"


class BasisKind(StrEnum):
    """How much evidence an answer has, from least to most: `config_only`, the model's config alone; `transfer`, starts
    of the model on other hardware; `one_start`; `several_starts`."""

    CONFIG_ONLY = "config_only"
    TRANSFER = "transfer"
    ONE_START = "one_start"
    SEVERAL_STARTS = "several_starts"


class Status(StrEnum):
    """Whether the flags answer the question: `ok`; `at_risk`, with less confidence than asked for; `infeasible`, no
    flags do; `not_enough_evidence`, more starts are needed to tell."""

    OK = "ok"
    AT_RISK = "at_risk"
    INFEASIBLE = "infeasible"
    NOT_ENOUGH_EVIDENCE = "not_enough_evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median and a central interval that holds the truth with probability ``level``."""

    median: float
    low: float
    high: float
    level: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """A first-class warning: ``code`` is stable snake_case, ``detail`` is a sentence for people."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What an answer is based on: its deployment's own starts, and how many of other deployments lend it the slope."""

    kind: BasisKind
    deployment: str | None
    observation_ids: tuple[UUID, ...] = ()
    verified_prompt_tokens: int | None = None
    lent_starts: int = 0
    lent_deployments: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Pool and free memory of one set of flags; an estimate is None when there is not enough evidence."""

    flags: Flags
    pool_tokens: Estimate | None
    kv_cache_gib: Estimate | None
    free_at_ready_gib: Estimate | None
    basis: Basis
    warnings: tuple[Caution, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceItem:
    """One observation as the fit saw it. ``use`` is point, bound, free_memory_only or set_aside; ``reason`` why."""

    observation_id: UUID
    use: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSummary:
    """A fitted deployment as the API and pages show it.

    ``parameters`` maps a name with its unit (``slope_tokens_per_fraction``, ``zero_fraction``, ``bytes_per_token``,
    ``base_memory_gib``, ``free_at_ready_intercept_gib``...) to its estimate.
    """

    deployment: str
    deployment_id: str
    engine: EngineName
    engine_version: str | None
    parameters: dict[str, Estimate]
    basis: Basis
    evidence: tuple[EvidenceItem, ...]
    labels: tuple[str, ...]
    warnings: tuple[Caution, ...] = ()
    last_observed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Predictions of a deployment along the fraction, and its starts; ``flags`` are held while the fraction moves."""

    pair_id: UUID
    summary: FitSummary
    fraction_flag: str
    flags: dict[str, Scalar]
    points: tuple[tuple[float, Prediction], ...]
    starts: tuple[Observation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What changed in one deployment of a pair between two versions of its engine; None is not known.

    Slopes are per 0.01 of the fraction: tokens of pool gained, GiB of free memory lost. ``pool_tokens`` and
    ``free_gib`` are the changes, newer less older, at one ``fraction`` under the flags of the newer version, with their
    90 % intervals. ``deployment`` is its name without the version. ``from_starts`` and ``to_starts`` lie on the lines.
    """

    from_deployment_id: str
    to_deployment_id: str
    engine: EngineName
    from_version: str
    to_version: str
    deployment: str
    newest_at: datetime
    fraction: float
    from_starts: int
    to_starts: int
    from_slope_tokens: float | None = None
    to_slope_tokens: float | None = None
    pool_tokens: float | None = None
    pool_low: float | None = None
    pool_high: float | None = None
    from_slope_gib: float | None = None
    to_slope_gib: float | None = None
    free_gib: float | None = None
    free_low: float | None = None
    free_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    flag: str
    from_value: object
    to_value: object
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A change of flags for one restart, with what that restart gains against the advice and what it costs.

    ``gain_tokens`` of pool and ``gain_gib`` of headroom are of exactly these ``flags``, fraction included. A lower
    target names itself in ``target_tokens``.
    """

    flags: Flags
    gain_tokens: int
    gain_gib: float | None
    joint: float | None
    cost: str
    target_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probability:
    """Of the pool holding the target, of the memory sufficing, and of both; None where nothing tells it."""

    pool: float
    memory: float | None
    joint: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvicePrediction:
    """What the advised flags are predicted to give.

    ``quantiles`` maps the name of a predicted quantity to (probability, value) rows, by which calibration counts how
    often the truth stayed below each value.
    """

    pool_tokens: Estimate | None = None
    free_at_ready_gib: Estimate | None = None
    headroom_gib: Estimate | None = None
    quantiles: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The fractions that answer a question.

    Attributes:
        lowest: Smallest fraction that does.
        highest: Largest fraction that does.
    """

    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    expected: float | None
    minutes: float | None
    minutes_each: float | None


class Prefer(StrEnum):
    """Which fraction to advise of those that satisfy the question: `keep`, what runs or the nearest to it; `headroom`,
    the smallest; `pool`, the largest."""

    KEEP = "keep"
    HEADROOM = "headroom"
    POOL = "pool"


class HeadlineCode(StrEnum):
    """What to do: `not_enough_evidence`, post a start first; `infeasible`, ask for less or take an alternative; `keep`
    what runs; `at_risk`, change, with less confidence than asked for; `change`."""

    NOT_ENOUGH_EVIDENCE = "not_enough_evidence"
    INFEASIBLE = "infeasible"
    KEEP = "keep"
    AT_RISK = "at_risk"
    CHANGE = "change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The answer in one sentence.

    Attributes:
        code: What to do, for programs.
        estimate: Whether it was made without any start of the pair.
        text: The sentence, for people.
    """

    code: HeadlineCode
    estimate: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person asks for. None means not said; ``flags`` are flags the asker wants held.

    ``engine_version`` is the version to be restarted, where it may not be the one that the evidence is of.
    """

    target_tokens: int
    reply_tokens: int = 0
    concurrent: int = 1
    confidence: float = 0.95
    prompt_need_gib: float | None = None
    flags: Flags = field(default_factory=dict)
    engine_version: str | None = None
    prefer: Prefer = Prefer.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer to a question. All changes go into one restart."""

    status: Status
    engine: EngineName
    flags: Flags
    command_line: str
    changes: tuple[Change, ...]
    prediction: AdvicePrediction
    probability: Probability | None
    window: Window | None
    restarts: RestartPlan | None
    verification_seconds: float | None
    basis: Basis
    alternatives: tuple[Lever, ...]
    warnings: tuple[Caution, ...]
    explanation: str
    binding_constraint: str | None = None
    model_name: str | None = None
    headline: Headline | None = None
