"""Fixtures that several test folders use."""

from __future__ import annotations

from _postgres import empty_postgres_url, postgres_cluster, postgres_database, postgres_url

__all__ = ["empty_postgres_url", "postgres_cluster", "postgres_database", "postgres_url"]
