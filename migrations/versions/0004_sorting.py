"""Indexes for lists sorted by the time of arrival, and for pairs by their last start."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_observation_received_at_id"), "observation", ["received_at", "id"])
    op.create_index(op.f("ix_pair_last_observed_at_id"), "pair", ["last_observed_at", "id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_pair_last_observed_at_id"), "pair")
    op.drop_index(op.f("ix_observation_received_at_id"), "observation")
