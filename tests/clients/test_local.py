"""A ledger without a service: a child on a private socket, for the length of a command."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import _stand_in_service as faults
import standin
from _samples_client import LOG
from e2e.running import Server
from kvyield import Client, local
from kvyield.cli import main

APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1
FACTS = ("--gpu", "NVIDIA RTX PRO 6000", "--gpu-count", "8", "--gpu-memory-gib", "95.59")


@pytest.fixture
def ledger(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the local ledger, whose service ends with the test; its sockets are in a folder of the test's."""
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.mkdtemp(prefix="kv"))
    yield home / ".local" / "share" / "kvyield"
    for service in local._running.values():
        service.stop()
    local._running.clear()
    assert os.listdir(tempfile.gettempdir()) == []
    os.rmdir(tempfile.gettempdir())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "sglang.log"
    file.write_text(LOG)
    return file


def run(*words: str | Path) -> Result:
    return CliRunner(**APART).invoke(main, [str(word) for word in words])


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "kvyield", *map(str, words)]


def children() -> set[int]:
    """Services on a private socket that run now."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                text = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if b"kvyield_server" in text and tempfile.gettempdir().encode() in text:
                found.add(int(name))
    return found


def test_commands_share_a_ledger_of_this_host(ledger: Path, log: Path) -> None:
    """What one command posts the next one sees; nothing of it can be read by others, whatever the umask."""
    before = os.umask(0)
    try:
        assert run("observe", "--local", "--log", log, *FACTS, "--no-gpu").exit_code == 0
        assert "192,406" in run("history", "--local").stdout
    finally:
        os.umask(before)
    assert "local ledger" in run("doctor", "--local", "--no-gpu").stdout
    for folder, _, names in os.walk(ledger):
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
        assert {stat.S_IMODE(Path(folder, name).stat().st_mode) for name in names} <= {0o600}
    assert (ledger / "ledger.db").exists()


def test_advice_from_logs_without_a_service(ledger: Path, log: Path) -> None:
    """Import and recommend in one: standard output holds the one answer, the rest is said beside it."""
    with standin.start() as engine:
        log.write_text(engine.log_path.read_text())
    result = run("advise", log, "--target-tokens", "150k", *FACTS, "--json")
    assert result.exit_code == 0, result.output
    [line] = result.stdout.splitlines()
    answer = json.loads(line)
    assert (answer["engine"], answer["status"] in ("ok", "at_risk")) == ("sglang", True)
    assert len(answer["basis"]["observation_ids"]) == 1
    assert "1 log(s): 1 starts, 1 stored" in result.stderr
    args = run("advise", log, "--target-tokens", "150k", *FACTS, "--format", "args")
    assert args.stdout == answer["command_line"] + "\n"
    assert run("recommend", "--local", "--target-tokens", "200k").exit_code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LOG.replace("mem_fraction_static=0.92, ", ""), "give --flag mem_fraction_static=VALUE"),
        (LOG, "give --gpu"),
        ("nothing here\n", "the logs hold no start that was ready or had failed"),
        (LOG.partition("\n")[0] + "\n", "the logs end before the engine was ready or had failed; --take-unfinished"),
    ],
)
def test_what_a_log_lacks_is_one_sentence(ledger: Path, log: Path, text: str, words: str) -> None:
    """It names the option, and no ledger is made for nothing."""
    log.write_text(text)
    facts = () if "--gpu" in words else FACTS
    result = run("advise", log, "--target-tokens", "200k", *facts)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr.splitlines()[-1]
    assert not ledger.exists()


def test_a_log_whose_starts_are_all_refused_is_not_answered_from_older_ones(ledger: Path, log: Path) -> None:
    """The advice would not be about this log."""
    log.write_text(LOG)
    assert run("advise", log, "--target-tokens", "200k", *FACTS).exit_code == 0
    log.write_text(LOG.replace("mem_fraction_static=0.92", "mem_fraction_static=nan"))
    result = run("advise", log, "--target-tokens", "200k", *FACTS)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "none of the logs' starts is in the ledger" in result.stderr


def test_no_log_at_all_is_an_estimate(ledger: Path, tmp_path: Path) -> None:
    """From the model's config.json and the GPU alone; it is called what it is."""
    facts = {"num_hidden_layers": 32, "num_key_value_heads": 8, "head_dim": 128, "num_attention_heads": 32}
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 131072, "hidden_size": 4096, **facts}
    config |= {"intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    hardware = ("--gpu", "NVIDIA H200", "--gpu-count", "1", "--gpu-memory-gib", "139.8", "--engine", "sglang")
    result = run("advise", "--target-tokens", "100k", "--model", "m/M", "--model-config", tmp_path, *hardware)
    assert result.exit_code == 0, result.output
    assert "estimate" in "".join(result.stdout.lower().splitlines()[:2])
    answer = run("advise", "--target-tokens", "100k", "--model", "m/M", "--model-config", tmp_path, *hardware, "--json")
    assert json.loads(answer.stdout)["headline"]["estimate"] is True


def test_a_service_that_is_named_is_asked(ledger: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no local ledger is made."""
    with faults.stand_in() as service:
        service.advice = {"status": "ok", "engine": "sglang", "command_line": "--mem-fraction-static 0.9"}
        monkeypatch.setenv("KVYIELD_URL", service.url)
        result = run("advise", log, "--target-tokens", "200k", *FACTS)
        assert result.exit_code == 0, result.output
        assert len(service.stored) == 1
    assert not ledger.exists()


def test_without_the_server_the_message_says_what_to_install(
    ledger: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named; what was observed waits in the ledger's own spool."""
    monkeypatch.setattr(local, "find_spec", lambda _: None)
    for words in (("advise", log, "--target-tokens", "200k", *FACTS), ("history", "--local")):
        result = run(*words)
        assert result.exit_code == 1
        assert "kvyield[local]" in result.stderr
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    assert "needs Python 3.11" in run("history", "--local").stderr


def test_the_address_local_is_the_same(ledger: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``KVYIELD_URL=local`` needs no option; a token and a spool for another service are left alone."""
    monkeypatch.setenv("KVYIELD_URL", "local")
    monkeypatch.setenv("KVYIELD_TOKEN", "kvy_of_another_service")
    monkeypatch.setenv("KVYIELD_SPOOL", str(log.parent / "spool"))
    assert run("observe", "--log", log, *FACTS, "--no-gpu").exit_code == 0
    assert "192,406" in run("history").stdout
    assert not (log.parent / "spool").exists()


def test_a_local_ledger_is_posted_to_a_service(
    ledger: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``spool send --local`` brings over all starts, as often as one likes; with no service named it says so."""
    assert run("observe", "--local", "--log", log, *FACTS, "--no-gpu").exit_code == 0
    nowhere = run("spool", "send", "--local")
    assert (nowhere.exit_code, "KVYIELD_URL" in nowhere.stderr) == (1, True)
    (tmp_path / "service").mkdir()
    service = Server(tmp_path / "service")
    try:
        monkeypatch.setenv("KVYIELD_URL", service.url)
        for _ in range(2):
            sent = run("spool", "send", "--local")
            assert sent.exit_code == 0, sent.output
        with Client(service.url) as client:
            assert [row.measurements.pool_tokens for row in client.observations()] == [192_406]
    finally:
        service.stop()


def test_commands_at_once_are_safe_and_nothing_stays_running(ledger: Path, tmp_path: Path) -> None:
    """Four commands make the ledger together, each start is stored, and all children are gone."""
    logs = [tmp_path / f"{number}.log" for number in range(4)]
    for number, log in enumerate(logs):
        log.write_text(LOG.replace("22:0", f"2{number % 3}:{number}"))
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    running = [
        subprocess.Popen(
            command("observe", "--local", "--log", log, *FACTS, "--no-gpu"),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for log in logs
    ]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors
    faults.wait_until(lambda: not children(), 30)
    shown = run("history", "--local").stdout
    assert shown.count("192,406") == 4


def test_a_killed_command_leaves_no_service(ledger: Path, log: Path) -> None:
    """The child sees its standard input end, and goes too."""
    words = command("watch", "--local", "--log", log, *FACTS, "--no-gpu")
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process:
        faults.wait_until(lambda: bool(children()), 60)
        process.send_signal(signal.SIGKILL)
    faults.wait_until(lambda: not children(), 30)
    for left in Path(tempfile.gettempdir()).iterdir():  # the socket's folder, which nobody could remove
        for file in left.iterdir():
            file.unlink()
        left.rmdir()
