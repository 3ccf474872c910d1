"""Browse: single things and pages of them, as a caller may see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal
from uuid import UUID

from kvyield_server.domain.facts.accounts import loose_gpu, loose_model
from kvyield_server.domain.records import StoredObservation, StoredRecommendation
from kvyield_server.errors import AmbiguousError, ForbiddenError, NotFoundError
from kvyield_server.storage.records import (
    NEWEST_CREATED,
    ObservationFilter,
    Page,
    PageKey,
    Pair,
)
from kvyield_server.storage.uow import UnitOfWork

Kind = Literal["gpu", "model"]
_KINDS: tuple[Kind, ...] = ("gpu", "model")
_LOOSE = {"gpu": loose_gpu, "model": loose_model}


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
    uow: UnitOfWork,
    search: str | None,
    after: PageKey | None,
    size: int,
    token_id: UUID | None,
    *,
    sort: str = NEWEST_CREATED,
    gpu: str | None = None,
    model: str | None = None,
) -> Page[Pair]:
    """Return a page of pairs; with a token, those that it posted to, so a page may hold fewer than ``size``.

    ``gpu`` and ``model`` may be written loosely, and then mean all names that they fit.
    """
    gpus = None if gpu is None else meant(uow, "gpu", gpu, token_id)
    models = None if model is None else meant(uow, "model", model, token_id)
    page = uow.pairs.page(search, after, size, sort=sort, gpus=gpus, models=models)
    if token_id is None:
        return page
    own = uow.pairs.posted_by(token_id)
    return Page(tuple(pair for pair in page.items if pair.id in own), page.next_key)


def meant(uow: UnitOfWork, kind: Kind, name: str, token_id: UUID | None = None) -> Sequence[str]:
    """Return the names of GPUs or models that a name means: exactly it, else all that equal it loosely.

    With a token, of the pairs that were posted to with it.
    """
    if token_id is not None:
        own = uow.pairs.posted_by(token_id)
        known = sorted({getattr(pair, kind) for pair in uow.pairs.names() if pair.id in own})
    elif uow.pairs.knows(kind, name):
        return [name]
    else:
        known = list(uow.pairs.spellings(kind))
    loose = _LOOSE[kind](name)
    return [name] if name in known else [each for each in known if loose and _LOOSE[kind](each) == loose]


def as_spelled(uow: UnitOfWork, where: ObservationFilter) -> ObservationFilter:
    """Return a filter with the GPU and the model as the ledger spells them; a name that fits nothing stays as it is.

    Raises:
        AmbiguousError: a name may mean several; lists them.
    """
    gpu, model = (_the_one(uow, kind, getattr(where, kind), where.token_id) for kind in _KINDS)
    return replace(where, gpu=gpu, model=model)


def _the_one(uow: UnitOfWork, kind: Kind, name: str | None, token_id: UUID | None) -> str | None:
    found = [] if name is None else meant(uow, kind, name, token_id)
    if len(found) > 1:
        text = f"Several {kind}s match {name}: {'; '.join(found)}. Name one exactly."
        raise AmbiguousError(text, [{kind: each} for each in found])
    return found[0] if found else name


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
