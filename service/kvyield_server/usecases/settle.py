"""Settlement: tie a recommendation to the start that followed it, so that calibration can count it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from kvyield_server.domain.facts.accounts import loose_gpu, loose_model
from kvyield_server.domain.facts.observation import Observation
from kvyield_server.domain.records import StoredObservation, StoredRecommendation
from kvyield_server.errors import ConflictError, InvalidError
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.browse import require_own_start, stored_recommendation


class Settled(NamedTuple):
    """A settled recommendation, whether this very call settled it, and why it does not count if it does not."""

    recommendation: StoredRecommendation
    is_new: bool
    settlement: str | None


def settle_by(
    recommendation_id: UUID, observation_id: UUID, *, token_id: UUID | None, now: datetime
) -> Callable[[UnitOfWork], Settled]:
    """Return the job that ties a recommendation to a start that was posted without naming it, as a watch posts it.

    The same again changes nothing. The job raises NotFoundError for an unknown recommendation, ConflictError when
    another start settled it, ForbiddenError when ``token_id`` did not post the start, and InvalidError for a start that
    is unknown, retracted, of another pair or engine, older than the recommendation, or followed another one.
    """

    def job(uow: UnitOfWork) -> Settled:
        answer = stored_recommendation(uow, recommendation_id)
        stored = uow.observations.get(observation_id)
        if stored is None:
            raise _unfit(observation_id, "this service stores no such start. Post it first.")
        require_own_start(stored, token_id)
        if answer.observation_id == observation_id:
            return Settled(answer, is_new=False, settlement=settlement_of(uow, answer))
        _require_fit(uow, answer, stored)
        if answer.observation_id is not None:
            raise ConflictError(
                f"Recommendation {answer.id} is compared with another start already; the first start counts."
            )
        uow.recommendations.settle(recommendation_id, observation_id, now)
        answer = stored_recommendation(uow, recommendation_id)
        return Settled(answer, is_new=True, settlement=settlement_of(uow, answer))

    return job


def settlement_of(uow: UnitOfWork, answer: StoredRecommendation) -> str | None:
    """Say that the start that settled an answer does not count, where it was started with other flags than advised."""
    stored = None if answer.observation_id is None else uow.observations.get(answer.observation_id)
    if stored is None:
        return None
    given = stored.observation.flags
    others = [
        f"{name} {given[name]} instead of {value}"
        for name, value in answer.advice.flags.items()
        if name in given and given[name] != value
    ]
    return f"started with other flags: not counted ({'; '.join(others)})" if others else None


def _require_fit(uow: UnitOfWork, answer: StoredRecommendation, stored: StoredObservation) -> None:
    """Return when a start can be what followed an answer."""
    start = stored.observation
    if stored.retracted_at is not None:
        raise _unfit(start.id, "that start is retracted: no recommendation is compared with it.")
    if not _is_for(uow, answer, start):
        raise _unfit(start.id, "that start has another GPU, count of GPUs, model or engine than the recommendation.")
    if stored.received_at < answer.made_at:
        raise _unfit(start.id, "that start was posted before the recommendation was made.")
    followed = start.recommendation_id or uow.recommendations.settled_by(start.id)
    if followed not in (None, answer.id):
        raise _unfit(start.id, f"that start followed recommendation {followed}.")


def _unfit(observation_id: UUID, reason: str) -> InvalidError:
    return InvalidError([("/observation_id", f"observation_id is {observation_id}; {reason}")])


def settle(uow: UnitOfWork, observation: Observation, now: datetime) -> None:
    """Tie a stored observation to the recommendation that it names, if any; the first start counts."""
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
        detail = f"recommendation_id is {named}; this service made no such recommendation. Leave it null when unsure."
        raise InvalidError([("/recommendation_id", detail)])
    if not _is_for(uow, answer, observation):
        detail = f"recommendation_id is {named}, made for another GPU, count of GPUs, model or engine."
        raise InvalidError([("/recommendation_id", detail)])


def _is_for(uow: UnitOfWork, answer: StoredRecommendation, start: Observation) -> bool:
    """A recommendation for a pair never recorded knows only the asker's own spelling of the names."""
    if answer.advice.engine is not start.engine.name:
        return False
    own = (start.hardware.gpu, start.hardware.gpu_count, start.model.name)
    pair = uow.pairs.get(answer.pair_id) if answer.pair_id else None
    if pair is not None:
        return own == (pair.hardware.gpu, pair.hardware.gpu_count, pair.model.name)
    asked = answer.selector
    if asked.get("gpu_count") != start.hardware.gpu_count:
        return False
    names = (loose_gpu(str(asked.get("gpu"))), loose_model(str(asked.get("model"))))
    return names == (loose_gpu(own[0]), loose_model(own[2]))
