"""Every wording of an end, in every phase of every engine that prints it, and in every wrapping of a log."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _endings import FATAL, GPU_MEMORY, HOST_MEMORY, KILLED, LIKELY_ENDINGS, NOTHING, STARTS, WRAPPINGS, Ending, log_of
from kvyield.engines import Start, _segment, read_starts
from kvyield.engines._failures import wording_of
from kvyield.engines._lines import CHUNK_BYTES, Scanner
from kvyield.engines._segment import END_HOOKS
from kvyield.engines._wordings import WORDINGS

DECODING = (
    "[2026-05-30 22:03:00 TP0] Decode batch, #running-req: 8, #token: 900, token usage: 0.44, cuda graph: True, "
    "gen throughput (token/s): 311.12, #queue-req: 0"
)


def only(lines: list[bytes]) -> Start:
    (start,) = read_starts(lines)
    return start


def said(start: Start) -> tuple[Any, ...]:
    return (start.outcome, *(item.value if item else None for item in map(start.failure.get, ("phase", "cause"))))


def expected(ending: Ending, phase: str) -> tuple[Any, ...]:
    outcome = "failed"
    if ending.cause == "gpu_memory":
        outcome = "oom_runtime" if phase == "serving" else "oom_startup"
    return outcome, phase, ending.cause


def figures(start: Start) -> dict[str, float]:
    told = {**start.failure, **start.measurements}
    return {name: told[name].value for name in ("wanted_gib", "free_gib", "device_memory_gib") if name in told}


def endings_of(engine: str, endings: tuple[Ending, ...]) -> list[Ending]:
    return [ending for ending in endings if engine in ending.engines]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize(("engine", "phase"), STARTS)
def test_gpu_memory_is_seen_in_every_phase_and_wrapping(engine, phase, wrapping):
    """An end for want of GPU memory has its outcome, phase and cause, and the figures of its own words."""
    totals = {"device_memory_gib": 31.84} if engine == "tensorrt-llm" and phase != "load" else {}
    for ending in endings_of(engine, GPU_MEMORY):
        start = only(log_of(engine, phase, ending, wrapping=wrapping))
        assert said(start) == expected(ending, phase), ending.lines
        assert figures(start) == pytest.approx(ending.figures | totals), ending.lines


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize(("engine", "phase"), STARTS)
def test_other_ends_are_no_lack_of_gpu_memory(engine, phase, wrapping):
    """Host memory, a kill and a crash are failures with their cause, in whatever phase, and hold no GPU figure."""
    for ending in endings_of(engine, (*HOST_MEMORY, *KILLED, *FATAL)):
        start = only(log_of(engine, phase, ending, wrapping=wrapping))
        assert said(start) == expected(ending, phase), ending.lines
        assert "wanted_gib" not in start.failure


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize(("engine", "phase"), STARTS)
def test_words_that_mean_nothing_change_nothing(engine, phase, wrapping):
    """Retries, hints, quoted requests and an ordered stop leave a serving engine ready and a start-up as it was."""
    for ending in endings_of(engine, NOTHING):
        if ending.row != "stopped" or phase == "serving":
            outcome = "ready" if phase == "serving" else "unfinished"
            assert said(only(log_of(engine, phase, ending, wrapping=wrapping))) == (outcome, None, None), ending.lines


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm", "lmdeploy"])
def test_an_end_long_after_the_start_is_seen(engine, monkeypatch):
    """After many requests a reader looks for few words: the end is seen all the same, also before the next start."""
    monkeypatch.setattr(_segment, "ENDS_UNTIL", CHUNK_BYTES)
    filler = [DECODING] * (3 * CHUNK_BYTES // len(DECODING))
    again = log_of(engine, "serving", Ending("", (), None))
    for ending in endings_of(engine, LIKELY_ENDINGS):
        lines = io.BytesIO(b"".join([*log_of(engine, "serving", ending, filler=filler), *again]))
        starts = [said(start) for start in read_starts(lines)]
        assert starts == [expected(ending, "serving"), ("ready", None, None)], ending.lines


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm", "lmdeploy"])
def test_a_live_log_shows_an_end(engine):
    """Following a log, a start comes out as ready and again as ended, at the latest when the next one begins."""
    again = log_of(engine, "serving", Ending("", (), None))
    for ending in endings_of(engine, LIKELY_ENDINGS):
        lines = [*log_of(engine, "serving", ending), *again]
        starts = [said(start) for start in read_starts(lines, follow=True)]
        assert starts == [("ready", None, None), expected(ending, "serving"), ("ready", None, None)], ending.lines


def test_every_row_of_the_table_has_a_line():
    """Each row is matched by a line here, and by no earlier row: none is dead."""
    for ending in (*LIKELY_ENDINGS, *NOTHING):
        if ending.row == "hint":
            assert wording_of(ending.lines[0]) == (None, "")
            continue
        wording, words = wording_of(ending.lines[0])
        assert wording is not None, ending.lines
        if ending.row != "stopped":
            assert wording.name == ending.row, ending.lines
            assert words in ending.lines[0]
    assert {wording.name for wording in WORDINGS} == {ending.row for ending in (*LIKELY_ENDINGS, *NOTHING)}


def test_a_cause_is_not_hidden_by_its_consequences():
    """What the other processes print afterwards never takes the place of what ran out first."""
    killed = "Subprocess scheduler_0 (pid=1) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    oom = GPU_MEMORY[0].lines[0]
    for lines in ((oom, killed), (killed, oom)):
        start = only(log_of("sglang", "serving", Ending("", lines, None)))
        assert said(start) == ("oom_runtime", "serving", "gpu_memory")


def test_the_words_with_figures_are_kept():
    """Of two lines about one death the one with figures is the message."""
    start = only(log_of("vllm", "serving", Ending("", (GPU_MEMORY[7].lines[0], GPU_MEMORY[0].lines[0]), None)))
    assert start.failure["wanted_gib"].value == 0.375
    assert str(start.failure["message"].value).startswith("torch.OutOfMemoryError")


def test_an_unknown_fatal_error_keeps_the_last_words():
    """A fatal error without a known wording is a failure at run time, with the engine's last errors."""
    down = "ERROR 11-29 12:05:00 [core.py:702] EngineCore encountered a fatal error."
    error = "ERROR 11-29 12:05:00 [core.py:702] RuntimeError: the flux capacitor is empty"
    start = only(log_of("vllm", "serving", Ending("", (down, error), None)))
    assert said(start) == ("failed", "serving", "error")
    assert start.failure["message"].value == "RuntimeError: the flux capacitor is empty"
    assert start.excerpt[-2:] == [down, error]
    assert start.measurements["pool_tokens"].value == 78448


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[2026-05-30 22:03:00 TP3] Scheduler hit an exception: Traceback", 3),
        ("[2026-05-30 22:03:00 DP1 TP3] Scheduler hit an exception: Traceback", None),
        ("[rank5]: Traceback (most recent call last):", None),
    ],
)
def test_the_rank_that_died_is_kept(line, rank):
    """The rank is that of the line in which it went down, where one number names it."""
    start = only(log_of("sglang", "serving", Ending("", (line, GPU_MEMORY[0].lines[0]), None)))
    item = start.failure.get("rank")
    assert (item.value if item else None) == rank
    own = only(log_of("sglang", "serving", Ending("", (f"[rank5]: {GPU_MEMORY[0].lines[0]}",), None)))
    assert own.failure["rank"].value == 5


def test_an_engine_inside_another_program_ends_with_it():
    """Without a server, the engine's process that is gone at the end of the program is not a failure."""
    died = FATAL[4]
    assert died.row == "vllm-died"
    lines = log_of("vllm", "serving", died)
    offline = [line for line in lines if b"startup complete" not in line]
    assert said(only(offline)) == ("ready", None, None)
    assert said(only(lines)) == ("failed", "serving", "error")


SYSTEM = [
    ("kernel: [812.1] Out of memory: Killed process {pid} (python3) total-vm:1kB", "host_memory"),
    ("systemd[1]: engine.service: Main process exited, code=killed, status=9/KILL", "killed"),
    ("systemd[1]: engine.service: A process of this unit has been killed by the OOM killer.", "host_memory"),
]


@pytest.mark.parametrize(("line", "cause"), SYSTEM)
def test_the_journal_of_the_system_shows_the_engines_end(line, cause):
    """Lines of the kernel and of systemd belong to the start that they are about."""
    prefix = "May 30 22:00:00 gpu-01 python3[4709]: "
    lines = [(prefix + text).encode() for text in STARTS["sglang", "serving"]]
    told = f"May 30 22:09:00 gpu-01 {line.format(pid=4720)}".encode()
    assert said(only([*lines, told])) == ("failed", "serving", cause)


def test_systemd_in_a_journal_as_json_shows_the_engines_end():
    """A record of systemd is known by its identifier, whatever unit it is filed under."""
    known = {"_HOSTNAME": "gpu-01", "_SYSTEMD_UNIT": "engine.service"}
    lines = [json.dumps({**known, "_PID": "4709", "MESSAGE": text}) for text in STARTS["sglang", "serving"]]
    told = {**known, "SYSLOG_IDENTIFIER": "systemd", "MESSAGE": "engine.service: Failed with result 'oom-kill'."}
    assert said(only([line.encode() for line in (*lines, json.dumps(told))])) == ("failed", "serving", "host_memory")


def test_another_process_that_is_killed_is_not_the_engine():
    """The kernel may kill something else, and of two engines one."""
    starts = [
        [f"May 30 22:00:00 gpu-01 python3[{pid}]: {text}".encode() for text in STARTS["sglang", "serving"]]
        for pid in (4000, 5000)
    ]
    other = b"May 30 22:09:00 gpu-01 kernel: Out of memory: Killed process 4100 (chrome) total-vm:1kB"
    one = b"May 30 22:09:00 gpu-01 kernel: Out of memory: Killed process 4100 (python3) total-vm:1kB"
    assert [start.outcome for start in read_starts([*starts[0], other])] == ["ready"]
    assert [start.outcome for start in read_starts([*starts[0], *starts[1], one])] == ["failed", "ready"]


@pytest.mark.parametrize(
    ("component", "phase"),
    [
        ("Model", "load"),
        ("Initial KV cache (temporary for KV cache size estimation)", "load"),
        ("Additional executor resources (temporary for KV cache size estimation)", "load"),
        ("KV cache", "pool"),
        ("Additional executor resources", "graph_capture"),
    ],
)
def test_what_tensorrt_could_not_create_tells_the_phase(component, phase):
    """The lines below the failure name the component, the GPU's total and what was free."""
    told = (
        "RuntimeError: Executor creation failed due to insufficient GPU memory.",
        "",
        f"The following component could not be created: {component}",
        "Total GPU memory (GiB): 95.00",
        "Free GPU memory before component creation attempt (GiB): 16.95",
        "",
        "Previously created components and free GPU memory before/after creation (GiB):",
        "Model: 94.30 / 47.83",
        "Sampler: 47.83 / 47.83",
    )
    lines = [line for line in log_of("tensorrt-llm", "graph_capture", Ending("", told, None)) if b"31.84" not in line]
    start = only(lines)
    assert said(start) == ("oom_startup", phase, "gpu_memory")
    assert figures(start) == {"free_gib": 16.95, "device_memory_gib": 95.0}
    assert start.measurements["free_before_load_gib"].value == 94.3


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(END_HOOKS), st.booleans()), max_size=20),
    st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_sifted_lines_are_those_that_hold_a_word_of_an_end(planted, seed):
    """Lines that repeat but for their digits are searched for fewer words, and the same lines are found."""
    lines = [b"%s %d" % (DECODING.encode(), seed + number) for number in range(400)]
    for place, hook, is_split in planted:
        lines[place % len(lines)] += b" " + (hook[:2] + b"7" + hook[2:] if is_split else hook)
    scanner = Scanner(lambda: END_HOOKS)
    found = [line.number for line in scanner.scan(b"".join(line + b"\n" for line in lines))]
    assert found == [number for number, line in enumerate(lines, 1) if any(hook in line for hook in END_HOOKS)]
