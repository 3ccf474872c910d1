"""Log times without a zone are in the host's own, or in the one that an option names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner

from kvyield.cli import main
from kvyield.engines import read_starts

SGLANG = [
    "[{day} 12:00:00 TP0] Load weight begin. avail mem=138.17 GB",
    "[{day} 12:00:40 TP0] max_total_num_tokens=186368, chunked_prefill_size=2048, max_prefill_tokens=16384, "
    "max_running_requests=8, context_len=1048576, available_gpu_mem=13.30 GB",
]
VLLM = [
    "INFO {day} 12:00:00 [c.py:1] Initializing a V1 LLM engine (v0.26.0) with config: model='m', enforce_eager=True)",
    "INFO {day} 12:00:02 [g.py:1] GPU KV cache size: 4,096 tokens",
    "INFO {day} 12:00:03 [c.py:1] init engine (profile, create kv cache, warmup model) took 7.99 seconds",
]


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host in Berlin."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def observed(tmp_path: Path, *options: str) -> dict[str, object]:
    log = tmp_path / "sglang.log"
    log.write_text("".join(f"{line.format(day='2026-05-30')}\n" for line in SGLANG))
    facts = ("--gpu", "NVIDIA H200", "--gpu-count", "1", "--model", "m", "--flag", "mem_fraction_static=0.9")
    result = CliRunner().invoke(main, ["import", str(log), "--dry-run", "--json", *facts, *options])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.output.splitlines()[0])
    return found


@pytest.mark.parametrize(
    ("options", "hour"),
    [
        ((), 10),
        (("--timezone", "UTC"), 12),
        (("--timezone", "America/New_York"), 16),
        (("--timezone", "+05:30"), 6.5),
        (("--timezone", "-0300"), 15),
    ],
)
def test_times_without_a_zone_are_the_hosts_or_those_of_the_option(
    berlin: None, tmp_path: Path, options: tuple[str, ...], hour: float
) -> None:
    """In summer Berlin is two hours ahead of UTC; a log of elsewhere says so by an option."""
    expected = datetime(2026, 5, 30, tzinfo=timezone.utc) + timedelta(hours=hour)
    assert observed(tmp_path, *options)["observed_at"] == expected.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("zone", ["Nowhere/Town", "+25:00", "", "../etc/passwd"])
def test_a_zone_that_is_none_is_a_usage_error(tmp_path: Path, zone: str) -> None:
    """The message names what was given and what would be right."""
    log = tmp_path / "x.log"
    log.write_text("x\n")
    result = CliRunner().invoke(main, ["import", str(log), "--timezone", zone])
    assert result.exit_code == 2
    assert "Europe/Berlin" in result.output
    assert repr(zone) in result.output


def test_winter_and_summer_have_their_own_offsets() -> None:
    """The zone of the day counts, not that of today."""
    found = [
        next(read_starts([line.format(day=day) for line in SGLANG], zone=ZoneInfo("Europe/Berlin"))).observed_at
        for day in ("2026-01-30", "2026-05-30")
    ]
    assert [moment and moment.hour for moment in found] == [11, 10]


def test_a_prefix_that_names_its_zone_wins(berlin: None) -> None:
    """The journal's time is certain whatever the zone of the engine's own stamp is."""
    prefix = "2026-05-30T21:00:00+0000 gpu-01 python3[7]: "
    (start,) = read_starts([prefix + line.format(day="2026-05-30") for line in SGLANG], zone=None)
    assert start.observed_at == datetime(2026, 5, 30, 21, tzinfo=timezone.utc)
    assert start.zone is None


def test_the_same_start_has_one_time_in_file_and_journal(berlin: None) -> None:
    """A file in the host's own time and the journal in UTC show one moment."""
    (file,) = read_starts([line.format(day="2026-05-30") for line in SGLANG], zone=None)
    prefix = "2026-05-30T10:00:00+0000 gpu-01 python3[7]: "
    (journal,) = read_starts([prefix + line.format(day="2026-05-30") for line in SGLANG], zone=None)
    assert file.observed_at == journal.observed_at
    assert file.zone == "this host's"


def test_a_live_log_without_years_is_of_now() -> None:
    """vLLM's stamps name no year: of a live log the last such date is meant, also across New Year's Eve."""
    for ago in (timedelta(minutes=5), timedelta(days=200)):
        moment = datetime.now(timezone.utc) - ago
        lines = [line.format(day=f"{moment:%m-%d}").replace("12:00", f"{moment:%H:%M}") for line in VLLM]
        (start,) = read_starts(lines, follow=True)
        assert start.observed_at is not None
        assert abs(start.observed_at - moment) < timedelta(minutes=1)


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31"])
@pytest.mark.parametrize("zone", [None, timezone.utc, ZoneInfo("Asia/Tokyo"), ZoneInfo("America/New_York")])
def test_a_year_that_no_zone_knows_is_no_time(day: str, zone: ZoneInfo | None) -> None:
    """A damaged stamp at either end of the calendar raises nothing."""
    (start,) = read_starts([line.format(day=day) for line in SGLANG], zone=zone)
    assert start.measurements["pool_tokens"].value == 186_368
