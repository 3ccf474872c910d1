"""Who changed what."""

from __future__ import annotations

from sqlalchemy import Connection, select

from kvyield_server.storage import tables
from kvyield_server.storage.paging import audit_key, cut
from kvyield_server.storage.records import AuditEntry, Page, PageKey
from kvyield_server.storage.rows import audit_from_row, audit_to_row
from kvyield_server.storage.statements import insert_rows, page_of_rows
from kvyield_server.storage.values import refuse_unstorable

_it = tables.audit.c


class Audit:
    """Who changed what."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, entry: AuditEntry) -> None:
        """Keep an entry."""
        refuse_unstorable(entry)
        insert_rows(self._connection, tables.audit, [audit_to_row(entry)])

    def page(self, after: PageKey | None, size: int) -> Page[AuditEntry]:
        """Return entries by (at, id), newest first."""
        query = page_of_rows(select(tables.audit), _it.at, _it.id, after, size)
        return cut([audit_from_row(row) for row in self._connection.execute(query).mappings()], size, audit_key)
