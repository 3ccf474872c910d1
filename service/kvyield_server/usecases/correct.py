"""Correct a fact of a start: the row and the fits take the new value, the old one stays in its history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from kvyield_server.domain.facts.accounts import FieldChange
from kvyield_server.domain.facts.merging import differences, with_changes
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Outcome
from kvyield_server.domain.records import HistoryEntry, StoredObservation
from kvyield_server.errors import InvalidError
from kvyield_server.storage.records import StoredAccount
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import new_id
from kvyield_server.usecases.browse import require_own_start, stored_observation
from kvyield_server.usecases.record import Recorded


def correct(
    observation_id: UUID,
    wanted: Sequence[FieldChange],
    reason: str,
    *,
    actor: str,
    token_id: UUID | None,
    now: datetime,
) -> Callable[[UnitOfWork], Recorded]:
    """Return the job that corrects a start; the same correction again changes nothing, which ``is_new`` tells.

    Where the GPU, their count or the model changes, the start moves to the pair of that name. The job raises
    NotFoundError for an unknown id, ForbiddenError when ``token_id`` did not post the start, InvalidError when it
    would lack the fraction of its engine.
    """

    def job(uow: UnitOfWork) -> Recorded:
        was = stored_observation(uow, observation_id)
        require_own_start(was, token_id)
        start = with_changes(was.observation, wanted)
        changes = differences(was.observation, start)
        if not changes:
            return Recorded(was, is_new=False)
        if start.fraction is None and start.outcome is not Outcome.FAILED:
            name = FRACTION_FLAG[start.engine.name]
            raise InvalidError(
                [(f"/flags/{name}", f"{name} is needed: it is the fraction flag of {start.engine.name}.")]
            )
        entry = HistoryEntry(id=new_id(), at=now, actor=actor, action="correction", changes=changes, reason=reason)
        pair = uow.pairs.ensure(start.hardware, start.model)
        stored = replace(was, observation=start, pair_id=pair.id, history=(*was.history, entry))
        _store(uow, stored, was, entry)
        return Recorded(stored, is_new=True)

    return job


def _store(uow: UnitOfWork, stored: StoredObservation, was: StoredObservation, entry: HistoryEntry) -> None:
    row_id, ledger = stored.observation.id, uow.observations
    if not ledger.accounts([row_id]):  # what was told is kept beside the row as soon as the row says something else
        ledger.add_accounts(row_id, [StoredAccount(account=was.account, token_id=was.token_id)])
    ledger.update(stored, was)
    ledger.add_history(row_id, [entry])
    if stored.pair_id != was.pair_id:
        uow.pairs.drop_empty(was.pair_id)
