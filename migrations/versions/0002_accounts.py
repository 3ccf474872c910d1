"""Accounts and history of a start, corrections, answers, the driver's memory, several roles a token.

JSONB becomes JSON on PostgreSQL: JSONB rewrites numbers (1e22 comes back as an integer), JSON returns them as sent.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

DOCUMENTS = {
    "pair": ("engines",),
    "model": ("facts",),
    "observation": ("flags", "facts", "measurements", "failure"),
    "recommendation": ("selector",),
    "audit": ("details",),
}


def upgrade() -> None:
    add_columns()
    create_alias()
    create_account()
    create_history()
    give_tokens_several_roles()
    create_indexes()
    change_documents("JSON")


def add_columns() -> None:
    op.add_column("hardware", sa.Column("driver_memory_gib", sa.Double()))
    op.add_column("observation", sa.Column("driver_memory_gib", sa.Double()))
    op.add_column("observation", sa.Column("is_timed", sa.Boolean()))
    # null in rows of release 0.1, which took times without a zone for UTC
    op.add_column("observation", sa.Column("is_zoned", sa.Boolean()))
    # a post without a time was given the moment of its arrival
    op.execute("UPDATE observation SET is_timed = (observed_at <> received_at)")
    op.add_column("verification", sa.Column("answer", sa.String()))


def create_alias() -> None:
    op.create_table(
        "alias",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("observation_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["observation_id"], ["observation.id"], name=op.f("fk_alias_observation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alias")),
    )
    op.create_index(op.f("ix_alias_observation_id"), "alias", ["observation_id"])


def create_account() -> None:
    op.create_table(
        "account",
        sa.Column("content_digest", sa.String(), nullable=False),
        sa.Column("observation_id", sa.Uuid(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("token_id", sa.Uuid()),
        sa.Column("is_timed", sa.Boolean(), nullable=False),
        sa.Column("is_zoned", sa.Boolean(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["observation_id"], ["observation.id"], name=op.f("fk_account_observation_id")),
        sa.ForeignKeyConstraint(["token_id"], ["api_token.id"], name=op.f("fk_account_token_id")),
        sa.PrimaryKeyConstraint("content_digest", name=op.f("pk_account")),
    )
    op.create_index(op.f("ix_account_observation_id"), "account", ["observation_id"])
    op.create_index(op.f("ix_account_token_id"), "account", ["token_id"])


def create_history() -> None:
    op.create_table(
        "history",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("observation_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.CheckConstraint("action IN ('merge', 'correction')", name=op.f("ck_history_action")),
        sa.ForeignKeyConstraint(["observation_id"], ["observation.id"], name=op.f("fk_history_observation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_history")),
    )
    op.create_index(op.f("ix_history_observation_id_at_id"), "history", ["observation_id", "at", "id"])


def give_tokens_several_roles() -> None:
    """``role`` stays for replicas of the release before, which may run beside new ones during a deployment."""
    op.add_column("api_token", sa.Column("roles", sa.JSON()))
    roles = sa.table("api_token", sa.column("role", sa.String()), sa.column("roles", sa.JSON()))
    for role in ("ingest", "read", "admin"):
        op.execute(roles.update().where(roles.c.role == role).values(roles=[role]))


def create_indexes() -> None:
    op.create_index(op.f("ix_observation_engine_observed_at_id"), "observation", ["engine", "observed_at", "id"])
    rows = "pool_tokens IS NOT NULL"
    op.create_index(
        op.f("ix_observation_host_pool_tokens_observed_at"),
        "observation",
        ["host", "pool_tokens", "observed_at"],
        postgresql_where=sa.text(rows),
        sqlite_where=sa.text(rows),
    )


def change_documents(kind: str) -> None:
    """SQLite keeps both kinds as text."""
    if op.get_bind().dialect.name != "postgresql":
        return
    new = sa.JSON() if kind == "JSON" else postgresql.JSONB()
    for table, columns in DOCUMENTS.items():
        for column in columns:
            op.alter_column(table, column, type_=new, postgresql_using=f"{column}::{kind.lower()}")


def downgrade() -> None:
    change_documents("JSONB")
    op.drop_index(op.f("ix_observation_host_pool_tokens_observed_at"), "observation")
    op.drop_index(op.f("ix_observation_engine_observed_at_id"), "observation")
    op.drop_column("api_token", "roles")
    op.drop_table("history")
    op.drop_table("account")
    op.drop_table("alias")
    op.drop_column("verification", "answer")
    op.drop_column("observation", "is_zoned")
    op.drop_column("observation", "is_timed")
    op.drop_column("observation", "driver_memory_gib")
    op.drop_column("hardware", "driver_memory_gib")
