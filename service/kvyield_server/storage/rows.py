"""Between stored forms and table rows. What is a column of its own is not repeated inside the JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from kvyield_server.domain.answers import Advice, Question
from kvyield_server.domain.facts.accounts import Account, FieldChange, host_key
from kvyield_server.domain.facts.observation import (
    Answer,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Verification,
)
from kvyield_server.domain.records import HistoryEntry, StoredObservation, StoredRecommendation
from kvyield_server.storage.records import (
    ApiToken,
    AuditEntry,
    Pair,
    Role,
    StoredAccount,
)
from kvyield_server.storage.values import plain

Row = Mapping[Any, Any]
T = TypeVar("T")

_TYPED_MEASUREMENTS = ("pool_tokens", "free_at_ready_gib")
_OTHER_MEASUREMENTS = tuple(each.name for each in fields(Measurements) if each.name not in _TYPED_MEASUREMENTS)


def _struct(document: object, kind: type[T]) -> T:
    """Return a document as it was before ``plain``, whole numbers as floats where the type says float."""
    return msgspec.convert(document, kind)


def observation_to_row(stored: StoredObservation) -> dict[str, Any]:
    it = stored.observation
    measured = it.measurements
    others = {name: value for name in _OTHER_MEASUREMENTS if (value := getattr(measured, name)) is not None}
    return {
        "id": it.id,
        "pair_id": stored.pair_id,
        "content_digest": stored.content_digest,
        "observed_at": it.observed_at,
        "received_at": stored.received_at,
        "is_timed": stored.is_timed,
        "is_zoned": stored.is_zoned,
        "token_id": stored.token_id,
        "retracted_at": stored.retracted_at,
        "retraction_reason": stored.retraction_reason,
        "host": it.host,
        "host_key": host_key(it),
        "source": it.source,
        "gpu": it.hardware.gpu,
        "gpu_count": it.hardware.gpu_count,
        "memory_gib": it.hardware.memory_gib,
        "unified_memory": it.hardware.unified_memory,
        "driver_memory_gib": it.hardware.driver_memory_gib,
        "model": it.model.name,
        "model_revision": it.model.revision,
        "engine": it.engine.name.value,
        "engine_version": it.engine.version,
        "engine_variant": it.engine.variant,
        "outcome": it.outcome.value,
        "fraction": it.fraction,
        "pool_tokens": measured.pool_tokens,
        "free_at_ready_gib": measured.free_at_ready_gib,
        "recommendation_id": it.recommendation_id,
        "flags": dict(it.flags),
        "facts": dict(it.model.facts),
        "measurements": others,
        "failure": None if it.failure is None else plain(it.failure),
        "log_excerpt": it.log_excerpt,
    }


def observation_from_row(
    row: Row,
    verifications: Iterable[Verification] = (),
    history: tuple[HistoryEntry, ...] = (),
    other_token_ids: frozenset[UUID] = frozenset(),
) -> StoredObservation:
    observation = Observation(
        id=row["id"],
        observed_at=row["observed_at"],
        hardware=hardware_from_row(row),
        model=Model(name=row["model"], revision=row["model_revision"], facts=row["facts"]),
        engine=Engine(name=EngineName(row["engine"]), version=row["engine_version"], variant=row["engine_variant"]),
        outcome=Outcome(row["outcome"]),
        flags=row["flags"],
        measurements=_measurements(row),
        failure=None if row["failure"] is None else _struct(row["failure"], Failure),
        verifications=tuple(verifications),
        host=row["host"],
        source=row["source"],
        recommendation_id=row["recommendation_id"],
        log_excerpt=row["log_excerpt"],
    )
    return StoredObservation(
        observation=observation,
        pair_id=row["pair_id"],
        received_at=row["received_at"],
        content_digest=row["content_digest"],
        token_id=row["token_id"],
        is_timed=row["is_timed"] is not False,
        is_zoned=row["is_zoned"] is True,
        retracted_at=row["retracted_at"],
        retraction_reason=row["retraction_reason"],
        history=history,
        other_token_ids=other_token_ids,
    )


def account_to_row(observation_id: UUID, stored: StoredAccount) -> dict[str, Any]:
    account = stored.account
    return {
        "content_digest": account.digest,
        "observation_id": observation_id,
        "received_at": account.received_at,
        "token_id": stored.token_id,
        "is_timed": account.is_timed,
        "is_zoned": account.is_zoned,
        "body": plain(account.observation),
    }


def account_from_row(row: Row) -> StoredAccount:
    account = Account(
        observation=_struct(row["body"], Observation),
        digest=row["content_digest"],
        received_at=row["received_at"],
        is_timed=row["is_timed"],
        is_zoned=row["is_zoned"],
    )
    return StoredAccount(account=account, token_id=row["token_id"])


def history_to_row(observation_id: UUID, entry: HistoryEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "observation_id": observation_id,
        "at": entry.at,
        "actor": entry.actor,
        "action": entry.action,
        "reason": entry.reason,
        "changes": plain(entry.changes),
    }


def history_from_row(row: Row) -> HistoryEntry:
    return HistoryEntry(
        id=row["id"],
        at=row["at"],
        actor=row["actor"],
        action=row["action"],
        reason=row["reason"],
        changes=tuple(_struct(change, FieldChange) for change in row["changes"]),
    )


def _measurements(row: Row) -> Measurements:
    return replace(_struct(row["measurements"], Measurements), **{name: row[name] for name in _TYPED_MEASUREMENTS})


def hardware_from_row(row: Row) -> Hardware:
    return Hardware(
        gpu=row["gpu"],
        gpu_count=row["gpu_count"],
        memory_gib=row["memory_gib"],
        unified_memory=row["unified_memory"],
        driver_memory_gib=row["driver_memory_gib"],
    )


def verification_to_row(observation_id: UUID, position: int, verification: Verification) -> dict[str, Any]:
    return {"observation_id": observation_id, "position": position, **plain(verification)}


def verification_from_row(row: Row) -> Verification:
    values = {name: row[name] for name in Verification.__dataclass_fields__}
    return Verification(**values | {"answer": values["answer"] and Answer(values["answer"])})


def pair_from_row(row: Row) -> Pair:
    return Pair(
        id=row["id"],
        hardware=hardware_from_row(row),
        model=Model(name=row["model"], revision=row["model_revision"], facts=row["facts"]),
        created_at=row["created_at"],
        revision=row["revision"],
        observation_count=row["observation_count"],
        last_observed_at=row["last_observed_at"],
        engines=tuple(EngineName(name) for name in row["engines"]),
    )


def recommendation_to_row(stored: StoredRecommendation) -> dict[str, Any]:
    return {
        "id": stored.id,
        "made_at": stored.made_at,
        "pair_id": stored.pair_id,
        "engine": stored.advice.engine.value,
        "status": stored.advice.status.value,
        "target_tokens": stored.question.target_tokens,
        "observation_id": stored.observation_id,
        "settled_at": stored.settled_at,
        "question": plain(stored.question),
        "advice": plain(stored.advice),
        "selector": plain(stored.selector),
    }


def recommendation_from_row(row: Row) -> StoredRecommendation:
    return StoredRecommendation(
        id=row["id"],
        made_at=row["made_at"],
        pair_id=row["pair_id"],
        question=_struct(row["question"], Question),
        advice=_struct(row["advice"], Advice),
        selector=row["selector"],
        observation_id=row["observation_id"],
        settled_at=row["settled_at"],
    )


def token_to_row(token: ApiToken) -> dict[str, Any]:
    least = next(role for role in Role if role in token.roles)
    return {**_fields(token), "role": least.value, "roles": sorted(token.roles)}


def token_from_row(row: Row) -> ApiToken:
    values = dict(row)
    role = values.pop("role")
    return ApiToken(**{**values, "roles": frozenset(map(Role, row["roles"] or [role]))})


def audit_to_row(entry: AuditEntry) -> dict[str, Any]:
    return {**_fields(entry), "details": plain(entry.details)}


def audit_from_row(row: Row) -> AuditEntry:
    return AuditEntry(**row)


def _fields(record: ApiToken | AuditEntry) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
