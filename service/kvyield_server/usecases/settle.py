"""Settle a recommendation: tie it to the start that followed it, so that calibration can count it."""

from __future__ import annotations

from datetime import datetime

from kvyield_server.domain.observation import Observation
from kvyield_server.errors import InvalidError
from kvyield_server.storage.uow import UnitOfWork


def settle(uow: UnitOfWork, observation: Observation, now: datetime) -> None:
    """Settle the recommendation that a stored observation names, if any; the first start counts."""
    if observation.recommendation_id is not None:
        uow.recommendations.settle(observation.recommendation_id, observation.id, now)


def require_made(uow: UnitOfWork, observation: Observation) -> None:
    """Return when the recommendation that an observation names exists, or it names none.

    Raises:
        InvalidError: it does not exist.
    """
    answer = observation.recommendation_id
    if answer is not None and uow.recommendations.get(answer) is None:
        detail = f"recommendation_id is {answer}; no such recommendation was made here. Leave it null when unsure."
        raise InvalidError([("/recommendation_id", detail)])
