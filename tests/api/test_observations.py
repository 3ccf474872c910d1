"""The ledger over HTTP: what is posted is there at once, once, and as it was posted."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from api.conftest import Client
from api.samples import VERIFICATION, start


def test_a_new_observation_is_created(client: Client) -> None:
    """A first post answers 201 with the place where the observation is, and it is there at once."""
    answer = client.post("/observations", json=start())
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/observations/{start()['id']}"
    assert client.get(answer.headers["location"]).json() == answer.json()


def test_what_was_posted_comes_back(client: Client) -> None:
    """Every field that was posted is in the answer with its value."""
    body = start()
    answer = client.post("/observations", json=body).json()
    for name in ("id", "observed_at", "host", "source", "hardware", "model", "flags", "outcome", "verifications"):
        assert answer[name] == body[name]
    assert answer["measurements"]["pool_tokens"] == 192406


@pytest.mark.parametrize("other_id", [start()["id"], None, "0197b0a0-0000-7000-8000-0000000000ff"])
def test_the_same_content_again_answers_what_is_stored(client: Client, other_id: str | None) -> None:
    """A replay answers 200 with the stored observation, under the same id, another one or none."""
    client.post("/observations", json=start())
    again = client.post("/observations", json=start(id=other_id))
    assert (again.status_code, again.json()["id"]) == (200, start()["id"])
    assert again.headers["location"] == f"/observations/{start()['id']}"
    assert len(client.get("/observations").json()["items"]) == 1


def test_absent_and_null_are_the_same_content(client: Client) -> None:
    """Leaving out what is null changes nothing about the content."""
    client.post("/observations", json=start())
    body = {name: value for name, value in start(id=None).items() if value not in (None, [])}
    assert client.post("/observations", json=body).status_code == 200


def test_a_flag_known_to_be_off_is_other_content(client: Client) -> None:
    """In flags, null says off and absent says unknown: of one start the row says what is known."""
    client.post("/observations", json=start(id=None))
    flags = {**start()["flags"], "quantization": None}
    answer = client.post("/observations", json=start(id=None, flags=flags))
    assert (answer.status_code, answer.json()["flags"]["quantization"]) == (200, None)


def test_the_same_id_with_other_content_is_a_conflict(client: Client) -> None:
    """An id names one start."""
    client.post("/observations", json=start())
    answer = client.post("/observations", json=start(host="gpu-02"))
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/conflict")
    assert start()["id"] in answer.json()["detail"]


def test_the_server_makes_an_id_and_a_time(client: Client) -> None:
    """Without an id and a time the server makes both, and the same body again is still the same content."""
    body = start(id=None, observed_at=None)
    first, again = (client.post("/observations", json=body) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert UUID(first.json()["id"]).version == 7
    assert first.json()["observed_at"] == again.json()["observed_at"] == first.json()["received_at"]


def test_equal_times_in_two_zones_are_one_content(client: Client) -> None:
    """A time is its moment: another offset is not other content, and answers are UTC."""
    client.post("/observations", json=start())
    again = client.post("/observations", json=start(observed_at="2026-05-31T00:00:23+02:00"))
    assert (again.status_code, again.json()["observed_at"]) == (200, "2026-05-30T22:00:23Z")


def test_minimal_observations_are_taken(client: Client) -> None:
    """Only GPU, count, model, engine and outcome are always needed; the fraction too unless the start failed."""
    body = {
        "hardware": {"gpu": "A100", "gpu_count": 1},
        "model": {"name": "m"},
        "engine": {"name": "vllm"},
        "outcome": "failed",
    }
    assert client.post("/observations", json=body).status_code == 201
    body |= {"outcome": "refused", "flags": {"gpu_memory_utilization": 0.5}}
    assert client.post("/observations", json=body).status_code == 201
    body |= {"outcome": "ready", "measurements": {"kv_cache_gib": 1.5}}
    assert client.post("/observations", json=body).status_code == 201


def test_any_json_scalar_is_kept_as_a_flag(client: Client) -> None:
    """Unknown flags of any scalar type come back unchanged."""
    flags = {**start()["flags"], "a": None, "b": True, "c": -3, "d": 0.5, "e": "x", "tokenizer_path": "/t", "f.g": "{}"}
    answer = client.post("/observations", json=start(flags=flags))
    assert (answer.status_code, answer.json()["flags"]) == (201, flags)


def test_a_number_of_blocks_is_a_fraction_for_lmdeploy(client: Client) -> None:
    """LMDeploy's cache_max_entry_count may be a number of blocks over 1."""
    body = start(engine={"name": "lmdeploy"}, flags={"cache_max_entry_count": 4096})
    assert client.post("/observations", json=body).status_code == 201


def test_a_verification_is_appended_once(client: Client) -> None:
    """A verification answers 201 with the whole observation, and 200 when it is sent again."""
    client.post("/observations", json=start())
    way = f"/observations/{start()['id']}/verifications"
    first, again = (client.post(way, json=VERIFICATION) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert len(again.json()["verifications"]) == 1
    assert again.json()["verifications"][0]["answer_received"] == "Dog."


def test_a_verification_of_nothing_is_not_found(client: Client) -> None:
    """A verification of an unknown observation answers 404."""
    answer = client.post(f"/observations/{start()['id']}/verifications", json=VERIFICATION)
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not_found")


def test_a_retracted_observation_is_kept_and_left_out_of_fits(client: Client) -> None:
    """Retraction marks the observation, with the first reason kept, and takes it out of the evidence."""
    pair_id = client.post("/observations", json=start()).json()["pair_id"]
    client.post("/observations", json=start(3))
    way = f"/observations/{start()['id']}/retraction"
    first = client.post(way, json={"reason": "wrong GPU"})
    again = client.post(way, json={"reason": "other"})
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["retraction_reason"] == "wrong GPU"
    assert client.get(f"/observations/{start()['id']}").json()["retracted_at"] == first.json()["retracted_at"]
    (fit,) = client.get(f"/pairs/{pair_id}/fits").json()["items"]
    assert [item["observation_id"] for item in fit["evidence"]] == [start(3)["id"]]
    assert client.post("/observations", json=start()).status_code == 200


def test_a_batch_answers_each_item(client: Client) -> None:
    """One bad item never stops the others: each has the status that a single post would have had."""
    client.post("/observations", json=start(1))
    items = [start(1), start(1, host="x"), start(2), start(2), {"hardware": 5}, 7, start(3, flags={"api_key": "k"})]
    answer = client.post("/observations/batch", json={"observations": items})
    assert answer.status_code == 200
    assert [item["status"] for item in answer.json()["items"]] == [200, 409, 201, 200, 422, 422, 422]
    assert [item["index"] for item in answer.json()["items"]] == list(range(7))
    assert answer.json()["items"][2]["id"] == start(2)["id"]
    problem = answer.json()["items"][4]["problem"]
    assert {fault["pointer"] for fault in problem["errors"]} >= {"/hardware", "/model", "/engine", "/outcome"}


def test_a_duplicate_key_in_an_item_stops_that_item_alone(client: Client) -> None:
    """A duplicate key is found in the item that has it."""
    content = (
        b'{"observations": [{"host": "a", "host": "b"}, %s]}' % client.build_request("POST", "/x", json=start()).read()
    )
    answer = client.post("/observations/batch", content=content, headers={"content-type": "application/json"})
    assert [item["status"] for item in answer.json()["items"]] == [422, 201]


@pytest.mark.parametrize("keys", [("observations", "observ\\u0061tions"), ("\\u006Fbservations", "observations")])
def test_a_second_list_in_the_envelope_is_not_swallowed(client: Client, keys: tuple[str, str]) -> None:
    """The envelope's key given twice is refused however it is spelt, and neither list is taken."""
    first, second = (json.dumps(start(id=None, host=host)) for host in "ab")
    body = f'{{"{keys[0]}": [{first}], "{keys[1]}": [{second}]}}'
    answer = client.post("/observations/batch", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert "observations occurs more than once" in answer.json()["errors"][0]["detail"]
    assert client.get("/observations").json()["items"] == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"observations": [{}] * 501}, "/observations"),
        ({"observations": {}}, "/observations"),
        ({"items": []}, "/items"),
        ([], ""),
    ],
)
def test_a_bad_envelope_stops_the_batch(client: Client, body: object, pointer: str) -> None:
    """More than 500 items, or no list of them, is refused as a whole."""
    answer = client.post("/observations/batch", json=body)
    assert answer.status_code == 422
    assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]


def test_a_batch_may_hold_500(client: Client) -> None:
    """500 observations go into one batch."""
    items = [start(id=None, host=f"gpu-{number}") for number in range(500)]
    answer = client.post("/observations/batch", json={"observations": items})
    assert {item["status"] for item in answer.json()["items"]} == {201}


def test_a_recommendation_that_never_was_cannot_be_settled(client: Client) -> None:
    """An observation that names an unknown recommendation is refused by that field."""
    answer = client.post("/observations", json=start(recommendation_id="0197b0a0-0000-7000-8000-0000000000aa"))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/recommendation_id"


def test_json_with_a_charset_is_json(client: Client) -> None:
    """A charset beside application/json is not a reason to refuse."""
    content = json.dumps(start()).encode()
    answer = client.post("/observations", content=content, headers={"content-type": "application/json; charset=utf-8"})
    assert answer.status_code == 201


def test_a_start_keeps_a_hundred_verifications(client: Client) -> None:
    """The hundred-and-first is refused, whether the others came with the start or one by one; a known one is not."""
    proof = [{"prompt_tokens": 10 + number, "passed": True} for number in range(101)]
    posted = client.post("/observations", json=start(verifications=proof[:99])).json()
    way = f"/observations/{posted['id']}/verifications"
    assert client.post(way, json=proof[99]).status_code == 201
    assert client.post(way, json=proof[100]).status_code == 422
    assert client.post(way, json=proof[99]).status_code == 200
