"""``kvyield verify`` and ``kvyield report``: what they print, what they post, how they end."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import standin
from e2e.running import Server
from kvyield import Client
from kvyield.cli import main
from kvyield.gpu import Gpu
from kvyield.spool import Spool
from kvyield.verify import Server as Engine
from kvyield.verify import engine_gpus, is_on_this_host
from standin import Faults, Standin

FACTS = ("--gpu", "NVIDIA RTX PRO 6000", "--gpu-memory-gib", "95.59")
APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1
RUNNER = CliRunner(**APART)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real service with an embedded database."""
    running = Server(tmp_path_factory.mktemp("service"))
    yield running
    running.stop()


@pytest.fixture
def client(service: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the service, which the command line finds by the environment."""
    monkeypatch.setenv("KVYIELD_URL", service.url)
    with Client(service.url) as client:
        yield client


@pytest.fixture
def engine() -> Iterator[Standin]:
    """An engine whose log holds one start."""
    with standin.start() as engine:
        yield engine


def run(command: str, engine: Standin, *arguments: str | Path) -> Result:
    words = [command, "--server", engine.url, "--prompt-tokens", "20000", *map(str, arguments)]
    return RUNNER.invoke(main, words, obj=engine)


def ids(client: Client) -> set[str]:
    """What the ledger holds: starts of one second have no order that a test may lean on."""
    return {str(row.id) for row in client.observations()}


def test_verify_prints_a_row_and_ends_well(engine: Standin) -> None:
    """A person reads the figures in a table, and what happened on the way beside it."""
    result = run("verify", engine)
    assert (result.exit_code, "20,000" in result.stdout, "passed" in result.stdout) == (0, True, True)
    assert "takes prompts up to 199,993 tokens" in result.stderr
    assert "1 x 20,000 tokens" in result.stderr


def test_a_terminal_shows_a_bar_and_a_log_file_does_not(engine: Standin) -> None:
    """On a terminal the time is shown while the prompt runs; elsewhere no terminal codes are printed."""
    ours, theirs = pty.openpty()
    words = ["verify", "--server", engine.url, "--prompt-tokens", "20000", "--no-gpu", "--ramp"]
    command = [sys.executable, "-m", "kvyield", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert (done.returncode, "20,000 tokens" in shown, "0:00:0" in shown) == (0, True, True)
    assert "\x1b" not in run("verify", engine).output


def test_verify_as_json_is_what_would_be_posted(engine: Standin) -> None:
    """One verification a line with the wire's names, memory included."""
    result = run("verify", engine, "--json", "--concurrent", "2")
    (found,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (found["passed"], found["concurrent"], found["cached_tokens"] <= 100) == (True, 2, True)
    assert 0 < found["lowest_free_gib"] < found["free_before_gib"]


def test_a_verification_that_fails_has_exit_code_1_and_says_why(engine: Standin) -> None:
    """The reason is one line, and the table says FAILED."""
    engine.set_faults(cached_tokens=15_000)
    result = run("verify", engine)
    assert (result.exit_code, "FAILED" in result.stdout) == (1, True)
    assert "came from the prefix cache" in result.stderr


def test_a_wrong_answer_has_exit_code_1_and_its_memory_counts(engine: Standin, client: Client) -> None:
    """The prompt passed, with its memory, and the answer is recorded as wrong; unchecked it is not a failure."""
    engine.set_faults(wrong_answer=True)
    before = ids(client)
    result = run("report", engine, "--log", engine.log_path, *FACTS)
    assert (result.exit_code, "wrong answer" in result.stderr) == (1, True)
    (added,) = ids(client) - before
    [check] = client.observation(added).verifications
    assert (check.passed, check.answer, check.error) == (True, "wrong", None)
    assert 0 < (check.lowest_free_gib or 0) < (check.free_before_gib or 0)
    assert run("verify", engine, "--observation", added, "--no-answer-check").exit_code == 0
    assert [check.answer for check in client.observation(added).verifications] == ["wrong", "not_checked"]


def test_verify_with_the_log_tells_a_run_time_oom(engine: Standin) -> None:
    """Only what the log says since the command began counts: an old OOM in the same file is another start's."""
    with engine.log_path.open("a") as log:
        log.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n")
    engine.set_faults(die_at_tokens=10_000)
    assert "the start ended as failed" in run("verify", engine, "--log", engine.log_path).stderr
    with standin.start(faults=Faults(oom_at_tokens=10_000)) as other:
        assert "the start ended as oom_runtime" in run("verify", other, "--log", other.log_path).stderr


def test_verifications_are_added_to_a_stored_observation(engine: Standin, client: Client) -> None:
    """``--observation`` puts them into the ledger."""
    before = ids(client)
    stored = run("report", engine, "--log", engine.log_path, *FACTS, "--no-gpu")
    assert stored.exit_code == 0, stored.output
    (added,) = ids(client) - before
    run("verify", engine, "--observation", added)
    assert len(client.observation(added).verifications) == 2


def test_report_adds_to_the_row_that_observe_made(engine: Standin, client: Client) -> None:
    """A start is one row of the ledger, whether it was observed before, reported, or observed again."""
    before = ids(client)
    observe = ["observe", "--log", str(engine.log_path), "--server", engine.url, *FACTS]
    assert RUNNER.invoke(main, observe).exit_code == 0
    assert run("report", engine, "--log", engine.log_path, *FACTS).exit_code == 0
    assert RUNNER.invoke(main, observe).exit_code == 0
    (added,) = ids(client) - before
    assert [check.prompt_tokens for check in client.observation(added).verifications] == [20_000]


def test_report_posts_a_start_that_crashed_as_what_it_became(client: Client) -> None:
    """A run-time OOM is one observation with that outcome, the prompt that did it, and the failed verification."""
    before = ids(client)
    with standin.start(faults=Faults(oom_at_tokens=10_000)) as dying:
        result = run("report", dying, "--log", dying.log_path, *FACTS)
    assert result.exit_code == 1, result.output
    (added,) = ids(client) - before
    row = client.observation(added)
    assert (row.outcome, row.measurements.pool_tokens) == ("oom_runtime", 218_484)
    assert row.failure is not None
    assert (row.failure.phase, row.failure.prompt_tokens) == ("serving", 20_000)
    assert [check.passed for check in row.verifications] == [False]


def test_report_without_the_service_keeps_all_in_the_spool(
    engine: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A service that is away is not a failure: start and verification wait together, and a note says so."""
    monkeypatch.setenv("KVYIELD_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("KVYIELD_SPOOL", str(tmp_path / "spool"))
    result = run("report", engine, "--log", engine.log_path, *FACTS)
    assert (result.exit_code, "waits in the spool" in result.stderr) == (0, True)
    (waiting,) = Spool(tmp_path / "spool").items()
    assert waiting.observation is not None
    assert [check.passed for check in waiting.observation.verifications] == [True]


def test_report_without_a_log_asks_the_engine_alone(engine: Standin) -> None:
    """The endpoints tell enough of a running start to post it."""
    result = run("report", engine, "--dry-run", "--json", *FACTS)
    found = json.loads(result.stdout)
    assert (found["source"], found["measurements"]["pool_tokens"]) == ("endpoint", 218_484)
    assert found["verifications"][0]["passed"]


def test_an_engine_that_is_not_there_is_one_line_with_its_address() -> None:
    """No traceback, no table, nothing as JSON; the address is named, and the exit code says so."""
    words = ["verify", "--server", "http://127.0.0.1:9", "--prompt-tokens", "5k", "--no-gpu"]
    for form in ([], ["--json"]):
        result = RUNNER.invoke(main, [*words, *form])
        assert (result.exit_code, result.stdout) == (4, "")
        assert result.stderr.startswith("kvyield: no engine could be asked at http://127.0.0.1:9: ")
        assert len(result.stderr.splitlines()) == 1


def test_gpus_are_the_servers_own() -> None:
    """A server on GPUs 2 and 3 is not judged by what another one takes on GPU 0."""
    gpus = [Gpu(number, "NVIDIA L4", 22.5, 20.0) for number in range(4)]
    assert engine_gpus(gpus, Engine("sglang", "m", gpus=(2, 3))) == gpus[2:]
    assert engine_gpus(gpus[:2], Engine("sglang", "m", gpus=(2, 3))) == gpus[:2]
    assert engine_gpus(gpus, Engine("vllm", "m")) == gpus


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("http://127.0.0.1:30000", True),
        ("http://localhost:30000/v1", True),
        ("http://[::1]:30000", True),
        ("http://192.0.2.7:30000", False),
        ("http://no-such-host.invalid", False),
        ("nonsense", False),
    ],
)
def test_only_a_server_on_this_host_has_its_gpus_here(url: str, own: bool) -> None:
    """The memory of this host's GPUs says nothing about a server elsewhere."""
    assert is_on_this_host(url) is own
