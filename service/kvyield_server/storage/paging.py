"""Keyset pages: a page is cut from one row more than was asked for, which tells whether another page follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kvyield_server.storage.records import (
    AuditEntry,
    Page,
    PageKey,
    Pair,
    SettledRecommendation,
    StoredObservation,
    StoredRecommendation,
)

T = TypeVar("T")


def observation_key(stored: StoredObservation) -> PageKey:
    return PageKey(stored.observation.observed_at, stored.observation.id)


def pair_key(pair: Pair) -> PageKey:
    return PageKey(pair.created_at, pair.id)


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
