"""How what runs ended, and the newest start of a pair whatever became of it, beside what runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

NEVER_LOOKED_AT = -1


def upgrade() -> None:
    op.add_column("fleet", sa.Column("outcome", sa.String()))
    op.add_column("fleet", sa.Column("newest_id", sa.Uuid()))
    op.add_column("fleet", sa.Column("newest_at", sa.DateTime(timezone=True)))
    op.add_column("fleet", sa.Column("newest_outcome", sa.String()))
    op.execute(sa.text("UPDATE fleet SET revision = :never").bindparams(never=NEVER_LOOKED_AT))


def downgrade() -> None:
    for name in ("newest_outcome", "newest_at", "newest_id", "outcome"):
        op.drop_column("fleet", name)
