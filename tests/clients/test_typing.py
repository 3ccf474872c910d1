"""The public API as a type checker sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mypy import api


@pytest.mark.slow
def test_callers_are_typed(tmp_path: Path) -> None:
    """Strict mypy agrees with a file of ordinary use, and refuses what that file marks as wrong."""
    root = Path(__file__).resolve().parents[2]
    file = Path(__file__).with_name("typed_use.py")
    options = ["--strict", "--warn-unused-ignores", "--cache-dir", str(tmp_path), "--config-file", ""]
    options += ["--python-version", f"{sys.version_info[0]}.{sys.version_info[1]}", "--follow-imports", "silent"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", str(root / "clients" / "python"))
        output, errors, status = api.run([*options, str(file)])
    assert (status, errors) == (0, ""), output
