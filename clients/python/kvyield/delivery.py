"""Bringing observations to the service: disk first, then the network, and a clear word on what became of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol
from uuid import UUID

import msgspec

from kvyield import _wire
from kvyield._errors import ConflictError, DeadlineError, RefusedError, ServiceError, SpoolError
from kvyield._ids import start_id
from kvyield._replay import Ledger, after_conflict, post_start, posting
from kvyield.spool import Spool

CONFLICT = 409
Fate = Literal["stored", "known", "spooled", "refused", "lost"]


class Poster(Ledger, Protocol):
    """The part of `Client` that delivery needs."""

    def post_observations(self, observations: Sequence[_wire.Observation]) -> list[_wire.BatchItem]: ...


@dataclass(frozen=True)
class Delivery:
    """What became of one observation, and why. ``lost``: neither sent nor on disk, so the log must be read again."""

    observation: _wire.Observation
    fate: Fate
    reason: str | None = None
    stored_id: UUID | None = None


def deliver(
    observations: Sequence[_wire.Observation], spool: Spool, client: Poster, *, budget_seconds: float = 60.0
) -> list[Delivery]:
    """Write each to the spool, then send what the spool holds, oldest first, for at most ``budget_seconds``.

    Never raises for a service that is away; a spool that cannot be written (a full disk) leads to a direct attempt.
    """
    named = [msgspec.structs.replace(one, id=one.id or start_id(one)) for one in observations]
    unspooled = {one.id: reason for one in named if (reason := _spool_fault(spool, one))}
    receipts: dict[UUID | None, _wire.Receipt] = {}
    refused, stopped = _send(spool, _budgeted(posting(client), budget_seconds, receipts))
    direct = {one.id: _direct(client, one) for one in named if one.id in unspooled and one.id not in receipts}
    return [_fate(one, receipts, refused, stopped, direct) for one in named]


def deliver_batch(observations: Sequence[_wire.Observation], spool: Spool, client: Poster) -> list[Delivery]:
    """Post many at once; what the service does not take now is spooled. For logs, which can be read again."""
    named = [msgspec.structs.replace(one, id=one.id or start_id(one)) for one in observations]
    try:
        items = {item.index: item for item in client.post_observations(named)}
    except ServiceError as error:
        return [_spooled(spool, one, str(error)) for one in named]
    return [_batch_fate(spool, client, one, items.get(index)) for index, one in enumerate(named)]


def _spool_fault(spool: Spool, observation: _wire.Observation) -> str | None:
    try:
        spool.add(observation)
    except SpoolError as error:
        return str(error)
    return None


def _budgeted(
    post: Callable[[_wire.Observation], _wire.Receipt], seconds: float, receipts: dict[UUID | None, _wire.Receipt]
) -> Callable[[_wire.Observation], _wire.Receipt]:
    ends = time.monotonic() + seconds

    def posted(observation: _wire.Observation) -> _wire.Receipt:
        if time.monotonic() > ends:
            raise DeadlineError("the spool holds more than can be sent now; the rest is left for the next time")
        receipts[observation.id] = post(observation)
        return receipts[observation.id]

    return posted


def _send(
    spool: Spool, post: Callable[[_wire.Observation], _wire.Receipt]
) -> tuple[dict[UUID | None, str | None], str | None]:
    try:
        outcome = spool.send(post)
    except SpoolError as error:
        return {}, str(error)
    refused = {item.observation.id: item.reason for item in outcome.refused if item.observation}
    return refused, str(outcome.stopped_by) if outcome.stopped_by else None


def _direct(client: Poster, observation: _wire.Observation) -> Delivery:
    try:
        receipt = post_start(client, observation)
    except RefusedError as error:
        return Delivery(observation, "refused", str(error))
    except ServiceError as error:
        return Delivery(observation, "lost", f"{error}; and the spool could not be written")
    return _received(observation, receipt)


def _received(observation: _wire.Observation, receipt: _wire.Receipt) -> Delivery:
    return Delivery(observation, "stored" if receipt.created else "known", receipt.note, receipt.id)


def _fate(
    one: _wire.Observation,
    receipts: dict[UUID | None, _wire.Receipt],
    refused: dict[UUID | None, str | None],
    stopped: str | None,
    direct: dict[UUID | None, Delivery],
) -> Delivery:
    if receipt := receipts.get(one.id):
        return _received(one, receipt)
    if one.id in direct:
        return direct[one.id]
    if one.id in refused:
        return Delivery(one, "refused", refused[one.id])
    return Delivery(one, "spooled", stopped or "another process is sending the spool")


def _spooled(spool: Spool, one: _wire.Observation, reason: str) -> Delivery:
    fault = _spool_fault(spool, one)
    return Delivery(one, "lost", f"{reason}; {fault}") if fault else Delivery(one, "spooled", reason)


def _batch_fate(spool: Spool, client: Poster, one: _wire.Observation, item: _wire.BatchItem | None) -> Delivery:
    if item is None:
        return _spooled(spool, one, "the service's answer leaves this one out")
    if item.status < 300:
        return Delivery(one, "stored" if item.status == 201 else "known", stored_id=item.id)
    if item.status == CONFLICT:
        return _conflict_fate(spool, client, one, item)
    reason = _reason(item)
    if item.status >= 500 or item.status in (408, 425, 429):
        return _spooled(spool, one, reason)
    return Delivery(one, "refused", reason)


def _conflict_fate(spool: Spool, client: Poster, one: _wire.Observation, item: _wire.BatchItem) -> Delivery:
    try:
        conflict = ConflictError(item.status, item.problem or _wire.Problem(status=item.status))
        return _received(one, after_conflict(client, one, conflict))
    except RefusedError:
        return Delivery(one, "refused", _reason(item))
    except ServiceError as error:
        return _spooled(spool, one, str(error))


def _reason(item: _wire.BatchItem) -> str:
    problem = item.problem
    if problem is None:
        return f"HTTP {item.status}"
    said = problem.detail or problem.title or ""
    faults = [f"{fault.pointer}: {fault.detail}" for fault in problem.errors if fault.detail not in said]
    return "; ".join(filter(None, (said, *faults)))
