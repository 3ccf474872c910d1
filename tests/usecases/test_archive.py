"""What export writes, import restores: starts with all that belongs to them, answers, times; and hosts may post it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from litestar.testing import TestClient

from api.samples import NAMES, VERIFICATION, start
from kvyield_server.app import create_app
from kvyield_server.cli import main
from kvyield_server.settings import Settings
from kvyield_server.storage.engine import open_storage

ALIAS = "0197b0a0-0000-7000-8000-0000000000aa"
HOSTLESS = "0197b0a0-0000-7000-8000-0000000000bb"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind, to be filled."""
    found: str = (
        f"sqlite:///{tmp_path / 'a.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    )
    return found


@pytest.fixture
def filled(url: str) -> Iterator[dict[str, Any]]:
    """A ledger with verifications, a retraction, a merged and corrected start, answers settled, open and cold."""
    with TestClient(create_app(Settings(database=url), open_storage(url))) as client:

        def post(path: str, body: Any) -> Any:
            answer = client.post(path, json=body)
            assert answer.status_code < 300, answer.text
            return answer.json()

        post("/observations", start(1))
        post("/observations", start(2))
        more = {"pool_tokens": 192406, "graph_gib": 1.5}
        post("/observations", start(2, id=ALIAS, source="endpoint", measurements=more))
        post(f"/observations/{ALIAS}/corrections", {"hardware": {"memory_gib": 96}, "reason": "typed wrong"})
        post(f"/observations/{start(2)['id']}/verifications", {**VERIFICATION, "answer": "right"})
        answer = post("/recommendations", {**NAMES, "target_tokens": 200_000})
        post("/observations", start(3, recommendation_id=answer["id"]))
        post("/recommendations", {**NAMES, "target_tokens": 250_000, "prefer": "pool"})
        cold = {"gpu": "NVIDIA H200", "gpu_count": 1, "model": "m", "engine": "sglang", "target_tokens": 9, "facts": {}}
        post("/recommendations", cold)
        post("/observations", start(1, id=HOSTLESS, host=None, observed_at=None, source=None))
        post(f"/observations/{HOSTLESS}/retraction", {"reason": "by hand"})
        yield seen(client)


def seen(client: TestClient[Any]) -> dict[str, Any]:
    """Return all that a ledger says of its starts, pairs and answers; revisions count changes, which an import is."""
    starts = client.get("/observations").json()["items"]
    ids = [*(each["id"] for each in starts), ALIAS]
    pairs = [{**pair, "revision": 0} for pair in client.get("/pairs").json()["items"]]
    answers = [each["subject"] for each in client.get("/audit").json()["items"] if each["action"] == "recommend"]
    return {
        "starts": [client.get(f"/observations/{each}").json() for each in ids],
        "pairs": pairs,
        "answers": {each: client.get(f"/recommendations/{each}").json() for each in answers},
        "calibration": client.get("/calibration").json(),
    }


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def exported(url: str, file: Path) -> list[bytes]:
    result = run("export", "--database", url)
    assert result.exit_code == 0, result.output
    file.write_bytes(result.stdout_bytes)
    return result.stdout_bytes.splitlines()


def test_an_import_restores_all_that_an_export_wrote(url: str, filled: dict[str, Any], tmp_path: Path) -> None:
    """The second ledger says what the first says, finds the same ids, and exports the same lines, again too."""
    file, other = tmp_path / "ledger.ndjson", f"sqlite:///{tmp_path / 'b.db'}"
    lines = exported(url, file)
    done = run("import", "--database", other, file)
    assert (done.exit_code, done.output) == (0, "4 starts and 3 recommendations restored; 0 starts were known.\n")
    assert exported(other, tmp_path / "again.ndjson") == lines
    with TestClient(create_app(Settings(database=other), open_storage(other))) as client:
        for name, answer in filled["answers"].items():
            assert client.get(f"/recommendations/{name}").json() == answer
        now = seen(client)
    assert len(filled["answers"]) == 3
    assert {**now, "answers": filled["answers"]} == filled
    again = run("import", "--database", other, file)
    assert again.output == "0 starts and 0 recommendations restored; 4 starts were known.\n"
    assert exported(other, tmp_path / "again.ndjson") == lines


def test_lines_of_both_exports_may_be_posted(url: str, filled: dict[str, Any], tmp_path: Path) -> None:
    """A batch takes the lines of the command's export and of the API's; posted where they came from, all are known."""
    lines = exported(url, tmp_path / "ledger.ndjson")
    with TestClient(create_app(Settings(database=url), open_storage(url))) as client:
        others = client.get("/export/observations.ndjson").content.splitlines()
        for some in (lines, others):
            items = [json.loads(line) for line in some]
            told = client.post("/observations/batch", json={"observations": items}).json()["items"]
            assert [each["status"] for each in told] == [200] * 4
            assert [each["id"] for each in told] == [each["id"] for each in items]
        assert len(client.get("/observations").json()["items"]) == 4
    empty = f"sqlite:///{tmp_path / 'c.db'}"
    with TestClient(create_app(Settings(database=empty), open_storage(empty))) as client:
        items = [{**json.loads(line), "recommendation_id": None} for line in lines]
        told = client.post("/observations/batch", json={"observations": items}).json()["items"]
        assert [each["status"] for each in told] == [201] * 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense", "not valid JSON"),
        (b'{"id": 5}', "needed and missing"),
        (json.dumps({**start(), "archive": {"ids": [7]}}).encode(), "ids"),
        (json.dumps({**start(), "flags": {}}).encode(), "mem_fraction_static is needed"),
        (json.dumps({**start(), "surprise": 1}).encode(), "surprise is not known"),
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_written(tmp_path: Path, line: bytes, said: str) -> None:
    """The number of the line and what is wrong with it, exit 1, and an empty ledger."""
    file, url = tmp_path / "ledger.ndjson", f"sqlite:///{tmp_path / 'd.db'}"
    file.write_bytes(json.dumps(start(1)).encode() + b"\n" + line + b"\n")
    result = run("import", "--database", url, file)
    assert result.exit_code == 1
    assert "Line 2" in result.output
    assert said in result.output
    assert run("export", "--database", url).stdout_bytes == b""
