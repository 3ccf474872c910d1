"""Bringing observations and verifications to the service: disk first, then the network, and a word on each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol
from uuid import UUID

import msgspec

from kvyield import _wire
from kvyield._errors import (
    ConflictError,
    DeadlineError,
    InvalidError,
    KvyieldError,
    RefusedError,
    ServiceError,
    ServiceFailedError,
    SpoolError,
    error_of,
)
from kvyield._ids import start_id, verification_id
from kvyield._replay import Ledger, adding, after_conflict, is_older, post_start, posting, retraction_note
from kvyield.spool import Addition, Spool

CONFLICT = 409
Result = Literal["stored", "known", "spooled", "refused", "lost"]


class Poster(Ledger, Protocol):
    """The part of `Client` that delivery needs."""

    def post_observations(self, observations: Sequence[_wire.Observation]) -> list[_wire.BatchItem]: ...


Connect = Callable[[], AbstractContextManager[Poster]]


@dataclass(frozen=True)
class Delivery:
    """What became of one observation or verification, and why.

    ``spooled``: on disk, to be sent later; ``error`` says what it waits for. ``lost``: neither sent nor on disk, so the
    log must be read again.
    """

    item: _wire.Observation | Addition
    result: Result
    reason: str | None = None
    stored_id: UUID | None = None
    error: KvyieldError | None = None

    @property
    def observation(self) -> _wire.Observation:
        """The observation that was to be delivered."""
        assert isinstance(self.item, _wire.Observation)
        return self.item


@dataclass
class Spooled:
    """What is on disk now, or could not be brought there; `send` is the next step."""

    spool: Spool
    items: list[_wire.Observation | Addition] = field(default_factory=list)
    unspooled: dict[UUID, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def withdraw(self) -> None:
        """Take it off the disk again: another item holds all of it."""
        for file in self.files:
            self.spool.withdraw(file)

    def send(self, client: Poster, *, budget_seconds: float = 60.0) -> list[Delivery]:
        """Send what the spool holds, oldest first, for at most ``budget_seconds``; raises nothing for the service.

        What could not be written to the disk is sent directly.
        """
        sending = _Round(client, time.monotonic() + budget_seconds)
        stopped = sending.send(self.spool)
        for one in self.items:
            if key_of(one) in self.unspooled and key_of(one) not in sending.found:
                sending.found[key_of(one)] = _direct(client, one)
        waits = str(stopped or "another process is sending the spool")
        return [sending.found.get(key_of(one)) or Delivery(one, "spooled", waits, error=stopped) for one in self.items]

    def stopped(self, error: KvyieldError) -> list[Delivery]:
        """What became of each when not even a connection could be made."""
        return [
            Delivery(one, "lost", f"{error}; {self.unspooled[key_of(one)]}", error=error)
            if key_of(one) in self.unspooled
            else Delivery(one, "spooled", str(error), error=error)
            for one in self.items
        ]

    def send_by(self, connect: Connect) -> list[Delivery]:
        """`send` over a connection that is made now; when it cannot be made, all of it waits."""
        try:
            with connect() as client:
                return self.send(client)
        except KvyieldError as error:
            return self.stopped(error)


def spool_observations(observations: Sequence[_wire.Observation], spool: Spool) -> Spooled:
    """Write observations to the disk, before anything that can fail for reasons outside the log."""
    spooled = Spooled(spool)
    for one in observations:
        named = msgspec.structs.replace(one, id=one.id or start_id(one))
        try:
            spooled.files.append(spool.add(named))
        except SpoolError as error:
            spooled.unspooled[key_of(named)] = str(error)
        spooled.items.append(named)
    return spooled


def spool_verification(observation_id: UUID, verification: _wire.Verification, spool: Spool) -> Spooled:
    """Write a verification of a stored start to the disk."""
    addition = Addition(observation_id=observation_id, verification=verification)
    spooled = Spooled(spool, [addition])
    try:
        spooled.files.append(spool.add_verification(observation_id, verification))
    except SpoolError as error:
        spooled.unspooled[key_of(addition)] = str(error)
    return spooled


def deliver_batch(observations: Sequence[_wire.Observation], spool: Spool, client: Poster) -> list[Delivery]:
    """Post many at once; what the service does not take now is spooled. For logs, which can be read again."""
    named = [msgspec.structs.replace(one, id=one.id or start_id(one)) for one in observations]
    try:
        items = {item.index: item for item in client.post_observations(named)}
    except ServiceError as error:
        return [_spooled(spool, one, str(error), error) for one in named]
    return [_batch_fate(spool, client, one, items.get(index)) for index, one in enumerate(named)]


def key_of(item: _wire.Observation | Addition) -> UUID:
    """The id under which the spool keeps it."""
    if isinstance(item, Addition):
        return verification_id(item.observation_id, item.verification)
    assert item.id is not None
    return item.id


def _spool_fault(spool: Spool, observation: _wire.Observation) -> str | None:
    try:
        spool.add(observation)
    except SpoolError as error:
        return str(error)
    return None


@dataclass
class _Round:
    """One round of sending, which ends when its time is over; ``found`` tells what became of what, by its key."""

    client: Poster
    ends: float
    found: dict[UUID, Delivery] = field(default_factory=dict)

    def send(self, spool: Spool) -> KvyieldError | None:
        """Returns what ended the round before all was sent."""
        try:
            outcome = spool.send(self.post, add=self.add)
        except SpoolError as error:
            return error
        for item in outcome.refused:
            if content := item.observation or item.addition:
                self.found[key_of(content)] = Delivery(content, "refused", item.reason)
        for item, fault in outcome.held:
            if content := item.observation or item.addition:
                self.found[key_of(content)] = Delivery(content, "spooled", str(fault), error=fault)
        return outcome.stopped_by

    def post(self, observation: _wire.Observation) -> _wire.Receipt:
        self._check_time()
        return self._received(observation, posting(self.client)(observation))

    def add(self, addition: Addition) -> _wire.Receipt:
        self._check_time()
        return self._received(addition, adding(self.client)(addition))

    def _check_time(self) -> None:
        if time.monotonic() > self.ends:
            raise DeadlineError("the spool holds more than can be sent now; the rest is left for the next time")

    def _received(self, item: _wire.Observation | Addition, receipt: _wire.Receipt) -> _wire.Receipt:
        self.found[key_of(item)] = _received(item, receipt)
        return receipt


def _direct(client: Poster, item: _wire.Observation | Addition) -> Delivery:
    try:
        receipt = adding(client)(item) if isinstance(item, Addition) else post_start(client, item)
    except RefusedError as error:
        return Delivery(item, "refused", str(error), error=error)
    except ServiceError as error:
        return Delivery(item, "lost", f"{error}; and the spool could not be written", error=error)
    return _received(item, receipt)


def _received(item: _wire.Observation | Addition, receipt: _wire.Receipt) -> Delivery:
    return Delivery(item, "stored" if receipt.created else "known", receipt.note, receipt.id)


def _spooled(spool: Spool, one: _wire.Observation, reason: str, error: KvyieldError | None = None) -> Delivery:
    fault = _spool_fault(spool, one)
    if fault:
        return Delivery(one, "lost", f"{reason}; {fault}", error=error)
    return Delivery(one, "spooled", reason, error=error)


def _batch_fate(spool: Spool, client: Poster, one: _wire.Observation, item: _wire.BatchItem | None) -> Delivery:
    if item is None:
        return _spooled(spool, one, "the service's answer leaves this one out")
    if item.status < 300:
        return Delivery(one, "stored" if item.status == 201 else "known", retraction_note(item), item.id)
    if item.status == CONFLICT:
        return _conflict_fate(spool, client, one, item)
    reason = _reason(item)
    error = error_of(item.status, item.problem or _wire.Problem(status=item.status))
    if isinstance(error, ServiceFailedError):
        return _spooled(spool, one, reason, error)
    if isinstance(error, InvalidError) and is_older(error, one.verifications):
        return spool_observations([one], spool).send(client)[0]
    return Delivery(one, "refused", reason, error=error)


def _conflict_fate(spool: Spool, client: Poster, one: _wire.Observation, item: _wire.BatchItem) -> Delivery:
    try:
        conflict = ConflictError(item.status, item.problem or _wire.Problem(status=item.status))
        return _received(one, after_conflict(client, one, conflict))
    except RefusedError as error:
        return Delivery(one, "refused", _reason(item), error=error)
    except ServiceError as error:
        return _spooled(spool, one, str(error), error)


def _reason(item: _wire.BatchItem) -> str:
    problem = item.problem
    if problem is None:
        return f"HTTP {item.status}"
    said = problem.detail or problem.title or ""
    faults = [f"{fault.pointer}: {fault.detail}" for fault in problem.errors if fault.detail not in said]
    return "; ".join(filter(None, (said, *faults)))
