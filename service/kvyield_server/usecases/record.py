"""Record one engine start: once, however often it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from kvyield_server.domain.observation import Observation
from kvyield_server.errors import ConflictError
from kvyield_server.storage.records import StoredObservation
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.settle import settle


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is stored, and whether this very call stored it."""

    stored: StoredObservation
    is_new: bool


def record(
    observation: Observation, digest: str, *, token_id: UUID | None, now: datetime
) -> Callable[[UnitOfWork], Recorded]:
    """Return the job that keeps an observation, or finds the one that was kept before.

    The job raises ConflictError when the id is stored with other content, InvalidError when the recommendation that
    it names does not exist.
    """

    def job(uow: UnitOfWork) -> Recorded:
        if known := _known(uow, observation.id, digest):
            return Recorded(known, is_new=False)
        pair = uow.pairs.ensure(observation.hardware, observation.model)
        uow.observations.add(observation, pair.id, digest, received_at=now, token_id=token_id)
        settle(uow, observation, now)
        stored = StoredObservation(
            observation=observation, pair_id=pair.id, received_at=now, content_digest=digest, token_id=token_id
        )
        return Recorded(stored, is_new=True)

    return job


def _known(uow: UnitOfWork, observation_id: UUID, digest: str) -> StoredObservation | None:
    same_id = uow.observations.get(observation_id)
    if same_id is None:
        return uow.observations.by_digest(digest)
    if same_id.content_digest != digest:
        raise ConflictError(f"Observation {observation_id} is stored with other content; post this one with a new id.")
    return same_id
