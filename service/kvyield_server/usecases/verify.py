"""Verify: append what a long prompt showed to the start that it was sent to."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from kvyield_server.domain.facts.observation import Verification
from kvyield_server.errors import InvalidError, RetractedError
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.browse import require_own_start, stored_observation
from kvyield_server.usecases.record import Recorded

MOST_VERIFICATIONS = 100


def verify(
    observation_id: UUID, verification: Verification, token_id: UUID | None = None
) -> Callable[[UnitOfWork], Recorded]:
    """Return the job that appends a verification, once however often it is sent.

    The job raises NotFoundError for an unknown id, ForbiddenError when ``token_id`` did not post that start,
    RetractedError when it is retracted, InvalidError when it has ``MOST_VERIFICATIONS`` already.
    """

    def job(uow: UnitOfWork) -> Recorded:
        stored = stored_observation(uow, observation_id)
        require_own_start(stored, token_id)
        known = stored.observation.verifications
        if stored.retracted_at is not None and verification not in known:
            raise RetractedError(f"Observation {stored.observation.id} was retracted: {stored.retraction_reason}")
        if len(known) >= MOST_VERIFICATIONS and verification not in known:
            raise InvalidError(
                [("", f"The start has {len(known)} verifications; at most {MOST_VERIFICATIONS} are kept.")]
            )
        is_new = uow.observations.add_verification(observation_id, verification)
        return Recorded(stored_observation(uow, observation_id), is_new)

    return job
