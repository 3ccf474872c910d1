"""The first schema: pairs, the ledger of observations, fits, recommendations, tokens and the audit trail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSONB = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    create_hardware()
    create_model()
    create_pair()
    create_api_token()
    create_observation()
    create_verification()
    create_fit()
    create_recommendation()
    create_audit()


def create_hardware() -> None:
    op.create_table(
        "hardware",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("gpu", sa.String(), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("memory_gib", sa.Double()),
        sa.Column("unified_memory", sa.Boolean()),
        sa.CheckConstraint("gpu_count >= 1", name=op.f("ck_hardware_gpu_count")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hardware")),
        sa.UniqueConstraint("gpu", "gpu_count", name=op.f("uq_hardware_gpu_gpu_count")),
    )


def create_model() -> None:
    op.create_table(
        "model",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("revision", sa.String()),
        sa.Column("facts", JSONB, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model")),
        sa.UniqueConstraint("name", name=op.f("uq_model_name")),
    )


def create_pair() -> None:
    op.create_table(
        "pair",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("hardware_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("observation_count", sa.BigInteger(), nullable=False),
        sa.Column("last_observed_at", sa.DateTime(timezone=True)),
        sa.Column("engines", JSONB, nullable=False),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_pair_hardware_id")),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name=op.f("fk_pair_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pair")),
        sa.UniqueConstraint("hardware_id", "model_id", name=op.f("uq_pair_hardware_id_model_id")),
    )
    op.create_index(op.f("ix_pair_created_at_id"), "pair", ["created_at", "id"])
    op.create_index(op.f("ix_pair_model_id"), "pair", ["model_id"])


def create_api_token() -> None:
    op.create_table(
        "api_token",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("role IN ('ingest', 'read', 'admin')", name=op.f("ck_api_token_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_api_token_token_hash")),
    )


def create_observation() -> None:
    op.create_table(
        "observation",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("pair_id", sa.Uuid(), nullable=False),
        sa.Column("content_digest", sa.String(), nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("token_id", sa.Uuid()),
        sa.Column("host", sa.String()),
        sa.Column("source", sa.String()),
        sa.Column("gpu", sa.String(), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("memory_gib", sa.Double()),
        sa.Column("unified_memory", sa.Boolean()),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("model_revision", sa.String()),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("engine_version", sa.String()),
        sa.Column("engine_variant", sa.String()),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("fraction", sa.Double()),
        sa.Column("pool_tokens", sa.BigInteger()),
        sa.Column("free_at_ready_gib", sa.Double()),
        sa.Column("recommendation_id", sa.Uuid()),
        sa.Column("retracted_at", sa.DateTime(timezone=True)),
        sa.Column("retraction_reason", sa.Text()),
        sa.Column("flags", JSONB, nullable=False),
        sa.Column("facts", JSONB, nullable=False),
        sa.Column("measurements", JSONB, nullable=False),
        sa.Column("failure", JSONB),
        sa.Column("log_excerpt", sa.Text()),
        sa.CheckConstraint(
            "outcome IN ('ready', 'refused', 'oom_startup', 'oom_runtime', 'failed')",
            name=op.f("ck_observation_outcome"),
        ),
        sa.CheckConstraint("pool_tokens >= 0", name=op.f("ck_observation_pool_tokens")),
        sa.ForeignKeyConstraint(["pair_id"], ["pair.id"], name=op.f("fk_observation_pair_id")),
        sa.ForeignKeyConstraint(["token_id"], ["api_token.id"], name=op.f("fk_observation_token_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_observation")),
        sa.UniqueConstraint("content_digest", name=op.f("uq_observation_content_digest")),
    )
    op.create_index(op.f("ix_observation_host_observed_at_id"), "observation", ["host", "observed_at", "id"])
    op.create_index(op.f("ix_observation_observed_at_id"), "observation", ["observed_at", "id"])
    create_partial_index(
        "ix_observation_outcome_observed_at_id", ["outcome", "observed_at", "id"], "outcome <> 'ready'"
    )
    op.create_index(op.f("ix_observation_pair_id_observed_at_id"), "observation", ["pair_id", "observed_at", "id"])
    create_partial_index("ix_observation_token_id_pair_id", ["token_id", "pair_id"], "token_id IS NOT NULL")


def create_partial_index(name: str, columns: list[str], rows: str) -> None:
    op.create_index(op.f(name), "observation", columns, postgresql_where=sa.text(rows), sqlite_where=sa.text(rows))


def create_verification() -> None:
    op.create_table(
        "verification",
        sa.Column("observation_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger()),
        sa.Column("cached_tokens", sa.BigInteger()),
        sa.Column("elapsed_seconds", sa.Double()),
        sa.Column("time_to_first_token_seconds", sa.Double()),
        sa.Column("answer_expected", sa.Text()),
        sa.Column("answer_received", sa.Text()),
        sa.Column("lowest_free_gib", sa.Double()),
        sa.Column("free_before_gib", sa.Double()),
        sa.Column("concurrent", sa.BigInteger()),
        sa.Column("memory_samples", sa.BigInteger()),
        sa.Column("error", sa.Text()),
        sa.ForeignKeyConstraint(["observation_id"], ["observation.id"], name=op.f("fk_verification_observation_id")),
        sa.PrimaryKeyConstraint("observation_id", "position", name=op.f("pk_verification")),
    )


def create_fit() -> None:
    op.create_table(
        "fit",
        sa.Column("pair_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("fitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deployment_id", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("engine_version", sa.String()),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["pair_id"], ["pair.id"], name=op.f("fk_fit_pair_id")),
        sa.PrimaryKeyConstraint("pair_id", "position", name=op.f("pk_fit")),
    )


def create_recommendation() -> None:
    op.create_table(
        "recommendation",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("pair_id", sa.Uuid()),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("target_tokens", sa.BigInteger(), nullable=False),
        sa.Column("observation_id", sa.Uuid()),
        sa.Column("settled_at", sa.DateTime(timezone=True)),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("advice", sa.JSON(), nullable=False),
        sa.Column("selector", JSONB, nullable=False),
        sa.ForeignKeyConstraint(["observation_id"], ["observation.id"], name=op.f("fk_recommendation_observation_id")),
        sa.ForeignKeyConstraint(["pair_id"], ["pair.id"], name=op.f("fk_recommendation_pair_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recommendation")),
    )
    op.create_index(op.f("ix_recommendation_made_at_id"), "recommendation", ["made_at", "id"])
    op.create_index(op.f("ix_recommendation_observation_id"), "recommendation", ["observation_id"])
    op.create_index(op.f("ix_recommendation_pair_id"), "recommendation", ["pair_id"])
    op.create_index(op.f("ix_recommendation_settled_at_id"), "recommendation", ["settled_at", "id"])


def create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("details", JSONB, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at_id"), "audit", ["at", "id"])


def downgrade() -> None:
    for table in (
        "audit",
        "recommendation",
        "fit",
        "verification",
        "observation",
        "api_token",
        "pair",
        "model",
        "hardware",
    ):
        op.drop_table(table)
