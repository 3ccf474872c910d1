"""Fixtures that several test folders use."""

from __future__ import annotations

from hypothesis import settings

from _postgres import empty_postgres_url, postgres_cluster, postgres_database, postgres_url

__all__ = ["empty_postgres_url", "postgres_cluster", "postgres_database", "postgres_url"]

# No test is timed: Hypothesis's deadline of 200 ms per example fails on a busy machine and says nothing of the code.
settings.register_profile("untimed", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("untimed")
