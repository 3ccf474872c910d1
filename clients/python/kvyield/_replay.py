"""Posting a start that the service may know already, perhaps as another version of the reader saw it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import msgspec

from kvyield import _wire
from kvyield._errors import ConflictError, InvalidError, NotAllowedError, NotFoundError, RefusedError
from kvyield._ids import content_id, is_same_start, start_id, told_apart_id

if TYPE_CHECKING:
    from kvyield.spool import Addition

KEPT = "stored by another reader version"
SETTLED = "the recommendation is compared with it"
UNSETTLED = "the recommendation is not compared with it"
_NOT_READ = {"id", "verifications", "recommendation_id"}


class Ledger(Protocol):
    """The part of `Client` that this needs."""

    def post_observation(self, observation: _wire.Observation) -> _wire.Receipt: ...

    def observation(self, observation_id: UUID | str) -> _wire.StoredObservation: ...

    def add_verification(
        self, observation_id: UUID | str, verification: _wire.Verification
    ) -> _wire.StoredObservation: ...

    def settle(self, recommendation_id: UUID | str, observation_id: UUID | str) -> _wire.StoredRecommendation: ...


def posting(client: Ledger) -> Callable[[_wire.Observation], _wire.Receipt]:
    """`post_start` to this client."""
    return lambda observation: post_start(client, observation)


def adding(client: Ledger) -> Callable[[Addition], _wire.Receipt]:
    """Adds a verification to the start that this client's service has."""

    def add(addition: Addition) -> _wire.Receipt:
        try:
            stored = client.add_verification(addition.observation_id, addition.verification)
        except InvalidError as error:
            if not is_older(error, [addition.verification]):
                raise
            stored = client.add_verification(addition.observation_id, _without_answer(addition.verification))
        return _wire.Receipt(id=stored.id or addition.observation_id, pair_id=stored.pair_id)

    return add


def post_start(client: Ledger, observation: _wire.Observation) -> _wire.Receipt:
    """Post a start, as often as one likes and from whatever version of the reader: it is stored once.

    A start that is stored with other content stays as it is: the receipt's ``note`` says so, and verifications are
    added to it. Raises `ServiceError`.
    """
    try:
        receipt = client.post_observation(observation)
    except ConflictError as error:
        return after_conflict(client, observation, error)
    except InvalidError as error:
        if not is_older(error, observation.verifications):
            raise
        plain = [_without_answer(one) for one in observation.verifications]
        return post_start(client, msgspec.structs.replace(observation, verifications=plain))
    notes = list(filter(None, [receipt.note, retraction_note(receipt), _settling_note(observation, receipt)]))
    return msgspec.structs.replace(receipt, note="; ".join(notes) or None)


def is_older(error: InvalidError, verifications: Sequence[_wire.Verification]) -> bool:
    """Whether a service that does not know ``answer`` yet refused verifications for it."""
    told = [*error.problem.errors, *(_wire.Fault(detail=text) for text in [error.problem.detail] if text)]
    return any(one.answer for one in verifications) and any("answer" in f"{one.pointer} {one.detail}" for one in told)


def _without_answer(verification: _wire.Verification) -> _wire.Verification:
    """As a service took it before: passed with a right answer, or with one that nobody checked."""
    passed = verification.passed and verification.answer != "wrong"
    return msgspec.structs.replace(verification, answer=None, passed=passed)


def _settling_note(observation: _wire.Observation, receipt: _wire.Receipt) -> str | None:
    """A start that was known before, and now names the advice that it followed, has settled it."""
    named = observation.recommendation_id
    return SETTLED if named is not None and not receipt.created and receipt.recommendation_id == named else None


def retraction_note(stored: _wire.Receipt | _wire.BatchItem | _wire.StoredObservation) -> str | None:
    """A word on a start that was retracted: it is known and counts as nothing, which whoever posts it should know."""
    if stored.retracted_at is None:
        return None
    why = f": {stored.retraction_reason}" if stored.retraction_reason else ""
    return f"this start was retracted on {stored.retracted_at:%Y-%m-%d}{why}; it counts as no evidence"


def after_conflict(client: Ledger, observation: _wire.Observation, error: ConflictError) -> _wire.Receipt:
    """What `post_start` does once the service has said that the id is stored with other content."""
    if observation.id != start_id(observation):
        raise error  # whoever chose this id must know of the conflict
    for name in (told_apart_id, content_id):
        stored = _stored(client, observation.id)
        if stored is not None and is_same_start(observation, stored):
            return _known(client, observation, stored)
        observation = msgspec.structs.replace(observation, id=name(observation))
        try:
            return client.post_observation(observation)
        except ConflictError as again:
            error = again
    raise error


def _stored(client: Ledger, observation_id: UUID | None) -> _wire.StoredObservation | None:
    """None when it is another token's, which a token that only posts may not read."""
    try:
        return client.observation(observation_id or "")
    except (NotFoundError, NotAllowedError):
        return None


def _known(client: Ledger, observation: _wire.Observation, stored: _wire.StoredObservation) -> _wire.Receipt:
    assert stored.id is not None
    for verification in observation.verifications:
        client.add_verification(stored.id, verification)
    notes = [] if _is_read_alike(observation, stored) else [KEPT]
    notes += filter(None, [retraction_note(stored)])
    if observation.recommendation_id not in (None, stored.recommendation_id):
        notes.append(_settled(client, observation.recommendation_id, stored.id))
    return _wire.Receipt(id=stored.id, pair_id=stored.pair_id, created=False, note="; ".join(notes) or None)


def _is_read_alike(observation: _wire.Observation, stored: _wire.StoredObservation) -> bool:
    """A start that a watch posted differs from the report's by what it follows, not by what was read."""
    names = set(observation.__struct_fields__) - _NOT_READ
    return all(_plain(getattr(observation, name)) == _plain(getattr(stored, name)) for name in names)


def _plain(value: object) -> object:
    """Return a value as it compares: a struct by what it says."""
    if not isinstance(value, msgspec.Struct):
        return value
    return {name: _plain(each) for name, each in msgspec.structs.asdict(value).items() if each not in (None, {}, [])}


def _settled(client: Ledger, recommendation_id: UUID, observation_id: UUID) -> str:
    try:
        client.settle(recommendation_id, observation_id)
    except RefusedError as error:
        return f"{UNSETTLED}: {error}"
    return SETTLED
