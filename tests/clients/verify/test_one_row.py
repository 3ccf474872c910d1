"""One start is one row of the ledger, whichever way and in whichever order its accounts come."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from itertools import permutations
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

import standin
from e2e.running import Server
from kvyield import Client
from kvyield.cli import main
from standin import Faults, Standin
from standin.config import Engine

FACTS = ("--gpu", "NVIDIA RTX PRO 6000", "--gpu-count", "8", "--gpu-memory-gib", "95.59", "--no-gpu")
APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1


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


def port_of(engine: Standin) -> int | None:
    return urlsplit(engine.url).port


def run(engine: Standin, *words: object) -> Result:
    return CliRunner(**APART).invoke(main, [*map(str, words), *FACTS], obj=engine)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize("order", list(permutations(("log", "server", "both"), 2)))
def test_log_and_endpoints_are_one_row(client: Client, name: Engine, order: tuple[str, ...]) -> None:
    """``observe --server`` without a log is the start that the log tells: its time and its facts are the log's."""
    before = {row.id for row in client.observations()}
    with standin.start(name, fraction=0.95) as engine:
        sources = {"log": ["--log", engine.log_path], "server": ["--server", engine.url]}
        sources["both"] = sources["log"] + sources["server"]
        for source in order:
            result = run(engine, "observe", *sources[source])
            assert result.exit_code == 0, result.output
        added = [row for row in client.observations() if row.id not in before]
    assert len(added) == 1, [(row.source, row.observed_at, row.host) for row in added]
    assert (added[0].source, added[0].flags.get("port", port_of(engine))) == ("log", port_of(engine))
    assert added[0].verifications == []


def test_two_engines_of_one_host_are_two_rows(client: Client) -> None:
    """Alike in everything but the port, each is a start of its own, from the endpoints too."""
    before = {row.id for row in client.observations()}
    with standin.start() as one, standin.start() as other:
        for engine in (one, other):
            assert run(engine, "observe", "--server", engine.url).exit_code == 0
            assert run(engine, "observe", "--log", engine.log_path).exit_code == 0
        added = [row for row in client.observations() if row.id not in before]
    assert {row.flags["port"] for row in added} == {port_of(one), port_of(other)}
    assert len(added) == 2


def test_a_start_that_dies_by_its_verification_is_one_row(client: Client) -> None:
    """Posted before the prompt as ready, it becomes what the prompt made of it, with the figures that it had."""
    before = {row.id for row in client.observations()}
    with standin.start(faults=Faults(oom_at_tokens=40_000)) as engine:
        words = ["report", "--server", engine.url, "--log", engine.log_path, "--prompt-tokens", "50000", "--ramp"]
        result = run(engine, *words)
        assert result.exit_code == 1, result.output
        assert run(engine, "observe", "--log", engine.log_path).exit_code == 0
    [row] = [row for row in client.observations() if row.id not in before]
    assert (row.outcome, row.measurements.pool_tokens) == ("oom_runtime", 218_484)
    assert row.failure is not None
    assert (row.failure.phase, row.failure.cause) == ("serving", "gpu_memory")
    assert {(check.prompt_tokens, check.passed) for check in row.verifications} == {(32_768, True), (50_000, False)}
    assert len(row.verifications) == 2


def test_a_wrong_fact_is_corrected_and_the_former_value_stays(client: Client) -> None:
    """The ledger says the right value at once, who changed it, when and why; the same log again changes nothing."""
    with standin.start() as engine:
        before = {row.id for row in client.observations()}
        assert run(engine, "observe", "--log", engine.log_path).exit_code == 0
        [row] = [row for row in client.observations() if row.id not in before]
        words = [
            "correct",
            str(row.id),
            "--gpu-memory-gib",
            "96",
            "--flag",
            "page_size=64",
            "--reason",
            "mistyped",
        ]
        result = CliRunner(**APART).invoke(main, words)
        assert result.exit_code == 0, result.output
        assert "hardware.memory_gib  95.59" in result.stdout
        assert run(engine, "observe", "--log", engine.log_path).exit_code == 0
    corrected = client.observation(row.id or "")
    assert (corrected.hardware.memory_gib, corrected.flags["page_size"]) == (96.0, 64)
    [entry] = [entry for entry in corrected.history if entry.action == "correction"]
    assert entry.reason == "mistyped"
    assert {change.field: change.before for change in entry.changes}["hardware.memory_gib"] == 95.59
