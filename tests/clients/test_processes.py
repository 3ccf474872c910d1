"""The process behind a port of this host, and what tells one start from another."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from kvyield.assemble import Extras
from kvyield.cli.observe import running_engine
from kvyield.engines import Sourced, Start
from kvyield.engines.endpoints import read_endpoints
from kvyield.identity import Identity, contradictions, of_start
from kvyield.intake import Running, process_of, read_endpoints_only, timed_from_process
from kvyield.processes import Listener, engine_on

LISTEN = (
    "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
    "print(s.getsockname()[1], flush=True); time.sleep(60)"
)
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)


@pytest.fixture
def engine() -> Iterator[tuple[subprocess.Popen[str], int, datetime]]:
    """A process that looks like an engine's and listens, its port, and when it was started."""
    began = datetime.now(timezone.utc)
    command = [sys.executable, "-c", LISTEN, "sglang.launch_server", "--mem-fraction-static", "0.9"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline()), began
        process.kill()


def test_the_engine_behind_a_port_and_when_it_was_started(
    engine: tuple[subprocess.Popen[str], int, datetime],
) -> None:
    """Its open socket tells the process, and the kernel its start."""
    process, port, began = engine
    found = engine_on(port)
    assert found is not None
    assert found.pid == process.pid
    assert began - timedelta(seconds=1) < found.started_at < datetime.now(timezone.utc)
    time.sleep(1.1)
    again = engine_on(port)
    assert again is not None
    assert abs((again.started_at - found.started_at).total_seconds()) < 0.1


def test_what_is_not_an_engine_is_not_taken_for_one() -> None:
    """This very test listens and is not an engine; nobody listens on a port that was just free."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        assert engine_on(own.getsockname()[1]) is None
        port = own.getsockname()[1]
    assert engine_on(port) is None


def write_process(proc: Path, pid: int, command: str, ticks: int, *, name: str = "python3") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    fields = " ".join(["S", *["0"] * 18, str(ticks), "0"])
    (folder / "stat").write_text(f"{pid} ({name}) {fields}\n")


def test_another_users_engine_is_known_by_its_command_line(tmp_path: Path) -> None:
    """Whose open files cannot be read is found by the port in the command line; a child starts later."""
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "uptime").write_text("1000.00 0\n")
    write_process(tmp_path, 7, "python -m sglang.launch_server --port 30000", 400 * ticks, name="a (b) c")
    write_process(tmp_path, 8, "sglang::scheduler --port=30000", 420 * ticks)
    write_process(tmp_path, 9, "vllm serve m --port 30001", 10 * ticks)
    write_process(tmp_path, 10, "curl --port 30000", 10 * ticks)
    found = engine_on(30000, tmp_path)
    assert found is not None
    assert found.pid == 7
    assert abs((datetime.now(timezone.utc) - found.started_at).total_seconds() - 600) < 2
    assert engine_on(3000, tmp_path) is None


def test_the_sockets_are_read_once_however_many_processes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of a thousand processes and connections is not read a thousand times."""
    (tmp_path / "uptime").write_text("1000.00 0\n")
    (tmp_path / "net").mkdir()
    row = "  0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1"
    (tmp_path / "net" / "tcp").write_text(f"  sl  local_address\n{row}\n")
    for pid in range(1, 50):
        write_process(tmp_path, pid, f"sleep {pid}", 1)
    write_process(tmp_path, 50, "vllm serve m", 1)
    (tmp_path / "50" / "fd").mkdir()
    (tmp_path / "50" / "fd" / "3").symlink_to("socket:[4242]")
    read: list[Path] = []
    text_of = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *given: (read.append(path), text_of(path, *given))[1])
    found = engine_on(30000, tmp_path)
    assert found is not None
    assert found.pid == 50
    assert [path.name for path in read if path.parent.name == "net"] == ["tcp", "tcp6"]


@pytest.mark.parametrize("damage", ["", "7", "7 (x) S", "7 (x) " + "a " * 40])
def test_a_damaged_proc_is_no_error(tmp_path: Path, damage: str) -> None:
    """What cannot be read tells nothing."""
    (tmp_path / "uptime").write_text("1000.00 0\n")
    write_process(tmp_path, 7, "sglang --port 30000", 1)
    (tmp_path / "7" / "stat").write_text(damage)
    assert engine_on(30000, tmp_path) is None
    assert engine_on(30000, tmp_path / "nowhere") is None


def started(**told: object) -> Start:
    """A start as a log tells it."""
    facts = {"model_name": "/models/qwen3-8b", "engine_version": "0.5.12"}
    flags = {"mem_fraction_static": 0.94, "port": 30000} | told
    return Start(
        engine="sglang",
        outcome="ready",
        flags={name: Sourced(value, "log") for name, value in flags.items()},  # type: ignore[arg-type]  # scalars
        facts={name: Sourced(value, "log") for name, value in facts.items()},
        measurements={"pool_tokens": Sourced(218_484, "log")},
        observed_at=NOW,
    )


def test_one_start_as_two_sources_write_it_has_no_contradiction() -> None:
    """Paths and names, rounding, builds, imports that take a while, and what one of them does not say."""
    log = of_start(started(), "the log")
    listener = Listener(7, ("sglang",), NOW - timedelta(seconds=30))
    assert contradictions(log, of_start(started(mem_fraction_static=0.94000001), "the server", listener)) == []
    sparse = Identity("the server", "sglang", frozenset({"qwen3-8b"}), pool_tokens=218_480, version="0.5.12+cu128")
    assert contradictions(log, sparse) == []
    assert contradictions(log, Identity("the server")) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Identity("b", engine="vllm"), "engine: sglang"),
        (Identity("b", port=30001), "port: 30000 (the log) against 30001 (b)"),
        (Identity("b", pool_tokens=200_000), "pool_tokens: 218484"),
        (Identity("b", fraction=0.93), "fraction: 0.94"),
        (Identity("b", version="0.5.13"), "version: 0.5.12"),
        (Identity("b", models=frozenset({"m/Other"})), "model: /models/qwen3-8b"),
        (Identity("b", process_at=NOW + timedelta(seconds=30)), "start: 2026-11-30 12:00:00+0000 (the log)"),
        (Identity("b", process_at=NOW - timedelta(hours=1)), "(the process of b)"),
    ],
)
def test_each_thing_that_tells_two_starts_apart_is_a_sentence(other: Identity, words: str) -> None:
    """Both values are named with where they come from."""
    [told] = contradictions(of_start(started(), "the log"), other)
    assert words in told


def came_up(port: int, first_line: datetime, model: str = "a/model") -> Start:
    """A start whose log begins at ``first_line`` and says that the engine was ready 20 s later."""
    return Start(
        engine="sglang",
        outcome="ready",
        observed_at=first_line,
        flags={"port": Sourced(port, "line 1"), "model_path": Sourced(model, "line 1")},
        measurements={"startup_seconds": Sourced(20.0, "line 9")},
    )


@pytest.fixture
def server() -> Iterator[tuple[Listener, int]]:
    """A process that listens and names an engine and a model in its command, and its port."""
    command = [sys.executable, "-c", LISTEN, "sglang.launch_server", "--model-path", "a/model"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = engine_on(port)
        assert found is not None
        yield found, port
        process.kill()


@pytest.mark.parametrize(
    ("seconds", "expected"), [(17.5, 37.5), (0.0, 20.0), (599.0, 619.0), (601.0, 20.0), (-3.0, 20.0), (-3600.0, 20.0)]
)
def test_a_start_begins_with_its_process(seconds: float, expected: float) -> None:
    """The time before the first line counts where the process can be of this start: less than ten minutes before."""
    listener = Listener(4709, ("sglang",), NOW)
    timed = timed_from_process(came_up(30000, NOW + timedelta(seconds=seconds)), listener)
    found = timed.measurements["startup_seconds"]
    assert found.value == pytest.approx(expected)
    assert ("process 4709" in found.source) is (0 <= seconds < 600)


def test_the_process_of_a_start_names_its_engine_and_model(server: tuple[Listener, int]) -> None:
    """A process that listens on the port with another model, or of another engine, is not that of the start."""
    listener, port = server
    found = process_of(came_up(port, NOW))
    assert found is not None
    assert found.pid == listener.pid
    assert process_of(came_up(port, NOW, model="another/model")) is None
    assert process_of(replace(came_up(port, NOW), engine="vllm")) is None
    assert process_of(replace(came_up(port, NOW), outcome="oom_startup")) is None
    assert process_of(replace(came_up(port, NOW), flags={})) is None


SERVED = (
    "import http.server, json, sys\n"
    "class Answer(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    '        body = b\'vllm:cache_config_info{gpu_memory_utilization="0.9",kv_cache_size_tokens="5000"} 1.0\\n\'\n'
    "        found = self.path == '/metrics'\n"
    "        self.send_response(200 if found else 404)\n"
    "        self.end_headers()\n"
    "        self.wfile.write(body if found else b'{}')\n"
    "    def log_message(self, *words): pass\n"
    "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Answer)\n"
    "print(server.server_port, flush=True)\n"
    "server.serve_forever()\n"
)


def test_an_engine_asked_without_its_log_tells_when_its_process_began() -> None:
    """The kernel's time of the process behind the port, to the second, the same however often it is asked."""
    command = [sys.executable, "-c", SERVED, "vllm", "serve"]
    began = datetime.now(timezone.utc)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        listening = datetime.now(timezone.utc)
        given = {"server": f"http://127.0.0.1:{port}", "server_key": None}
        [first] = read_endpoints_only(running_engine(given), Extras()).starts
        time.sleep(0.6)
        [again] = read_endpoints_only(running_engine(given), Extras()).starts
        process.kill()
    moment = first.draft["observed_at"]
    assert began - timedelta(seconds=1.5) <= moment <= listening + timedelta(seconds=1)  # told to the second
    assert moment.microsecond == 0
    assert abs((again.draft["observed_at"] - moment).total_seconds()) <= 1
    assert first.sources["observed_at"] == f"the start of process {process.pid} of this host"
    assert first.draft["source"] == "endpoint"


METRICS = 'vllm:cache_config_info{gpu_memory_utilization="0.9",kv_cache_size_tokens="5000"} 1.0\n'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("process_start_time_seconds 1.79604000012e+09", datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)),
        ('process_start_time_seconds{pid="7"} 1.79604e+09', None),
        ("process_start_time_seconds 1.79604e+09\nprocess_start_time_seconds 1.796005e+09", None),
        ("process_start_time_seconds 1e300", None),
        ("process_start_time_seconds NaN", None),
        ("", None),
    ],
)
def test_an_engine_elsewhere_tells_when_it_began(line: str, expected: datetime | None) -> None:
    """Its metrics hold the start of the one process that they are of; what is not a time is passed over."""
    body = f"{METRICS}{line}\n".encode()
    running = Running(lambda path: (200, body) if path == "/metrics" else (404, b""))
    [start] = read_endpoints_only(running, Extras()).starts
    assert start.draft["observed_at"] == expected
    assert start.sources.get("observed_at") == (expected and "GET /metrics, process_start_time_seconds")
    log = replace(started(), engine="vllm")
    identity = of_start(read_endpoints(running.get), "the server")
    assert (identity.process_at, identity.began_at) == (expected, None)
    assert read_endpoints(running.get, log).observed_at == NOW
