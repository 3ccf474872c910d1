"""Pairs and observations in memory, and the state that all repositories in memory share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from kvyield_server.domain.facts.observation import Hardware, Model, Observation, Verification
from kvyield_server.errors import ConflictError, NotFoundError
from kvyield_server.storage.paging import observation_key, page_of, pair_key
from kvyield_server.storage.records import (
    ApiToken,
    AuditEntry,
    ObservationFilter,
    Page,
    PageKey,
    Pair,
    PairName,
    StoredFit,
    StoredObservation,
    StoredRecommendation,
)
from kvyield_server.storage.values import merge_hardware, merge_model, new_id, refuse_unstorable

T = TypeVar("T")


@dataclass
class State:
    """All records by id. The records are immutable, so copying the dicts copies the state."""

    pairs: dict[UUID, Pair] = field(default_factory=dict)
    observations: dict[UUID, StoredObservation] = field(default_factory=dict)
    digests: dict[str, UUID] = field(default_factory=dict)
    fits: dict[UUID, tuple[StoredFit, ...]] = field(default_factory=dict)
    recommendations: dict[UUID, StoredRecommendation] = field(default_factory=dict)
    tokens: dict[UUID, ApiToken] = field(default_factory=dict)
    audit: dict[UUID, AuditEntry] = field(default_factory=dict)

    def copy(self) -> State:
        return State(**{each.name: dict(getattr(self, each.name)) for each in fields(self)})

    def live(self, pair_id: UUID) -> list[StoredObservation]:
        """Return the observations of a pair that are not retracted."""
        return [row for row in self.observations.values() if row.pair_id == pair_id and row.retracted_at is None]

    def refresh(self, pair_id: UUID) -> None:
        """Bring a pair up to date with its observations."""
        observations = [row.observation for row in self.live(pair_id)]
        self.pairs[pair_id] = replace(
            self.pairs[pair_id],
            revision=self.pairs[pair_id].revision + 1,
            observation_count=len(observations),
            last_observed_at=max((each.observed_at for each in observations), default=None),
            engines=tuple(sorted({each.engine.name for each in observations})),
        )


def known(records: dict[UUID, T], record_id: UUID, kind: str) -> T:
    if record_id not in records:
        raise NotFoundError(f"No {kind} has the id {record_id}.")
    return records[record_id]


def add_new(records: dict[UUID, T], record_id: UUID, record: T, kind: str) -> None:
    if record_id in records:
        raise ConflictError(f"The {kind} {record_id} is already stored.")
    refuse_unstorable(record)
    records[record_id] = record


class MemoryPairs:
    def __init__(self, state: State, clock: Callable[[], datetime]) -> None:
        self._state = state
        self._clock = clock

    def ensure(self, hardware: Hardware, model: Model) -> Pair:
        refuse_unstorable((hardware, model))
        found = self.find(hardware.gpu, hardware.gpu_count, model.name)
        pair_id = found.id if found else self._make(hardware, model)
        for each in list(self._state.pairs.values()):
            self._merge(each, hardware, model)
        return self._state.pairs[pair_id]

    def ensure_all(self, wanted: Sequence[tuple[Hardware, Model]]) -> list[Pair]:
        return [self.ensure(*each) for each in wanted]

    def _make(self, hardware: Hardware, model: Model) -> UUID:
        pairs = self._state.pairs.values()
        names = (hardware.gpu, hardware.gpu_count)
        known_hardware = next((p.hardware for p in pairs if (p.hardware.gpu, p.hardware.gpu_count) == names), hardware)
        known_model = next((p.model for p in pairs if p.model.name == model.name), model)
        pair = Pair(id=new_id(), hardware=known_hardware, model=known_model, created_at=self._clock())
        self._state.pairs[pair.id] = pair
        return pair.id

    def _merge(self, pair: Pair, hardware: Hardware, model: Model) -> None:
        same_hardware = (pair.hardware.gpu, pair.hardware.gpu_count) == (hardware.gpu, hardware.gpu_count)
        merged = replace(
            pair,
            hardware=merge_hardware(pair.hardware, hardware) if same_hardware else pair.hardware,
            model=merge_model(pair.model, model) if pair.model.name == model.name else pair.model,
        )
        if merged != pair:
            self._state.pairs[pair.id] = replace(merged, revision=pair.revision + 1)

    def get(self, pair_id: UUID) -> Pair | None:
        return self._state.pairs.get(pair_id)

    def find(self, gpu: str, gpu_count: int, model: str) -> Pair | None:
        wanted = (gpu, gpu_count, model)
        found = [name.id for name in self.names() if (name.gpu, name.gpu_count, name.model) == wanted]
        return self._state.pairs[found[0]] if found else None

    def names(self) -> tuple[PairName, ...]:
        names = [
            PairName(id=pair.id, gpu=pair.hardware.gpu, gpu_count=pair.hardware.gpu_count, model=pair.model.name)
            for pair in self._state.pairs.values()
        ]
        return tuple(sorted(names, key=lambda name: (name.model, name.gpu, name.gpu_count)))

    def page(self, search: str | None, after: PageKey | None, size: int) -> Page[Pair]:
        wanted = (search or "").lower()
        found = [
            pair
            for pair in self._state.pairs.values()
            if wanted in pair.model.name.lower() or wanted in pair.hardware.gpu.lower()
        ]
        return page_of(found, after, size, pair_key)

    def of_model(self, model: str) -> tuple[Pair, ...]:
        found = [pair for pair in self._state.pairs.values() if pair.model.name == model]
        return tuple(sorted(found, key=lambda pair: (pair.created_at, pair.id)))

    def posted_by(self, token_id: UUID) -> frozenset[UUID]:
        return frozenset(row.pair_id for row in self._state.observations.values() if row.token_id == token_id)

    def bump(self, pair_id: UUID) -> int:
        pair = known(self._state.pairs, pair_id, "pair")
        self._state.pairs[pair_id] = replace(pair, revision=pair.revision + 1)
        return pair.revision + 1


class MemoryObservations:
    def __init__(self, state: State, clock: Callable[[], datetime]) -> None:
        self._state = state
        self._clock = clock

    def add(
        self,
        observation: Observation,
        pair_id: UUID,
        content_digest: str,
        *,
        received_at: datetime | None = None,
        token_id: UUID | None = None,
    ) -> None:
        stored = StoredObservation(
            observation=observation,
            pair_id=pair_id,
            received_at=received_at or self._clock(),
            content_digest=content_digest,
            token_id=token_id,
        )
        self.add_all([stored], [known(self._state.pairs, pair_id, "pair")])

    def add_all(self, observations: Sequence[StoredObservation], pairs: Sequence[Pair]) -> None:
        for pair in pairs:
            known(self._state.pairs, pair.id, "pair")
        for stored in observations:
            if stored.content_digest in self._state.digests:
                raise ConflictError("An observation with this content is already stored.")
            add_new(self._state.observations, stored.observation.id, stored, "observation")
            self._state.digests[stored.content_digest] = stored.observation.id
        for pair_id in {stored.pair_id for stored in observations}:
            self._state.refresh(pair_id)

    def matching(self, ids: Sequence[UUID], digests: Sequence[str]) -> list[StoredObservation]:
        wanted = {*ids, *(self._state.digests[each] for each in digests if each in self._state.digests)}
        return [self._state.observations[each] for each in wanted if each in self._state.observations]

    def get(self, observation_id: UUID) -> StoredObservation | None:
        return self._state.observations.get(observation_id)

    def by_digest(self, content_digest: str) -> StoredObservation | None:
        found = self._state.digests.get(content_digest)
        return None if found is None else self._state.observations[found]

    def page(
        self, where: ObservationFilter, after: PageKey | None, size: int, *, with_logs: bool = True
    ) -> Page[StoredObservation]:
        found = [row for row in self._state.observations.values() if _is_wanted(row, where)]
        page = page_of(found, after, size, observation_key)
        return page if with_logs else replace(page, items=tuple(map(_without_log, page.items)))

    def of_pair(
        self, pair_id: UUID, include_retracted: bool = False, newest: int | None = None
    ) -> tuple[StoredObservation, ...]:
        where = ObservationFilter(pair_id=pair_id, include_retracted=include_retracted)
        size = len(self._state.observations) if newest is None else newest
        return self.page(where, None, size, with_logs=False).items

    def expired(self, before: datetime, newest: int, size: int) -> tuple[StoredObservation, ...]:
        settling = {each.observation_id for each in self._state.recommendations.values()}
        kept = {row.observation.id for pair_id in self._state.pairs for row in self.of_pair(pair_id, newest=newest)}
        gone = [row for row in self._state.observations.values() if row.observation.id not in kept | settling]
        gone.sort(key=lambda row: (row.observation.observed_at, row.observation.id))
        return tuple(row for row in gone if row.observation.observed_at < before)[:size]

    def remove(self, ids: Sequence[UUID]) -> None:
        removed = [self._state.observations.pop(each) for each in ids]
        for row in removed:
            del self._state.digests[row.content_digest]
        for pair_id in {row.pair_id for row in removed}:
            self._state.refresh(pair_id)

    def retract(self, observation_id: UUID, reason: str, at: datetime) -> StoredObservation:
        refuse_unstorable(reason)
        stored = known(self._state.observations, observation_id, "observation")
        if stored.retracted_at is None:
            stored = replace(stored, retracted_at=at, retraction_reason=reason)
            self._state.observations[observation_id] = stored
            self._state.refresh(stored.pair_id)
        return stored

    def add_verification(self, observation_id: UUID, verification: Verification) -> bool:
        refuse_unstorable(verification)
        stored = known(self._state.observations, observation_id, "observation")
        observation = stored.observation
        if verification in observation.verifications:
            return False
        extended = replace(observation, verifications=(*observation.verifications, verification))
        self._state.observations[observation_id] = replace(stored, observation=extended)
        self._state.refresh(stored.pair_id)
        return True


def _without_log(row: StoredObservation) -> StoredObservation:
    return replace(row, observation=replace(row.observation, log_excerpt=None))


def _is_wanted(row: StoredObservation, where: ObservationFilter) -> bool:
    observation = row.observation
    tests = (
        where.pair_id in (None, row.pair_id),
        where.gpu in (None, observation.hardware.gpu),
        where.model in (None, observation.model.name),
        where.engine in (None, observation.engine.name),
        where.outcome in (None, observation.outcome),
        where.host in (None, observation.host),
        where.token_id in (None, row.token_id),
        where.since is None or where.since <= observation.observed_at,
        where.until is None or observation.observed_at < where.until,
        where.include_retracted or row.retracted_at is None,
    )
    return all(tests)
