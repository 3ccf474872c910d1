"""Verify: append what a long prompt showed to the start that it was sent to."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from kvyield_server.domain.observation import Verification
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.browse import require_own_pair, stored_observation
from kvyield_server.usecases.record import Recorded


def verify(
    observation_id: UUID, verification: Verification, token_id: UUID | None = None
) -> Callable[[UnitOfWork], Recorded]:
    """Return the job that appends a verification, once however often it is sent.

    The job raises NotFoundError for an unknown id, ForbiddenError when ``token_id`` never posted to that pair.
    """

    def job(uow: UnitOfWork) -> Recorded:
        pair_id = stored_observation(uow, observation_id).pair_id
        require_own_pair(uow, pair_id, token_id)
        is_new = uow.observations.add_verification(observation_id, verification)
        if is_new:
            uow.pairs.bump(pair_id)
        return Recorded(stored_observation(uow, observation_id), is_new)

    return job
