"""Browse: single things and pages of them, as a caller may see them."""

from __future__ import annotations

from uuid import UUID

from kvyield_server.errors import ForbiddenError, NotFoundError
from kvyield_server.storage.records import Page, PageKey, Pair, StoredObservation, StoredRecommendation
from kvyield_server.storage.uow import UnitOfWork


def stored_observation(uow: UnitOfWork, observation_id: UUID) -> StoredObservation:
    """Return an observation; NotFoundError for an unknown id."""
    stored = uow.observations.get(observation_id)
    if stored is None:
        raise NotFoundError(f"There is no observation {observation_id}.")
    return stored


def stored_pair(uow: UnitOfWork, pair_id: UUID) -> Pair:
    """Return a pair; NotFoundError for an unknown id."""
    pair = uow.pairs.get(pair_id)
    if pair is None:
        raise NotFoundError(f"There is no pair {pair_id}.")
    return pair


def readable_pair(uow: UnitOfWork, pair_id: UUID, token_id: UUID | None) -> Pair:
    """Return a pair; ForbiddenError when the token may read its own pairs only and this is another."""
    pair = stored_pair(uow, pair_id)
    require_own_pair(uow, pair.id, token_id)
    return pair


def pairs_page(
    uow: UnitOfWork, search: str | None, after: PageKey | None, size: int, token_id: UUID | None
) -> Page[Pair]:
    """Return a page of pairs; with a token, those that it posted to, so a page may hold fewer than ``size``."""
    page = uow.pairs.page(search, after, size)
    if token_id is None:
        return page
    own = uow.pairs.posted_by(token_id)
    return Page(tuple(pair for pair in page.items if pair.id in own), page.next_key)


def stored_recommendation(uow: UnitOfWork, recommendation_id: UUID) -> StoredRecommendation:
    """Return a recommendation; NotFoundError for an unknown id."""
    stored = uow.recommendations.get(recommendation_id)
    if stored is None:
        raise NotFoundError(f"There is no recommendation {recommendation_id}.")
    return stored


def require_own_start(stored: StoredObservation, token_id: UUID | None) -> None:
    """Return when an account of the start was posted with the token; any start will do for a caller that is not bound.

    Raises:
        ForbiddenError: the token may see its own starts only.
    """
    if token_id is not None and token_id not in {stored.token_id, *stored.other_token_ids}:
        raise ForbiddenError(
            "An ingest token reads, verifies and corrects the starts that it posted; this needs another token."
        )


def require_own_pair(uow: UnitOfWork, pair_id: UUID | None, token_id: UUID | None) -> None:
    """Return when the pair holds a start posted with the token; any pair will do for a caller that is not bound to one.

    Raises:
        ForbiddenError: the token may read its own pairs only.
    """
    if token_id is not None and (pair_id is None or pair_id not in uow.pairs.posted_by(token_id)):
        raise ForbiddenError("An ingest token reads the pairs that it posted to; this needs a read token.")
