"""What all names of a host have in common, so that a start is found by any of them whichever came first."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ADDRESS = re.compile(r"[\d.]+|.*:.*")
POOLS = "pool_tokens IS NOT NULL"


def upgrade() -> None:
    op.add_column("observation", sa.Column("host_key", sa.String()))
    fill()
    op.create_index(op.f("ix_observation_host_key_observed_at"), "observation", ["host_key", "observed_at"])
    create_pool_index("host_key")
    op.drop_index(op.f("ix_observation_host_pool_tokens_observed_at"), "observation")


def fill() -> None:
    """Find the key of each name once: there are few hosts and many starts."""
    observation = sa.table("observation", sa.column("host", sa.String()), sa.column("host_key", sa.String()))
    connection = op.get_bind()
    hosts = connection.execute(sa.select(observation.c.host).distinct().where(observation.c.host.is_not(None)))
    for host in hosts.scalars().all():
        key = (host if ADDRESS.fullmatch(host) else host.partition(".")[0]).lower()
        connection.execute(sa.update(observation).where(observation.c.host == host).values(host_key=key))


def create_pool_index(host: str) -> None:
    op.create_index(
        op.f(f"ix_observation_{host}_pool_tokens_observed_at"),
        "observation",
        [host, "pool_tokens", "observed_at"],
        postgresql_where=sa.text(POOLS),
        sqlite_where=sa.text(POOLS),
    )


def downgrade() -> None:
    create_pool_index("host")
    op.drop_index(op.f("ix_observation_host_key_pool_tokens_observed_at"), "observation")
    op.drop_index(op.f("ix_observation_host_key_observed_at"), "observation")
    op.drop_column("observation", "host_key")
