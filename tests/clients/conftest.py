"""Fixtures of the client's tests: a stand-in service and an environment of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from _stand_in_service import StandIn, stand_in


@pytest.fixture
def service() -> Iterator[StandIn]:
    """A real HTTP service on loopback that can be told to misbehave."""
    with stand_in() as server:
        yield server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, so that no test reads the settings or the spool of whoever runs it."""
    for name in (
        "KVYIELD_URL",
        "KVYIELD_TOKEN",
        "KVYIELD_CONFIG",
        "KVYIELD_SPOOL",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder
