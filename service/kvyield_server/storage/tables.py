"""The tables, the same on SQLite and PostgreSQL. Columns that are queried are typed; the rest is JSON.

JSON and not JSONB on PostgreSQL: it returns numbers, and the order of keys, as they were sent.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    Uuid,
    text,
)

from kvyield_server.errors import InvalidError


class UtcDateTime(TypeDecorator[datetime]):
    """An instant to the microsecond: aware on both sides, kept as UTC; a naive time is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        if value is None:
            return None
        if value.tzinfo is None:
            raise InvalidError([("", "a time without a zone cannot be stored")])
        return value if value.tzinfo is UTC else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Document = JSON(none_as_null=True)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _partial_index(rows: str, *columns: str) -> Index:
    """Each index costs one more page write per start, so an index that few starts need covers those alone."""
    return Index(None, *columns, postgresql_where=text(rows), sqlite_where=text(rows))


hardware = Table(
    "hardware",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("gpu", String, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("memory_gib", Double),
    Column("unified_memory", Boolean),
    Column("driver_memory_gib", Double),
    UniqueConstraint("gpu", "gpu_count"),
    CheckConstraint("gpu_count >= 1", name="gpu_count"),
)

model = Table(
    "model",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", String, nullable=False),
    Column("revision", String),
    Column("facts", Document, nullable=False),
    UniqueConstraint("name"),
)

pair = Table(
    "pair",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("hardware_id", ForeignKey("hardware.id"), nullable=False),
    Column("model_id", ForeignKey("model.id"), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("observation_count", BigInteger, nullable=False),
    Column("last_observed_at", UtcDateTime),
    Column("engines", Document, nullable=False),
    UniqueConstraint("hardware_id", "model_id"),
    Index(None, "model_id"),
    Index(None, "created_at", "id"),
    Index(None, "last_observed_at", "id"),
)

api_token = Table(
    "api_token",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),  # the least of them, for replicas of release 0.1
    Column("roles", Document),
    Column("token_hash", String, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
    UniqueConstraint("token_hash"),
    CheckConstraint("role IN ('ingest', 'read', 'admin')", name="role"),
)

observation = Table(
    "observation",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("pair_id", ForeignKey("pair.id"), nullable=False),
    Column("content_digest", String, nullable=False),
    Column("observed_at", UtcDateTime, nullable=False),
    Column("received_at", UtcDateTime, nullable=False),
    Column("is_timed", Boolean),
    Column("is_zoned", Boolean),  # null in rows of release 0.1, which took times without a zone for UTC
    Column("token_id", ForeignKey("api_token.id")),
    Column("host", String),
    Column("host_key", String),  # what all names of the host have in common
    Column("source", String),
    Column("gpu", String, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("memory_gib", Double),
    Column("unified_memory", Boolean),
    Column("driver_memory_gib", Double),
    Column("model", String, nullable=False),
    Column("model_revision", String),
    Column("engine", String, nullable=False),
    Column("engine_version", String),
    Column("engine_variant", String),
    Column("outcome", String, nullable=False),
    Column("fraction", Double),
    Column("pool_tokens", BigInteger),
    Column("free_at_ready_gib", Double),
    Column("recommendation_id", Uuid),
    Column("retracted_at", UtcDateTime),
    Column("retraction_reason", Text),
    Column("flags", Document, nullable=False),
    Column("facts", Document, nullable=False),
    Column("measurements", Document, nullable=False),
    Column("failure", Document),
    Column("log_excerpt", Text),
    UniqueConstraint("content_digest"),
    CheckConstraint("outcome IN ('ready', 'refused', 'oom_startup', 'oom_runtime', 'failed')", name="outcome"),
    CheckConstraint("pool_tokens >= 0", name="pool_tokens"),
    Index(None, "observed_at", "id"),
    Index(None, "received_at", "id"),
    Index(None, "pair_id", "observed_at", "id"),
    Index(None, "host", "observed_at", "id"),
    Index(None, "engine", "observed_at", "id"),
    Index(None, "host_key", "observed_at"),
    _partial_index("pool_tokens IS NOT NULL", "host_key", "pool_tokens", "observed_at"),
    _partial_index("outcome <> 'ready'", "outcome", "observed_at", "id"),
    _partial_index("token_id IS NOT NULL", "token_id", "pair_id"),
)

alias = Table(
    "alias",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("observation_id", ForeignKey("observation.id"), nullable=False),
    Index(None, "observation_id"),
)

account = Table(
    "account",
    metadata,
    Column("content_digest", String, primary_key=True),
    Column("observation_id", ForeignKey("observation.id"), nullable=False),
    Column("received_at", UtcDateTime, nullable=False),
    Column("token_id", ForeignKey("api_token.id")),
    Column("is_timed", Boolean, nullable=False),
    Column("is_zoned", Boolean, nullable=False),
    Column("body", Document, nullable=False),
    Index(None, "observation_id"),
    Index(None, "token_id"),
)

history = Table(
    "history",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("observation_id", ForeignKey("observation.id"), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", String, nullable=False),
    Column("action", String, nullable=False),
    Column("reason", Text),
    Column("changes", Document, nullable=False),
    CheckConstraint("action IN ('merge', 'correction')", name="action"),
    Index(None, "observation_id", "at", "id"),
)

verification = Table(
    "verification",
    metadata,
    Column("observation_id", ForeignKey("observation.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("passed", Boolean, nullable=False),
    Column("completion_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("elapsed_seconds", Double),
    Column("time_to_first_token_seconds", Double),
    Column("answer_expected", Text),
    Column("answer_received", Text),
    Column("lowest_free_gib", Double),
    Column("free_before_gib", Double),
    Column("concurrent", BigInteger),
    Column("memory_samples", BigInteger),
    Column("error", Text),
    Column("answer", String),
)

# only release 0.1 kept fits here; migrations remove nothing before the release after
fit = Table(
    "fit",
    metadata,
    Column("pair_id", ForeignKey("pair.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("fitted_at", UtcDateTime, nullable=False),
    Column("deployment_id", String, nullable=False),
    Column("engine", String, nullable=False),
    Column("engine_version", String),
    Column("summary", Document, nullable=False),
)

recommendation = Table(
    "recommendation",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("made_at", UtcDateTime, nullable=False),
    Column("pair_id", ForeignKey("pair.id")),
    Column("engine", String, nullable=False),
    Column("status", String, nullable=False),
    Column("target_tokens", BigInteger, nullable=False),
    Column("observation_id", ForeignKey("observation.id")),
    Column("settled_at", UtcDateTime),
    Column("question", Document, nullable=False),
    Column("advice", Document, nullable=False),
    Column("selector", Document, nullable=False),
    Index(None, "made_at", "id"),
    Index(None, "settled_at", "id"),
    Index(None, "pair_id"),
    Index(None, "observation_id"),
)

fleet = Table(
    "fleet",
    metadata,
    Column("pair_id", ForeignKey("pair.id", ondelete="CASCADE"), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("looked_at", UtcDateTime, nullable=False),
    Column("model", String, nullable=False),
    Column("gpu", String, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("note", String),
    Column("engine", String),
    Column("engine_version", String),
    Column("deployment_id", String),
    Column("observation_id", Uuid),
    Column("observed_at", UtcDateTime),
    Column("outcome", String),
    Column("newest_id", Uuid),
    Column("newest_at", UtcDateTime),
    Column("newest_outcome", String),
    Column("host", String),
    Column("fraction", Double),
    Column("pool_tokens", BigInteger),
    Column("free_at_ready_gib", Double),
    Column("free_is_bound", Boolean),
    Column("headroom_gib", Double),
    Column("headroom_tokens", BigInteger),
    Column("headroom_is_measured", Boolean),
    Column("verified_tokens", BigInteger),
    Column("verified_passed", Boolean),
    Column("verified_answer", String),
    Column("recommendation_id", Uuid),
    Column("verdict", String),
    Column("headline", Text),
)

drift = Table(
    "drift",
    metadata,
    Column("pair_id", ForeignKey("pair.id", ondelete="CASCADE"), primary_key=True),
    Column("from_deployment_id", String, primary_key=True),
    Column("to_deployment_id", String, primary_key=True),
    Column("engine", String, nullable=False),
    Column("from_version", String, nullable=False),
    Column("to_version", String, nullable=False),
    Column("deployment", String, nullable=False),
    Column("newest_at", UtcDateTime, nullable=False),
    Column("fraction", Double, nullable=False),
    Column("from_starts", Integer, nullable=False),
    Column("to_starts", Integer, nullable=False),
    Column("from_slope_tokens", Double),
    Column("to_slope_tokens", Double),
    Column("pool_tokens", Double),
    Column("pool_low", Double),
    Column("pool_high", Double),
    Column("from_slope_gib", Double),
    Column("to_slope_gib", Double),
    Column("free_gib", Double),
    Column("free_low", Double),
    Column("free_high", Double),
    Index(None, "engine", "from_version", "to_version"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", String, nullable=False),
    Column("action", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("details", Document, nullable=False),
    Index(None, "at", "id"),
)
