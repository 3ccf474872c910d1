"""What stands beside the ledger, in memory: fits, recommendations, tokens and the audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from kvyield_server.domain.answers import FitSummary
from kvyield_server.errors import ConflictError
from kvyield_server.storage.memory_ledger import State, add_new, known
from kvyield_server.storage.paging import audit_key, page_of, recommendation_key, settled_key
from kvyield_server.storage.records import (
    ApiToken,
    AuditEntry,
    Page,
    PageKey,
    SettledRecommendation,
    StoredFit,
    StoredRecommendation,
)
from kvyield_server.storage.values import refuse_unstorable


class MemoryFits:
    def __init__(self, state: State) -> None:
        self._state = state

    def save(self, pair_id: UUID, revision: int, summaries: Sequence[FitSummary], fitted_at: datetime) -> None:
        known(self._state.pairs, pair_id, "pair")
        refuse_unstorable(summaries)
        self._state.fits[pair_id] = tuple(
            StoredFit(pair_id=pair_id, revision=revision, fitted_at=fitted_at, summary=summary) for summary in summaries
        )

    def of_pair(self, pair_id: UUID) -> tuple[StoredFit, ...]:
        return self._state.fits.get(pair_id, ())


class MemoryRecommendations:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, recommendation: StoredRecommendation) -> None:
        if recommendation.pair_id is not None:
            known(self._state.pairs, recommendation.pair_id, "pair")
        add_new(self._state.recommendations, recommendation.id, recommendation, "recommendation")

    def get(self, recommendation_id: UUID) -> StoredRecommendation | None:
        return self._state.recommendations.get(recommendation_id)

    def settle(self, recommendation_id: UUID, observation_id: UUID, at: datetime) -> bool:
        recommendation = known(self._state.recommendations, recommendation_id, "recommendation")
        known(self._state.observations, observation_id, "observation")
        if recommendation.observation_id is not None:
            return False
        settled = replace(recommendation, observation_id=observation_id, settled_at=at)
        self._state.recommendations[recommendation_id] = settled
        return True

    def settled_by(self, observation_id: UUID) -> UUID | None:
        answers = self._state.recommendations.values()
        return next((each.id for each in answers if each.observation_id == observation_id), None)

    def page(self, after: PageKey | None, size: int) -> Page[StoredRecommendation]:
        return page_of(self._state.recommendations.values(), after, size, recommendation_key)

    def page_settled(self, after: PageKey | None, size: int) -> Page[SettledRecommendation]:
        settled = [
            SettledRecommendation(recommendation=each, observation=self._state.observations[each.observation_id])
            for each in self._state.recommendations.values()
            if each.observation_id is not None
        ]
        live = [each for each in settled if each.observation.retracted_at is None]
        return page_of(live, after, size, settled_key)


class MemoryTokens:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, token: ApiToken) -> None:
        if self.by_hash(token.token_hash) is not None:
            raise ConflictError("A token with this hash is already stored.")
        add_new(self._state.tokens, token.id, token, "token")

    def by_hash(self, token_hash: str) -> ApiToken | None:
        return next((each for each in self._state.tokens.values() if each.token_hash == token_hash), None)

    def list(self) -> tuple[ApiToken, ...]:
        return tuple(sorted(self._state.tokens.values(), key=lambda each: (each.created_at, each.id), reverse=True))

    def revoke(self, token_id: UUID, at: datetime) -> ApiToken:
        token = known(self._state.tokens, token_id, "token")
        if token.revoked_at is None:
            token = self._state.tokens[token_id] = replace(token, revoked_at=at)
        return token

    def touch(self, token_id: UUID, at: datetime) -> None:
        if token_id in self._state.tokens:
            self._state.tokens[token_id] = replace(self._state.tokens[token_id], last_used_at=at)


class MemoryAudit:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, entry: AuditEntry) -> None:
        add_new(self._state.audit, entry.id, entry, "audit entry")

    def page(self, after: PageKey | None, size: int) -> Page[AuditEntry]:
        return page_of(self._state.audit.values(), after, size, audit_key)
