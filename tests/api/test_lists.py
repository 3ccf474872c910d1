"""Lists: newest first, stable while rows arrive, filtered, exported in a stream."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from api.conftest import Client
from api.samples import GPU, MODEL, start


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


def test_an_empty_ledger_exports_nothing(client: Client) -> None:
    """No rows is an empty NDJSON body and a CSV head."""
    assert client.get("/export/observations.ndjson").text == ""
    assert client.get("/export/observations.csv").text.startswith("id,observed_at,host")
