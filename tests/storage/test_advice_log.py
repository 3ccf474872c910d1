"""The log of advice: everything that was answered, settled or not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kvyield_server.domain.records import StoredRecommendation
from kvyield_server.storage.uow import Storage, UnitOfWork
from storage.samples import minutes, recommendation


def test_the_log_pages_through_all_answers_newest_first(storage: Storage) -> None:
    """Answers come back once each, the newest first, whether a start settled them or not."""
    answers = [replace(recommendation(), made_at=minutes(index)) for index in range(3)]
    for answer in answers:
        storage.write(partial(_add, answer)).result()
    with storage.read() as unit:
        first = unit.recommendations.page(None, 2)
        last = unit.recommendations.page(first.next_key, 2)
    assert [*first.items, *last.items] == answers[::-1]
    assert last.next_key is None


def _add(answer: StoredRecommendation, unit: UnitOfWork) -> None:
    unit.recommendations.add(answer)
