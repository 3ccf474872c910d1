"""Exports of a ledger into another one: observations, verifications and, for an admin, retractions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from _samples_client import LOG, sample
from e2e.running import Server, command
from kvyield import Client, Verification
from kvyield.cli import main
from kvyield.exports import is_export, lines_of, read_export

APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1
Start = Callable[[str], Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts services with ledgers of their own."""
    running: list[Server] = []

    def started(name: str) -> Server:
        (tmp_path / name).mkdir(exist_ok=True)
        running.append(Server(tmp_path / name))
        return running[-1]

    yield started
    for one in running:
        one.stop()


@dataclass(frozen=True)
class Origin:
    """The ledger that was exported: its folder, its export and what it says of its starts."""

    folder: Path
    text: bytes
    rows: dict[str, Any]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    """Four starts: one verified, one answering an advice, one retracted, one plain."""
    folder = tmp_path_factory.mktemp("first")
    server = Server(folder)
    with Client(server.url) as client:
        _, second, third = (client.post_observation(sample(number)).id for number in range(3))
        client.add_verification(second, Verification(prompt_tokens=60_010, passed=True, answer="right"))
        client.retract(third, "a test")
        hardware = sample().hardware
        kept = client.store_recommendation(
            target_tokens=1_000, model=sample().model.name, gpu=hardware.gpu, gpu_count=8, engine="sglang"
        )
        followed = sample(7)
        followed.recommendation_id = kept.id
        client.post_observation(followed)
        text, rows = b"".join(client.export()), told(client)
    assert server.stop() == 0
    assert len(text.splitlines()) == 4
    return Origin(folder, text, rows)


@pytest.fixture
def export(origin: Origin, tmp_path: Path) -> Path:
    """That ledger's export, in a file of the test's own."""
    file = tmp_path / "ledger.ndjson"
    file.write_bytes(origin.text)
    return file


def run(url: str, *arguments: object) -> Result:
    words = ["import", *map(str, arguments), "--url", url]
    return CliRunner(**APART).invoke(main, words)


def told(client: Client) -> dict[str, Any]:
    """What a ledger says of its starts, by id."""
    rows = {str(row.id): row for row in client.observations()}
    return {
        key: (row.observed_at, row.outcome, row.measurements, row.flags, row.verifications, row.retraction_reason)
        for key, row in rows.items()
    }


def test_an_export_comes_over_whole_and_twice_doubles_nothing(start: Start, origin: Origin, export: Path) -> None:
    """Ids, times, figures, verifications and retractions are those of the ledger that it came from."""
    with Client(start("second").url) as other:
        result = run(other.url, export)
        assert result.exit_code == 0, result.output
        assert "retracted" in result.stdout
        rows = told(other)
        assert rows == origin.rows
        again = run(other.url, export)
        assert (again.exit_code, told(other)) == (0, rows)


def test_a_token_that_only_posts_reports_retractions_by_line(start: Start, export: Path, tmp_path: Path) -> None:
    """Retracting is an admin's: a start that could not be retracted here is named with its line, and not posted."""
    (tmp_path / "third").mkdir()
    token = command(tmp_path / "third", "token", "create", "--name", "host", "--role", "ingest").stdout.split()[-1]
    third = start("third")
    result = run(third.url, export, "--token", token)
    assert result.exit_code == 3, result.output
    lines = export.read_text().splitlines()
    [number] = [index for index, line in enumerate(lines, 1) if json.loads(line)["retracted_at"]]
    retracted = json.loads(lines[number - 1])["id"]
    assert f"{export}:{number}: {retracted} is retracted in the export, and was not posted" in result.stderr
    assert "admin" in result.stderr
    with Client(third.url, token) as other:
        rows = told(other)
    assert rows.keys() == {json.loads(line)["id"] for line in lines} - {retracted}
    assert all(row[-1] is None for row in rows.values())
    row = next(line.split() for line in result.stdout.splitlines() if line.startswith("all"))
    assert row[1:] == ["4", "3", "1"]


def test_a_service_that_is_away_takes_no_retracted_start(export: Path) -> None:
    """Whether the token may retract is not known then: the others wait in the spool, the retracted one is named."""
    result = run("http://127.0.0.1:9", export)
    assert result.exit_code == 1, result.output
    assert "is retracted in the export, and was not posted: http://127.0.0.1:9" in result.stderr
    row = next(line.split() for line in result.stdout.splitlines() if line.startswith("all"))
    assert row[1:] == ["4", "3", "1"]
    assert "spooled" in result.stdout


def test_history_takes_names_as_the_service_does(start: Start) -> None:
    """A model without its owner and case; several that it may mean are listed; one that is unknown has near ones."""
    with Client(start("names").url) as client:
        for number, name in enumerate(("Qwen/Qwen3-8B", "other/qwen3_8b", "moonshotai/Kimi-K2.6")):
            observation = sample(number)
            observation.model.name = name
            client.post_observation(observation)
        url = client.url

    def history(*words: str) -> Result:
        return CliRunner(**APART).invoke(main, ["history", *words, "--url", url])

    assert "192,408" in history("--model", "kimi-k2.6").stdout
    both = history("--model", "qwen3-8b")
    assert (both.exit_code, both.stdout) == (3, "")
    assert "Several models match qwen3-8b: Qwen/Qwen3-8B; other/qwen3_8b" in both.stderr
    assert history("--model", "Qwen/Qwen3-8B").exit_code == 0
    missed = history("--model", "kimi-k2.5")
    assert missed.stdout == "no start fits\n"
    assert "knows no model kimi-k2.5; did you mean moonshotai/Kimi-K2.6?" in missed.stderr
    assert "did you mean Qwen/Qwen3-8B or other/qwen3_8b?" in history("--model", "qwen3").stderr
    unlike = history("--model", "llama-3.1-8b")
    assert unlike.stderr == "kvyield: the ledger knows no model llama-3.1-8b\n"
    rows = [json.loads(line) for line in history("--sort", "observed_at", "--json").stdout.splitlines()]
    assert [row["observed_at"] for row in rows] == sorted(row["observed_at"] for row in rows)
    day = rows[0]["observed_at"][:10]
    assert len(history("--since", day, "--until", day, "--json").stdout.splitlines()) == sum(
        row["observed_at"].startswith(day) for row in rows
    )


def test_lines_that_are_damaged_or_newer_are_named(start: Start, export: Path) -> None:
    """A damaged line costs itself alone; a field that only a newer version knows is said once."""
    lines = export.read_text().splitlines()
    newer = json.dumps(json.loads(lines[0]) | {"field_of_tomorrow": 1})
    export.write_text("\n".join([newer, lines[1], '{"cut": ', *lines[2:], ""]))
    result = run(start("fourth").url, export)
    assert result.exit_code == 3
    assert f"{export}:3 is not an observation of an export" in result.stderr
    assert result.stderr.count("field_of_tomorrow is unknown to this version") == 1
    assert result.stdout.splitlines()[-2].split()[:2] == ["all", "4"]


def test_what_the_server_exported_is_taken_too(start: Start, origin: Origin, export: Path) -> None:
    """``kvyield-server export`` writes more than the API: its starts come over, answers are left to its own import."""
    text = command(origin.folder, "export", "--format", "ndjson").stdout
    export.write_text('{"archive": {"recommendations": []}}\n' + text)
    assert is_export(export)
    with Client(start("fifth").url) as other:
        result = run(other.url, export)
        assert result.exit_code == 0, result.output
        assert len(told(other)) == 4


def test_exports_are_told_from_logs(export: Path, tmp_path: Path) -> None:
    """By their first line, packed or not; a JSON log is a log."""
    packed = tmp_path / "ledger.ndjson.gz"
    packed.write_bytes(gzip.compress(export.read_bytes()))
    log, structured = tmp_path / "engine.log", tmp_path / "structured.log"
    log.write_text(LOG)
    structured.write_text(json.dumps({"log": LOG.splitlines()[0], "stream": "stderr"}) + "\n")
    assert [is_export(path) for path in (export, packed, log, structured, tmp_path / "none")] == [True] * 2 + [
        False
    ] * 3
    assert len(list(read_export(packed))) == 4


def test_a_dry_run_of_an_export_prints_what_would_be_posted(export: Path) -> None:
    """Nothing is asked of the service, and each line is an observation without what a ledger adds."""
    result = run("http://127.0.0.1:9", export, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 4
    assert all("pair_id" not in row for row in rows)


NAMES = (
    "id",
    "hardware",
    "gpu",
    "gpu_count",
    "model",
    "name",
    "engine",
    "outcome",
    "flags",
    "verifications",
    "history",
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["ready", "vllm", ""])
JSON = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=8)
)


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=80), JSON.map(lambda value: json.dumps(value).encode())))
def test_any_line_is_an_observation_or_a_fault(text: bytes) -> None:
    """Whatever stands in a file that is called an export: a line that can be posted, or a sentence, never an error."""
    for line in lines_of([text[:7], text[7:]]):
        assert (line.observation is None) is (line.fault is not None)
