"""What use cases see of the storage: one unit of work, its repositories, and the store that hands them out.

All times are aware and UTC. All pages run from the newest row to the oldest. A repository method that names a thing by
id raises NotFoundError when nothing has that id, except ``get``, ``find`` and ``by_...``, which answer None.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol, TypeVar
from uuid import UUID

from kvyield_server.domain.answers import FitSummary
from kvyield_server.domain.facts.observation import Hardware, Model, Observation, Verification
from kvyield_server.storage.records import (
    ApiToken,
    AuditEntry,
    ObservationFilter,
    Page,
    PageKey,
    Pair,
    PairName,
    SettledRecommendation,
    StoredFit,
    StoredObservation,
    StoredRecommendation,
)

T = TypeVar("T")


class PairRepository(Protocol):
    """Pairs, named by GPU, GPU count and model name."""

    def ensure(self, hardware: Hardware, model: Model) -> Pair:
        """Return the pair, made when it is new; newest attributes that are not None are merged in."""

    def ensure_all(self, wanted: Sequence[tuple[Hardware, Model]]) -> list[Pair]:
        """Do as ``ensure`` for each in turn, at little more than the cost of one where nothing is new."""

    def get(self, pair_id: UUID) -> Pair | None:
        """Return the pair with that id."""

    def find(self, gpu: str, gpu_count: int, model: str) -> Pair | None:
        """Return the pair with exactly these names."""

    def names(self) -> tuple[PairName, ...]:
        """Return the names of all pairs, ordered by model, GPU and count."""

    def page(self, search: str | None, after: PageKey | None, size: int) -> Page[Pair]:
        """Return pairs whose GPU or model name holds ``search`` in any case, the newest pair first."""

    def of_model(self, model: str) -> tuple[Pair, ...]:
        """Return all pairs of that model, oldest first: the ones that can lend evidence to each other."""

    def posted_by(self, token_id: UUID) -> frozenset[UUID]:
        """Return the ids of the pairs that hold an observation posted with that token."""

    def bump(self, pair_id: UUID) -> int:
        """Increment and return the revision. Adding or retracting an observation already does this by itself."""


class ObservationRepository(Protocol):
    """The ledger: rows are added, marked and extended, never rewritten."""

    def add(
        self,
        observation: Observation,
        pair_id: UUID,
        content_digest: str,
        *,
        received_at: datetime | None = None,
        token_id: UUID | None = None,
    ) -> None:
        """Keep an observation with its verifications. ConflictError when its id or its digest is already stored."""

    def get(self, observation_id: UUID) -> StoredObservation | None:
        """Return the observation with that id."""

    def add_all(self, observations: Sequence[StoredObservation], pairs: Sequence[Pair]) -> None:
        """Keep new observations at once, all or none. The caller vouches that each value can be stored, and hands in
        their pairs as this unit of work has just seen them.

        Raises:
            ConflictError: an id or a digest is already stored.
        """

    def matching(self, ids: Sequence[UUID], digests: Sequence[str]) -> list[StoredObservation]:
        """Return the observations with one of these ids or one of these contents, in no order."""

    def by_digest(self, content_digest: str) -> StoredObservation | None:
        """Return the observation with that content."""

    def page(
        self, where: ObservationFilter, after: PageKey | None, size: int, *, with_logs: bool = True
    ) -> Page[StoredObservation]:
        """Return observations by (observed_at, id), newest first; rows that arrive meanwhile never shift a page."""

    def of_pair(
        self, pair_id: UUID, include_retracted: bool = False, newest: int | None = None
    ) -> tuple[StoredObservation, ...]:
        """Return the observations of a pair, all or that many, newest first; without their log excerpts, which no fit
        needs."""

    def expired(self, before: datetime, newest: int, size: int) -> tuple[StoredObservation, ...]:
        """Return up to ``size`` observations made before a time that are retracted, or older than the ``newest`` of
        their pair; not those that settled a recommendation."""

    def remove(self, ids: Sequence[UUID]) -> None:
        """Take observations out of the ledger, with their verifications."""

    def retract(self, observation_id: UUID, reason: str, at: datetime) -> StoredObservation:
        """Mark an observation as not to be believed. A second retraction changes nothing: the first reason stays."""

    def add_verification(self, observation_id: UUID, verification: Verification) -> bool:
        """Append a verification; False when an equal one is already there, so that it may be sent again."""


class FitRepository(Protocol):
    """The newest fits of each pair, kept for history pages and for the drift between engine versions."""

    def save(self, pair_id: UUID, revision: int, summaries: Sequence[FitSummary], fitted_at: datetime) -> None:
        """Replace the fits of a pair."""

    def of_pair(self, pair_id: UUID) -> tuple[StoredFit, ...]:
        """Return the saved fits of a pair in the order in which they were saved."""


class RecommendationRepository(Protocol):
    """Answers that were given, and the starts that settled them."""

    def add(self, recommendation: StoredRecommendation) -> None:
        """Keep an answer. ConflictError when its id is already stored."""

    def get(self, recommendation_id: UUID) -> StoredRecommendation | None:
        """Return the answer with that id."""

    def settle(self, recommendation_id: UUID, observation_id: UUID, at: datetime) -> bool:
        """Tie an answer to the start that followed it; False when it is settled already: the first start counts."""

    def page(self, after: PageKey | None, size: int) -> Page[StoredRecommendation]:
        """Return all answers, settled or not, by (made_at, id), newest first."""

    def settled_by(self, observation_id: UUID) -> UUID | None:
        """Return the id of the answer that a start settled, if it settled one."""

    def page_settled(self, after: PageKey | None, size: int) -> Page[SettledRecommendation]:
        """Return settled answers whose start is not retracted, by (settled_at, id), newest first."""


class TokenRepository(Protocol):
    """Bearer tokens by their hash."""

    def add(self, token: ApiToken) -> None:
        """Keep a token. ConflictError when its id or hash is already stored."""

    def by_hash(self, token_hash: str) -> ApiToken | None:
        """Return the token with that hash, valid or not."""

    def list(self) -> tuple[ApiToken, ...]:
        """Return all tokens, newest first, the revoked and expired ones too."""

    def revoke(self, token_id: UUID, at: datetime) -> ApiToken:
        """Mark a token as revoked; a second time changes nothing."""

    def touch(self, token_id: UUID, at: datetime) -> None:
        """Note when a token was last used; an unknown token is no error."""


class AuditRepository(Protocol):
    """Who changed what."""

    def add(self, entry: AuditEntry) -> None:
        """Keep an entry."""

    def page(self, after: PageKey | None, size: int) -> Page[AuditEntry]:
        """Return entries by (at, id), newest first."""


class UnitOfWork(Protocol):
    """One transaction: what is read is one snapshot, what is written is kept or dropped as a whole."""

    @property
    def pairs(self) -> PairRepository: ...
    @property
    def observations(self) -> ObservationRepository: ...
    @property
    def fits(self) -> FitRepository: ...
    @property
    def recommendations(self) -> RecommendationRepository: ...
    @property
    def tokens(self) -> TokenRepository: ...
    @property
    def audit(self) -> AuditRepository: ...


class Storage(Protocol):
    """A database, with one writer and many readers."""

    @property
    def queue_depth(self) -> int:
        """Jobs that wait for the writer."""

    def read(self) -> AbstractContextManager[UnitOfWork]:
        """Open a snapshot to read from. StorageUnavailableError when the database cannot be reached."""

    def write(self, job: Callable[[UnitOfWork], T]) -> Future[T]:
        """Queue a job; its future holds what the job returned, once that is on disk.

        A job that raises is rolled back alone and its future holds the error. The future holds a
        StorageUnavailableError when the write failed or may have failed: the caller may send it again. A job may run
        more than once before one run is committed, so it must do nothing but use its unit of work.
        """

    def stamp(self) -> Hashable:
        """Return a value that equals an earlier one only if nothing was committed in between, by any process."""

    def ping(self) -> None:
        """Return when the database answers, and takes writes again if the last one failed, else raise
        StorageUnavailableError."""

    def migration_current(self) -> bool:
        """Say whether the schema is the one that this version needs."""

    def close(self) -> None:
        """Finish the jobs that wait, then let go of the database. Later calls do nothing."""
