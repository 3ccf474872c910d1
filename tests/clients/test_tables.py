"""What people read: tables within the width that there is, figures whole, times in one form."""

from __future__ import annotations

from inspect import signature
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from _samples_client import LOG
from _stand_in_service import StandIn
from kvyield import _wire
from kvyield.cli import main
from kvyield.cli._advice import based_on, show_advice
from kvyield.cli._tables import table

APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1
HEADINGS = ("started", "~model", "?hardware", ">pool tokens", "?!id")
ROW = ("2026-05-30 22:01:03", "moonshotai/Kimi-K2.6-Instruct", "8 x NVIDIA RTX PRO 6000 Blackwell", "192,406", "i" * 36)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner(**APART).invoke(main, arguments, input=stdin)


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_tables_keep_to_the_width_and_break_no_word(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are left out by width, the last first; no line is padded at its end, no figure is broken."""
    monkeypatch.setenv("COLUMNS", str(width))
    left_out = table(HEADINGS, [ROW])
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert all(line == line.rstrip() and (len(line) <= width or width == 30) for line in lines)
    assert "192,406" in shown
    assert left_out == {30: ["hardware", "id"], 60: ["id"], 80: ["id"]}.get(width, [])
    for word in ("2026-05-30", "22:01:03"):
        assert word in shown


def test_history_is_readable_at_80_columns(service: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger fits an ordinary terminal, says what it left out, and shows all where there is room."""
    monkeypatch.setenv("KVYIELD_URL", service.url)
    gpu = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    run("observe", "-", "--gpu", gpu, "--gpu-count", "8", "--no-gpu", stdin=LOG)
    monkeypatch.setenv("COLUMNS", "80")
    result = run("history")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "192,406" in result.stdout
    assert "id; a wider terminal" in result.stderr
    monkeypatch.setenv("COLUMNS", "300")
    assert next(iter(service.stored.values()))["id"] in run("history").stdout


def test_levers_are_not_broken_inside_a_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However narrow the terminal, each flag of a lever stands whole on a line."""
    monkeypatch.setenv("COLUMNS", "60")
    flags = {"kv_cache_dtype": "fp8_e4m3", "max_running_requests": 4, "chunked_prefill_size": 4096}
    lever = _wire.Lever(flags=flags, gain_tokens=1000, joint=1.0)
    show_advice(_wire.Recommendation(status="at_risk", alternatives=[lever]), 200_000)
    lines = capsys.readouterr().out.splitlines()
    for name, value in flags.items():
        assert any(f"{name}={value}" in line for line in lines)


def test_times_are_explained_in_iso_form() -> None:
    """--explain shows a time as the wire has it."""
    shown = run("observe", "-", "--no-gpu", "--dry-run", "--explain", stdin=LOG).stdout
    assert "datetime" not in shown
    assert any(line.startswith("  observed_at = 20") and line.endswith("Z") for line in shown.splitlines())


@pytest.mark.parametrize(
    ("kind", "starts", "said"),
    [
        ("several_starts", 3, "3 starts; SGLang, TP 8"),
        ("one_start", 1, "1 start; SGLang, TP 8"),
        ("one_start", 2, "2 starts that count as one; SGLang, TP 8"),
        ("transfer", 4, "transfer, 4 starts; SGLang, TP 8"),
        ("config_only", 0, "config only; SGLang, TP 8"),
    ],
)
def test_the_basis_gives_the_number_of_starts_once(kind: str, starts: int, said: str) -> None:
    """Kind and count never contradict each other."""
    ids = [uuid4() for _ in range(starts)]
    assert based_on(_wire.Basis(kind=kind, deployment="SGLang, TP 8", observation_ids=ids)) == said
