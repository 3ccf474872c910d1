"""Engine and ``tune`` killed in turn at random moments: the last good flags serve, or the next run restores them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from _standin_hosts import Host, Running, until
from e2e.running import Server

KILLS_A_LIFE = 5
"""After so many the invariants are checked; then another host begins."""
LONGEST_SECONDS = 3.0
LIVES_AT_ONCE = 4
"""Hosts share nothing but the ledger, and mostly wait."""


def _kill_engine(host: Host) -> None:
    for pid in host.engines():
        os.kill(pid, signal.SIGKILL)


def _life(host: Host, dice: random.Random, first: int) -> list[str]:
    """Kills as many times as one life has, then lets a run go on to its end. Returns what was done, for the failure."""
    done: list[str] = []
    running: Running | None = None
    for number in range(first, first + KILLS_A_LIFE):
        if running is None or running.process.poll() is not None:
            running = host.tune("--yes", "--json")
        pause = dice.uniform(0.0, LONGEST_SECONDS)
        time.sleep(pause)
        if number % 2:
            running.kill()
        else:
            _kill_engine(host)
        done.append(f"{'tune' if number % 2 else 'engine'} after {pause:.2f} s")
        assert len(host.engines()) <= 1, done
    if running is not None:
        running.kill()
    return done


def _check(host: Host, done: list[str]) -> None:
    """One engine serves, with the flags that the journal calls good; the ledger charges no flags with a kill."""
    after = host.tune("--yes", "--json")
    after.wait_for("it is watched until it ends", 120)
    [journal] = host.state.glob("child-*.json")
    record = json.loads(journal.read_bytes())
    assert record["intent"] is None, (done, record, after.err)
    [pid] = host.engines()
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    assert words == record["good"]["snapshot"]["argv"], (done, after.err)
    found = host.flags_running()
    assert found is not None, (done, after.err)
    assert found["mem_fraction_static"] == record["good"]["flags"]["mem_fraction_static"], (done, after.err)
    assert after.records[-1]["result"] == "verified", (done, after.records)
    rows = host.rows()
    assert {row.outcome for row in rows} <= {"ready", "failed"}, (done, [row.outcome for row in rows])
    assert len({row.id for row in rows}) == len(rows)
    assert not list((host.folder / "home" / ".local" / "state" / "kvyield" / "spool" / "refused").glob("*")), done
    until(lambda: any(one.passed for one in host.rows()[-1].verifications))
    assert after.end() == 0, (done, after.err)
    assert host.engines() == []


def _kills(folder: Path, url: str, count: int, seed: int) -> None:
    def lived(first: int) -> None:
        host = Host(folder / f"host-{first}", url)
        host.standin = {"start_seconds": 0.3, "prefill_tokens_per_second": 300_000.0}
        try:
            _check(host, _life(host, random.Random(seed + first), first))
        finally:
            host.clean()

    with ThreadPoolExecutor(LIVES_AT_ONCE) as lives:
        for done in [lives.submit(lived, first) for first in range(0, count, KILLS_A_LIFE)]:
            done.result()


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path, ledger: Server) -> None:
    """Ten of the engine, ten of tune."""
    _kills(tmp_path, ledger.url, 20, seed=16)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_kills(tmp_path: Path, ledger: Server) -> None:
    """The same with other moments."""
    _kills(tmp_path, ledger.url, 200, seed=1616)
