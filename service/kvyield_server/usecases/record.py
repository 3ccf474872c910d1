"""Record engine starts: each once, however often it is sent; many at the cost of a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from kvyield_server.domain.facts.observation import Observation
from kvyield_server.errors import ConflictError, InvalidError
from kvyield_server.storage.records import StoredObservation
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.settle import require_made, settle


class Arrival(NamedTuple):
    """A start as it came: with the digest of its content, the token that posted it, and when."""

    observation: Observation
    digest: str
    token_id: UUID | None
    now: datetime


class Recorded(NamedTuple):
    """What is stored, and whether this very call stored it."""

    stored: StoredObservation
    is_new: bool


Outcome = Recorded | ConflictError | InvalidError


def record(
    observation: Observation, digest: str, *, token_id: UUID | None, now: datetime
) -> Callable[[UnitOfWork], Recorded]:
    """Return the job that keeps an observation, or finds the one that was kept before.

    The job raises ConflictError when the id is stored with other content, InvalidError when the recommendation that
    it names does not exist.
    """
    keep = record_all([Arrival(observation, digest, token_id, now)])

    def job(uow: UnitOfWork) -> Recorded:
        (outcome,) = keep(uow)
        if isinstance(outcome, Recorded):
            return outcome
        raise outcome

    return job


def record_new(arrivals: Sequence[Arrival]) -> Callable[[UnitOfWork], list[Recorded]]:
    """Return the job that keeps observations all of which are likely new: nothing is looked up before.

    The job raises ConflictError when one of them is known after all, InvalidError as ``record`` would for one of them;
    nothing is kept then.
    """

    def job(uow: UnitOfWork) -> list[Recorded]:
        if len({each.digest for each in arrivals}) < len(arrivals):
            raise ConflictError("The same observation came twice.")
        for each in arrivals:
            require_made(uow, each.observation)
        kept = _kept(uow, arrivals)
        return [Recorded(kept[each.digest], is_new=True) for each in arrivals]

    return job


def record_all(arrivals: Sequence[Arrival]) -> Callable[[UnitOfWork], list[Outcome]]:
    """Return the job that keeps observations in the order given and says of each what ``record`` would have."""

    def job(uow: UnitOfWork) -> list[Outcome]:
        known = _Known(uow, arrivals)
        found = [known.take(uow, arrival) for arrival in arrivals]
        kept = _kept(uow, list(known.fresh.values()))
        untold, outcomes = set(kept), list[Outcome]()
        for arrival, outcome in zip(arrivals, found, strict=True):
            outcomes.append(outcome or Recorded(kept[arrival.digest], is_new=arrival.digest in untold))
            if outcome is None:
                untold.discard(arrival.digest)
        return outcomes

    return job


class _Known:
    """What is stored already, and what came earlier in the same call."""

    def __init__(self, uow: UnitOfWork, arrivals: Sequence[Arrival]) -> None:
        ids, digests = [each.observation.id for each in arrivals], [each.digest for each in arrivals]
        stored = uow.observations.matching(ids, digests)
        self._by_id = {each.observation.id: each for each in stored}
        self._by_digest = {each.content_digest: each for each in stored}
        self._coming: dict[UUID, str] = {}
        self.fresh: dict[str, Arrival] = {}

    def take(self, uow: UnitOfWork, arrival: Arrival) -> Outcome | None:
        """Return what became of an arrival; None when it is to be stored, or equals one that is."""
        start, digest = arrival.observation, arrival.digest
        same_id = self._by_id.get(start.id)
        content = same_id.content_digest if same_id else self._coming.get(start.id)
        if content is not None and content != digest:
            return ConflictError(f"Observation {start.id} is stored with other content; post this one with a new id.")
        if stored := same_id or self._by_digest.get(digest):
            return Recorded(stored, is_new=False)
        try:
            require_made(uow, start)
        except InvalidError as error:
            return error
        if digest not in self.fresh:
            self.fresh[digest] = arrival
            self._coming[start.id] = digest
        return None


def _kept(uow: UnitOfWork, fresh: Sequence[Arrival]) -> dict[str, StoredObservation]:
    """Store new observations, settle what they settle, and return them by digest."""
    pairs = uow.pairs.ensure_all([(each.observation.hardware, each.observation.model) for each in fresh])
    stored = [
        StoredObservation(
            observation=each.observation,
            pair_id=pair.id,
            received_at=each.now,
            content_digest=each.digest,
            token_id=each.token_id,
        )
        for each, pair in zip(fresh, pairs, strict=True)
    ]
    uow.observations.add_all(stored, pairs)
    for each in fresh:
        settle(uow, each.observation, each.now)
    return {each.content_digest: each for each in stored}
