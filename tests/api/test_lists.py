"""Lists: newest first, stable while rows arrive, filtered, exported in a stream."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from api.conftest import Client
from api.samples import GPU, MODEL, VERIFICATION, start
from kvyield_server.storage.records import Role
from kvyield_server.storage.uow import Storage
from kvyield_server.storage.values import utc_now
from kvyield_server.usecases.tokens import new_token


def post_many(client: Client, count: int, **changes: Any) -> list[str]:
    """Post starts a minute apart and return their ids, newest first."""
    items = [
        start(id=None, observed_at=f"2026-05-30T{22 + n // 60}:{n % 60:02}:00Z", host=f"gpu-{n:03}", **changes)
        for n in range(count)
    ]
    answer = client.post("/observations/batch", json={"observations": items})
    return [item["id"] for item in reversed(answer.json()["items"])]


def walk(client: Client, path: str, size: int) -> list[dict[str, Any]]:
    """Return all items of a list by following its tokens."""
    items: list[dict[str, Any]] = []
    token: str | None = ""
    while token is not None:
        page = client.get(
            f"{path}{'&' if '?' in path else '?'}page_size={size}" + (f"&page_token={token}" if token else "")
        )
        items += page.json()["items"]
        token = page.json()["next_page_token"]
    return items


@pytest.mark.parametrize("size", [1, 7, 20, 500])
def test_pages_hold_each_row_once_newest_first(client: Client, size: int) -> None:
    """Whatever the page size, following the tokens gives every observation once, newest first."""
    ids = post_many(client, 20)
    assert [item["id"] for item in walk(client, "/observations", size)] == ids


def test_rows_that_arrive_do_not_shift_a_page(client: Client) -> None:
    """A newer observation between two pages changes nothing about the second."""
    ids = post_many(client, 10)
    first = client.get("/observations?page_size=5").json()
    client.post("/observations", json=start(3, observed_at="2026-06-01T00:00:00Z"))
    second = client.get(f"/observations?page_size=5&page_token={first['next_page_token']}").json()
    assert [item["id"] for item in first["items"] + second["items"]] == ids
    assert second["next_page_token"] is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (f"gpu={GPU}", 3),
        ("gpu=H200", 1),
        (f"model={MODEL}", 3),
        ("engine=vllm", 1),
        ("outcome=failed", 1),
        ("host=gpu-01", 3),
        ("host=gpu-02&outcome=failed", 1),
        ("since=2026-05-30T22:00:23Z", 3),
        ("until=2026-05-30T22:00:23Z", 1),
        ("since=2026-05-30T22:00:23Z&until=2026-05-30T23:00:23Z", 1),
        ("since=0001-01-01T00:00:00%2B14:00&until=9999-12-31T23:59:59-14:00", 4),
    ],
)
def test_filters_narrow_the_list(client: Client, query: str, expected: int) -> None:
    """Each filter matches exactly, a time from since up to but not until, and filters add up."""
    for number in (1, 2, 3):
        client.post("/observations", json=start(number))
    other = start(
        id=None,
        observed_at="2026-06-01T00:00:00Z",
        host="gpu-02",
        hardware={"gpu": "H200", "gpu_count": 1},
        model={"name": "m"},
        engine={"name": "vllm"},
        outcome="failed",
        flags={},
        measurements=None,
    )
    client.post("/observations", json=other)
    assert len(client.get(f"/observations?{query}").json()["items"]) == expected


@pytest.mark.parametrize("size", [1, 3, 500])
@pytest.mark.parametrize("query", ["", "&model=kimi-k2.6", "&host=gpu-001"])
@pytest.mark.parametrize("sort", ["observed_at", "-observed_at", "received_at", "-received_at"])
def test_lists_are_sorted_as_asked(client: Client, sort: str, query: str, size: int) -> None:
    """By start or by arrival, either way, every row once; what arrives between two pages shifts neither."""
    times = ["2026-05-30T22:05:00Z", "2026-05-30T22:01:00Z", "2026-05-30T22:03:00Z", "2026-05-30T22:02:00Z"]
    for number, observed_at in enumerate(times):
        client.post("/observations", json=start(id=None, observed_at=observed_at, host=f"gpu-00{number % 2}"))
    rows = walk(client, f"/observations?sort={sort}{query}", size)
    by = sort.lstrip("-")
    values = [row[by] for row in rows]
    assert values == sorted(values, reverse=sort.startswith("-"))
    assert len({row["id"] for row in rows}) == len(rows) == (2 if "host" in query else 4)


def test_a_token_is_of_one_order(client: Client) -> None:
    """A page of another order has no place in this one: the token is refused by name."""
    post_many(client, 3)
    token = client.get("/observations?page_size=1&sort=received_at").json()["next_page_token"]
    for query in ("", "&sort=-received_at", "&sort=observed_at"):
        answer = client.get(f"/observations?page_size=1&page_token={token}{query}")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/page_token")
    assert client.get(f"/observations?page_size=1&page_token={token}&sort=received_at").status_code == 200


@pytest.mark.parametrize("path", ["/observations", "/pairs", "/audit", "/ui", "/ui/advice", "/ui/pairs/{pair}"])
def test_a_token_is_of_one_list(client: Client, path: str) -> None:
    """The token of another list, whose rows are sorted by a time too, is refused by name and never taken for a row."""
    post_many(client, 3)
    client.post("/observations", json=start(id=None, model={"name": "another"}))
    own = client.get("/observations").json()["items"]
    for each in own[:2]:
        client.post(f"/observations/{each['id']}/retraction", json={"reason": "a test"}).raise_for_status()
    lists = {"/observations": {"/observations", "/ui/pairs/{pair}"}, "/pairs": {"/pairs", "/ui"}, "/audit": {"/audit"}}
    for source, takers in lists.items():
        token = client.get(source, params={"page_size": 1}).json()["next_page_token"]
        assert token is not None
        answer = client.get(path.format(pair=own[0]["pair_id"]), params={"page_token": token})
        assert answer.status_code == (200 if path in takers else 422), (source, path, answer.text)
        assert answer.status_code == 200 or "page_token" in answer.text


@pytest.mark.parametrize("size", [1, 2, 500])
def test_pairs_are_sorted_as_asked(client: Client, size: int) -> None:
    """By name, by last live start, or by when they were first recorded; without a live start they come last."""
    days = {"b": "2026-05-03", "c": "2026-05-01", "a": "2026-05-02", "d": "2026-05-09", "e": "2026-05-08"}
    for name, day in days.items():
        posted = client.post("/observations", json=start(id=None, model={"name": name}, observed_at=f"{day}T00:00:00Z"))
        if name in "de":
            client.post(f"/observations/{posted.json()['id']}/retraction", json={"reason": "a test"})
    orders = {
        "name": "abcde",
        "-name": "edcba",
        "last_start": "cabde",
        "-last_start": "baced",
        "created_at": "bcade",
        "-created_at": "edacb",
    }
    for sort, expected in orders.items():
        rows = walk(client, f"/pairs?sort={sort}", size)
        assert "".join(row["model"]["name"] for row in rows) == expected, sort


def test_names_are_taken_loosely(client: Client) -> None:
    """Exact wins, else what is equal after case, spaces, punctuation and vendor; of several, starts answer 409."""
    for name in ("Qwen/Qwen3-8B", "other/qwen3_8b", "plain"):
        client.post("/observations", json=start(id=None, model={"name": name}))
    for spelt in ("PLAIN", "p l-a_i.n", "owner/Plain"):
        assert [row["model"]["name"] for row in client.get(f"/observations?model={spelt}").json()["items"]] == ["plain"]
    assert (
        len(client.get("/observations", params={"gpu": "rtx-pro 6000 Blackwell workstation edition"}).json()["items"])
        == 3
    )
    for path in ("/observations", "/export/observations.csv", "/export/observations.ndjson"):
        several = client.get(f"{path}?model=QWEN3 8b")
        assert (several.status_code, several.json()["type"]) == (409, "/problems/ambiguous")
        assert several.json()["matches"] == [{"model": "Qwen/Qwen3-8B"}, {"model": "other/qwen3_8b"}]
    assert len(client.get("/observations?model=other/qwen3_8b").json()["items"]) == 1
    assert len(client.get("/pairs?model=qwen3-8b").json()["items"]) == 2
    assert len(client.get("/pairs?model=qwen3-8b&gpu=h200").json()["items"]) == 0
    for unknown in ("qwen3", "---", "8b"):
        assert client.get(f"/observations?model={unknown}").json()["items"] == []


def test_names_of_others_are_not_told(client: Client, storage: Storage) -> None:
    """A host's token is told of names among the pairs that it posted to, not of others that are spelt alike."""
    tokens = {}
    for owner in ("one", "two"):
        token, text = new_token(owner, [Role.INGEST], now=utc_now(), expires_at=None)
        storage.write(lambda uow, made=token: uow.tokens.add(made)).result()
        tokens[owner] = {"Authorization": f"Bearer {text}"}
        posted = start(id=None, model={"name": f"{owner}/Model-1"}, host=owner)
        assert client.post("/observations", json=posted, headers=tokens[owner]).status_code == 201
    (row,) = client.get("/observations?model=model 1", headers=tokens["one"]).json()["items"]
    assert row["model"]["name"] == "one/Model-1"
    (pair,) = client.get("/pairs?model=model 1", headers=tokens["two"]).json()["items"]
    assert pair["model"]["name"] == "two/Model-1"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("since=2026-05-30", 3),
        ("until=2026-05-30", 3),
        ("since=2026-05-30&until=2026-05-30", 2),
        ("since=2026-05-31", 1),
        ("until=2026-05-29", 1),
        ("since=2026-05-30&until=2026-05-30T23:59:59.999998Z", 1),
    ],
)
def test_a_day_is_whole(client: Client, query: str, expected: int) -> None:
    """From midnight to the last moment of the day, in UTC."""
    for at in ("29T23:59:59.999999", "30T00:00:00", "30T23:59:59.999999", "31T00:00:00"):
        client.post("/observations", json=start(id=None, observed_at=f"2026-05-{at}Z", host=at[:2] + at[-2:]))
    assert len(client.get(f"/observations?{query}").json()["items"]) == expected


def test_pairs_are_listed_searched_and_paged(client: Client) -> None:
    """Pairs come newest first; search finds a part of a name in any case."""
    for name in ("alpha", "Beta", "beta-2"):
        client.post("/observations", json=start(id=None, model={"name": name}))
    assert [pair["model"]["name"] for pair in walk(client, "/pairs", 2)] == ["beta-2", "Beta", "alpha"]
    found = client.get("/pairs?search=BETA").json()["items"]
    assert {pair["model"]["name"] for pair in found} == {"Beta", "beta-2"}
    one = client.get(f"/pairs/{found[0]['id']}")
    assert one.json() == found[0]
    assert (one.json()["observation_count"], one.json()["engines"]) == (1, ["sglang"])


def test_ndjson_holds_the_whole_ledger(client: Client) -> None:
    """Each line of the export is an observation as the API gives it, newest first."""
    ids = post_many(client, 30)
    answer = client.get("/export/observations.ndjson")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert [row["id"] for row in rows] == ids
    assert rows[0] == client.get(f"/observations/{ids[0]}").json()


def test_csv_holds_the_whole_ledger(client: Client) -> None:
    """The table has a head and a row per observation, with texts that a spreadsheet would run made harmless."""
    post_many(client, 5)
    client.post("/observations", json=start(id=None, host="=1+1"))
    answer = client.get("/export/observations.csv?outcome=ready")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.headers["content-type"].startswith("text/csv")
    assert len(rows) == 6
    assert {row["host"] for row in rows} >= {"'=1+1", "gpu-004"}
    assert (rows[0]["gpu"], rows[0]["fraction"], rows[0]["pool_tokens"]) == (GPU, "0.92", "192406")
    assert json.loads(rows[0]["flags"])["tp_size"] == 8


def test_parquet_holds_the_whole_ledger(client: Client, tmp_path: Path) -> None:
    """More than a page of rows, typed; texts as they are, nulls as nulls, the same rows as in the CSV."""
    for first in (0, 400):
        items = [
            start(id=None, observed_at=f"2026-05-{1 + n // 48:02}T{n % 24:02}:{n // 24 % 2 * 30:02}:00Z", host=f"h-{n}")
            for n in range(first, first + 400)
        ]
        assert client.post("/observations/batch", json={"observations": items}).status_code == 200
    failed = start(
        id=None,
        host="=1+1",
        engine={"name": "vllm"},
        outcome="failed",
        flags={},
        measurements=None,
        failure={"phase": "load", "message": "no such file"},
    )
    client.post("/observations", json=failed)
    client.post(
        f"/observations/{client.post('/observations', json=start(3)).json()['id']}/verifications", json=VERIFICATION
    )
    answer = client.get("/export/observations.parquet")
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    file = tmp_path / "starts.parquet"
    file.write_bytes(answer.content)
    table = pq.read_table(file)
    rows = table.to_pylist()
    flat = list(csv.DictReader(io.StringIO(client.get("/export/observations.csv").text)))
    assert len(rows) == len(flat) == 802
    assert [row["id"] for row in rows] == [row["id"] for row in flat]
    assert table.column_names == list(flat[0])
    assert pq.ParquetFile(file).num_row_groups == 2
    (odd,) = [row for row in rows if row["host"] == "=1+1"]
    assert (odd["fraction"], odd["pool_tokens"], odd["failure_phase"]) == (None, None, "load")
    (verified,) = [row for row in rows if row["verified_prompt_tokens"]]
    assert verified["observed_at"] == datetime(2026, 5, 30, 23, 0, 23, tzinfo=UTC)
    assert json.loads(verified["flags"])["tp_size"] == 8
    assert json.loads(verified["verifications"])[0]["prompt_tokens"] == verified["verified_prompt_tokens"] == 60_010
    few = client.get("/export/observations.parquet?outcome=failed&model=kimi-k2.6")
    file.write_bytes(few.content)
    assert pq.read_table(file).num_rows == 1


def test_the_queries_of_the_documentation_run(client: Client, tmp_path: Path) -> None:
    """Each SQL block of docs/analysis.md, as it is written, on a file of the worked case."""
    for number in (1, 2, 3):
        client.post("/observations", json=start(number))
    client.post(f"/observations/{start(3)['id']}/verifications", json=VERIFICATION)
    refused = start(id=None, outcome="refused", measurements=None, failure={"phase": "pool", "message": "too small"})
    client.post("/observations", json=refused)
    (tmp_path / "starts.parquet").write_bytes(client.get("/export/observations.parquet").content)
    page = Path(__file__).resolve().parents[2] / "docs" / "analysis.md"
    queries = re.findall(r"```sql\n(.+?)```", page.read_text(), re.DOTALL)
    assert len(queries) == 3
    with duckdb.connect() as ledger:
        found = [ledger.sql(each.replace("'starts", f"'{tmp_path}/starts")).fetchall() for each in queries]
    yields, failures, verifications = found
    assert [row[2:6] for row in yields] == [
        (0.85, 200000, 101134, 10.37),
        (0.92, 200000, 192406, 6.1),
        (0.94, 200000, 218484, 4.2),
    ]
    assert [(row[0], row[2], row[3], row[4]) for row in failures] == [("sglang", "refused", "pool", 1)]
    assert verifications == [(MODEL, 60_010, 45.9, None)]


def test_an_empty_ledger_exports_nothing(client: Client) -> None:
    """No rows is an empty NDJSON body and a CSV head."""
    assert client.get("/export/observations.ndjson").text == ""
    assert client.get("/export/observations.csv").text.startswith("id,observed_at,host")
    table = pq.read_table(io.BytesIO(client.get("/export/observations.parquet").content))
    assert (table.num_rows, table.column_names[0]) == (0, "id")


@pytest.mark.parametrize(("path", "extra"), [("/export/observations.parquet", "parquet"), ("/mcp", "mcp")])
def test_an_extra_that_is_absent_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str, extra: str
) -> None:
    """Without its package a route says 501 and what to install."""
    monkeypatch.setattr("kvyield_server.errors.find_spec", lambda _: None)
    answer = client.post(path, json={}) if extra == "mcp" else client.get(path)
    problem = answer.json()["error"]["data"] if extra == "mcp" else answer.json()
    assert (answer.status_code, problem["type"]) == (501, "/problems/missing_extra")
    assert f"pip install 'kvyield-server[{extra}]'" in problem["detail"]
