"""Opens the storage that a URL means."""

from __future__ import annotations

from kvyield_server.storage import migrate
from kvyield_server.storage.connections import Use, database_url, engine_for, is_sqlite
from kvyield_server.storage.uow import Storage


def open_storage(url: str) -> Storage:
    """Open the database of a URL: ``sqlite:///file`` or ``postgresql+psycopg://...``.

    A SQLite file is made and migrated when need be. PostgreSQL must have been migrated before, else
    MigrationNeededError; StorageUnavailableError when it does not answer; InvalidError for a URL of any other kind.
    """
    parsed = database_url(url)
    if is_sqlite(parsed):
        if migrate.current(url) != migrate.head():
            migrate.upgrade(url)
    else:
        migrate.require_current(url)
    return Storage(engine_for(parsed, Use.READ), engine_for(parsed, Use.WRITE))
