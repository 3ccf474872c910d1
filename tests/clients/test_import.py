"""Importing many logs: what one file does, the others do not suffer."""

from __future__ import annotations

import json
import re
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

ENDS = re.compile(r"max_total_num_tokens=|fired up|batch")
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
    readings = list(importing.readings_of(files, _deadly_reader.read, 2))
    assert [bool(reading.notes) for reading in readings] == [False, True, False]
    assert "was killed" in readings[1].notes[0]


def test_a_miss_names_the_option_and_the_files(service: StandIn, tmp_path: Path) -> None:
    """What the logs do not tell is said once, with the option that gives it and the files that lack it."""
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(LOG)
    result = run("import", str(tmp_path), "--url", service.url, "--jobs", "1")
    assert result.exit_code == 1
    [line] = [line for line in result.stderr.splitlines() if "were not posted" in line]
    assert line.startswith("kvyield: 2 start(s) were not posted: the log does not show hardware.gpu (give --gpu)")
    assert f"{tmp_path / 'a.log'}, {tmp_path / 'b.log'}" in line


def test_failing_files_are_shown_however_many_there_are(
    service: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files without a failure are left out of a long table; each failing one has its row and its reason."""
    monkeypatch.setattr(importing, "SHOWN_FILES", 2)
    for number in range(6):
        (tmp_path / f"{number}.log").write_text(LOG.replace("22:0", f"2{number % 4}:{number}"))
    (tmp_path / "8.log").write_text(LOG.replace("moonshotai/Kimi-K2.6", "refused/model"))
    (tmp_path / "9.log.gz").write_bytes(b"\x1f\x8bno archive")
    result = run("import", str(tmp_path), "--url", service.url, *FACTS, "--jobs", "1")
    assert "... 4 more files without a failure" in result.stdout
    rows = {line.split()[0].rpartition("/")[2]: line for line in result.stdout.splitlines() if ".log" in line}
    assert list(rows) == ["0.log", "1.log", "8.log", "9.log.gz"]
    assert "8.log: refused: " in result.stderr
    assert "9.log.gz" in result.stderr
    assert result.exit_code == 3


def test_an_unfinished_start_is_shown_and_posted_only_when_asked(service: StandIn, tmp_path: Path) -> None:
    """A log that ends after the pool posts nothing; a dry run shows what it holds; an option takes it as ready."""
    log = tmp_path / "cut.log"
    log.write_text("".join(line for line in LOG.splitlines(keepends=True) if not ENDS.search(line)))
    shown = run("import", str(log), "--dry-run", "--json", *FACTS)
    [found] = [json.loads(line) for line in shown.stdout.splitlines()]
    assert (found["outcome"], found["measurements"]["free_at_ready_gib"]) == ("unfinished", None)
    assert found["measurements"]["pool_tokens"] > 0
    assert run("import", str(log), "--url", service.url, *FACTS, "--json").stdout == ""
    assert not service.stored
    asked = run("import", str(log), "--url", service.url, *FACTS, "--take-unfinished")
    assert "--take-unfinished" in asked.stderr
    [stored] = service.stored.values()
    assert stored["outcome"] == "ready"
