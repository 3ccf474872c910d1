"""Retract: mark an observation as not to be believed. It stays in the ledger and leaves the fits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from kvyield_server.storage.records import AuditEntry, StoredObservation
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import new_id


def retract(
    observation_id: UUID, reason: str, *, actor: str, now: datetime
) -> Callable[[UnitOfWork], StoredObservation]:
    """Return the job that retracts an observation; the first reason stays. NotFoundError for an unknown id."""
    entry = AuditEntry(
        id=new_id(), at=now, actor=actor, action="retract", subject=str(observation_id), details={"reason": reason}
    )

    def job(uow: UnitOfWork) -> StoredObservation:
        stored = uow.observations.retract(observation_id, reason, now)
        uow.audit.add(entry)
        return stored

    return job
