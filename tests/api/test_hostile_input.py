"""Input made to cost time or to break things: refused quickly, by name, and never a 500."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from litestar.testing import TestClient

from _storages import fresh_storage
from api.conftest import Client
from api.samples import NAMES, changed, start
from kvyield_server.api import request
from kvyield_server.api.request import LARGE_BODY_BYTES
from kvyield_server.app import create_app
from kvyield_server.schemas.strict import decode
from kvyield_server.settings import Settings

JSON = {"content-type": "application/json"}
QUESTION: dict[str, Any] = {**NAMES, "target_tokens": 200_000}


def keys_twice(size: int) -> str:
    return "{" + ",".join(f'"a{n}":1,"a{n}":1' for n in range(size)) + "}"


def bad_flags(size: int) -> str:
    return json.dumps(start(flags={f"f{n}": [] for n in range(size)}))


def ones(size: int) -> str:
    return "[" + "1," * (size - 1) + "1]"


def bad_batch(size: int) -> str:
    return json.dumps({"observations": [start(flags={f"f{n}": [] for n in range(1_000)})] * size})


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One client for all of this: nothing that is posted here is kept."""
    with TestClient(create_app(Settings(), fresh_storage())) as client:
        yield client


def refused(client: Client, path: str, body: str) -> tuple[float, Any]:
    """Post a body; return the processor's seconds that it took, and the answer."""
    began = time.process_time()
    answer = client.post(path, content=body.encode(), headers=JSON)
    return time.process_time() - began, answer


@pytest.mark.parametrize(
    ("path", "body", "size"),
    [
        ("/observations", keys_twice, 80_000),
        ("/observations", bad_flags, 100_000),
        ("/observations", ones, 4_900_000),
        ("/observations/batch", bad_batch, 160),
    ],
)
def test_a_bad_body_costs_time_by_its_length_alone(
    client: Client, path: str, body: Callable[[int], str], size: int
) -> None:
    """Keys given twice, flags that are all wrong and values of no use are told in time linear in the body, fifty at
    most. A body 16 times as long takes 16 times as long, or 256 times where the cost is quadratic: the bound lies far
    from both, since a busy machine can double either."""
    short, long = ([refused(client, path, body(length)) for _ in range(3)] for length in (size // 16, size))
    answer = long[0][1]
    assert min(seconds for seconds, _ in long) < 100 * min(seconds for seconds, _ in short)
    problems = [item["problem"] for item in answer.json()["items"]] if "items" in answer.json() else [answer.json()]
    assert all(problem["status"] == 422 and 1 <= len(problem["errors"]) <= 50 for problem in problems)


@pytest.mark.parametrize("place", ["/surprise", "/flags", "/model/facts"])
def test_an_endless_key_is_not_repeated(client: Client, place: str) -> None:
    """The answer to a key of a megabyte holds its beginning alone."""
    key = "password_" + "x" * 1_000_000
    body = changed(place, {key: 1}) if place != "/surprise" else start(**{key: 1})
    answer = client.post("/observations", json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 4_000


def test_a_large_body_is_decoded_beside_the_event_loop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body over 64 KB is decoded in another thread, a small one at once."""
    threads: list[int] = []

    def noted(body: bytes, expected: type[Any]) -> Any:
        threads.append(threading.get_ident())
        return decode(body, expected)

    monkeypatch.setattr(request, "decode", noted)
    for size in (1, LARGE_BODY_BYTES, 1):
        client.post("/observations", json=start(surprise="x" * size))
    assert threads[0] == threads[2] != threads[1]


@pytest.mark.parametrize("depth", [33, 500, 958, 964, 2_000])
@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_deep_nesting_is_refused_with_its_place(client: Client, depth: int, left: str, right: str) -> None:
    """Wherever a body is nested more than 32 deep, the answer is a 400 that says at which character."""
    deep = left * depth + "1" + right * depth
    flags = json.dumps(start(flags={"a": "DEEP"})).replace('"DEEP"', deep)
    retraction = "/observations/0197b0a0-0000-7000-8000-000000000001/retraction"
    for path, body in [("/observations", deep), ("/observations", flags), (retraction, '{"reason": ' + deep + "}")]:
        answer = client.post(path, content=body.encode(), headers=JSON)
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")
        assert answer.json()["detail"].startswith("The body is nested more than 32 deep at character ")
    batch = client.post("/observations/batch", content=f'{{"observations": [{flags}]}}'.encode(), headers=JSON)
    assert batch.status_code == 400 or batch.json()["items"][0]["status"] == 400


@pytest.mark.parametrize(("path", "order"), [("/observations", "-observed_at"), ("/pairs", "-created_at")])
@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-05-30", "x", None])
def test_a_page_token_at_the_end_of_time_is_refused(client: Client, path: str, order: str, moment: str | None) -> None:
    """A made-up token whose moment has no UTC form is refused like any other made-up token."""
    token = base64.urlsafe_b64encode(json.dumps([order, moment, "0" * 32]).encode()).decode().rstrip("=")
    answer = client.get(path, params={"page_token": token})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/page_token")


HOSTILE = ("", "x" * 5_000, "\0", "1e400", "[]", "9" * 30, "\U0001f600")
PAGES = ("/ui", "/ui/fleet", "/ui/drift", "/ui/advice", "/ui/pairs/{pair_id}", "/ui/pairs/{pair_id}/history")
OF_PAGES = {"show", "page", "versions", "target_tokens", "outcome", "search", "sort", "page_token"}


def test_no_parameter_of_any_list_is_a_fault_of_ours(client: Client) -> None:
    """Each parameter, on each path that is read: twice, of another path, empty, huge or of another kind.

    What a path of the API does not know is refused by name, what is given twice everywhere; nothing is a 500.
    """
    for number in (1, 2, 3):
        client.post("/observations", json=start(number)).raise_for_status()
    first = client.get("/observations").json()["items"][0]
    answer = client.post("/recommendations", json={**NAMES, "target_tokens": 200_000}).json()
    ids = {"observation_id": first["id"], "pair_id": first["pair_id"], "recommendation_id": answer["id"]}
    paths = client.get("/schema/openapi.json").json()["paths"]
    reads = {path: _query_of(item["get"]) for path, item in paths.items() if "get" in item}
    every = set().union(*reads.values(), OF_PAGES)
    cases = [(path, own, every) for path, own in reads.items()] + [(page, OF_PAGES, OF_PAGES) for page in PAGES]
    for path, own, names in cases:
        at = path.format(**ids, code="invalid")
        asked = {**NAMES, "target_tokens": "5"} if path == "/recommend" else {}
        for name in sorted(names):
            rest = [(key, value) for key, value in asked.items() if key != name]
            for values in (("a", "b"), *((text,) for text in HOSTILE)) if name in own else (("a",),):
                got = client.get(at, params=rest + [(name, text) for text in values], follow_redirects=False)
                assert got.status_code < 500, (at, name, values, got.text)
                if name not in own or len(values) > 1:
                    assert got.status_code in (422, 404), (at, name, values, got.text)


def _query_of(operation: dict[str, Any]) -> set[str]:
    return {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}


@pytest.mark.parametrize("name", ["fp8\n", "-fp8", "--kv", "fp8 x"])
def test_a_dtype_is_one_word_that_is_no_option(client: Client, name: str) -> None:
    """A line end, a blank or a leading dash in kv_cache_dtype is refused, as a parameter and in a body."""
    for answer in (
        client.get("/recommend", params={**QUESTION, "kv_cache_dtype": name}),
        client.post("/recommendations", json={**QUESTION, "kv_cache_dtype": name}),
    ):
        assert answer.status_code == 422
        assert [fault["pointer"] for fault in answer.json()["errors"]] == ["/kv_cache_dtype"]


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/model/facts/checkpoint_bytes", 1e200),
        ("/model/facts/num_hidden_layers", -(10**16)),
        ("/model/facts/api_key", "x"),
        ("/model/facts/hf_token", "x"),
        ("/model/facts/password", None),
        ("/model/facts/aws_secret_access_key", "x"),
        ("/model/facts/inner", {"api_key": "x"}),
        ("/hardware/memory_gib", 1e-300),
        ("/hardware/memory_gib", 200_000),
        ("/measurements/kv_cache_gib", 1e-100),
        ("/measurements/free_at_ready_gib", 1e-100),
        ("/measurements/device_memory_gib", 1e-3),
        ("/verifications/0/lowest_free_gib", 1e-100),
        ("/flags/mem_fraction_static", 1e-300),
        pytest.param("/observed_at", (datetime.now(UTC) + timedelta(days=2)).isoformat(), id="the day after next"),
    ],
)
def test_figures_that_nothing_measures_are_refused(client: Client, pointer: str, value: Any) -> None:
    """Sizes too small or large for hardware, facts beyond 10^15 or named like secrets, starts of the day after next."""
    body = changed(pointer, value) if "verif" not in pointer else start()
    if "verif" in pointer:
        body["verifications"] = [{"prompt_tokens": 5, "passed": True, "lowest_free_gib": value}]
    answer = client.post("/observations", json=body)
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


def test_a_number_beyond_all_floats_is_named(client: Client) -> None:
    """1e999 in facts or flags is refused by its key, as it was written."""
    for key in ("num_hidden_layers", "chunked_prefill_size"):
        old = f'"{key}": {61 if key.startswith("num") else 8192}'
        text = json.dumps(start()).replace(old, f'"{key}": 1e999')
        alone = client.post("/observations", content=text.encode(), headers=JSON).json()
        batch = client.post("/observations/batch", content=f'{{"observations": [{text}]}}'.encode(), headers=JSON)
        errors = [alone["errors"], (batch.json().get("items") or [{"problem": batch.json()}])[0]["problem"]["errors"]]
        for (fault,) in errors:
            assert fault["pointer"].endswith(f"/{key}")
            assert fault["detail"].startswith(f"{key} is 1e999")


@pytest.mark.parametrize(("parameter", "value"), [("page_size", "1e2"), ("page_size", "50.0"), ("since", "1700000000")])
def test_parameters_are_not_guessed_at(client: Client, parameter: str, value: str) -> None:
    """A whole number is written in digits, a time as a time."""
    answer = client.get("/observations", params={parameter: value})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/{parameter}")


def test_the_identity_coding_is_taken_in_any_case(client: Client) -> None:
    """Content-Encoding: IDENTITY means that the body is as it is."""
    answer = client.post("/observations/batch", json={"observations": []}, headers={"content-encoding": "IDENTITY"})
    assert answer.status_code == 200
