"""Keyset pages: a page is cut from one row more than was asked for, which tells whether another page follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kvyield_server.domain.records import StoredObservation, StoredRecommendation
from kvyield_server.storage.records import (
    AuditEntry,
    Page,
    PageKey,
    Pair,
    SettledRecommendation,
)

T = TypeVar("T")


def observation_key(stored: StoredObservation, by: str) -> PageKey:
    at = stored.received_at if by == "received_at" else stored.observation.observed_at
    return PageKey(at, stored.observation.id)


def pair_key(pair: Pair, by: str) -> PageKey:
    values = {"name": pair.model.name, "last_start": pair.last_observed_at, "created_at": pair.created_at}
    return PageKey(values[by], pair.id)


def audit_key(entry: AuditEntry) -> PageKey:
    return PageKey(entry.at, entry.id)


def recommendation_key(stored: StoredRecommendation) -> PageKey:
    return PageKey(stored.made_at, stored.id)


def settled_key(settled: SettledRecommendation) -> PageKey:
    recommendation = settled.recommendation
    assert recommendation.settled_at is not None
    return PageKey(recommendation.settled_at, recommendation.id)


def cut(rows: Sequence[T], size: int, key: Callable[[T], PageKey]) -> Page[T]:
    """Return the first ``size`` of up to ``size + 1`` ordered rows as a page."""
    items = tuple(rows[:size])
    return Page(items, key(items[-1]) if items and len(rows) > size else None)
