"""``kvyield tune -- COMMAND``: the loop with a real stand-in engine, a real service and real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from http.client import HTTPException
from pathlib import Path

import pytest

from _standin_hosts import BASE, Host, Running, is_gone, until
from e2e.running import Server, environment

SERVES = "the engine serves; it is watched until it ends"


def serving(running: Running) -> Running:
    running.wait_for(SERVES)
    return running


def test_the_worked_case_is_verified_in_one_restart(host: Host) -> None:
    """From the first start at 0.85 to a served prompt of 200,000 tokens; each start is a row, settled by its advice."""
    running = serving(host.tune("--yes", "--json"))
    first, second = running.records
    assert (first["restarts"], second["restarts"], second["result"]) == (0, 1, "verified")
    assert (first["pool_tokens"], second["verification"]["prompt_tokens"]) == (101_134, 200_000)
    assert second["verification"]["answer"] == "right"
    assert second["flags"]["mem_fraction_static"] == first["advice"]["flags"]["mem_fraction_static"]
    base, advised = host.rows()
    assert (base.outcome, base.recommendation_id) == ("ready", None)
    assert str(advised.recommendation_id) == first["advice"]["id"]
    assert [one.passed for one in advised.verifications] == [True]
    assert running.end() == 0
    assert "last good flags: mem_fraction_static=0.92" in running.err.splitlines()[-1]
    assert host.engines() == []


def test_a_target_beyond_the_gpu_restarts_nothing(host: Host) -> None:
    """The engine runs on with its own flags, and tune stays its parent."""
    running = serving(host.tune("--yes", "--json", "--target-tokens", "3m"))
    [record] = running.records
    assert (record["result"], record["restarts"], record["advice"]["status"]) == ("infeasible", 0, "infeasible")
    assert [row.outcome for row in host.rows()] == ["ready"]
    found = host.flags_running()
    assert found is not None
    assert found["mem_fraction_static"] == 0.85
    assert running.end() == 1


def test_a_start_that_runs_out_of_memory_is_rolled_back_and_retried_lower(host: Host) -> None:
    """The old flags serve in between, are a row of their own, and are not charged with the death."""
    host.standin = {"oom_above_fraction": 0.9275, "start_seconds": 3.1}
    running = serving(host.tune("--yes", "--json"))
    outcomes = [(row.outcome, row.flags["mem_fraction_static"]) for row in host.rows()]
    assert outcomes == [("ready", 0.85), ("oom_startup", 0.928), ("ready", 0.85), ("ready", 0.926)]
    assert running.records[-1]["result"] == "verified"
    assert running.end() == 0


def test_a_death_while_verifying_is_evidence_and_the_old_flags_serve_again(host: Host) -> None:
    """The row says how many tokens were sent; what was there before runs when tune gives up."""
    host.standin = {"need_base_gib": 5.0, "start_seconds": 3.1}  # equal flags within two seconds are one start
    running = serving(host.tune("--yes", "--json", "--max-restarts", "1"))
    base, died, again = host.rows()
    assert [row.outcome for row in (base, died, again)] == ["ready", "oom_runtime", "ready"]
    assert died.failure is not None
    assert died.failure.phase == "serving"
    assert died.failure.prompt_tokens == died.verifications[-1].prompt_tokens
    assert again.flags["mem_fraction_static"] == 0.85
    assert again.recommendation_id is None
    found = host.flags_running()
    assert found is not None
    assert (found["mem_fraction_static"], found["context_length"]) == (0.85, 32768)
    assert running.end() == 1


def test_what_holds_the_target_is_verified_without_a_restart(host: Host) -> None:
    """Nobody has to say yes to a prompt."""
    running = serving(host.tune("--json", "--target-tokens", "30k"))
    [record] = running.records
    assert (record["result"], record["restarts"]) == ("verified", 0)
    assert running.end() == 0


def test_without_a_terminal_and_without_yes_nothing_is_restarted(host: Host) -> None:
    """The message names what allows it; the engine runs on."""
    running = serving(host.tune("--json"))
    assert "--yes" in running.records[-1]["reason"]
    assert len(host.rows()) == 1
    assert running.end() == 1


def test_requests_in_flight_keep_an_engine_from_being_restarted(host: Host) -> None:
    """They are waited for, bounded; then the engine runs on."""
    host.standin = {"faults": {"hang_midway": True}}
    running = host.tune("--json", "--yes", "--idle-timeout", "0.5", "--target-tokens", "3m")
    running.wait_for(SERVES)
    running.end()
    running = host.tune("--json", "--yes", "--idle-timeout", "0.5")
    until(host.flags_running)
    body = json.dumps({"text": "word " * 50, "sampling_params": {"max_new_tokens": 4}, "stream": True}).encode()
    request = urllib.request.Request(f"{host.server}/generate", body)
    threading.Thread(target=_read, args=(request,), daemon=True).start()
    running.wait_for(SERVES)
    assert "--restart-busy" in running.records[-1]["reason"]
    assert running.records[-1]["restarts"] == 0
    assert running.end() == 1


def _read(request: urllib.request.Request) -> None:
    with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def test_an_engine_that_ignores_the_flag_gets_its_old_flags_back(host: Host) -> None:
    """Its own log tells what it runs with; that is said."""
    host.standin = {"ignores_fraction": 0.85, "start_seconds": 3.1}  # equal flags within two seconds are one start
    running = serving(host.tune("--yes", "--json"))
    assert "did not reach the engine: mem_fraction_static was given as 0.928" in running.err
    assert running.records[-1]["result"] == "not_verified"
    assert len(host.rows()) == 3
    assert running.end() == 1


def test_flags_that_the_engine_refuses_are_a_row_without_a_charge(host: Host) -> None:
    """An engine that dies before it logs anything is told by its last words; the old flags serve again."""
    parser = host.folder / "picky.py"
    parser.write_text(
        "import os, sys\n"
        "if '0.85' not in sys.argv: sys.exit('error: unrecognized arguments')\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'sglang.launch_server', *sys.argv[1:]])\n"
    )
    engine = [str(parser), "--model-path", host.model, "--port", str(host.port)]
    parser.write_text(f"#!{host.engine[0]}\n{parser.read_text()}")
    parser.chmod(0o755)
    host.standin = {"start_seconds": 3.1}  # two starts of the same flags within two seconds are one to a ledger
    running = serving(host.tune("--yes", "--json", "--engine", "sglang", engine=engine))
    _, refused, again = host.rows()
    assert (refused.outcome, refused.measurements.pool_tokens) == ("failed", None)
    assert refused.failure is not None
    assert "unrecognized arguments" in (refused.failure.message or "")
    assert again.outcome == "ready"
    assert running.end() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_restart_leaves_nothing_running(host: Host, number: signal.Signals) -> None:
    """It comes to the engine too; the last line names the last good flags, and nothing is started again."""
    host.standin = {"start_seconds": 2.0}
    running = host.tune("--yes")
    running.wait_for("restarting with")
    assert running.end(number) == 1
    assert "the last good flags: mem_fraction_static=0.85" in running.err.splitlines()[-1]
    assert host.engines() == []
    [journal] = host.state.glob("*.json")
    assert json.loads(journal.read_bytes())["intent"] is None


@pytest.mark.parametrize("ignored", [1, 9])
def test_an_engine_that_does_not_end_when_asked_is_ended(host: Host, ignored: int) -> None:
    """One that needs two signals gets two, one that ignores them is killed; nothing is left."""
    host.standin = {"ignores_term": ignored}
    running = serving(host.tune("--json", "--target-tokens", "30k"))
    assert running.end() == 0
    assert host.engines() == []


def test_an_engine_that_ends_by_itself_gives_its_status(host: Host) -> None:
    """As a container's entrypoint would; its end is posted."""
    host.standin = {"exit_status": 7}
    running = serving(host.tune("--target-tokens", "30k"))
    [pid] = host.engines()
    os.kill(pid, signal.SIGTERM)
    assert running.code() == 7
    assert host.engines() == []


def test_the_first_start_that_dies_at_once_gives_its_status(host: Host) -> None:
    """There is nothing to go back to."""
    host.standin = {"dies_at_once": True}
    assert host.tune("--yes").code() == 3
    assert host.engines() == []


def test_a_second_run_on_the_same_engine_is_refused(host: Host) -> None:
    """The lock names the process that holds it."""
    running = serving(host.tune("--target-tokens", "30k"))
    second = host.tune("--target-tokens", "30k")
    assert second.code() == 1
    assert f"process {running.process.pid}" in second.err
    assert running.end() == 0


def test_memory_that_is_released_late_is_waited_for(host: Host) -> None:
    """The start with the advised flags finds all of it, and the wait is said."""
    late = Host(host.folder / "late", host.url, release_seconds=2.5)
    running = serving(late.tune("--yes", "--json"))
    assert "waiting up to 120 s for the memory" in running.err
    assert running.records[-1]["result"] == "verified"
    assert running.end() == 0


def test_a_start_on_memory_that_was_still_held_is_no_evidence(host: Host) -> None:
    """It is a row that failed for another reason, and the same flags are tried once more."""
    late = Host(host.folder / "late", host.url, release_seconds=2.5)
    running = serving(late.tune("--yes", "--json", "--memory-timeout", "0.2"))
    held = [row for row in late.rows() if row.outcome == "failed"]
    assert held
    assert all("still held GPU memory" in (row.failure.message or "") for row in held if row.failure)
    assert not [row for row in late.rows() if row.outcome in ("oom_startup", "refused")]
    running.end()


def test_a_lost_service_in_mid_round_ends_with_the_old_flags(host: Host, tmp_path: Path) -> None:
    """What was measured waits in the spool, and that is said."""
    service = Server(tmp_path)
    host.environ["KVYIELD_URL"] = service.url
    host.standin = {"oom_above_fraction": 0.9265, "start_seconds": 1.0}
    running = host.tune("--yes")
    running.wait_for("restarting with")
    service.kill()
    running.wait_for(SERVES)
    assert "waits in the spool" in running.err
    found = host.flags_running()
    assert found is not None
    assert found["mem_fraction_static"] == 0.85
    assert running.end() == 1


def test_a_journal_that_cannot_be_written_changes_nothing(host: Host) -> None:
    """A full disk, say: no restart without a way back."""
    host.state.parent.mkdir(parents=True)
    host.state.write_text("a file where the folder should be")
    running = host.tune("--yes")
    assert running.code() == 1
    assert "journal" in running.err
    assert host.rows() == []


def test_a_dry_run_starts_and_posts_nothing(host: Host) -> None:
    """It says so."""
    running = host.tune("--dry-run")
    assert running.code() == 1
    assert "--dry-run" in running.err
    assert host.rows() == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--url", "banana"), "'banana' is not an address like http://127.0.0.1:8321"),
        (("--server", "http://[::1"), "'http://[::1' is not an address"),
        (("--ca-file", "none.pem"), "there is no file none.pem, which --ca-file names"),
        (("--model-config", "none.json"), "none.json cannot be read"),
        (("--flag", "x"), "--flag takes NAME=VALUE"),
        (("--log", "."), "--log . is a folder"),
        (("--log", "a", "--docker", "b"), "give one source"),
        (("--user",), "--user needs --unit"),
        (("--format", "args"), "--format needs --write"),
        (("--restart-command", "true"), "--restart-command needs --write"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(host: Host, options: tuple[str, ...], named: str) -> None:
    """Exit 2; nothing was started, posted or written."""
    running = host.tune("--yes", *options)
    assert running.code() == 2, running.err
    assert named in running.err
    assert not host.state.exists()


def test_nothing_is_started_where_something_else_answers(host: Host) -> None:
    """Its answers would be taken for those of the engine."""
    running = serving(host.tune("--json", "--target-tokens", "30k"))
    second = host.tune("--json", "--target-tokens", "30k", "--state", str(host.folder / "other"))
    assert second.code() == 1
    assert "something else answers at its address" in second.err
    assert len(host.rows()) == 1
    assert running.end() == 0


def test_a_refused_token_is_told_before_the_engine_starts(host: Host, tmp_path: Path) -> None:
    """The engine serves all the same: an expired token must not take a service down."""
    folder = tmp_path / "service"
    folder.mkdir()
    command = [sys.executable, "-m", "kvyield_server", "token", "create", "--name", "ann", "--role", "ingest"]
    token = subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True, text=True).stdout
    service = Server(folder)
    try:
        host.environ |= {"KVYIELD_URL": service.url, "KVYIELD_TOKEN": "wrong"}
        running = serving(host.tune("--json"))
        told, _, later = running.err.partition("the engine will serve, and nothing can be tuned")
        assert "fired up" not in told
        assert "fired up" in later
        assert host.flags_running()
        assert running.end() == 1
        host.environ["KVYIELD_TOKEN"] = token.split()[-1]
        running = serving(host.tune("--json"))
        assert "the token has the roles ingest, and tune needs ingest and read" in running.err
        assert running.end() == 1
    finally:
        service.stop()


@pytest.mark.slow
def test_an_engine_that_is_silent_is_read_by_its_endpoints(host: Host) -> None:
    """Healthy for a while without a word in the log: the endpoints show it."""
    host.standin = {"is_silent": True}
    running = serving(host.tune("--json", "--target-tokens", "30k"))
    assert running.records[-1]["result"] == "verified"
    [row] = host.rows()
    assert (row.source, row.measurements.pool_tokens) == ("endpoint", 101_134)
    assert running.end() == 0


def test_a_later_run_begins_with_the_flags_that_passed(host: Host) -> None:
    """A container that is restarted does not search again; `--undo` forgets them."""
    first = serving(host.tune("--yes"))
    assert first.end() == 0
    second = serving(host.tune("--yes", "--json"))
    [record] = second.records
    assert (record["result"], record["restarts"]) == ("verified", 0)
    assert record["flags"]["mem_fraction_static"] > 0.9
    assert second.end() == 0
    assert host.tune("--undo").code() == 0
    third = serving(host.tune("--json", "--target-tokens", "30k"))
    assert third.records[0]["flags"]["mem_fraction_static"] == 0.85
    assert third.end() == 0


def test_output_is_passed_through(host: Host) -> None:
    """SGLang's words come on standard error, as from the engine itself; without --json none are on the wrong one."""
    running = serving(host.tune("--target-tokens", "30k"))
    assert "The server is fired up and ready to roll!" in running.err
    assert running.out == ""
    assert running.end() == 0


def test_a_killed_run_is_taken_over_by_the_next(host: Host) -> None:
    """The engine serves on while nobody is its parent, and is not started twice."""
    running = serving(host.tune("--yes"))
    [pid] = host.engines()
    running.kill()
    assert not is_gone(pid)
    after = serving(host.tune("--yes", "--json"))
    assert host.engines() == [pid]
    assert after.records[-1]["result"] == "verified"
    assert after.end() == 0
    assert is_gone(pid)


def test_a_run_killed_in_mid_restart_is_restored_by_the_next(host: Host) -> None:
    """The flags before tune run again before anything else is tried."""
    host.standin = {"start_seconds": 2.0}
    running = host.tune("--yes")
    running.wait_for("restarting with")
    running.kill()
    after = serving(host.tune("--json"))
    assert "an earlier run was killed" in after.err
    found = host.flags_running()
    assert found is not None
    assert found["mem_fraction_static"] == 0.85
    assert len(host.engines()) == 1
    assert after.end() == 1


def test_undo_puts_back_what_a_killed_run_left(host: Host) -> None:
    """Without a word of which engine: the journal knows."""
    host.standin = {"start_seconds": 1.0}
    running = host.tune("--yes")
    running.wait_for("restarting with")
    running.kill()
    undo = serving(host.run("--undo"))
    found = host.flags_running()
    assert found is not None
    assert found["mem_fraction_static"] == 0.85
    assert undo.end() == 0
    assert host.engines() == []


def test_flags_after_the_dashes_stay_as_they_are(host: Host) -> None:
    """Only what the advice changes changes, where it stands."""
    flags = (*BASE[:1], "0.85", "--enable-metrics", *BASE[2:])
    running = serving(host.tune("--yes", flags=flags))
    told = Path(f"/proc/{host.engines()[0]}/cmdline").read_text().split("\0")
    assert "--enable-metrics" in told
    assert told.index("--mem-fraction-static") < told.index("--enable-metrics")
    assert running.end() == 0
