"""What tune says before it restarts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvyield.tune import plan


class _Launcher:
    def describe(self, _flags: Any) -> list[str]:
        return ["vllm serve m"]

    def restore_commands(self, _snapshot: Any) -> list[str]:
        return ["back"]


@pytest.mark.parametrize(("state", "is_less"), [("cold", True), ("warm", False), (None, False)])
def test_the_time_of_a_restart_after_a_start_that_compiled_is_a_bound(state: str | None, is_less: bool) -> None:
    """The next start loads what that one compiled."""
    restarts = SimpleNamespace(minutes_each=1.8)
    advice: Any = SimpleNamespace(restarts=restarts, verification_seconds=None, changes=[], probability=None)
    launcher: Any = _Launcher()
    first, *_ = plan.lines(advice, launcher, {}, {"compile_cache": state}, tokens=1000, restart=1, at_most=3)
    assert ("about 1.8 minutes or less" in first) is is_less
    assert "about 1.8 minutes" in first
