"""What an export holds beside each observation, so that an import restores all of it: ids, accounts, history, answers.

Tokens, the audit trail and fits are not part of it: tokens are kept only as hashes, fits are made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from kvyield_server.domain.answers import Advice, Question
from kvyield_server.domain.facts.accounts import Account
from kvyield_server.domain.facts.observation import Hardware, Model, Observation
from kvyield_server.domain.records import HistoryEntry, StoredObservation, StoredRecommendation
from kvyield_server.storage.records import StoredAccount
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import plain


class ArchivedPair(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: UUID
    gpu: str
    gpu_count: int
    model: str
    created_at: datetime


class ArchivedAccount(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    content_digest: str
    received_at: datetime
    is_timed: bool
    is_zoned: bool
    observation: Observation


class ArchivedAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: UUID
    made_at: datetime
    pair: ArchivedPair | None
    question: Question
    advice: Advice
    selector: dict[str, Any]
    observation_id: UUID | None
    settled_at: datetime | None


class Archive(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What belongs to one observation; ``recommendations`` also carries answers that no start settled.

    ``is_zoned`` is False where nothing is said: the exports of release 0.1, which knew no zones, have no archive.
    """

    pair: ArchivedPair | None = None
    content_digest: str | None = None
    is_timed: bool = True
    is_zoned: bool = False
    ids: list[UUID] = msgspec.field(default_factory=list)
    accounts: list[ArchivedAccount] = msgspec.field(default_factory=list)
    history: list[HistoryEntry] = msgspec.field(default_factory=list)
    recommendations: list[ArchivedAnswer] = msgspec.field(default_factory=list)


def archives_of(uow: UnitOfWork, observations: Sequence[StoredObservation]) -> list[Archive]:
    """Return what belongs to each observation."""
    ids = [each.observation.id for each in observations]
    accounts, aliases = uow.observations.accounts(ids), uow.observations.aliases(ids)
    answers: dict[UUID | None, list[ArchivedAnswer]] = {}
    for answer in uow.recommendations.settled_by_any(ids):
        answers.setdefault(answer.observation_id, []).append(archived_answer(uow, answer))
    return [
        Archive(
            pair=_pair(uow, stored.pair_id),
            content_digest=stored.content_digest,
            is_timed=stored.is_timed,
            is_zoned=stored.is_zoned,
            ids=aliases.get(stored.observation.id, []),
            accounts=[_account(each) for each in accounts.get(stored.observation.id, [])],
            history=list(stored.history),
            recommendations=answers.get(stored.observation.id, []),
        )
        for stored in observations
    ]


def archived_answer(uow: UnitOfWork, answer: StoredRecommendation) -> ArchivedAnswer:
    return ArchivedAnswer(
        id=answer.id,
        made_at=answer.made_at,
        pair=None if answer.pair_id is None else _pair(uow, answer.pair_id),
        question=answer.question,
        advice=answer.advice,
        selector=dict(answer.selector),
        observation_id=answer.observation_id,
        settled_at=answer.settled_at,
    )


def as_json(archive: Archive) -> Any:
    """Return an archive as plain JSON values."""
    return plain(archive)


def archive_from(value: Mapping[str, Any]) -> Archive:
    """Return the archive that a line holds. Raises msgspec.ValidationError for one that is damaged."""
    return msgspec.convert(value, Archive)


def restore(uow: UnitOfWork, stored: StoredObservation, archive: Archive) -> bool:
    """Keep an exported observation with all that belongs to it; False when the ledger has it already."""
    start, ledger = stored.observation, uow.observations
    digests = [stored.content_digest, *(each.content_digest for each in archive.accounts)]
    if any(ledger.known([start.id], digests)):
        return False
    if archive.pair is not None:
        uow.pairs.restore(archive.pair.id, start.hardware, start.model, archive.pair.created_at)
    pair = uow.pairs.ensure(start.hardware, start.model)
    stored = StoredObservation(
        observation=start,
        pair_id=pair.id,
        received_at=stored.received_at,
        content_digest=stored.content_digest,
        is_timed=archive.is_timed,
        is_zoned=archive.is_zoned,
        retracted_at=stored.retracted_at,
        retraction_reason=stored.retraction_reason,
    )
    ledger.add([stored], [pair])
    told = [
        Account(
            observation=each.observation,
            digest=each.content_digest,
            received_at=each.received_at,
            is_timed=each.is_timed,
            is_zoned=each.is_zoned,
        )
        for each in archive.accounts
    ]
    ledger.add_accounts(start.id, [StoredAccount(account=each) for each in told])
    ledger.add_ids(start.id, archive.ids)
    ledger.add_history(start.id, archive.history)
    return True


def restore_answers(uow: UnitOfWork, answers: Iterable[ArchivedAnswer]) -> int:
    """Keep exported answers that are not kept yet, with the starts that settled them; return how many."""
    count = 0
    for each in answers:
        if uow.recommendations.get(each.id) is not None:
            continue
        pair_id = None
        if each.pair is not None:
            hardware, model = Hardware(gpu=each.pair.gpu, gpu_count=each.pair.gpu_count), Model(name=each.pair.model)
            uow.pairs.restore(each.pair.id, hardware, model, each.pair.created_at)
            pair_id = uow.pairs.ensure(hardware, model).id
        settling = None if each.observation_id is None else uow.observations.get(each.observation_id)
        uow.recommendations.add(
            StoredRecommendation(
                id=each.id,
                made_at=each.made_at,
                pair_id=pair_id,
                question=each.question,
                advice=each.advice,
                selector=each.selector,
                observation_id=settling.observation.id if settling else None,
                settled_at=each.settled_at if settling else None,
            )
        )
        count += 1
    return count


def _pair(uow: UnitOfWork, pair_id: UUID) -> ArchivedPair | None:
    pair = uow.pairs.get(pair_id)
    if pair is None:
        return None
    names = (pair.hardware.gpu, pair.hardware.gpu_count, pair.model.name)
    return ArchivedPair(id=pair.id, gpu=names[0], gpu_count=names[1], model=names[2], created_at=pair.created_at)


def _account(stored: StoredAccount) -> ArchivedAccount:
    account = stored.account
    return ArchivedAccount(
        content_digest=account.digest,
        received_at=account.received_at,
        is_timed=account.is_timed,
        is_zoned=account.is_zoned,
        observation=account.observation,
    )
