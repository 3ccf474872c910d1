"""Retract: mark an observation as not to be believed. It stays in the ledger and leaves the fits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from kvyield_server.domain.records import StoredObservation
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.audit import audited


def retract(
    observation_id: UUID, reason: str, *, actor: str, now: datetime
) -> Callable[[UnitOfWork], StoredObservation]:
    """Return the job that retracts an observation; the first reason stays. NotFoundError for an unknown id."""
    return audited(
        lambda uow: uow.observations.retract(observation_id, reason, now),
        "retract",
        actor=actor,
        now=now,
        subject=lambda _: observation_id,
        details={"reason": reason},
    )
