"""Settle a recommendation: tie it to the start that followed it, so that calibration can count it."""

from __future__ import annotations

from datetime import datetime

from kvyield_server.domain.observation import Observation
from kvyield_server.errors import InvalidError
from kvyield_server.storage.records import StoredRecommendation
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.select import loose_gpu, loose_model


def settle(uow: UnitOfWork, observation: Observation, now: datetime) -> None:
    """Settle the recommendation that a stored observation names, if any; the first start counts."""
    if observation.recommendation_id is not None:
        uow.recommendations.settle(observation.recommendation_id, observation.id, now)


def require_made(uow: UnitOfWork, observation: Observation) -> None:
    """Return when the recommendation that an observation names was made for its pair, or it names none.

    Raises:
        InvalidError: it does not exist, or is another pair's.
    """
    named = observation.recommendation_id
    if named is None:
        return
    answer = uow.recommendations.get(named)
    if answer is None:
        detail = f"recommendation_id is {named}; no such recommendation was made here. Leave it null when unsure."
        raise InvalidError([("/recommendation_id", detail)])
    if not _is_for(uow, answer, observation):
        detail = f"recommendation_id is {named}, made for another GPU, count of GPUs or model than this start's."
        raise InvalidError([("/recommendation_id", detail)])


def _is_for(uow: UnitOfWork, answer: StoredRecommendation, start: Observation) -> bool:
    """A recommendation for a pair never recorded knows only the asker's own spelling of the names."""
    own = (start.hardware.gpu, start.hardware.gpu_count, start.model.name)
    pair = uow.pairs.get(answer.pair_id) if answer.pair_id else None
    if pair is not None:
        return own == (pair.hardware.gpu, pair.hardware.gpu_count, pair.model.name)
    asked = answer.selector
    if asked.get("gpu_count") != start.hardware.gpu_count:
        return False
    names = (loose_gpu(str(asked.get("gpu"))), loose_model(str(asked.get("model"))))
    return names == (loose_gpu(own[0]), loose_model(own[2]))
