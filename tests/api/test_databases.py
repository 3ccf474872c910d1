"""The main paths over a real database: what holds in memory holds on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from litestar.testing import TestClient

from api.conftest import Client
from api.samples import NAMES, VERIFICATION, start
from kvyield_server.app import create_app
from kvyield_server.settings import Settings


@pytest.fixture(params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A client of the application over a fresh database."""
    url = f"sqlite:///{tmp_path / 'kvyield.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    with TestClient(create_app(Settings(database=url))) as client:
        yield client


def test_the_worked_case(client: Client) -> None:
    """Post, replay, verify, predict, recommend, keep, settle, retract, count and export."""
    for number in (1, 2):
        assert client.post("/observations", json=start(number)).status_code == 201
        assert client.post("/observations", json=start(number, id=None)).status_code == 200
    assert client.post("/observations", json=start(2, host="other")).status_code == 409
    body = {"selector": NAMES, "flags": [{"mem_fraction_static": 0.94}]}
    (prediction,) = client.post("/predictions", json=body).json()["items"]
    assert abs(prediction["pool_tokens"]["median"] - 218484) <= 2
    pair_id = client.post("/observations", json=start(3)).json()["pair_id"]
    for status in (201, 200):
        answer = client.post(f"/observations/{start(3)['id']}/verifications", json=VERIFICATION)
        assert answer.status_code == status
    kept = client.post("/recommendations", json={**NAMES, "target_tokens": 200000})
    assert (kept.json()["status"], kept.json()["flags"]["mem_fraction_static"]) == ("at_risk", 0.926)
    follower = start(3, id=None, host="follower", recommendation_id=kept.json()["id"])
    assert client.post("/observations", json=follower).status_code == 201
    assert client.get(kept.headers["location"]).json()["observation_id"] is not None
    assert client.get("/calibration").json()["settled"] == 1
    assert client.post(f"/observations/{start(1)['id']}/retraction", json={"reason": "r"}).status_code == 200
    (fit,) = client.get(f"/pairs/{pair_id}/fits").json()["items"]
    assert len(fit["evidence"]) == 3
    lines = client.get("/export/observations.ndjson").text.splitlines()
    assert len(lines) == 4
    assert client.get(f"/observations/{json.loads(lines[0])['id']}").json() == json.loads(lines[0])
    assert client.get("/health/ready").json()["status"] == "ready"


def test_stored_values_come_back_as_they_went(client: Client) -> None:
    """Unicode, large whole numbers, small fractions and nested facts survive the database."""
    flags = {**start()["flags"], "text": "π 🦆 \\ \" '", "large": 2**63 - 1, "small": 1e-300, "off": None}
    model = {"name": "m", "revision": None, "facts": {"layer_types": ["full", "linear"], "rope": {"type": "yarn"}}}
    posted = client.post("/observations", json=start(flags=flags, model=model)).json()
    assert (posted["flags"], posted["model"]) == (flags, model)
    assert client.get(f"/observations/{posted['id']}").json() == posted


def test_one_content_posted_at_once_is_stored_once(client: Client) -> None:
    """Eight simultaneous posts of one content make one observation."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/observations", json=start(id=None)), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_names_with_odd_characters_are_searched_as_they_are(client: Client) -> None:
    """Signs that mean something to a database are letters of a name."""
    for name in ("100%_sure", "100x-sure", "a'; DROP TABLE pair; --"):
        assert client.post("/observations", json=start(id=None, model={"name": name})).status_code == 201
    for search, expected in (("100%", 1), ("_sure", 1), ("DROP TABLE", 1), ("100", 2)):
        assert len(client.get("/pairs", params={"search": search}).json()["items"]) == expected


def test_two_processes_share_one_ledger(tmp_path: Path) -> None:
    """What one service writes the other answers from at once, although it keeps fits and answers in memory."""
    settings = Settings(database=f"sqlite:///{tmp_path / 'kvyield.db'}")
    asked = {**NAMES, "target_tokens": 200000}
    with TestClient(create_app(settings)) as writer, TestClient(create_app(settings)) as reader:
        seen = []
        for number in (1, 2, 3):
            writer.post("/observations", json=start(number))
            seen.append(len(reader.get("/recommend", params=asked).json()["basis"]["observation_ids"]))
        writer.post(f"/observations/{start(2)['id']}/retraction", json={"reason": "r"})
        seen.append(len(reader.get("/recommend", params=asked).json()["basis"]["observation_ids"]))
    assert seen == [1, 2, 3, 2]
