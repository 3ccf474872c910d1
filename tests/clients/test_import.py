"""Importing many logs: what one file does, the others do not suffer."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import _deadly_reader
from _samples_client import LOG
from _stand_in_service import StandIn
from kvyield import intake
from kvyield.cli import importing, main

FACTS = ("--gpu", "NVIDIA RTX PRO 6000", "--gpu-count", "8", "--gpu-memory-gib", "95.59")
APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1


def run(*arguments: str) -> Result:
    return CliRunner(**APART).invoke(main, arguments)


def test_import_survives_whatever_one_file_does(
    service: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that exhausts the memory, or kills its reader, is named; the log beside it comes over."""
    real = intake.read

    def hungry(source: Any, *rest: Any, **more: Any) -> Any:
        if "hungry" in source.name:
            raise MemoryError
        return real(source, *rest, **more)

    monkeypatch.setattr(intake, "read", hungry)
    (tmp_path / "good.log").write_text(LOG)
    (tmp_path / "hungry.log").write_text("x")
    result = run("import", str(tmp_path), "--url", service.url, *FACTS, "--jobs", "1")
    assert result.exit_code == 1
    assert "hungry.log could not be read: MemoryError" in result.stderr
    assert len(service.stored) == 1


def test_a_killed_reader_costs_its_own_file_only(tmp_path: Path) -> None:
    """When reading processes die, the files are read one by one and only the deadly one is named."""
    files = [tmp_path / name for name in ("a.log", "deadly.log", "z.log")]
    readings = list(importing._readings(files, _deadly_reader.read, 2))
    assert [bool(reading.notes) for reading in readings] == [False, True, False]
    assert "was killed" in readings[1].notes[0]
