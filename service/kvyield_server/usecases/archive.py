"""Archive: the whole ledger as lines, and back into a ledger, with everything that belongs to each start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kvyield_server.domain.records import StoredObservation
from kvyield_server.storage.archive import (
    Archive,
    ArchivedAnswer,
    archived_answer,
    archives_of,
    restore,
    restore_answers,
)
from kvyield_server.storage.records import (
    ObservationFilter,
    Page,
    PageKey,
    every_page,
)
from kvyield_server.storage.statements import batched
from kvyield_server.storage.uow import Storage, UnitOfWork

PAGE_SIZE = 200
MOST_ANSWERS = 20  # that no start settled, on one line; the last line has the rest

Line = tuple[StoredObservation | None, Archive]


class Restored(NamedTuple):
    """What an import did: starts and answers that were kept, and starts that were there already."""

    starts: int
    known: int
    answers: int


def archive(storage: Storage, where: ObservationFilter) -> Iterator[Line]:
    """Yield observations, newest first, each with its archive; answers that no start settled are spread over them.

    A ledger with answers and no start is one line without an observation.
    """
    open_answers = _open_answers(storage, where)
    last: Line | None = None
    for stored, archived in _observations(storage, where):
        if last is not None:
            yield last
        archived.recommendations += islice(open_answers, MOST_ANSWERS)
        last = (stored, archived)
    rest = list(open_answers)
    if last is not None:
        last[1].recommendations += rest
        yield last
    elif rest:
        yield None, Archive(recommendations=rest)


def _observations(storage: Storage, where: ObservationFilter) -> Iterator[tuple[StoredObservation, Archive]]:
    def read(after: PageKey | None) -> Page[tuple[StoredObservation, Archive]]:
        with storage.read() as uow:
            page = uow.observations.page(where, after, PAGE_SIZE)
            return Page(tuple(zip(page.items, archives_of(uow, page.items), strict=True)), page.next_key)

    return (line for page in every_page(read) for line in page.items)


def _open_answers(storage: Storage, where: ObservationFilter) -> Iterator[ArchivedAnswer]:
    def read(after: PageKey | None) -> Page[ArchivedAnswer]:
        with storage.read() as uow:
            page = uow.recommendations.page(after, PAGE_SIZE)
            wanted = [each for each in page.items if each.observation_id is None]
            found = [archived_answer(uow, each) for each in wanted if where.pair_id in (None, each.pair_id)]
            return Page(tuple(found), page.next_key)

    return (answer for page in every_page(read) for answer in page.items)


def restore_all(storage: Storage, lines: Iterable[Line]) -> Restored:
    """Keep what lines hold and the ledger does not have. The same lines again change nothing."""
    done = Restored(0, 0, 0)
    for some in batched(lines, PAGE_SIZE):
        each = storage.write(_restoring(some)).result()
        done = Restored(*(first + second for first, second in zip(done, each, strict=True)))
    return done


def _restoring(lines: Sequence[Line]) -> Callable[[UnitOfWork], Restored]:
    def job(uow: UnitOfWork) -> Restored:
        starts = [restore(uow, stored, archived) for stored, archived in lines if stored is not None]
        answers = sum(restore_answers(uow, archived.recommendations) for _, archived in lines)
        return Restored(sum(starts), len(starts) - sum(starts), answers)

    return job
