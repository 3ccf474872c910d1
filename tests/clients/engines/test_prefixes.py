"""The same logs in every wrapping that hosts put around them read the same."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kvyield.engines import read_starts

NAMES = (
    *("c5_sgl_srv_mla_080_c8192", "c7_sgl_q8_f0.8_graph", "c7_sgl_q8_fine0.99", "c6_sgl_q8_f0.8_fp8kv"),
    *("c8_vllm_q8_f0.8_graph", "c8_vllm_q8_f0.2", "c4_vllm_q8_f0.96_prompts"),
    *("sg-l4x4-qwq32b", "sg-gb10-dsv4-dspark-ep", "sg-mi355x8-glm5-fp8kv", "sg-swa-dup-tp2", "sg-24gbx2-qwen35-9b"),
    *("vl-14gb-15b-050", "vl-ray-pp1tp0-line", "trt-dynamo-220480", "lm-internlm7b-64mb-blocks"),
)
BEGIN = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone.utc)
Style = Callable[[list[str]], Iterator[bytes]]


def times() -> Iterator[datetime]:
    return (BEGIN + timedelta(milliseconds=40 * step) for step in itertools.count())


def stamped(form: str) -> Style:
    def wrap(lines: list[str]) -> Iterator[bytes]:
        for moment, line in zip(times(), lines, strict=False):
            yield (moment.strftime(form) + line + "\n").encode()

    return wrap


def docker_json(lines: list[str]) -> Iterator[bytes]:
    for moment, line in zip(times(), lines, strict=False):
        fields = {"log": line + "\n", "stream": "stderr", "time": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        yield json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def docker_json_split(lines: list[str]) -> Iterator[bytes]:
    """Docker splits lines longer than 16 KB; here already at 300 characters."""
    for line in lines:
        pieces = [line[at : at + 300] for at in range(0, len(line), 300)] or [""]
        for piece in pieces[:-1]:
            yield json.dumps({"log": piece, "stream": "stdout", "time": "2026-11-29T12:00:00Z"}).encode() + b"\n"
        yield (
            json.dumps({"log": pieces[-1] + "\n", "stream": "stdout", "time": "2026-11-29T12:00:00Z"}).encode() + b"\n"
        )


def journal_json(lines: list[str]) -> Iterator[bytes]:
    """journald writes messages with control characters as arrays of bytes."""
    for moment, line in zip(times(), lines, strict=False):
        coloured = f"\x1b[32m{line}\x1b[0m" if "avail" in line or "KV" in line else line
        message = list(coloured.encode()) if "\x1b" in coloured or "\r" in coloured else line
        micro = str(int(moment.timestamp() * 1e6))
        fields = {"MESSAGE": message, "_PID": "4709", "_SYSTEMD_UNIT": "llm.service", "__REALTIME_TIMESTAMP": micro}
        fields["_HOSTNAME"] = "gpu-01"
        yield json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def cri(lines: list[str]) -> Iterator[bytes]:
    """Kubernetes' runtime splits long lines into parts (P) and an end (F)."""
    for line in lines:
        pieces = [line[at : at + 200] for at in range(0, len(line), 200)] or [""]
        for piece in pieces[:-1]:
            yield f"2026-11-29T12:00:00.000000001Z stdout P {piece}\n".encode()
        yield f"2026-11-29T12:00:00.000000001Z stdout F {pieces[-1]}\n".encode()


def coloured(lines: list[str]) -> Iterator[bytes]:
    for line in lines:
        text = re.sub(r"\b(INFO|WARNING|ERROR)\b", "\x1b[32m\\1\x1b[0m", line)
        yield f"\x1b[1;36m{text}\x1b[0m\n".encode()


def colours_without_escape(lines: list[str]) -> Iterator[bytes]:
    for line in lines:
        yield f"[1;36m{line}[0;0m\n".encode()


def progress_bars(lines: list[str]) -> Iterator[bytes]:
    """A bar that redraws itself shares the line with what is printed next."""
    for number, line in enumerate(lines):
        bar = f"\rCapturing batches (bs=1 avail_mem=1.{number % 90 + 10} GB): {number % 100:3d}%|█▌   | 1/9 [00:00<?]"
        yield (bar * 3 + "\r" + line + "\r\n").encode()


def ray(lines: list[str]) -> Iterator[bytes]:
    for line in lines:
        yield f"\x1b[36m(ServerActor pid=1234, ip=10.0.0.7)\x1b[0m {line}\n".encode()


def windows_lines(lines: list[str]) -> Iterator[bytes]:
    return (line.encode() + b"\r\n" for line in lines)


def damaged_text(lines: list[str]) -> Iterator[bytes]:
    return (b"\xff\xfe" + line.encode() + b" \xe2\x96\n" for line in lines)


STYLES: dict[str, Style] = {
    "journald short": stamped("%b %e %H:%M:%S gpu-01 sglang[4709]: "),
    "journald short-precise": stamped("%b %d %H:%M:%S.%f gpu-01 python3[4709]: "),
    "journald short-iso": stamped("%Y-%m-%dT%H:%M:%S+0000 gpu-01 python3[4709]: "),
    "journald short-full": stamped("%a %Y-%m-%d %H:%M:%S UTC gpu-01 python3[4709]: "),
    "journald json": journal_json,
    "docker timestamps": stamped("%Y-%m-%dT%H:%M:%S.%fZ "),
    "docker json": docker_json,
    "docker json, split": docker_json_split,
    "compose": stamped("sglang-1  | "),
    "compose with timestamps": stamped("engine-1  | %Y-%m-%dT%H:%M:%S.%fZ "),
    "kubernetes --prefix": stamped("[pod/llm-7c9f/engine] "),
    "kubernetes --prefix --timestamps": stamped("[pod/llm-7c9f/engine] %Y-%m-%dT%H:%M:%S.%fZ "),
    "cri": cri,
    "ray": ray,
    "colours": coloured,
    "colours without the escape byte": colours_without_escape,
    "progress bars": progress_bars,
    "windows line ends": windows_lines,
    "damaged UTF-8": damaged_text,
    "indented": stamped("    "),
}


@pytest.fixture(scope="module")
def logs(h200: list[Any], public: list[Any]) -> dict[str, list[str]]:
    found = {case.name: case.log for case in [*h200, *public]}
    return {name: found[name].decode().split("\n") for name in NAMES}


def without_times(views: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The start-up's length and words aside: a prefix has times where an excerpt has none, and words may be
    recoloured.
    """
    for seen in views:
        seen["measurements"].pop("startup_seconds", None)
        message = seen["failure"].pop("message", None)
        seen["failure"]["words"] = str(message)[:60]
    return views


@pytest.mark.parametrize("style", STYLES)
def test_a_wrapped_log_reads_the_same(style, logs, view):
    """Each log, wrapped in this style, gives the same starts with the same values."""
    for name, lines in logs.items():
        plain = without_times(view([line.encode() + b"\n" for line in lines]))
        wrapped = without_times(view(STYLES[style](lines)))
        assert plain, name
        assert wrapped == plain, name


@pytest.mark.parametrize("style", ["journald short-iso", "docker timestamps", "docker json", "journald json"])
def test_a_prefix_with_a_zone_gives_the_time(style, logs):
    """A start is placed by its prefix where that names a zone, so that vLLM's stamps get their year."""
    for start in read_starts(STYLES[style](logs["c8_vllm_q8_f0.8_graph"])):
        assert start.observed_at is not None
        assert timedelta() <= start.observed_at - BEGIN < timedelta(seconds=2)


def test_stamps_without_a_year_need_a_reference(logs):
    """vLLM's own stamps have no year: without a reference time there is none, with one it is the last such date."""
    lines = [line.encode() for line in logs["c8_vllm_q8_f0.8_graph"]]
    assert [start.observed_at for start in read_starts(lines)] == [None]
    for reference, year in (
        (datetime(2026, 12, 1, tzinfo=timezone.utc), 2026),
        (datetime(2027, 3, 1, tzinfo=timezone.utc), 2026),
    ):
        (start,) = read_starts(lines, reference_time=reference)
        assert start.observed_at is not None
        assert (start.observed_at.year, start.observed_at.month) == (year, 11)


def interleaved(first: list[bytes], second: list[bytes]) -> list[bytes]:
    pairs = itertools.zip_longest(first, second)
    return [line for pair in pairs for line in pair if line is not None]


KEYED: dict[str, tuple[str, str]] = {
    "compose": ("one-1  | ", "two-1  | "),
    "pods": ("[pod/llm-a/engine] ", "[pod/llm-b/engine] "),
    "units": ("Nov 29 12:00:00 gpu-01 sglang[10]: ", "Nov 29 12:00:00 gpu-01 vllm[20]: "),
    "processes of one name": ("Nov 29 12:00:00 gpu-01 python3[1000]: ", "Nov 29 12:00:00 gpu-01 python3[2000]: "),
}


@pytest.mark.parametrize("keyed", KEYED)
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("c5_sgl_srv_mla_080_c8192", "sg-l4x4-qwq32b"),
        ("c5_sgl_srv_mla_080_c8192", "c8_vllm_q8_f0.8_graph"),
        ("c8_vllm_q8_f0.8_graph", "c8_vllm_q8_f0.2"),
    ],
)
def test_two_servers_interleaved_are_told_apart(keyed, one, two, logs, view):
    """Lines of two servers in turn, told apart by unit, container or process, give both starts unmixed."""
    first, second = KEYED[keyed]
    mixed = interleaved([f"{first}{x}\n".encode() for x in logs[one]], [f"{second}{x}\n".encode() for x in logs[two]])
    alone = [without_times(view([line.encode() + b"\n" for line in logs[name]]))[0] for name in (one, two)]
    found = without_times(view(mixed))
    assert len(found) == 2
    assert all(start in found for start in alone)


def test_one_source_in_any_container_reads_the_same(logs, view, tmp_path):
    """A binary file, lines of bytes, lines of text with or without line ends, and single lines as they come agree."""
    for name, lines in logs.items():
        path = tmp_path / "engine.log"
        path.write_bytes("".join(line + "\n" for line in lines).encode())
        expected = view([line + "\n" for line in lines])
        with path.open("rb") as binary:
            assert view(binary) == expected, name
        with path.open("rb") as binary:
            assert view(line for line in binary) == expected, name
        assert view(lines) == expected, name
        with path.open(encoding="utf-8", newline="\n") as text:
            assert view(text) == expected, name
        assert view((line.encode() for line in lines), engine=expected[0]["engine"]) == expected, name


def test_a_log_cut_anywhere_holds_no_other_value(logs, view):
    """Of a log that ends anywhere, even inside a number, every figure but those still growing is the whole log's."""
    growing = {"graph_gib", "free_at_ready_gib", "weights_gib", "startup_seconds", "free_at_pool_end_gib"}
    growing |= {"free_after_load_gib", "free_before_load_gib"}
    for name in ("c5_sgl_srv_mla_080_c8192", "c7_sgl_q8_f0.8_graph", "c8_vllm_q8_f0.8_graph", "sg-l4x4-qwq32b"):
        whole = "\n".join(logs[name]).encode()
        (full,) = view(whole.splitlines(keepends=True))
        for end in range(0, len(whole), 41):
            for part in view(whole[:end].splitlines(keepends=True)):
                for group in ("measurements", "flags"):
                    for key, value in part[group].items():
                        same = value == full[group].get(key) or key in growing or value in (None, "auto")
                        assert same, (name, end, key, value, full[group].get(key))


@pytest.mark.parametrize("style", ["journald short", "journald short-iso", "journald json"])
def test_a_journal_tells_the_host(style, logs):
    """The host that a journal's lines name is a fact of the start; other prefixes tell none."""
    for start in read_starts(STYLES[style](logs["c7_sgl_q8_f0.8_graph"])):
        assert start.facts["host"].value == "gpu-01"
    for start in read_starts(STYLES["docker timestamps"](logs["c7_sgl_q8_f0.8_graph"])):
        assert "host" not in start.facts
