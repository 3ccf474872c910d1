"""Starts and answers as the ledger keeps them: with ids, times, marks and what changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from kvyield_server.domain.answers import Advice, Question
from kvyield_server.domain.facts.accounts import Account, FieldChange
from kvyield_server.domain.facts.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """What a second account or a correction changed in a row, by whom and when. ``action``: merge or correction."""

    id: UUID
    at: datetime
    actor: str
    action: Literal["merge", "correction"]
    changes: tuple[FieldChange, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObservation:
    """An observation as kept. ``token_id`` is the token that it was posted with.

    ``is_timed`` and ``is_zoned`` are as in an account; ``observed_at`` is the time of arrival when it is not timed.
    ``other_token_ids`` are the tokens that posted further accounts of the start.
    """

    observation: Observation
    pair_id: UUID
    received_at: datetime
    content_digest: str
    token_id: UUID | None = None
    is_timed: bool = True
    is_zoned: bool = True
    retracted_at: datetime | None = None
    retraction_reason: str | None = None
    history: tuple[HistoryEntry, ...] = ()
    other_token_ids: frozenset[UUID] = frozenset()

    @property
    def account(self) -> Account:
        """The row as an account of itself."""
        return Account(
            observation=self.observation,
            digest=self.content_digest,
            received_at=self.received_at,
            is_timed=self.is_timed,
            is_zoned=self.is_zoned,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecommendation:
    """An answer that was given, with its question. ``observation_id`` is the start that settled it.

    ``selector`` is the asker's own choice of pair and deployment, kept as given; ``pair_id`` is None for a cold start.
    """

    id: UUID
    made_at: datetime
    pair_id: UUID | None
    question: Question
    advice: Advice
    selector: Mapping[str, object] = field(default_factory=dict)
    observation_id: UUID | None = None
    settled_at: datetime | None = None
