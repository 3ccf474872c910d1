"""Fixtures that several test folders use."""

from __future__ import annotations

import os

from hypothesis import settings

from _postgres import empty_postgres_url, postgres_cluster, postgres_database, postgres_url

__all__ = ["empty_postgres_url", "postgres_cluster", "postgres_database", "postgres_url"]

# No test is timed: Hypothesis's deadline of 200 ms per example fails on a busy machine and says nothing of the code.
# Without KVYIELD_EXAMPLES the examples are the same each time, so a commit passes or fails whoever runs it; new ones
# are tried by `make test-long`.
settings.register_profile(
    "untimed",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    derandomize="KVYIELD_EXAMPLES" not in os.environ,
)
settings.load_profile("untimed")
