"""A wrong fact is corrected: the row and the fits take the new value at once, the old one stays readable."""

from __future__ import annotations

from typing import Any

import pytest

from api.conftest import Client
from api.samples import GPU, MODEL, VERIFICATION, start
from kvyield_server.storage.records import Role
from kvyield_server.storage.uow import Storage
from kvyield_server.storage.values import utc_now
from kvyield_server.usecases.tokens import new_token

WAY = f"/observations/{start()['id']}/corrections"
SIZE = {"hardware": {"memory_gib": 96}, "reason": "nvidia-smi says so"}


def changes(observation: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return what the newest entry of the history says."""
    return [(each["field"], each["from"], each["to"]) for each in observation["history"][-1]["changes"]]


def test_a_correction_is_kept_with_who_when_and_why(client: Client) -> None:
    """The new value is in the row, the old one in its history; the same again changes nothing."""
    client.post("/observations", json=start())
    answer = client.post(WAY, json=SIZE)
    assert (answer.status_code, answer.json()["hardware"]["memory_gib"]) == (200, 96)
    (entry,) = client.get(f"/observations/{start()['id']}").json()["history"]
    assert (entry["actor"], entry["action"], entry["reason"]) == ("loopback", "correction", "nvidia-smi says so")
    assert entry["changes"] == [{"field": "hardware.memory_gib", "from": 95.59, "to": 96.0}]
    assert len(client.post(WAY, json=SIZE).json()["history"]) == 1
    assert client.get("/audit").json()["items"][0]["action"] == "correct"


def test_a_correction_outlives_further_accounts(client: Client) -> None:
    """The host goes on saying what it said: replays and further accounts leave the corrected value."""
    client.post("/observations", json=start())
    client.post(WAY, json={**SIZE, "flags": {"chunked_prefill_size": 4096}})
    assert client.post("/observations", json=start()).json()["hardware"]["memory_gib"] == 96
    more = client.post("/observations", json=start(id=None, measurements={"pool_tokens": 192406, "graph_gib": 1.0}))
    assert (more.status_code, more.json()["hardware"]["memory_gib"]) == (200, 96)
    assert more.json()["flags"]["chunked_prefill_size"] == 4096
    assert more.json()["measurements"]["graph_gib"] == 1.0


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"hardware": {"gpu": "NVIDIA H200"}}, ("NVIDIA H200", 8, MODEL)),
        ({"hardware": {"gpu_count": 4}}, (GPU, 4, MODEL)),
        ({"model": {"name": "Qwen/Qwen3-8B"}}, (GPU, 8, "Qwen/Qwen3-8B")),
    ],
)
def test_a_start_moves_to_the_pair_that_it_is_of(
    client: Client, body: dict[str, Any], names: tuple[str, int, str]
) -> None:
    """The pair of the wrong name goes with its last start; both pairs are asked without a fault."""
    old = client.post("/observations", json=start()).json()["pair_id"]
    new = client.post(WAY, json={**body, "reason": "r"}).json()["pair_id"]
    assert new != old
    (pair,) = client.get("/pairs").json()["items"]
    assert (pair["hardware"]["gpu"], pair["hardware"]["gpu_count"], pair["model"]["name"]) == names
    assert (pair["id"], pair["observation_count"]) == (new, 1)
    assert client.get(f"/pairs/{old}").status_code == 404
    assert client.get(f"/pairs/{new}/fits").json()["items"][0]["evidence"][0]["observation_id"] == start()["id"]


def test_fits_see_a_corrected_fraction_at_once(client: Client) -> None:
    """The curve's starts have the new fraction."""
    pair_id = client.post("/observations", json=start()).json()["pair_id"]
    assert client.get(f"/pairs/{pair_id}/curve").json()["starts"][0]["fraction"] == 0.92
    client.post(WAY, json={"flags": {"mem_fraction_static": 0.9}, "reason": "typed wrong"})
    assert client.get(f"/pairs/{pair_id}/curve").json()["starts"][0]["fraction"] == 0.9


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"reason": "r"}, ""),
        ({"hardware": {"memory_gib": 96}}, "/reason"),
        ({**SIZE, "outcome": "ready"}, "/outcome"),
        ({**SIZE, "hardware": {"memory": 96}}, "/hardware/memory"),
        ({**SIZE, "hardware": {"gpu_count": 0}}, "/hardware/gpu_count"),
        ({**SIZE, "flags": {"mem_fraction_static": 7}}, "/flags/mem_fraction_static"),
        ({**SIZE, "flags": {"mem_fraction_static": None}}, "/flags/mem_fraction_static"),
        ({**SIZE, "flags": {"api_key": "x"}}, "/flags/api_key"),
        ({**SIZE, "engine": {"name": "vllm"}}, "/flags/gpu_memory_utilization"),
        ({**SIZE, "model": {"facts": {"password": "x"}}}, "/model/facts/password"),
    ],
)
def test_a_wrong_correction_is_refused_by_name(client: Client, body: dict[str, Any], pointer: str) -> None:
    """What is wrong is named, and nothing is changed."""
    client.post("/observations", json=start())
    answer = client.post(WAY, json=body)
    assert answer.status_code == 422
    assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]
    assert client.get(f"/observations/{start()['id']}").json()["history"] == []


def test_a_host_corrects_its_own_starts_alone(client: Client, storage: Storage) -> None:
    """A token that posts corrects what it posted, admin any; nobody corrects what is not there."""
    headers = {}
    for name, role in (("mine", Role.INGEST), ("other", Role.INGEST), ("admin", Role.ADMIN), ("reader", Role.READ)):
        token, text = new_token(name, [role], now=utc_now(), expires_at=None)
        storage.write(lambda uow, token=token: uow.tokens.add(token)).result()
        headers[name] = {"Authorization": f"Bearer {text}"}
    client.post("/observations", json=start(), headers=headers["mine"])
    codes = {name: client.post(WAY, json=SIZE, headers=own).status_code for name, own in headers.items()}
    assert codes == {"mine": 200, "other": 403, "admin": 200, "reader": 403}
    shown = client.get(f"/observations/{start()['id']}", headers=headers["mine"]).json()
    assert shown["history"][0]["actor"] == "mine"
    unknown = WAY.replace(start()["id"], start(1)["id"])
    assert client.post(unknown, json=SIZE, headers=headers["admin"]).status_code == 404


def test_who_tells_more_of_a_start_may_read_it(client: Client, storage: Storage) -> None:
    """The token of a further account reads, verifies and lists the start like the first one's."""
    headers = []
    for name in ("watch", "cron"):
        token, text = new_token(name, [Role.INGEST], now=utc_now(), expires_at=None)
        storage.write(lambda uow, token=token: uow.tokens.add(token)).result()
        headers.append({"Authorization": f"Bearer {text}"})
    client.post("/observations", json=start(), headers=headers[0])
    more = client.post("/observations", json=start(id=None, source="endpoint"), headers=headers[1])
    assert (more.status_code, more.json()["id"]) == (200, start()["id"])
    own = f"/observations/{start()['id']}"
    for each in headers:
        assert client.get(own, headers=each).status_code == 200
        assert [item["id"] for item in client.get("/observations", headers=each).json()["items"]] == [start()["id"]]
        assert len(client.get("/pairs", headers=each).json()["items"]) == 1
    assert client.post(f"{own}/verifications", json=VERIFICATION, headers=headers[1]).status_code == 201


def test_a_retracted_start_takes_nothing_more_and_says_so(client: Client) -> None:
    """A verification is a 409 of its own type; the same post again, and a further account, answer 200 with the mark."""
    own = f"/observations/{start()['id']}"
    client.post("/observations", json=start())
    client.post(f"{own}/verifications", json=VERIFICATION)
    client.post(f"{own}/retraction", json={"reason": "wrong host"})
    refused = client.post(f"{own}/verifications", json={**VERIFICATION, "prompt_tokens": 9})
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/retracted")
    assert "wrong host" in refused.json()["detail"]
    assert client.post(f"{own}/verifications", json=VERIFICATION).status_code == 200
    for body in (start(), start(id=None), start(id=None, source="endpoint")):
        answer = client.post("/observations", json=body)
        assert answer.status_code == 200
        assert answer.json()["retracted_at"] is not None
    assert client.get("/problems/retracted").json()["status"] == 409
