"""Pairs, their fits and their curves on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct, convert

from kvyield_server.domain.answers import Basis, BasisKind, Curve, FitSummary, Prediction
from kvyield_server.domain.facts.observation import EngineName, Hardware, Observation, Outcome, Scalar
from kvyield_server.schemas.common import EstimateOut, Fraction, WarningOut, estimate_out, tokens_out, warnings_out
from kvyield_server.schemas.observations import ModelOut


class CurveQuery(Struct, forbid_unknown_fields=True, kw_only=True, rename={"lowest": "from", "highest": "to"}):
    """Which part of which deployment's curve.

    Attributes:
        deployment: Id or label of the deployment, as the fits give it; the newest when absent.
        lowest: Smallest fraction of the curve; 0.05 below the smallest of the starts when absent.
        highest: Largest fraction of the curve; 0.05 above the largest of the starts when absent.
        points: Number of points, evenly spaced.
    """

    deployment: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    lowest: Fraction | None = None
    highest: Fraction | None = None
    points: Annotated[int, Meta(ge=2, le=500)] = 50


class PairOut(Struct, frozen=True, kw_only=True):
    """One hardware and one model.

    Attributes:
        id: UUID of the pair, made by the service.
        hardware: The hardware, with the attributes that its starts agree on.
        model: The model, with all facts that its starts gave.
        engines: The engines that it was started with.
        observation_count: Number of starts that count; retracted ones do not.
        last_observed_at: Time of the newest start that counts, UTC; null without one.
        created_at: Time when the first start of the pair was stored, UTC.
        revision: Number that grows with every change of the pair's evidence.
    """

    id: UUID
    hardware: Hardware
    model: ModelOut
    engines: tuple[EngineName, ...]
    observation_count: int
    last_observed_at: datetime | None
    created_at: datetime
    revision: int


class BasisOut(Struct, frozen=True, kw_only=True):
    """The evidence that an answer was made from.

    Attributes:
        kind: How much evidence there is.
        observation_ids: The starts that were used.
        deployment: Label of the deployment whose fit was used; null without one.
        verified_prompt_tokens: Longest prompt that a verification of the deployment served, in tokens; null without
            one.
    """

    kind: BasisKind
    observation_ids: list[UUID]
    deployment: str | None
    verified_prompt_tokens: int | None


class EvidenceOut(Struct, frozen=True, kw_only=True):
    """One start as the fit saw it.

    Attributes:
        observation_id: UUID of the start.
        use: `point`: its pool is a point of the line; `bound`: it bounds the line; `free_memory_only`: only its free
            memory counts; `set_aside`: it does not count.
        reason: Why it was used like that.
    """

    observation_id: UUID
    use: str
    reason: str


class FitOut(Struct, frozen=True, kw_only=True):
    """One fitted deployment.

    Attributes:
        deployment: Label of the deployment for people: engine, version, layout and KV dtype.
        deployment_id: Id of the deployment, the same for the same facts.
        engine: The engine.
        engine_version: Version of the engine; null when no start names it.
        parameters: Fitted parameters by name with unit, such as `slope_tokens_per_fraction`; null without evidence.
        basis: The evidence that the fit was made from.
        evidence: Each start of the deployment and how it was used.
        labels: What the evidence is marked with, such as `confounded` or `drift`.
        warnings: What to know before the fit is used.
        last_observed_at: Time of the newest start of the deployment, UTC; null without one.
    """

    deployment: str
    deployment_id: str
    engine: EngineName
    engine_version: str | None
    parameters: dict[str, EstimateOut | None]
    basis: BasisOut
    evidence: list[EvidenceOut]
    labels: list[str]
    warnings: list[WarningOut]
    last_observed_at: datetime | None


class FitsOut(Struct, frozen=True, kw_only=True):
    """The fits of a pair.

    Attributes:
        pair_id: UUID of the pair.
        revision: The pair's revision that the fits were made at.
        items: One fit per deployment, the newest first.
    """

    pair_id: UUID
    revision: int
    items: list[FitOut]


class CurvePointOut(Struct, frozen=True, kw_only=True):
    """What one fraction is predicted to give.

    Attributes:
        fraction: The fraction.
        pool_tokens: Tokens that the KV pool will hold, per data-parallel rank.
        kv_cache_gib: Size of the KV cache, in GiB.
        free_at_ready_gib: Free memory of the fullest GPU when the engine is ready, in GiB.
    """

    fraction: float
    pool_tokens: EstimateOut | None
    kv_cache_gib: EstimateOut | None
    free_at_ready_gib: EstimateOut | None


class CurveStartOut(Struct, frozen=True, kw_only=True):
    """A start that the curve can be compared with; null is not known.

    Attributes:
        observation_id: UUID of the start.
        observed_at: Time of the start, UTC.
        outcome: How the start ended.
        fraction: The fraction that it was started with.
        pool_tokens: Tokens that its KV pool held, per data-parallel rank.
        kv_cache_gib: Size of its KV cache, in GiB.
        free_at_ready_gib: Free memory when it was ready, in GiB.
    """

    observation_id: UUID
    observed_at: datetime
    outcome: Outcome
    fraction: float | None
    pool_tokens: int | None
    kv_cache_gib: float | None
    free_at_ready_gib: float | None


class CurveOut(Struct, frozen=True, kw_only=True):
    """A deployment's yield curve.

    Attributes:
        pair_id: UUID of the pair.
        deployment: Label of the deployment for people.
        deployment_id: Id of the deployment.
        engine: The engine.
        fraction_flag: Name of the engine's fraction flag.
        flags: The other flags, which stay the same while the fraction changes.
        points: Predictions along the fraction, ascending.
        starts: The deployment's starts.
        warnings: What to know before the curve is used.
    """

    pair_id: UUID
    deployment: str
    deployment_id: str
    engine: EngineName
    fraction_flag: str
    flags: dict[str, Scalar]
    points: list[CurvePointOut]
    starts: list[CurveStartOut]
    warnings: list[WarningOut]


def pair_out(pair: object) -> PairOut:
    """Return a pair as a store hands it out in its wire form."""
    return convert(pair, PairOut, from_attributes=True)


def basis_out(basis: Basis) -> BasisOut:
    return convert(basis, BasisOut, from_attributes=True)


def fit_out(summary: FitSummary) -> FitOut:
    return FitOut(
        deployment=summary.deployment,
        deployment_id=summary.deployment_id,
        engine=summary.engine,
        engine_version=summary.engine_version,
        parameters={name: estimate_out(value, digits=6) for name, value in summary.parameters.items()},
        basis=basis_out(summary.basis),
        evidence=convert(summary.evidence, list[EvidenceOut], from_attributes=True),
        labels=list(summary.labels),
        warnings=warnings_out(summary.warnings),
        last_observed_at=summary.last_observed_at,
    )


def fits_out(pair_id: UUID, revision: int, summaries: Sequence[FitSummary]) -> FitsOut:
    return FitsOut(pair_id=pair_id, revision=revision, items=[fit_out(summary) for summary in summaries])


def curve_out(curve: Curve) -> CurveOut:
    """Return a curve in its wire form."""
    summary = curve.summary
    return CurveOut(
        pair_id=curve.pair_id,
        deployment=summary.deployment,
        deployment_id=summary.deployment_id,
        engine=summary.engine,
        fraction_flag=curve.fraction_flag,
        flags=dict(curve.flags),
        points=[_point(fraction, prediction) for fraction, prediction in curve.points],
        starts=[_start(start) for start in curve.starts],
        warnings=warnings_out(summary.warnings),
    )


def _point(fraction: float, prediction: Prediction) -> CurvePointOut:
    return CurvePointOut(
        fraction=fraction,
        pool_tokens=tokens_out(prediction.pool_tokens),
        kv_cache_gib=estimate_out(prediction.kv_cache_gib, digits=3),
        free_at_ready_gib=estimate_out(prediction.free_at_ready_gib, digits=3),
    )


def _start(start: Observation) -> CurveStartOut:
    measured = start.measurements
    return CurveStartOut(
        observation_id=start.id,
        observed_at=start.observed_at,
        outcome=start.outcome,
        fraction=start.fraction,
        pool_tokens=measured.pool_tokens,
        kv_cache_gib=measured.kv_cache_gib,
        free_at_ready_gib=measured.free_at_ready_gib,
    )
