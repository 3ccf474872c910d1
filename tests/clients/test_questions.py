"""Questions from the command line: which pair they are about, what is printed where, what the exit code says."""

from __future__ import annotations

import json
import os
import time
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import _stand_in_service as faults
from _samples_client import LOG
from _stand_in_service import StandIn
from kvyield.cli import COMMANDS, _options, _run, main
from kvyield.cli._tables import percent

APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1
NAMED = ("--model", "m", "--gpu", "NVIDIA H200", "--gpu-count", "8", "--engine", "sglang")
ADVICE: dict[str, Any] = {
    "status": "ok",
    "engine": "sglang",
    "command_line": "--mem-fraction-static 0.9",
    "explanation": "because",
    "restarts": {"expected": 1, "minutes": 0.3},
    "new_field": [1],
}


@pytest.fixture
def online(service: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("KVYIELD_URL", service.url)
    service.advice = dict(ADVICE)
    return service


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner(**APART).invoke(main, arguments, input=stdin)


@pytest.mark.parametrize(
    ("status", "stdout", "words"),
    [
        ("ok", "--mem-fraction-static 0.9\n", ""),
        ("at_risk", "--mem-fraction-static 0.9\n", "at risk"),
        ("infeasible", "", "because"),
        ("not_enough_evidence", "", "because"),
    ],
)
def test_args_are_flags_or_nothing(online: StandIn, status: str, stdout: str, words: str) -> None:
    """Standard output can be put into a command line as it is; the headline and the reason go to standard error."""
    online.advice["status"] = status
    result = run("recommend", "--target-tokens", "200k", *NAMED, "--format", "args")
    assert (result.exit_code, result.stdout) == (0, stdout)
    assert words in result.stderr
    assert 1 <= len(result.stderr.splitlines()) <= (1 if status == "ok" else 2)


@pytest.mark.parametrize(
    ("status", "required", "code"),
    [
        ("ok", "ok", 0),
        ("at_risk", "ok", 5),
        ("at_risk", "at_risk", 0),
        ("infeasible", "at_risk", 5),
        ("not_enough_evidence", "ok", 5),
    ],
)
def test_what_is_required_decides_the_exit_code(online: StandIn, status: str, required: str, code: int) -> None:
    """Advice worse than what is required ends with 5, in every form of output."""
    online.advice["status"] = status
    for form in ((), ("--json",), ("--format", "args"), ("--diff",)):
        assert run("recommend", "--target-tokens", "1m", *NAMED, "--require", required, *form).exit_code == code


def test_json_is_one_object_on_one_line_with_all_that_was_answered(online: StandIn) -> None:
    """--json can be read line by line, --format json by a person; fields that a newer service adds are kept."""
    [line] = run("recommend", "--target-tokens", "200k", *NAMED, "--json").stdout.splitlines()
    assert json.loads(line) == ADVICE
    pretty = run("recommend", "--target-tokens", "200k", *NAMED, "--format", "json").stdout
    assert len(pretty.splitlines()) > 3
    assert json.loads(pretty) == ADVICE


@pytest.mark.parametrize("text", ["200000", "200_000", "200,000", "200k", "0.2m"])
def test_token_counts_as_people_write_them(online: StandIn, text: str) -> None:
    """Thousands may be marked, and k and m stand for a thousand and a million."""
    assert run("recommend", "--target-tokens", text, *NAMED).exit_code == 0
    assert "target_tokens=200000" in online.requests[-1][1]


@pytest.mark.parametrize("text", ["k", "0", "-1", "2e5", "200g", "1" * 40])
def test_what_is_no_token_count_is_wrong_usage(online: StandIn, text: str) -> None:
    """Other words and numbers below one are refused before anything is asked."""
    assert run("recommend", f"--target-tokens={text}", *NAMED).exit_code == 2
    assert online.requests == []


def test_a_restart_of_seconds_is_not_zero_minutes(online: StandIn) -> None:
    """The restart plan is told in words that are true."""
    assert "1 expected, under a minute in all" in run("recommend", "--target-tokens", "200k", *NAMED).stdout


@pytest.fixture
def no_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A systemd that knows no unit, with an empty journal."""
    for name, text in (("journalctl", "true"), ("systemctl", "echo LoadState=not-found")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("no_unit")
def test_doctor_says_each_thing_once() -> None:
    """With the service down the token is not checked, no advice comes twice, and a unit that is not there is named."""
    result = run("doctor", "--url", "http://127.0.0.1:9", "--journal", "nosuch.service")
    assert result.exit_code == 1
    assert "skip  token: not checked" in result.stdout
    assert "FAIL  log: systemd knows no unit nosuch.service" in result.stdout
    assert result.stdout.count("Connection refused") == 1
    assert result.stdout.count("--gpu-count") <= 1


@pytest.mark.usefixtures("no_unit")
def test_watch_says_what_it_watches_and_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit or a file that does not exist yet is waited for, and that is said."""
    monkeypatch.setattr("kvyield.cli.watch.follow", lambda *_: None)
    assert (
        "watching journal of x.service; systemd knows no unit x.service"
        in run("watch", "--journal", "x.service").stderr
    )
    absent = str(tmp_path / "absent.log")
    assert f"watching {absent}; there is no such file yet: waiting" in run("watch", "--log", absent).stderr
    assert run("watch", "-").stderr == "kvyield: watching standard input\n"


def test_what_a_warning_says_is_not_explained_again(online: StandIn) -> None:
    """An explanation that is a warning's own sentence stands there once."""
    online.advice["warnings"] = [{"code": "not_enough_evidence", "detail": "because"}]
    assert run("recommend", "--target-tokens", "200k", *NAMED).stdout.count("because") == 1


def test_nothing_is_certain() -> None:
    """What rounds to one hundred percent or to none is shown as nearly so."""
    values = (1.0, 0.99996, 0.9994, 0.84, 0.004, 0.0004, 0.0, None)
    shown = ["> 99.9 %", "> 99.9 %", "99.9 %", "84 %", "0.4 %", "< 0.1 %", "< 0.1 %", "-"]
    assert [percent(value) for value in values] == shown


def test_predictions_name_what_they_are_based_on_and_warn(online: StandIn) -> None:
    """The table is followed by the deployment that it is based on, and by each warning once."""
    online.prediction = {
        "basis": {"kind": "own_starts", "deployment": "sglang 0.5.12, DFLASH", "observation_ids": []},
        "warnings": [{"code": "few_starts", "detail": "only one start"}],
    }
    result = run("predict", "--fraction", "0.9", "--fraction", "0.92", *NAMED)
    assert result.exit_code == 0, result.output
    assert "based on  own starts; sglang 0.5.12, DFLASH" in result.stdout
    assert result.stdout.count("warning: only one start [few_starts]") == 1


def test_the_only_pair_that_fits_is_meant(online: StandIn) -> None:
    """Names may be loose and some left out, as long as one pair fits; what was asked about is said."""
    facts = ("--gpu", "NVIDIA RTX PRO 6000", "--gpu-count", "8", "--no-gpu", "--host", "elsewhere")
    assert run("observe", "-", *facts, stdin=LOG).exit_code == 0
    [stored] = online.stored.values()
    result = run(
        "recommend", "--target-tokens", "200k", "--model", stored["model"]["name"].upper(), "--gpu", "rtx pro 6000"
    )
    assert result.exit_code == 0, result.output
    assert "the only pair that fits" in result.stderr
    assert "gpu=NVIDIA+RTX+PRO+6000&gpu_count=8" in online.requests[-1][1].replace("%20", "+")
    missed = run("recommend", "--target-tokens", "200k", "--model", "other")
    assert missed.exit_code == 1
    assert "no pair that fits; it holds" in missed.stderr
    assert "8 x NVIDIA RTX PRO 6000" in missed.stderr


def test_every_command_and_exit_code_is_in_the_readme() -> None:
    """The client's README lists each command, and each code that a command can end with."""
    readme = (Path(__file__).parents[2] / "clients" / "python" / "README.md").read_text()
    for name in COMMANDS:
        assert f"| `{name}" in readme, name
    for code in (_run.DONE, _run.FAILED, _run.USAGE, _run.REFUSED, _run.UNREACHABLE, _run.BELOW, _run.INTERNAL):
        assert f"\n| {code} | " in readme
    assert "KVYIELD_SERVER_KEY" in run("observe", "--help").stdout


def test_the_headline_is_the_services_own(online: StandIn) -> None:
    """Where the answer has a headline it is printed as it is; without one the status is told in words."""
    assert run("recommend", "--target-tokens", "200k", *NAMED).stdout.startswith("ok: these flags hold the target")
    online.advice["headline"] = {"code": "keep", "estimate": False, "text": "Keep what runs."}
    assert run("recommend", "--target-tokens", "200k", *NAMED).stdout.startswith("Keep what runs.\n")
    online.advice["status"] = "at_risk"
    assert (
        run("recommend", "--target-tokens", "200k", *NAMED, "--format", "args").stderr == "kvyield: Keep what runs.\n"
    )
    assert "kvyield: Keep what runs." in run("recommend", "--target-tokens", "200k", *NAMED, "--diff").stderr


def test_what_is_preferred_is_asked(online: StandIn) -> None:
    """--prefer goes to the service; without it nothing is said, so that an older service understands the question."""
    assert run("recommend", "--target-tokens", "200k", *NAMED, "--prefer", "headroom").exit_code == 0
    assert "prefer=headroom" in online.requests[-1][1]
    assert run("recommend", "--target-tokens", "200k", *NAMED).exit_code == 0
    assert "prefer" not in online.requests[-1][1]
    assert run("recommend", "--target-tokens", "200k", *NAMED, "--prefer", "luck").exit_code == 2


def test_a_start_that_is_named_tells_the_engine(online: StandIn) -> None:
    """With --like the fraction is the flag of that start's engine, whatever this host's newest start is."""
    facts = ("--gpu", "NVIDIA H200", "--gpu-count", "8", "--no-gpu", "--host", "gpu-01")
    assert run("observe", "-", *facts, stdin=LOG).exit_code == 0
    [sglang] = online.stored.values()
    newest = {"id": "ffffffff-0000-7000-8000-000000000000", "pair_id": sglang["pair_id"], "host": "gpu-01"}
    newest |= {"engine": {"name": "vllm"}, "flags": {"gpu_memory_utilization": 0.9}, "verifications": []}
    online.stored["newer"] = {**sglang, **newest}
    result = run("predict", "--fraction", "0.98", "--like", sglang["id"], "--host", "gpu-01")
    assert result.exit_code == 0, result.output
    assert "mem_fraction_static=0.98" in result.stdout
    assert "sglang" in result.stderr
    assert "vllm" not in result.stderr
    assert "gpu_memory_utilization=0.9" in run("predict", "--fraction", "0.9", "--host", "gpu-01").stdout
    assert "asked about" in run("recommend", "--target-tokens", "200k", "--like", sglang["id"]).stderr
    assert "engine=sglang" in online.requests[-1][1]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.silent, ("recommend", "--target-tokens", "200k")),
        (faults.drip_headers, ("recommend", "--target-tokens", "200k", *NAMED)),
        (faults.drip_body, ("predict", "--fraction", "0.9", *NAMED)),
        (faults.silent, ("history",)),
        (faults.drip_body, ("doctor", "--no-gpu")),
    ],
)
def test_a_service_that_hangs_holds_nobody(
    service: StandIn, monkeypatch: pytest.MonkeyPatch, fault: Any, words: tuple[str, ...]
) -> None:
    """One deadline covers all that a question asks, retries included, and --timeout changes it."""
    monkeypatch.setenv("KVYIELD_URL", service.url)
    service.faults += [fault] * 20
    began = time.monotonic()
    result = run(*words, "--timeout", "1")
    assert result.exit_code == (1 if words[0] == "doctor" else 4), result.output
    assert 0.9 <= time.monotonic() - began < 9  # the default is 10 s


def test_ten_seconds_are_the_default(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Without an option 10 s bound an answer, and a whole question; the configuration file may say otherwise."""
    settings = _options.settings_of({})
    with _options.client_of(settings, is_one_question=True) as client:
        limits = client._base.limits
    assert (limits.total_seconds, limits.read_seconds) == (10.0, 10.0)
    assert limits.until is not None
    assert 9 < limits.until - time.monotonic() <= 10
    (home / ".config" / "kvyield").mkdir(parents=True)
    (home / ".config" / "kvyield" / "config.toml").write_text("timeout_seconds = 30\n")
    with _options.client_of(_options.settings_of({})) as client:
        assert client._base.limits.total_seconds == 30.0
    with _options.client_of(_options.settings_of({"service_timeout": 2.5})) as client:
        assert client._base.limits.total_seconds == 2.5


def test_a_wrong_fact_is_corrected_and_shown(online: StandIn) -> None:
    """Facts go to the part of the start that they belong to; what changed is shown with what was there before."""
    run("observe", "-", "--gpu", "NVIDIA H200", "--gpu-count", "8", "--no-gpu", stdin=LOG)
    [stored] = online.stored.values()
    words = ("correct", stored["id"], "--gpu-memory-gib", "96", "--model", "m/Right", "--flag", "page-size=64")
    result = run(*words, "--reason", "a typing error")
    assert result.exit_code == 0, result.output
    assert (stored["hardware"]["memory_gib"], stored["model"]["name"], stored["flags"]["page_size"]) == (
        96.0,
        "m/Right",
        64,
    )
    assert stored["history"][0]["reason"] == "a typing error"
    assert [line.split()[0] for line in result.stdout.splitlines()[2:5]] == [
        "hardware.memory_gib",
        "model.name",
        "flags.page_size",
    ]
    assert "unknown" in result.stdout
    assert "moonshotai/Kimi-K2.6" in result.stdout
    assert run(*words).stdout == "nothing changed: the ledger holds these values already\n"
    assert json.loads(run(*words, "--json").stdout)["id"] == stored["id"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("correct", "7", "--gpu", "x"), 1, "is not an id"),
        (("correct", "00000000-0000-7000-8000-000000000000", "--gpu", "x"), 3, "Not found"),
        (("correct", "00000000-0000-7000-8000-000000000000"), 2, "correct what?"),
        (("correct", "00000000-0000-7000-8000-000000000000", "--gpu-memory-gib", "0"), 2, "gpu-memory-gib"),
    ],
)
def test_what_cannot_be_corrected_is_told(online: StandIn, words: tuple[str, ...], code: int, told: str) -> None:
    """An id that is none, or unknown, and nothing to correct, each end in a sentence and their code."""
    result = run(*words)
    assert (result.exit_code, told in result.stderr) == (code, True), result.output


def test_a_post_of_a_retracted_start_says_so(online: StandIn) -> None:
    """It is known and counts as nothing: whoever posts it again learns why, from one post and from a batch."""
    facts = ("--gpu", "NVIDIA H200", "--gpu-count", "8")
    run("observe", "-", *facts, "--no-gpu", stdin=LOG)
    for stored in online.stored.values():
        stored |= {"retracted_at": "2026-06-01T00:00:00Z", "retraction_reason": "another GPU"}
    result = run("observe", "-", *facts, "--no-gpu", stdin=LOG)
    assert result.exit_code == 0
    assert "known: this start was retracted on 2026-06-01: another GPU; it counts as no evidence" in result.stderr
