"""Export: the whole ledger, a page at a time, so that memory does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator

from kvyield_server.domain.records import StoredObservation
from kvyield_server.storage.records import (
    ObservationFilter,
    Page,
    PageKey,
    every_page,
)
from kvyield_server.storage.uow import Storage

PAGE_SIZE = 500


def export(storage: Storage, where: ObservationFilter) -> Iterator[tuple[StoredObservation, ...]]:
    """Yield observations, newest first, in pages of at most 500; each page is read when it is asked for."""

    def read(after: PageKey | None) -> Page[StoredObservation]:
        with storage.read() as uow:
            return uow.observations.page(where, after, PAGE_SIZE)

    return (page.items for page in every_page(read))
