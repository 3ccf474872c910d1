"""What runs in each pair and what changed between versions, kept for the pages of all pairs; filled by the service."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_fleet()
    create_drift()


def create_fleet() -> None:
    op.create_table(
        "fleet",
        sa.Column("pair_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("looked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("gpu", sa.String(), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("note", sa.String()),
        sa.Column("engine", sa.String()),
        sa.Column("engine_version", sa.String()),
        sa.Column("deployment_id", sa.String()),
        sa.Column("observation_id", sa.Uuid()),
        sa.Column("observed_at", sa.DateTime(timezone=True)),
        sa.Column("host", sa.String()),
        sa.Column("fraction", sa.Double()),
        sa.Column("pool_tokens", sa.BigInteger()),
        sa.Column("free_at_ready_gib", sa.Double()),
        sa.Column("free_is_bound", sa.Boolean()),
        sa.Column("headroom_gib", sa.Double()),
        sa.Column("headroom_tokens", sa.BigInteger()),
        sa.Column("headroom_is_measured", sa.Boolean()),
        sa.Column("verified_tokens", sa.BigInteger()),
        sa.Column("verified_passed", sa.Boolean()),
        sa.Column("verified_answer", sa.String()),
        sa.Column("recommendation_id", sa.Uuid()),
        sa.Column("verdict", sa.String()),
        sa.Column("headline", sa.Text()),
        sa.ForeignKeyConstraint(["pair_id"], ["pair.id"], name=op.f("fk_fleet_pair_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pair_id", name=op.f("pk_fleet")),
    )


def create_drift() -> None:
    op.create_table(
        "drift",
        sa.Column("pair_id", sa.Uuid(), nullable=False),
        sa.Column("from_deployment_id", sa.String(), nullable=False),
        sa.Column("to_deployment_id", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("from_version", sa.String(), nullable=False),
        sa.Column("to_version", sa.String(), nullable=False),
        sa.Column("deployment", sa.String(), nullable=False),
        sa.Column("newest_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("fraction", sa.Double(), nullable=False),
        sa.Column("from_starts", sa.Integer(), nullable=False),
        sa.Column("to_starts", sa.Integer(), nullable=False),
        sa.Column("from_slope_tokens", sa.Double()),
        sa.Column("to_slope_tokens", sa.Double()),
        sa.Column("pool_tokens", sa.Double()),
        sa.Column("pool_low", sa.Double()),
        sa.Column("pool_high", sa.Double()),
        sa.Column("from_slope_gib", sa.Double()),
        sa.Column("to_slope_gib", sa.Double()),
        sa.Column("free_gib", sa.Double()),
        sa.Column("free_low", sa.Double()),
        sa.Column("free_high", sa.Double()),
        sa.ForeignKeyConstraint(["pair_id"], ["pair.id"], name=op.f("fk_drift_pair_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pair_id", "from_deployment_id", "to_deployment_id", name=op.f("pk_drift")),
    )
    op.create_index(op.f("ix_drift_engine_from_version_to_version"), "drift", ["engine", "from_version", "to_version"])


def downgrade() -> None:
    op.drop_table("drift")
    op.drop_table("fleet")
