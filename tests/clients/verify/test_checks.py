"""What is checked before a prompt is sent, and what becomes of a result that the service does not take."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner, Result

import _stand_in_service as faults
import standin
from e2e.running import Server, command
from kvyield import Client
from kvyield.cli import main
from kvyield.spool import Spool
from standin import Faults, Standin

FACTS = ("--gpu", "NVIDIA RTX PRO 6000", "--gpu-memory-gib", "95.59")
APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1
RUNNER = CliRunner(**APART)
AWAY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real service with an embedded database."""
    running = Server(tmp_path_factory.mktemp("service"))
    yield running
    running.stop()


@pytest.fixture
def client(service: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("KVYIELD_URL", service.url)
    with Client(service.url) as client:
        yield client


@pytest.fixture(scope="module")
def engine_process() -> Iterator[Standin]:
    with standin.start() as engine:
        yield engine


@pytest.fixture
def engine(engine_process: Standin) -> Standin:
    engine_process.set_faults()
    return engine_process


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spool:
    monkeypatch.setenv("KVYIELD_SPOOL", str(tmp_path / "spool"))
    return Spool(tmp_path / "spool")


def run(name: str, engine: Standin, *arguments: object) -> Result:
    words = [name, "--server", engine.url, "--prompt-tokens", "5000", *map(str, arguments)]
    return RUNNER.invoke(main, words, obj=engine)


def observed(engine: Standin, client: Client) -> UUID:
    """The id of the engine's start in the ledger."""
    words = ["observe", "--log", str(engine.log_path), "--server", engine.url, *FACTS, "--no-gpu", "--json"]
    result = RUNNER.invoke(main, words)
    assert result.exit_code == 0, result.output
    return UUID(json.loads(result.stdout)["id"])


def test_a_verification_waits_in_the_spool_while_the_service_is_away(
    engine: Standin, client: Client, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt cost minutes, so its result is on disk; it is listed, and sent once the service is back."""
    start = observed(engine, client)
    before = len(client.observation(start).verifications)
    result = run("verify", engine, "--observation", start, "--url", AWAY)
    assert (result.exit_code, "the prompt is sent, and its result will wait" in result.stderr) == (0, True)
    assert run("verify", engine, "--observation", start, "--url", AWAY, "--spooled-exit-code", 75).exit_code == 75
    assert spool.pending_count() == 2
    listed = RUNNER.invoke(main, ["spool", "list"]).stdout
    assert str(start) in listed
    assert "5,000 tokens for" in listed
    sent = RUNNER.invoke(main, ["spool", "send"])
    assert (sent.exit_code, sent.stdout) == (0, "sent 2, refused 0, waiting 0\n")
    assert len(client.observation(start).verifications) == before + 2
    assert RUNNER.invoke(main, ["spool", "send"]).stdout == "sent 0, refused 0, waiting 0\n"


def test_a_verification_is_on_disk_before_the_next_step_of_a_ramp(
    client: Client, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of a ramp, what was measured before is kept."""
    with standin.start(faults=Faults()) as engine:
        start = observed(engine, client)
        words = ["verify", "--server", engine.url, "--prompt-tokens", "66000", "--ramp", "--observation", str(start)]
        slow = [*words, "--no-gpu", "--url", AWAY]
        with subprocess.Popen([sys.executable, "-m", "kvyield", *slow], stderr=subprocess.DEVNULL) as process:
            faults.wait_until(lambda: spool.pending_count() > 0, 30)
            engine.set_faults(hang=True)
            process.kill()
    first = next(item for item in spool.items() if item.addition)
    assert first.addition is not None
    assert (first.addition.observation_id, first.addition.verification.prompt_tokens) == (start, 32_768)


def test_an_unknown_observation_ends_it_before_the_prompt(engine: Standin, client: Client, spool: Spool) -> None:
    """An id that the service does not have costs no prompt: exit code 3 and the service's word."""
    before = engine.counts()["prompts"]
    result = run("verify", engine, "--observation", uuid4())
    assert (result.exit_code, "no prompt was sent" in result.stderr) == (3, True)
    assert engine.counts()["prompts"] == before
    assert spool.items() == []


def test_a_retracted_observation_ends_it_before_the_prompt(engine: Standin, client: Client, spool: Spool) -> None:
    """A start that is retracted takes no verifications, and the reason is said."""
    with standin.start() as other:
        start = observed(other, client)
        client.retract(start, "another machine's log")
        result = run("verify", other, "--observation", start)
        assert (result.exit_code, other.counts()["prompts"]) == (3, 0)
        assert "is retracted: another machine's log; no prompt was sent" in result.stderr


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_not_taken_ends_it_before_the_prompt(
    engine: Standin, spool: Spool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the service would refuse is not measured; a start that was read waits on disk."""
    before = engine.counts()["prompts"]
    with faults.stand_in() as service:
        monkeypatch.setenv("KVYIELD_URL", service.url)
        service.faults.append(faults.status(status))
        result = run("verify", engine, "--observation", uuid4())
        assert (result.exit_code, "no prompt was sent" in result.stderr) == (3, True)
        service.faults.append(faults.status(status))
        result = run("report", engine, "--log", engine.log_path, *FACTS, "--no-gpu")
        assert (result.exit_code, "no prompt was sent" in result.stderr) == (3, True)
    assert engine.counts()["prompts"] == before
    assert [item.observation is not None for item in spool.items()] == [True]


def test_facts_that_are_missing_end_a_report_before_the_prompt(engine: Standin, client: Client, spool: Spool) -> None:
    """Without the GPU's name nothing could be posted: the option is named and no prompt is sent."""
    before = engine.counts()["prompts"]
    result = run("report", engine, "--log", engine.log_path, "--no-gpu")
    assert (result.exit_code, "give --gpu" in result.stderr) == (1, True)
    assert engine.counts()["prompts"] == before


def test_a_prompt_that_the_server_would_refuse_is_no_verification(engine: Standin, client: Client) -> None:
    """Longer than the context: nothing is sent, nothing red is stored; the start itself is."""
    start = observed(engine, client)
    before = client.observation(start).verifications
    too_long = ["--prompt-tokens", "300000"]
    for words in (["verify", "--observation", str(start)], ["report", "--log", str(engine.log_path), *FACTS]):
        result = RUNNER.invoke(main, [*words, "--server", engine.url, *too_long, "--no-gpu"])
        assert (result.exit_code, "the longest prompt that this server takes" in result.stderr) == (1, True)
    assert client.observation(start).verifications == before
    engine.set_faults(refuse_over_tokens=4_000)
    result = run("verify", engine, "--observation", start, "--json")
    assert (result.exit_code, result.stdout, "did not take the prompt" in result.stderr) == (1, "", True)
    assert client.observation(start).verifications == before


def test_the_log_of_one_engine_and_the_server_of_another_are_told_apart(
    engine: Standin, client: Client, spool: Spool
) -> None:
    """B's prompt is not a verification of A's start: exit code 1 before the prompt, with what contradicts."""
    with standin.start(fraction=0.93) as other:
        before = {row.id for row in client.observations()}
        result = run("report", other, "--log", engine.log_path, *FACTS, "--no-gpu")
        assert (result.exit_code, other.counts()["prompts"]) == (1, 0)
        assert "fraction: 0.94" in result.stderr
        assert f"port: {engine.config.port}" in result.stderr or "port: " in result.stderr
        assert "--force sends the prompt all the same" in result.stderr
        assert {row.id for row in client.observations()} == before
        assert run("report", other, "--log", engine.log_path, *FACTS, "--no-gpu", "--force").exit_code == 0


def test_an_engine_that_ended_by_its_log_is_not_the_one_that_answers(client: Client, spool: Spool) -> None:
    """The newest start of the log died, and something else answers at the address: that is another start."""
    with standin.start() as engine, engine.log_path.open("a") as log:
        log.write("[2026-05-30 23:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n")
        log.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
        log.flush()
        result = run("report", engine, "--log", engine.log_path, *FACTS, "--no-gpu")
        assert (result.exit_code, engine.counts()["prompts"]) == (1, 0)
        assert "ended as oom_runtime, and the server answers" in result.stderr


def test_observe_leaves_the_endpoints_of_another_engine_out(engine: Standin, client: Client, spool: Spool) -> None:
    """Values of two starts are never mixed: the log is posted as it is, and it is said why."""
    with standin.start(fraction=0.93, max_running_requests=4) as other:
        words = ["observe", "--log", str(engine.log_path), "--server", other.url, *FACTS, "--no-gpu", "--json"]
        result = RUNNER.invoke(main, [*words, "--dry-run"])
    assert result.exit_code == 0
    assert "log and server are not one start, the server is left out" in result.stderr
    assert json.loads(result.stdout)["flags"]["mem_fraction_static"] == 0.94


def test_a_verification_goes_to_the_start_that_it_was_measured_on(
    engine: Standin, client: Client, spool: Spool
) -> None:
    """``--observation`` of another engine's start is refused before the prompt, unless --force."""
    start = observed(engine, client)
    with standin.start(fraction=0.93) as other:
        result = run("verify", other, "--observation", start)
        assert (result.exit_code, other.counts()["prompts"]) == (1, 0)
        assert f"(the observation {start}) against 0.93 (the server)" in result.stderr
        assert run("verify", other, "--observation", start, "--force").exit_code == 0


def test_nothing_listens_there(client: Client, spool: Spool, engine: Standin) -> None:
    """No engine at the address is exit code 4 for both commands, before anything is posted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    for words in (["verify"], ["report", "--log", str(engine.log_path), *FACTS]):
        result = RUNNER.invoke(main, [*words, "--server", address, "--prompt-tokens", "5k", "--no-gpu"])
        assert (result.exit_code, "no engine could be asked" in result.stderr) == (4, True)
    assert spool.items() == []


def test_a_disk_and_a_service_that_are_both_away_end_it_before_the_prompt(
    engine: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could be kept nowhere is not measured."""
    (tmp_path / "spool").write_text("a file where the folder should be")
    monkeypatch.setenv("KVYIELD_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("KVYIELD_URL", AWAY)
    before = engine.counts()["prompts"]
    result = run("report", engine, "--log", engine.log_path, *FACTS, "--no-gpu")
    assert result.exit_code != 0
    assert engine.counts()["prompts"] == before


def test_an_ingest_token_posts_and_verifies_its_own(tmp_path: Path, engine: Standin, spool: Spool) -> None:
    """A GPU host's token is enough for report and verify; a token that only reads ends both before the prompt."""
    made = {
        role: command(tmp_path, "token", "create", "--name", role, "--role", role).stdout.strip().splitlines()[-1]
        for role in ("ingest", "read")
    }
    running = Server(tmp_path)
    try:
        keys = {role: text.split()[-1] for role, text in made.items()}
        where = ("--url", running.url, "--no-gpu")
        before = engine.counts()["prompts"]
        refused = run("report", engine, "--log", engine.log_path, *FACTS, *where, "--token", keys["read"])
        assert (refused.exit_code, engine.counts()["prompts"]) == (3, before), refused.output
        posted = run("report", engine, "--log", engine.log_path, *FACTS, *where, "--token", keys["ingest"], "--json")
        assert posted.exit_code == 0, posted.output
        start = json.loads(posted.stdout)["id"]
        before = engine.counts()["prompts"]
        unheard = run("verify", engine, "--observation", start, *where, "--token", keys["read"])
        assert (unheard.exit_code, engine.counts()["prompts"]) == (3, before), unheard.output
        added = run("verify", engine, "--observation", start, *where, "--token", keys["ingest"])
        assert added.exit_code == 0, added.output
    finally:
        running.stop()
