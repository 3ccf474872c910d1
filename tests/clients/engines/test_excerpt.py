"""The excerpt of a start: what was said, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvyield.engines import read_starts
from kvyield.engines._text import message_of

LOGS = Path(__file__).resolve().parents[3] / "docs" / "examples"


@pytest.mark.parametrize("log", ["kimi-k2.6/start-1.log", "public/sg-l4x4-qwq32b.log"])
def test_ranks_that_say_the_same_are_kept_once(log: str) -> None:
    """Eight ranks print a line each; the excerpt holds one of them, and still every message of the start."""
    lines = (LOGS / log).read_bytes().splitlines()
    [start] = read_starts(lines)
    messages = [message_of(line) for line in start.excerpt]
    assert len(messages) == len(set(messages)) <= 12
    assert "ready to roll" in start.excerpt[-1]
    assert sum("KV Cache is allocated" in line for line in start.excerpt) >= 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[2026-05-30 21:47:46 TP0] avail mem=6.09 GB", "[2026-05-30 21:47:47 TP7] avail mem=6.09 GB"),
        ("[2026-05-30 21:47:46 DP1 TP0 EP0] Load weight end.", "[2026-05-30 21:49:46 DP0 TP3 EP3] Load weight end."),
        (
            "(Worker_TP0 pid=11) INFO 11-29 12:07:57 took 15.3 GiB",
            "(Worker_TP1 pid=12) INFO 11-29 12:07:58 took 15.3 GiB",
        ),
    ],
)
def test_times_and_ranks_do_not_make_two_messages(one: str, other: str) -> None:
    """Lines of two ranks that say one thing are one message; another figure is another message."""
    assert message_of(one) == message_of(other)
    assert message_of(one) != message_of(one.replace("6.09", "6.10").replace("end", "begin").replace("15.3", "15.4"))
