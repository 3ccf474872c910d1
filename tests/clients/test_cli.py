"""The command line: what it prints, what it posts, what its exit codes say."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import _stand_in_service as faults
from _samples_client import LOG
from _stand_in_service import StandIn
from kvyield.cli import COMMANDS, main
from kvyield.spool import Spool

FACTS = ("--gpu", "NVIDIA RTX PRO 6000", "--gpu-count", "8", "--gpu-memory-gib", "95.59")
APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1
RUNNER = CliRunner(**APART)
SECRET = "sk-very-secret-value"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "sglang.log"
    file.write_text(LOG)
    return file


@pytest.fixture
def online(service: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("KVYIELD_URL", service.url)
    return service


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    with faults.stand_in() as gone:
        monkeypatch.setenv("KVYIELD_URL", gone.url)


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return RUNNER.invoke(main, [str(argument) for argument in arguments], input=stdin)


def spool_of(home: Path) -> Spool:
    return Spool(home / ".local" / "state" / "kvyield" / "spool")


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("arguments", [[], *[[name] for name in COMMANDS], ["spool", "list"], ["spool", "send"]])
def test_every_command_has_help(arguments: list[str]) -> None:
    """Every command tells what it is for, without touching the network or the disk."""
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def said(start: dict[str, object]) -> dict[str, object]:
    """Return a start, and what it holds, without nulls."""
    inner = {name: said(value) if isinstance(value, dict) else value for name, value in start.items()}
    return {name: value for name, value in inner.items() if value is not None}


def test_observe_posts_what_it_prints(online: StandIn, log: Path) -> None:
    """The JSON that is printed is in content what the service got, where null and absent are the same."""
    result = run("observe", "--log", log, *FACTS, "--json")
    assert result.exit_code == 0, result.output
    [printed] = objects(result)
    [stored] = online.stored.values()
    assert said({name: stored.get(name) for name in printed}) == said(printed)
    assert printed["measurements"]["pool_tokens"] == 192_406
    assert printed["flags"]["mem_fraction_static"] == 0.92
    assert printed["measurements"]["free_at_ready_gib"] == 6.1
    assert SECRET not in result.output


def test_observe_twice_stores_once(online: StandIn, log: Path) -> None:
    """Observing the same log again is known, and the table says so."""
    assert "stored" in run("observe", "--log", log, *FACTS).stdout
    assert "known" in run("observe", "--log", log, *FACTS).stdout
    assert len(online.stored) == 1


def test_dry_run_posts_nothing(online: StandIn, log: Path, home: Path) -> None:
    """A dry run touches neither the service nor the spool."""
    assert run("observe", "--log", log, *FACTS, "--dry-run").exit_code == 0
    assert online.requests == []
    assert not spool_of(home).root.exists()


def test_dry_run_shows_what_is_missing(online: StandIn, log: Path) -> None:
    """Without a GPU's name the draft is still shown, with null, and the note names the option."""
    result = run("observe", "--log", log, "--dry-run", "--json", "--no-gpu")
    assert result.exit_code == 0
    assert objects(result)[0]["hardware"]["gpu"] is None
    assert "--gpu" in result.stderr


def test_incomplete_starts_fail_with_the_option_to_give(online: StandIn, log: Path) -> None:
    """A start that the service would refuse is not posted; exit code 1."""
    result = run("observe", "--log", log, "--no-gpu")
    assert result.exit_code == 1
    assert "not posted" in result.stderr
    assert online.stored == {}


def test_explain_names_the_line_of_every_value(log: Path) -> None:
    """Each value is shown with the line that it came from, options with the option."""
    result = run("observe", "--log", log, *FACTS, "--dry-run", "--explain")
    assert "measurements.pool_tokens = 192406" in result.stdout
    assert "max_total_num_tokens=192406" in result.stdout
    assert "option --gpu-memory-gib" in result.stdout
    assert SECRET not in result.output


def test_service_away_spools_and_is_no_failure(offline: None, log: Path, home: Path) -> None:
    """With the service away the observation waits on disk, exit code 0 with a note, or the code that was asked for."""
    result = run("observe", "--log", log, *FACTS)
    assert result.exit_code == 0
    assert "waits in the spool" in result.stderr
    assert run("observe", "--log", log, *FACTS, "--spooled-exit-code", "75").exit_code == 75
    assert spool_of(home).pending_count() == 1


def test_the_next_run_sends_what_waits(offline: None, log: Path, service: StandIn, home: Path) -> None:
    """Once the service is back, `spool send` brings over what waited, once."""
    run("observe", "--log", log, *FACTS)
    assert run("spool", "send").exit_code == 4
    result = run("spool", "send", "--url", service.url)
    assert (result.exit_code, result.stdout) == (0, "sent 1, refused 0, waiting 0\n")
    assert len(service.stored) == 1
    assert run("spool", "list").stdout == "the spool is empty\n"


def test_refused_is_set_aside_listed_and_dropped(online: StandIn, log: Path) -> None:
    """A refusal is exit code 3; the list shows the reason, and dropping by name removes it."""
    result = run("observe", "--log", log, *FACTS, "--model", "refused/model")
    assert result.exit_code == 3
    assert "not this one" in result.stderr
    listed = run("spool", "list", "--json")
    [item] = objects(listed)
    assert (item["state"], "not this one" in item["reason"]) == ("refused", True)
    assert run("spool", "drop", "no-such").exit_code == 1
    assert run("spool", "drop").exit_code == 2
    assert run("spool", "drop", item["name"]).stdout == "dropped 1\n"


@pytest.mark.parametrize(("status", "code"), [(401, 3), (403, 3), (500, 1), (502, 0), (503, 0), (429, 0)])
def test_what_is_kept_for_a_repair_is_a_failure(online: StandIn, log: Path, home: Path, status: int, code: int) -> None:
    """A token that is not taken is 3, a service that fails is 1, so that a cron job notices; all of it is on disk."""
    online.faults += [faults.status(status)] * 3
    result = run("observe", "--log", log, *FACTS)
    assert result.exit_code == code, result.output
    assert f"status {status}" in result.stderr
    assert spool_of(home).pending_count() == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSL_CERT_FILE", "/no/such.pem"),
        ("HTTPS_PROXY", "nonsense://x:y@z"),
        ("KVYIELD_URL", "ftp://x"),
        ("KVYIELD_TOKEN", "t\u00f6ken"),
    ],
)
def test_a_fault_of_the_environment_loses_nothing(
    log: Path, home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """What was observed is on disk before anything that the environment can spoil; the message names what did."""
    monkeypatch.setenv("KVYIELD_URL", "https://kvyield.example.net")
    monkeypatch.setenv(name, value)
    result = run("observe", "--log", log, *FACTS)
    assert result.exit_code == 1, result.output
    assert spool_of(home).pending_count() == 1
    told = {"KVYIELD_URL": "ftp://x", "KVYIELD_TOKEN": "the token holds signs"}.get(name, f"{name}=")
    assert told in result.stderr
    assert "x:y@" not in result.stderr


def test_stdin_is_a_source(online: StandIn) -> None:
    """A log can be piped in."""
    assert run("observe", "-", *FACTS, stdin=LOG).exit_code == 0
    assert len(online.stored) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["observe"], 2, "which log"),
        (["observe", "--log", "a", "--journal", "b"], 2, "give one source"),
        (["observe", "some.log"], 2, "--log some.log"),
        (["observe", "--log", "/no/such.log"], 1, "/no/such.log"),
        (["observe", "--log", "x", "--flag", "novalue"], 2, "NAME=VALUE"),
        (["observe", "--log", "x", "--recommendation", "7"], 1, "is not an id"),
        (["observe", "--log", "x", "--model-config", "/no/config.json"], 1, "/no/config.json"),
        (["import", "/no/such"], 1, "/no/such"),
        (["history", "--url", "ftp://x"], 1, "ftp://x"),
        (["recommend"], 2, "--target-tokens"),
        (["recommend", "--target-tokens", "0"], 2, "target-tokens"),
        (["predict"], 2, "predict what"),
        (["no-such-command"], 2, "No such command"),
    ],
)
def test_wrong_use_ends_in_one_sentence(arguments: list[str], code: int, words: str) -> None:
    """Mistakes give an exit code and a sentence that names the mistake, never a traceback."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_log_without_starts_says_what_was_expected(tmp_path: Path) -> None:
    """An empty or foreign file is told by name with what would be right."""
    for content in (b"", b"nothing here\n" * 3, os.urandom(4096)):
        (tmp_path / "other.log").write_bytes(content)
        result = run("observe", "--log", tmp_path / "other.log")
        assert result.exit_code == 1
        assert "no engine start" in result.stderr


def test_a_fault_of_kvyield_itself_is_one_line(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    """Even an error that nobody foresaw ends in one line and its own exit code."""
    monkeypatch.setattr("kvyield.intake.read", lambda *_, **__: 1 / 0)
    result = run("observe", "--log", log, *FACTS, "--dry-run")
    assert result.exit_code == 70
    assert "ZeroDivisionError" in result.stderr
    assert "Traceback" not in result.output


def test_hostile_words_do_not_reach_the_terminal(online: StandIn) -> None:
    """Escape codes in the service's words are taken out before they are shown."""
    online.faults.append(faults.body(json.dumps({"title": "\x1b[2Jgone", "status": 404}).encode(), code=404))
    result = run("history")
    assert result.exit_code == 3
    assert "\x1b" not in result.output
    assert "gone" in result.stderr


def test_import_takes_many_logs_and_twice_doubles_nothing(online: StandIn, tmp_path: Path) -> None:
    """Folders, compressed logs and several starts a file come over once, however often they are imported."""
    for number in range(3):
        text = "".join(LOG.replace("192406", str(190_000 + 10 * number + start)) for start in range(2))
        (tmp_path / f"{number}.log.gz").write_bytes(gzip.compress(text.encode()))
    first = run("import", tmp_path, *FACTS, "--jobs", "2")
    assert first.exit_code == 0, first.output
    assert len(online.stored) == 6
    second = run("import", str(tmp_path / "*.gz"), *FACTS)
    assert second.exit_code == 0
    assert len(online.stored) == 6
    assert [line.split()[-1] for line in second.stdout.splitlines() if "log.gz" in line] == ["2", "2", "2"]


def test_import_and_observe_of_one_log_are_one_observation(online: StandIn, log: Path) -> None:
    """Importing a log that was observed before stores nothing new, though it does not know the host's name."""
    run("observe", "--log", log, *FACTS, "--host", "gpu-01")
    result = run("import", log, *FACTS)
    assert "stored by another reader version" in result.stderr
    assert len(online.stored) == 1


def test_import_goes_on_past_bad_files(online: StandIn, log: Path, tmp_path: Path) -> None:
    """An unreadable or empty file is named and counted; the good ones come over."""
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(LOG.encode() * 50)[:80])
    (tmp_path / "empty.log").write_bytes(b"")
    result = run("import", tmp_path, *FACTS)
    assert "cut.log.gz" in result.stderr
    assert len(online.stored) >= 1
    assert result.exit_code == 1


def test_import_prints_what_it_posts(online: StandIn, log: Path) -> None:
    """With --json standard output holds the observations and nothing else."""
    result = run("import", log, *FACTS, "--json")
    [printed] = objects(result)
    assert [printed["id"]] == online.posts


def test_import_offline_spools(offline: None, log: Path, home: Path) -> None:
    """An import while the service is away waits on disk."""
    assert run("import", log, *FACTS).exit_code == 0
    assert spool_of(home).pending_count() == 1


def test_a_dead_or_slow_engine_leaves_the_log_alone(
    online: StandIn, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an engine that is away, drips or answers rubbish, the log is posted as it is, with a note."""
    monkeypatch.setattr("kvyield.cli.observe.ENGINE_SECONDS", 0.3)
    with faults.stand_in() as engine:
        for fault in (faults.drip_headers, faults.drip_body, faults.cut):
            engine.faults.append(fault)
            result = run("observe", "--log", log, *FACTS, "--server", engine.url)
            assert result.exit_code == 0, result.output
            assert "endpoints could not be read" in result.stderr
    assert run("observe", "--server", "http://127.0.0.1:9", *FACTS).exit_code == 1
    assert len(online.stored) == 1


def test_history_shows_and_prints(online: StandIn, log: Path) -> None:
    """The ledger as a table, and as one JSON object a line."""
    assert "no start fits" in run("history").stdout
    run("observe", "--log", log, *FACTS)
    assert "192,406" in run("history").stdout
    assert objects(run("history", "--json"))[0]["measurements"]["pool_tokens"] == 192_406


def test_doctor_says_what_to_do(offline: None, log: Path) -> None:
    """Each check has a verdict, and what fails has advice; exit code 1 when something fails."""
    result = run("doctor", "--no-gpu", "--log", log)
    assert result.exit_code == 1
    assert "FAIL  service" in result.stdout
    assert "kvyield-server serve" in result.stdout
    assert "ok    log: 1 start(s)" in result.stdout


def test_doctor_is_content_when_all_is_well(online: StandIn, log: Path) -> None:
    """With a service, a spool and a log all is well; as JSON it can be watched."""
    result = run("doctor", "--no-gpu", "--log", log, "--json")
    assert result.exit_code == 0, result.output
    assert {one["verdict"] for one in objects(result)} == {"ok"}


def test_doctor_finds_a_token_that_others_can_read(online: StandIn, home: Path) -> None:
    """A token in a file that others may read is warned about."""
    folder = home / ".config" / "kvyield"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('token = "kv-1"\n')
    (folder / "config.toml").chmod(0o644)
    result = run("doctor", "--no-gpu")
    assert "chmod 600" in result.stdout
    assert online.tokens[-1] == "Bearer kv-1"


def test_completion_scripts_are_printed() -> None:
    """Each shell gets a script that names the command."""
    for shell in ("bash", "zsh", "fish"):
        assert "_KVYIELD_COMPLETE" in run("completion", shell).stdout


def test_config_file_facts_fill_what_logs_leave_open(online: StandIn, log: Path, home: Path) -> None:
    """Facts of the configuration file complete a start without any option."""
    folder = home / ".config" / "kvyield"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('[facts]\ngpu = "NVIDIA H200"\nhost = "gpu-07"\n')
    assert run("observe", "--log", log, "--no-gpu").exit_code == 0
    [stored] = online.stored.values()
    assert (stored["hardware"]["gpu"], stored["hardware"]["gpu_count"], stored["host"]) == ("NVIDIA H200", 8, "gpu-07")


def test_the_installed_command_runs_as_a_process(log: Path) -> None:
    """As a process of its own it reads standard input, prints JSON only, and ends with 0."""
    command = [sys.executable, "-m", "kvyield", "observe", "-", *FACTS, "--dry-run", "--json"]
    done = subprocess.run(command, input=LOG.encode(), capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["outcome"] == "ready"


def test_a_closed_pipe_is_no_traceback(online: StandIn, log: Path) -> None:
    """Output into a reader that has gone away ends quietly."""
    run("observe", "--log", log, *FACTS)
    command = [sys.executable, "-m", "kvyield", "history", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Neither the package nor the help loads the HTTP library, the structs, numpy or anything of the server."""
    code = (
        "import sys, kvyield, kvyield.cli\n"
        "heavy = {'httpx', 'msgspec', 'rich', 'numpy', 'sqlalchemy', 'litestar', 'kvyield_server'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "kvyield.Client, kvyield.Observation\n"
        "print(sorted(heavy & set(sys.modules) - {'httpx', 'msgspec', 'rich'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True)
    assert done.stdout == "[]\n[]\n"


INTERRUPTIBLE = (  # a shell's background jobs, such as this run may be, ignore interrupts, and so do their children
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from kvyield.cli import main; main()"
)


def test_an_interrupt_is_130_and_loses_nothing(tmp_path: Path) -> None:
    """Ctrl-C while a log is read ends at once, without a traceback, with the shell's code for it."""
    os.mkfifo(tmp_path / "log")
    words = ["observe", "--log", str(tmp_path / "log"), "--dry-run", "--no-gpu"]
    command = [sys.executable, "-c", INTERRUPTIBLE, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process, (tmp_path / "log").open("wb") as pipe:
        pipe.write(b"a line\n")
        pipe.flush()
        time.sleep(0.5)  # until it waits for the next line: while Python still imports, it may drop an interrupt
        errors = b""
        while process.returncode is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_the_import_summary_fits_a_terminal(online: StandIn, tmp_path: Path) -> None:
    """Columns that count nothing are left out, zeros are dashes, and long names keep their beginning and their end."""
    folder = tmp_path / ("a-long-folder-name-" * 4)
    folder.mkdir()
    for number in range(2):
        (folder / f"sglang-{number}.log").write_text(LOG.replace("22:0", f"2{number}:0"))
    (folder / "unfinished.log").write_text(LOG[:100])
    result = run("import", str(folder), *FACTS)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80, result.stdout
    [head] = [line for line in lines if "log" in line and "starts" in line]
    assert head.split() == ["log", "starts", "stored", "unfinished"], result.stdout
    rows = [line.split() for line in lines if "…" in line]
    assert [counts for _, *counts in rows] == [["1", "1", "-"], ["1", "1", "-"], ["-", "-", "1"]]
    assert rows[1][0].endswith("/sglang-1.log")
