"""Record engine starts: each is one row, however often, from however many sources and in whatever order it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from kvyield_server.domain.facts.accounts import (
    AT_ONCE,
    CLOCK_SLACK,
    Account,
    FieldChange,
    are_of_two_logs,
    came_up,
    host_key,
    is_other_start,
    is_same_start,
)
from kvyield_server.domain.facts.merging import differences, merged, with_changes
from kvyield_server.domain.facts.observation import Hardware, Model, Observation
from kvyield_server.domain.records import HistoryEntry, StoredObservation
from kvyield_server.errors import ConflictError, InvalidError
from kvyield_server.storage.records import StoredAccount
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import new_id
from kvyield_server.usecases.settle import require_made, settle


class Arrival(NamedTuple):
    """A start as it came: with the digest of its content, the token that posted it, and when.

    ``actor`` is who posted it, for the history. ``is_named`` says that the caller chose the id and may ask by it,
    ``is_timed`` that the caller said when the start was.
    """

    observation: Observation
    digest: str
    token_id: UUID | None
    now: datetime
    actor: str
    is_named: bool = True
    is_timed: bool = True

    @property
    def account(self) -> Account:
        """What it tells."""
        return Account(observation=self.observation, digest=self.digest, received_at=self.now, is_timed=self.is_timed)


class Recorded(NamedTuple):
    """What is stored, and whether this very call stored it."""

    stored: StoredObservation
    is_new: bool


Outcome = Recorded | ConflictError | InvalidError


def record(arrivals: Sequence[Arrival]) -> Callable[[UnitOfWork], list[Outcome]]:
    """Return the job that records starts in the order given and says of each what became of it: what is stored, or
    ConflictError when its id is that of another start, InvalidError when the recommendation that it names is not known.

    A second account of a stored start is merged into its row: nulls are filled, what is replaced goes to the history,
    and the id that it was posted with finds the row.
    """

    def job(uow: UnitOfWork) -> list[Outcome]:
        book = _Book(uow, arrivals)
        entered = [book.enter(arrival) for arrival in arrivals]
        book.save()
        return [each if isinstance(each, Exception) else book.recorded(*each) for each in entered]

    return job


@dataclass
class _Row:
    """A row of the ledger while accounts are merged into it; ``was`` is None for one that is not stored yet."""

    stored: StoredObservation
    was: StoredObservation | None = None
    accounts: list[StoredAccount] = field(default_factory=list)
    ids: list[UUID] = field(default_factory=list)
    entries: list[HistoryEntry] = field(default_factory=list)
    absorbed: list[_Row] = field(default_factory=list)

    @property
    def told(self) -> list[StoredAccount]:
        """All accounts; the row itself is the only one until a second comes."""
        return self.accounts or [StoredAccount(account=self.stored.account, token_id=self.stored.token_id)]

    def is_told_by(self, account: Account) -> bool:
        """Say whether an account is of this start."""
        tellings = [self.stored.account, *(each.account for each in self.accounts)]
        if any(are_of_two_logs(account, each) for each in tellings) or self._was_posted_before(account):
            return False
        if account.is_timed and self.stored.is_timed:
            # a time without a zone says nothing once another account tells it with one
            return any(
                each.is_timed and is_same_start(account, each)
                for each in tellings
                if each.is_zoned or not self.stored.is_zoned
            )
        if not account.is_timed and self._died_before(account):
            return False
        return any(is_same_start(account, each) for each in tellings)

    def _was_posted_before(self, account: Account) -> bool:
        """A start that was posted before an endpoint's process began is another, though a log's zone may hide it."""
        if account.observation.source != "endpoint" or not account.is_timed:
            return False
        first = min(each.account.received_at for each in self.told)
        return account.observation.observed_at > first + CLOCK_SLACK

    def _died_before(self, account: Account) -> bool:
        """An endpoint that answers after a crash belongs to another start."""
        deaths = [each.account for each in self.told if each.account.observation.failure is not None]
        return any(each.received_at < account.received_at for each in deaths if came_up(each.observation))

    def take(
        self, new: Sequence[StoredAccount], actor: str, now: datetime, pair_id: Callable[[Observation], UUID]
    ) -> None:
        """Merge further accounts in and write down what they changed."""
        before = self.stored
        self.accounts = [*self.told, *(each for each in new)]
        start, is_timed = merged([each.account for each in self.accounts])
        start = with_changes(start, corrections((*before.history, *self.entries)))
        posted = [each for each in before.observation.verifications if each not in start.verifications]
        start = replace(start, id=before.observation.id, verifications=(*start.verifications, *posted))
        is_zoned = any(each.account.is_timed and each.account.is_zoned for each in self.accounts)
        self.stored = replace(before, observation=start, is_timed=is_timed, is_zoned=is_zoned, pair_id=pair_id(start))
        if changes := differences(before.observation, start):
            sources = ", ".join(dict.fromkeys(each.account.observation.source or "manual" for each in new))
            self.note(changes, actor, now, f"a further account ({sources})")

    def note(self, changes: tuple[FieldChange, ...], actor: str, now: datetime, reason: str) -> None:
        """Add an entry to the history."""
        entry = HistoryEntry(id=new_id(), at=now, actor=actor, action="merge", changes=changes, reason=reason)
        self.entries.append(entry)
        self.stored = replace(self.stored, history=(*self.stored.history, entry))


class _Book:
    """What is stored already of some starts, and what they make of it."""

    def __init__(self, uow: UnitOfWork, arrivals: Sequence[Arrival]) -> None:
        self._uow = uow
        ids, digests = [each.observation.id for each in arrivals], [each.digest for each in arrivals]
        self._by_id, self._by_digest = uow.observations.known(ids, digests)
        self._rows: dict[UUID, _Row] = {}
        self._of_host: dict[str | None, set[UUID]] = {}
        self._settling: list[tuple[Observation, UUID, datetime]] = []
        self._load({*self._by_id.values(), *self._by_digest.values()})
        unknown = [each for each in arrivals if each.digest not in self._by_digest and self._refusal(each) is None]
        named = [(each.observation.hardware, each.observation.model) for each in unknown]
        # from here on no other process adds a start to these pairs
        pairs = uow.pairs.ensure_all(named)
        self._pairs = {_names(pair.hardware, pair.model): pair for pair in pairs}
        self._load(uow.observations.near(each.account for each in unknown))

    def _load(self, ids: Iterable[UUID]) -> None:
        wanted = [each for each in ids if each not in self._rows]
        accounts = self._uow.observations.accounts(wanted)
        for stored in self._uow.observations.by_ids(wanted):
            row_id = stored.observation.id
            self._rows[row_id] = _Row(stored, was=stored, accounts=accounts.get(row_id, []))
            self._note_hosts(self._rows[row_id])

    def _note_hosts(self, row: _Row) -> None:
        for start in (row.stored.observation, *(each.account.observation for each in row.accounts)):
            self._of_host.setdefault(host_key(start), set()).add(row.stored.observation.id)

    def _candidates(self, account: Account) -> Iterable[_Row]:
        """Return the rows that no host tells apart from an account: of many starts few are compared with each other."""
        host = host_key(account.observation)
        if host is None:
            return list(self._rows.values())
        ids = self._of_host.get(host, set()) | self._of_host.get(None, set())
        return [self._rows[row_id] for row_id in ids if row_id in self._rows]

    def _refusal(self, arrival: Arrival) -> ConflictError | InvalidError | None:
        start = arrival.observation
        row_id = self._by_id.get(start.id)
        if row_id is not None and (error := self._conflict(arrival, self._rows[row_id])):
            return error
        if arrival.digest in self._by_digest:
            return None
        try:
            require_made(self._uow, start)
        except InvalidError as error:
            return error
        return None

    def _conflict(self, arrival: Arrival, row: _Row) -> ConflictError | None:
        """Return what to say when the id is stored for another start."""
        told = (is_other_start(arrival.observation, each.account.observation) for each in row.told)
        other = next((field for field in told if field is not None), None)
        if other is None or self._by_digest.get(arrival.digest) == row.stored.observation.id:
            return None
        return ConflictError(
            f"Observation {arrival.observation.id} is stored with another {other}: it is another start. "
            "Post this one with a new id."
        )

    def enter(self, arrival: Arrival) -> tuple[UUID, bool] | ConflictError | InvalidError:
        """Find or make the row of a start; say whether it is new."""
        if error := self._refusal(arrival):
            return error
        posted_id = arrival.observation.id
        row, is_new = self._known(arrival), False
        if row is None:
            row, is_new = self._add(arrival), True
        elif arrival.is_named and posted_id not in self._by_id:
            row.ids.append(posted_id)
        row_id = row.stored.observation.id
        self._by_id.setdefault(posted_id, row_id)
        if arrival.observation.recommendation_id is not None:
            self._settling.append((arrival.observation, posted_id, arrival.now))
        return posted_id, is_new

    def recorded(self, posted_id: UUID, is_new: bool) -> Recorded:
        """Return what is stored for an id that was entered."""
        return Recorded(self._rows[self._by_id[posted_id]].stored, is_new)

    def _known(self, arrival: Arrival) -> _Row | None:
        """Return the row of a start that is known, with the account merged in where its content is new."""
        known_id = self._by_digest.get(arrival.digest)
        if known_id is not None:
            return self._rows[known_id]
        account = arrival.account
        row_id = self._by_id.get(arrival.observation.id)
        matches = [each for each in self._candidates(account) if each.is_told_by(account)]
        matches.sort(key=lambda each: _distance(each.stored, account))
        row = self._rows[row_id] if row_id is not None else next(iter(matches), None)
        if row is None:
            return None
        self._merge(row, [StoredAccount(account=account, token_id=arrival.token_id)], arrival)
        if account.is_timed:
            for other in matches:
                if other is not row and row.is_told_by(other.stored.account):
                    self._absorb(row, other, arrival)
        return row

    def _merge(self, row: _Row, accounts: Sequence[StoredAccount], arrival: Arrival) -> None:
        row.take(accounts, arrival.actor, arrival.now, self._pair_id)
        for each in accounts:
            self._by_digest[each.account.digest] = row.stored.observation.id
        self._note_hosts(row)

    def _absorb(self, row: _Row, other: _Row, arrival: Arrival) -> None:
        """Two rows turn out to be one start: the first keeps all that the second holds."""
        self._merge(row, other.told, arrival)
        mark = other.stored
        if row.stored.retracted_at is None and mark.retracted_at is not None:
            row.stored = replace(row.stored, retracted_at=mark.retracted_at, retraction_reason=mark.retraction_reason)
        row.absorbed += [other, *other.absorbed]
        row.ids += [mark.observation.id, *other.ids]
        row.entries += other.entries
        del self._rows[mark.observation.id]
        gone, left = mark.observation.id, row.stored.observation.id
        self._by_id = {key: left if row_id == gone else row_id for key, row_id in self._by_id.items()}
        self._by_digest = {key: left if row_id == gone else row_id for key, row_id in self._by_digest.items()}

    def _add(self, arrival: Arrival) -> _Row:
        start = arrival.observation
        stored = StoredObservation(
            observation=start,
            pair_id=self._pair_id(start),
            received_at=arrival.now,
            content_digest=arrival.digest,
            token_id=arrival.token_id,
            is_timed=arrival.account.is_timed,
        )
        row = self._rows[start.id] = _Row(stored)
        self._note_hosts(row)
        self._by_id[start.id] = self._by_digest[arrival.digest] = start.id
        return row

    def _pair_id(self, start: Observation) -> UUID:
        names = _names(start.hardware, start.model)
        if names not in self._pairs:
            self._pairs[names] = self._uow.pairs.ensure(start.hardware, start.model)
        return self._pairs[names].id

    def save(self) -> None:
        """Write what changed."""
        ledger = self._uow.observations
        new = [row for row in self._rows.values() if row.was is None]
        ledger.add([row.stored for row in new], self._pairs.values())
        for row in self._rows.values():
            row_id = row.stored.observation.id
            for other in row.absorbed:
                if other.was is not None:
                    ledger.absorb(row_id, other.was)
            if row.was is not None and row.stored != row.was:
                ledger.update(row.stored, row.was)
            if len(row.accounts) > 1:
                ledger.add_accounts(row_id, row.accounts)
            ledger.add_ids(row_id, row.ids)
            ledger.add_history(row_id, row.entries)
        for start, posted_id, now in self._settling:
            settle(self._uow, replace(start, id=self._by_id[posted_id]), now)
        used = {row.stored.pair_id for row in self._rows.values()}
        every = [each for row in self._rows.values() for each in (row, *row.absorbed)]
        left = {each.was.pair_id for each in every if each.was is not None}
        made = {pair.id for pair in self._pairs.values() if pair.observation_count == 0}
        for pair_id in (left | made) - used:
            self._uow.pairs.drop_empty(pair_id)


def corrections(history: Iterable[HistoryEntry]) -> list[FieldChange]:
    """Return what people corrected, oldest first."""
    entries = sorted((each for each in history if each.action == "correction"), key=lambda each: (each.at, each.id))
    return [change for each in entries for change in each.changes]


def _distance(stored: StoredObservation, account: Account) -> tuple[bool, float, UUID]:
    """Order rows that may be of a start: those of its own time first, then the newest."""
    at = stored.observation.observed_at
    if stored.is_timed and account.is_timed:
        gap = abs(at - account.observation.observed_at)
        return gap > AT_ONCE, gap.total_seconds(), stored.observation.id
    return True, -at.timestamp(), stored.observation.id


def _names(hardware: Hardware, model: Model) -> tuple[str, int, str]:
    return hardware.gpu, hardware.gpu_count, model.name
