"""Stored forms: what the storage adds to the domain's values (ids, times, digests, marks)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeVar
from uuid import UUID

from kvyield_server.domain.answers import Drift
from kvyield_server.domain.facts.accounts import Account
from kvyield_server.domain.facts.observation import Answer, EngineName, Hardware, Model, Outcome
from kvyield_server.domain.records import StoredObservation, StoredRecommendation

T = TypeVar("T")


# what lists are sorted by unless asked otherwise; a page token tells its list by this name
NEWEST_OBSERVED, NEWEST_CREATED, NEWEST_NOTED, NEWEST_MADE = "-observed_at", "-created_at", "-at", "-made_at"


class Role(StrEnum):
    """What a token may do: post, ask, or manage."""

    INGEST = "ingest"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class PageKey:
    """Where a page ended: the value of its last row that the list is sorted by, mostly a time, and the row's id."""

    at: datetime | str | None
    id: UUID


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Rows in order, and the key to ask the next page with: None when this is the last one."""

    items: tuple[T, ...]
    next_key: PageKey | None


def every_page(read: Callable[[PageKey | None], Page[T]]) -> Iterator[Page[T]]:
    """Yield all pages of a list, each read when it is asked for; ``read`` takes the key that a page begins below."""
    after: PageKey | None = None
    while True:
        page = read(after)
        yield page
        if (after := page.next_key) is None:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class PairName:
    """What names a pair, its id, and how many starts it has that are not retracted."""

    id: UUID
    gpu: str
    gpu_count: int
    model: str
    observation_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One hardware and one model, with attributes merged from all observations.

    ``revision`` grows with every change of evidence or attributes: a fit made at an equal revision is still right.
    ``observation_count``, ``last_observed_at`` and ``engines`` leave retracted observations out.
    """

    id: UUID
    hardware: Hardware
    model: Model
    created_at: datetime
    revision: int = 0
    observation_count: int = 0
    last_observed_at: datetime | None = None
    engines: tuple[EngineName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAccount:
    """One telling of a start that was told more than once; ``token_id`` is the token that it was posted with."""

    account: Account
    token_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationFilter:
    """Which observations to list; None means any. Names match exactly; ``since`` <= observed_at < ``until``."""

    pair_id: UUID | None = None
    gpu: str | None = None
    model: str | None = None
    engine: EngineName | None = None
    outcome: Outcome | None = None
    host: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    token_id: UUID | None = None
    include_retracted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledRecommendation:
    """A recommendation and the start that followed it: what calibration counts."""

    recommendation: StoredRecommendation
    observation: StoredObservation


class Verdict(StrEnum):
    """Whether what runs answers the last question that was asked about its pair and kept."""

    YES = "yes"
    AT_RISK = "at_risk"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """What runs in a pair, as of the pair's ``revision``; None is not known, and -1 not looked at yet.

    What runs is the newest start that came up, which may have died since: ``outcome`` is its own. ``newest`` is of the
    newest start of all, which may have died starting.
    ``headroom_gib`` is at the peak of a prompt of ``headroom_tokens``, the longest verified. The ``verified`` fields
    are of the last verification of what runs. ``verdict`` and ``headline`` answer the question of
    ``recommendation_id``. ``note`` says why nothing more is known.
    """

    pair_id: UUID
    revision: int
    looked_at: datetime
    model: str
    gpu: str
    gpu_count: int
    note: str | None = None
    engine: EngineName | None = None
    engine_version: str | None = None
    deployment_id: str | None = None
    observation_id: UUID | None = None
    observed_at: datetime | None = None
    outcome: Outcome | None = None
    newest_id: UUID | None = None
    newest_at: datetime | None = None
    newest_outcome: Outcome | None = None
    host: str | None = None
    fraction: float | None = None
    pool_tokens: int | None = None
    free_at_ready_gib: float | None = None
    free_is_bound: bool | None = None
    headroom_gib: float | None = None
    headroom_tokens: int | None = None
    headroom_is_measured: bool | None = None
    verified_tokens: int | None = None
    verified_passed: bool | None = None
    verified_answer: Answer | None = None
    recommendation_id: UUID | None = None
    verdict: Verdict | None = None
    headline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDrift:
    """What changed between two versions in one deployment, with the pair that it is of."""

    pair_id: UUID
    drift: Drift
    model: str
    gpu: str
    gpu_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """Two versions of an engine that ran in the same pairs, and over all of them what changed.

    ``pool_changed`` and ``free_changed`` count deployments whose 90 % interval of the change does not hold zero.
    """

    engine: EngineName
    from_version: str
    to_version: str
    pairs: int
    deployments: int
    from_starts: int
    to_starts: int
    newest_at: datetime
    pool_changed: int
    free_changed: int
    lowest_pool_tokens: float | None
    highest_pool_tokens: float | None
    lowest_free_gib: float | None
    highest_free_gib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """A bearer token; only its hash is kept. ``expires_at`` None means never."""

    id: UUID
    name: str
    roles: frozenset[Role]
    token_hash: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def is_valid(self, at: datetime) -> bool:
        """Say whether the token opens anything at that time."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)

    @property
    def only_posts(self) -> bool:
        """Whether the token reaches nothing but what was posted with it."""
        return self.roles == {Role.INGEST}

    @property
    def roles_text(self) -> str:
        """The roles for people, in one order."""
        return ", ".join(sorted(self.roles))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who did what to which thing. ``actor`` is a token's name, or ``cli``."""

    id: UUID
    at: datetime
    actor: str
    action: str
    subject: str
    details: Mapping[str, object] = field(default_factory=dict)
