"""Recommendations, tokens and the audit trail come back as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from kvyield_server.errors import ConflictError, NotFoundError
from kvyield_server.storage.records import (
    ApiToken,
    AuditEntry,
    Role,
)
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.storage.values import new_id
from storage.samples import NOON, minutes, recommendation, recording, start

TOKEN = ApiToken(
    id=new_id(), name="host", roles=frozenset({Role.INGEST}), token_hash="hash", created_at=NOON, expires_at=minutes(9)
)


def adding(repository: str, record: object) -> Callable[[UnitOfWork], None]:
    """Return a job that adds a record to the repository of that name."""
    return lambda unit: getattr(unit, repository).add(record)


def settling(recommendation_id: UUID, observation_id: UUID, at: datetime) -> Callable[[UnitOfWork], bool]:
    return lambda unit: unit.recommendations.settle(recommendation_id, observation_id, at)


def test_a_recommendation_comes_back_as_it_was(storage: Storage) -> None:
    """Question, advice and selector survive, the order of the flags too; an id is stored once."""
    answer = recommendation()
    storage.write(lambda unit: unit.recommendations.add(answer)).result()
    with storage.read() as unit:
        found = unit.recommendations.get(answer.id)
        assert unit.recommendations.get(new_id()) is None
    assert found == answer
    assert found is not None
    assert list(found.advice.flags) == list(answer.advice.flags)
    assert isinstance(storage.write(lambda unit: unit.recommendations.add(answer)).exception(), ConflictError)


def test_the_first_start_is_tied_to_a_recommendation(storage: Storage) -> None:
    """A recommendation is tied to the first start that followed it; later ones change nothing."""
    first, later = start(), start()
    pair_id = storage.write(recording(first)).result()
    storage.write(recording(later)).result()
    answer = recommendation(pair_id)
    storage.write(lambda unit: unit.recommendations.add(answer)).result()
    assert storage.write(lambda unit: unit.recommendations.settle(answer.id, first.id, minutes(1))).result()
    assert not storage.write(lambda unit: unit.recommendations.settle(answer.id, later.id, minutes(2))).result()
    with storage.read() as unit:
        settled = unit.recommendations.get(answer.id)
        (pair,) = unit.recommendations.page_settled(None, 10).items
    assert settled == replace(answer, observation_id=first.id, settled_at=minutes(1))
    assert (pair.recommendation, pair.observation.observation) == (settled, first)


def test_settling_needs_both(storage: Storage) -> None:
    """A recommendation or a start that is not stored changes nothing."""
    answer, observation = recommendation(), start()
    storage.write(recording(observation)).result()
    storage.write(lambda unit: unit.recommendations.add(answer)).result()
    for pair in ((new_id(), observation.id), (answer.id, new_id())):
        future = storage.write(settling(*pair, NOON))
        assert isinstance(future.exception(), NotFoundError)


def test_settled_pages_leave_retracted_starts_out(storage: Storage) -> None:
    """Calibration sees each settled answer once, newest first, and none whose start was retracted."""
    starts = [start() for _ in range(4)]
    answers = [recommendation() for _ in starts]
    for count, (observation, answer) in enumerate(zip(starts, answers, strict=True)):
        storage.write(recording(observation)).result()
        storage.write(adding("recommendations", answer)).result()
        storage.write(settling(answer.id, observation.id, minutes(count))).result()
    storage.write(lambda unit: unit.recommendations.add(recommendation())).result()
    storage.write(lambda unit: unit.observations.retract(starts[1].id, "bad", NOON)).result()
    with storage.read() as unit:
        first = unit.recommendations.page_settled(None, 2)
        last = unit.recommendations.page_settled(first.next_key, 2)
    ids = [each.recommendation.id for each in (*first.items, *last.items)]
    assert ids == [answers[3].id, answers[2].id, answers[0].id]
    assert last.next_key is None


def test_tokens_are_found_by_hash(storage: Storage) -> None:
    """A token is found by its hash, listed newest first, and its hash is stored once."""
    newer = replace(TOKEN, id=new_id(), token_hash="other", created_at=minutes(1), expires_at=None)
    for token in (TOKEN, newer):
        storage.write(adding("tokens", token)).result()
    with storage.read() as unit:
        assert unit.tokens.by_hash("hash") == TOKEN
        assert unit.tokens.by_hash("none") is None
        assert unit.tokens.list() == (newer, TOKEN)
    again = storage.write(lambda unit: unit.tokens.add(replace(TOKEN, id=new_id())))
    assert isinstance(again.exception(), ConflictError)


def test_a_revoked_token_stays_revoked(storage: Storage) -> None:
    """The first revocation counts, the token stays listed, and it opens nothing from then on."""
    storage.write(lambda unit: unit.tokens.add(TOKEN)).result()
    revoked = storage.write(lambda unit: unit.tokens.revoke(TOKEN.id, minutes(1))).result()
    assert storage.write(lambda unit: unit.tokens.revoke(TOKEN.id, minutes(2))).result() == revoked
    assert revoked == replace(TOKEN, revoked_at=minutes(1))
    assert not revoked.is_valid(minutes(1))
    assert isinstance(storage.write(lambda unit: unit.tokens.revoke(new_id(), NOON)).exception(), NotFoundError)


def test_a_token_expires(storage: Storage) -> None:
    """A token is valid until the moment of its expiry, as read back from the storage."""
    storage.write(lambda unit: unit.tokens.add(TOKEN)).result()
    with storage.read() as unit:
        token = unit.tokens.by_hash("hash")
    assert token is not None
    assert token.is_valid(minutes(8.999))
    assert not token.is_valid(minutes(9))


def test_touch_notes_the_last_use(storage: Storage) -> None:
    """The last use is kept; a token that is gone meanwhile is not an error."""
    storage.write(lambda unit: unit.tokens.add(TOKEN)).result()
    storage.write(lambda unit: unit.tokens.touch(TOKEN.id, minutes(3))).result()
    storage.write(lambda unit: unit.tokens.touch(new_id(), minutes(4))).result()
    with storage.read() as unit:
        assert unit.tokens.list() == (replace(TOKEN, last_used_at=minutes(3)),)


def test_the_audit_trail_is_paged(storage: Storage) -> None:
    """Entries come back as they were, newest first, page by page."""
    entries = [
        AuditEntry(id=new_id(), at=minutes(count), actor="cli", action="retract", subject="1", details={"n": count})
        for count in range(3)
    ]
    for entry in entries:
        storage.write(adding("audit", entry)).result()
    with storage.read() as unit:
        first = unit.audit.page(None, 2)
        last = unit.audit.page(first.next_key, 2)
    assert (*first.items, *last.items) == tuple(reversed(entries))
