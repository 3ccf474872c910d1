"""Runs the migrations over the connection that ``kvyield_server.storage.migrate`` hands in.

The ``alembic`` command works too, for whoever writes a migration: it reads the URL from ``KVYIELD_DATABASE``.
"""

from __future__ import annotations

import os
from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection

from kvyield_server.storage.connections import Use, database_url, engine_for
from kvyield_server.storage.tables import UtcDateTime, metadata


def render_item(kind: str, item: object, _context: AutogenContext) -> str | Literal[False]:
    """Name types of our own by what they are in the database, so that a migration never changes with the code."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        compare_server_default=True,
        transaction_per_migration=True,
        render_item=render_item,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_by_command() -> None:
    url = database_url(os.environ.get("KVYIELD_DATABASE", "sqlite:///kvyield.db"))
    with engine_for(url, Use.MIGRATE).begin() as connection:
        run(connection)


handed_in = context.config.attributes.get("connection")
if handed_in is None:
    run_by_command()
else:
    run(handed_in)
