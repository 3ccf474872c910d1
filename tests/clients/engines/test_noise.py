"""Damaged and random lines: no crash, no hang, no value that its line does not hold."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _figures import unpacked
from kvyield.engines import Start, read_starts

LINES = 30_000
MOST_SECONDS_A_LINE = 0.002
_NUMBERS = (re.compile(r"\d[\d,]*(?:\.\d+)?"), re.compile(r"\d+(?:\.\d+)?"))
SINGLE = ("pool_tokens", "free_at_ready_gib", "free_at_pool_end_gib", "free_before_load_gib", "device_memory_gib")


def damaged(line: bytes, dice: random.Random) -> bytes:
    """The line with one to four bytes changed, cut, doubled or swapped with noise."""
    text = bytearray(line)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(text) + 1)
        kind = dice.randrange(5)
        if kind == 0:
            del text[at : at + dice.randrange(1, 9)]
        elif kind == 1:
            text[at:at] = bytes(dice.randrange(256) for _ in range(3))
        elif kind == 2:
            text[at:at] = text[max(0, at - 7) : at]
        elif kind == 3:
            del text[at:]
        elif text:
            text[at % len(text)] = dice.choice(b"0123456789.,-()[]{}'\" \r\n\x1b")
    return bytes(text)


def held(value: Any, line: str) -> bool:
    """True when the number stands in the line, with or without thousands separators, or as GiB of a number of MiB."""
    numbers = [float(found.replace(",", "")) for pattern in _NUMBERS for found in pattern.findall(line)]
    in_gib = [round(number / 1024, 4) for number in numbers] if "MiB" in line or " MB" in line else []
    return any(abs(number - float(value)) < 1e-9 for number in (*numbers, *in_gib))


def check_sources(start: Start, lines: list[str]) -> None:
    """Each figure that comes from one line is in that line."""
    for name in SINGLE:
        item = start.measurements.get(name)
        match = re.match(r"line (\d+): ", item.source) if item else None
        if item and match and " × " not in item.source:
            assert held(item.value, lines[int(match[1]) - 1]), (name, item)


@pytest.fixture(scope="module")
def pool(h200: list[Any], public: list[Any]) -> list[bytes]:
    logs = [*(case.log for case in [*h200, *public]), *unpacked("report_logs.tar.gz").values()]
    return [line for log in logs for line in log.splitlines() if line]


def test_damaged_lines_never_crash_nor_invent(pool):
    """Thirty thousand damaged real lines in random order: every start names lines that hold its figures."""
    dice = random.Random(11)
    damage = [damaged(dice.choice(pool), dice).replace(b"\n", b" ") for _ in range(LINES)]
    texts = [line.decode("utf-8", "replace") for line in damage]
    begin = time.process_time()
    starts = list(read_starts(line + b"\n" for line in damage))
    assert time.process_time() - begin < LINES * MOST_SECONDS_A_LINE
    assert len(starts) > 10
    for start in starts:
        check_sources(start, texts)


@settings(max_examples=200, deadline=2000)
@given(lines=st.lists(st.binary(max_size=200), max_size=20), follow=st.booleans())
def test_random_bytes_hold_no_start(lines, follow):
    """Bytes that no engine wrote give no start and no error."""
    assert list(read_starts([line + b"\n" for line in lines], follow=follow)) == []


@pytest.mark.parametrize(
    "line",
    [
        "server_args=ServerArgs(" + "(" * 200_000,
        "server_args={" + "'a': {" * 100_000,
        "server_args=ServerArgs(" + "a=[" * 50_000,
        "server_args=ServerArgs(x='" + "\\'" * 200_000,
        "INFO 11-29 12:00:00 [a.py:1] Initializing a V1 LLM engine (v1) with config: " + "a=b " * 100_000,
        "non-default args: {" + "'a': <" * 100_000,
        "Load weight begin. avail mem=" + "9" * 500_000,
        "KV Cache is allocated. " + "K size: " * 100_000,
        "Capture " * 100_000 + "end.",
        "[2026-05-30 22:00:00 TP0] " * 20_000 + "KV Cache is allocated. #tokens: 5, KV size: 1.00 GB",
        "Free memory on device (" * 50_000,
        "(" * 300_000 + "pid=1) GPU KV cache size: 5 tokens",
        "a" * 1_000_000 + "Error: x",
        "\r".join(["Capturing (bs=1 avail_mem=1.00 GB)"] * 50_000) + " Memory pool end. avail mem=1.00 GB",
        '{"log":"' + "[" * 500_000 + '"}' + " avail mem=",
        "[" * 100_000 + "36m avail mem=1.00 GB Load weight begin.",
    ],
    ids=range(16),
)
def test_lines_made_to_hurt_take_no_time(line):
    """Deeply nested, endless and repetitive lines are read in seconds at most."""
    begin = time.process_time()
    list(read_starts([line, line[: len(line) // 2]]))
    assert time.process_time() - begin < 4


def test_numbers_without_end_are_no_figures():
    """A figure of thousands of digits is infinite as a float and stays out."""
    endless = "9" * 3000
    lines = [f"Load weight begin. avail mem={endless} GB", "Memory pool end. avail mem=1.00 GB"]
    lines.append(f"Available KV cache memory: {endless} GiB")
    for start in read_starts(lines):
        assert all(float(str(item.value)) < 1e9 for item in start.measurements.values())


def test_a_damaged_count_is_no_count():
    """A count of tokens with a decimal point is damage, not its whole part."""
    line = "[2026-11-29 12:23:34] max_total_num_tokens={}, chunked_prefill_size=8192, context_len=4096"
    assert list(read_starts([line.format("536.22")])) == []
    (start,) = read_starts([line.format("536")])
    assert start.measurements["pool_tokens"].value == 536
