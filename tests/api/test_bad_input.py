"""Bad input is refused by name, with what would be right, and is never a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from _storages import fresh_storage
from api.conftest import Client
from api.samples import NAMES, changed, start
from kvyield_server.app import create_app
from kvyield_server.settings import Settings

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One client for all of this: nothing that is posted here is kept."""
    with TestClient(create_app(Settings(), fresh_storage())) as client:
        yield client


BAD = [
    ("/surprise", 1),
    ("/hardware/surprise", 1),
    ("/hardware", ...),
    ("/hardware/gpu", ...),
    ("/hardware/gpu", ""),
    ("/hardware/gpu", "  "),
    ("/hardware/gpu", "x" * 201),
    ("/hardware/gpu", None),
    ("/hardware/gpu", "a\0b"),
    ("/hardware/gpu_count", 0),
    ("/hardware/gpu_count", "8"),
    ("/hardware/gpu_count", 8.0),
    ("/hardware/gpu_count", True),
    ("/hardware/gpu_count", 10**30),
    ("/hardware/memory_gib", -1),
    ("/hardware/memory_gib", "95.59"),
    ("/hardware/memory_gib", 1e300),
    ("/hardware/unified_memory", "true"),
    ("/hardware/unified_memory", 1),
    ("/model/name", ...),
    ("/model/facts", []),
    ("/model/facts/deep", [[[[[[[[1]]]]]]]]),
    ("/model/facts/long", "x" * 3000),
    ("/model/facts/big", 2**70),
    ("/engine/name", "ollama"),
    ("/engine/name", ...),
    ("/outcome", "ok"),
    ("/outcome", ...),
    ("/id", "not-an-id"),
    ("/observed_at", "yesterday"),
    ("/observed_at", "2026-05-30T22:00:23"),
    ("/observed_at", 1748642423),
    ("/observed_at", "0001-01-01T00:00:00+14:00"),
    ("/observed_at", "9999-12-31T23:59:59-14:00"),
    ("/host", "x" * 300),
    ("/source", "guess"),
    ("/flags", []),
    ("/flags/mem_fraction_static", ...),
    ("/flags/mem_fraction_static", None),
    ("/flags/mem_fraction_static", 0),
    ("/flags/mem_fraction_static", 1.01),
    ("/flags/mem_fraction_static", -0.5),
    ("/flags/mem_fraction_static", "0.9"),
    ("/flags/mem_fraction_static", True),
    ("/flags/context_length", -2),
    ("/flags/context_length", 1.5),
    ("/flags/tp_size", 0),
    ("/flags/kv_cache_dtype", 8),
    ("/flags/enforce_eager", "yes"),
    ("/flags/list", [1]),
    ("/flags/object", {"a": 1}),
    ("/flags/huge", 2**63),
    ("/flags/text", "x" * 20_000),
    ("/flags/mem-fraction-static", 0.9),
    ("/flags/--tp", 8),
    ("/flags/api_key", "k"),
    ("/flags/hf_token", None),
    ("/flags/PASSWORD", "p"),
    ("/flags/clientSecret", "s"),
    ("/flags/Authorization", "Bearer x"),
    ("/measurements/pool_tokens", -5),
    ("/measurements/pool_tokens", 0),
    ("/measurements/pool_tokens", 1.0),
    ("/measurements/pool_tokens", 10**13),
    ("/measurements/pool_tokens", ...),
    ("/measurements/free_at_ready_gib", -0.1),
    ("/measurements/free_at_ready_gib", 1e9),
    ("/measurements/startup_seconds", "360"),
    ("/measurements/surprise", 1),
    ("/failure", {"phase": "unknown"}),
    ("/failure", {"phase": "lunch"}),
    ("/verifications", [{"prompt_tokens": 5}]),
    ("/verifications", [{"prompt_tokens": 5, "passed": True, "cached_tokens": 6}]),
    ("/verifications", [{"prompt_tokens": 0, "passed": True}]),
    ("/verifications", "none"),
    ("/recommendation_id", 5),
    ("/log_excerpt", "x" * 100_001),
]


@pytest.mark.parametrize(("pointer", "value"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_field_is_refused_by_its_pointer(client: Client, pointer: str, value: Any) -> None:
    """422, with a pointer at the field or into it, and a sentence that names it."""
    answer = client.post("/observations", json=changed(pointer, value))
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    (fault,) = answer.json()["errors"]
    assert fault["pointer"].startswith(pointer)
    assert fault["pointer"].rsplit("/", 1)[-1] in fault["detail"]
    assert client.get("/observations").json()["items"] == []


@pytest.mark.parametrize("name", ["api_key", "hf_token", "db_password", "aws_secret_access_key"])
def test_the_value_of_a_secret_is_never_repeated(client: Client, name: str) -> None:
    """Neither a secret scalar nor one inside a list comes back in the answer."""
    for value in ("hunter2", ["hunter2"], {"a": "hunter2"}):
        answer = client.post("/observations", json=changed(f"/flags/{name}", value))
        assert answer.status_code == 422
        assert "hunter2" not in answer.text


def test_all_faults_are_told_at_once(client: Client) -> None:
    """Structure first: unknown, missing and mistyped fields of all levels come in one answer; then meaning."""
    body = start(surprise=1, outcome="nope", measurements={"pool_tokens": -1, "startup_seconds": "x"})
    del body["hardware"]["gpu"]
    pointers = [fault["pointer"] for fault in client.post("/observations", json=body).json()["errors"]]
    assert set(pointers) == {
        "/surprise",
        "/outcome",
        "/hardware/gpu",
        "/measurements/pool_tokens",
        "/measurements/startup_seconds",
    }
    body = start(measurements=None, flags={"tp_size": 0, "api_key": "x"})
    pointers = [fault["pointer"] for fault in client.post("/observations", json=body).json()["errors"]]
    assert set(pointers) == {
        "/flags/tp_size",
        "/flags/api_key",
        "/flags/mem_fraction_static",
        "/measurements/pool_tokens",
    }


def test_the_detail_names_field_value_and_what_would_be_right(client: Client) -> None:
    """A person can act on the sentence alone."""
    answer = client.post("/observations", json=changed("/measurements/pool_tokens", -5))
    assert answer.json()["errors"] == [
        {"pointer": "/measurements/pool_tokens", "detail": "pool_tokens is -5: expected int >= 1."}
    ]
    answer = client.post("/observations", json=changed("/engine/name", "ollama"))
    assert answer.json()["errors"][0]["detail"] == (
        'name is "ollama": expected one of sglang, vllm, tensorrt-llm, lmdeploy.'
    )


BROKEN = [
    b"{",
    b'{"a": 1,}',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b"{} {}",
    b"\xff\xfe",
    b'{"a": "\xff"}',
    b'{"a": "\\ud800"}',
    b"[" * 100_000,
    b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    b"",
    b"   ",
]


@pytest.mark.parametrize("content", BROKEN, ids=lambda content: repr(content[:20]))
def test_broken_json_is_a_400_that_says_where(client: Client, content: bytes) -> None:
    """What is not JSON, or no body at all, is malformed."""
    answer = client.post("/observations", content=content, headers=JSON)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")


def test_broken_json_is_located(client: Client) -> None:
    """The position is a character, a line and a column."""
    answer = client.post("/observations", content=b'{"host": "a",\n "x" 1}', headers=JSON)
    assert "character 19 (line 2, column 6)" in answer.json()["detail"]


def test_duplicate_keys_are_refused_at_any_depth(client: Client) -> None:
    """A key that occurs twice is refused by its pointer."""
    text = json.dumps(start()).replace('"gpu_count": 8', '"gpu_count": 8, "gpu_count": 4')
    answer = client.post("/observations", content=text.encode(), headers=JSON)
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == ["/hardware/gpu_count"]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400, "-" + "9" * 5_000])
def test_infinities_do_not_pass_as_numbers(client: Client, number: str) -> None:
    """A number too large for a float is refused wherever it stands."""
    for old in ('"memory_gib": 95.59', '"num_hidden_layers": 61', '"chunked_prefill_size": 8192'):
        text = json.dumps(start()).replace(old, f"{old.split(':')[0]}: {number}")
        assert client.post("/observations", content=text.encode(), headers=JSON).status_code == 422


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_other_media_types_are_refused(client: Client, kind: str) -> None:
    """Only JSON is taken, and only when it says so."""
    answer = client.post("/observations", content=b"{}", headers={"content-type": kind})
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported_media_type")


def test_a_compressed_body_is_refused(client: Client) -> None:
    """A content coding is not guessed at."""
    answer = client.post("/observations", content=b"{}", headers={**JSON, "content-encoding": "gzip"})
    assert answer.status_code == 415


def test_a_large_body_is_refused_with_and_without_its_length(client: Client) -> None:
    """20 MB answer 413, announced or not."""

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 1_000_000

    for content in (b" " * 20_000_000, pieces()):
        answer = client.post("/observations", content=content, headers=JSON)
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too_large")


PARAMETERS = [
    ("/observations?surprise=1", "/surprise"),
    ("/observations?page_size=0", "/page_size"),
    ("/observations?page_size=501", "/page_size"),
    ("/observations?page_size=x", "/page_size"),
    ("/observations?pair_id=null", "/pair_id"),
    ("/observations?since=NULL", "/since"),
    ("/observations?engine=null", "/engine"),
    ("/recommend?prompt_need_gib=Null", "/prompt_need_gib"),
    ("/observations?page_size=1&page_size=2", "/page_size"),
    ("/observations?page_token=abc", "/page_token"),
    ("/observations?page_token=%00", "/page_token"),
    ("/observations?pair_id=x", "/pair_id"),
    ("/observations?engine=ollama", "/engine"),
    ("/observations?outcome=ok", "/outcome"),
    ("/observations?since=2026-02-30", "/since"),
    ("/observations?until=9999-12-31", "/until"),
    ("/observations?since=2026-05-30T22:00:23", "/since"),
    ("/observations?since=2026-05", "/since"),
    ("/observations?sort=name", "/sort"),
    ("/observations?sort=-received_at&page_token=WyJuYW1lIixudWxsLCJ4Il0", "/page_token"),
    ("/observations?since=0.5", "/since"),
    ("/export/observations.csv?until=1780000000", "/until"),
    ("/observations?gpu=", "/gpu"),
    ("/observations?gpu=a%00b", "/gpu"),
    ("/pairs?search=", "/search"),
    ("/pairs?gpu=", "/gpu"),
    ("/pairs?gpu_count=1", "/gpu_count"),
    ("/pairs?sort=observed_at", "/sort"),
    (
        "/pairs?sort=name&page_token=WyJuYW1lIiwiYVx1MDAwMGIiLCIwMTk3YjBhMDAwMDA3MDAwODAwMDAwMDAwMDAwMDAwMSJd",
        "/page_token",
    ),
    ("/health/live?x=1", "/x"),
    ("/calibration?x=1", "/x"),
    ("/export/observations.csv?page_size=5", "/page_size"),
    ("/recommend?gpu=x&gpu_count=1&model=m&engine=sglang", "/target_tokens"),
    ("/recommend?target_tokens=5", "/gpu"),
    ("/recommend?gpu=x&gpu_count=1&model=m&engine=sglang&target_tokens=0", "/target_tokens"),
    ("/recommend?gpu=x&gpu_count=1&model=m&engine=sglang&target_tokens=5&confidence=nan", "/confidence"),
    ("/recommend?gpu=x&gpu_count=1&model=m&engine=sglang&target_tokens=5&confidence=1.5", "/confidence"),
    ("/recommend?gpu=x&gpu_count=1&model=m&engine=sglang&target_tokens=5&prompt_need_gib=inf", "/prompt_need_gib"),
    ("/recommend?gpu=x&gpu_count=1&model=m&engine=sglang&target_tokens=5&format=ansible", "/format"),
    ("/recommend?gpu=x&gpu_count=1&model=m&engine=sglang&target_tokens=5&facts=x", "/facts"),
    ("/recommend?pair_id=0197b0a0-0000-7000-8000-000000000001&gpu=x&target_tokens=5", "/gpu"),
]


@pytest.mark.parametrize(("path", "pointer"), PARAMETERS)
def test_a_bad_parameter_is_refused_by_name(client: Client, path: str, pointer: str) -> None:
    """Unknown, repeated, mistyped and out-of-bounds query parameters are refused by name."""
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]


def test_parameters_of_a_post_are_refused(client: Client) -> None:
    """A post takes no query parameters."""
    assert client.post("/observations?dry_run=1", json=start()).status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/observations/not-an-id", 404),
        ("GET", "/observations/0197b0a0-0000-7000-8000-000000000001", 404),
        ("GET", "/pairs/0197b0a0-0000-7000-8000-000000000001", 404),
        ("GET", "/pairs/0197b0a0-0000-7000-8000-000000000001/fits", 404),
        ("GET", "/recommendations/0197b0a0-0000-7000-8000-000000000001", 404),
        ("GET", "/problems/none", 404),
        ("GET", "/schema/nothing", 404),
        ("GET", "/schema/swagger", 404),
        ("GET", "/%ff", 404),
        ("PUT", "/observations", 405),
        ("DELETE", "/observations/0197b0a0-0000-7000-8000-000000000001", 405),
        ("GET", "/predictions", 405),
        ("PATCH", "/", 405),
    ],
)
def test_what_is_not_there_is_a_problem(client: Client, method: str, path: str, status: int) -> None:
    """Unknown paths, ids and methods answer as problems with a type, a title, an instance and a request id."""
    answer = client.request(method, path)
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["errors"] == []
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert client.get(problem["type"]).json()["title"] == problem["title"]


def test_a_wrong_method_says_which_are_right(client: Client) -> None:
    """405 lists the methods in Allow."""
    assert client.put("/observations").headers["allow"] == "GET, OPTIONS, POST"
    assert client.put(f"/observations/{start()['id']}").headers["allow"] == "GET, OPTIONS"
    assert client.put("/health/live").headers["allow"] == "GET, HEAD, OPTIONS"


def test_the_callers_request_id_is_kept_when_it_is_harmless(client: Client) -> None:
    """A sane X-Request-Id is taken over; one that could break a log line is replaced."""
    assert client.get("/pairs", headers={"x-request-id": "abc-12345"}).headers["x-request-id"] == "abc-12345"
    assert client.get("/pairs", headers={"x-request-id": "a b;c{}\"'abcdef"}).headers["x-request-id"] != "a b"


@pytest.mark.parametrize("dtype", ["banana", "fp8", "nvfp4", "BF16"])
def test_a_type_that_the_engine_does_not_know_is_refused(client: Client, dtype: str) -> None:
    """A question whose flag the engine would not take is a 422 that lists what it takes, in the query and in a body."""
    client.post("/observations", json=start())
    asked = {**NAMES, "target_tokens": 20_000, "kv_cache_dtype": dtype}
    for answer in (client.get("/recommend", params=asked), client.post("/recommendations", json=asked)):
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        assert fault["pointer"] == "/kv_cache_dtype"
        assert "auto, bf16, bfloat16, fp8_e4m3, fp8_e5m2, fp4_e2m1" in fault["detail"]
    asked["kv_cache_dtype"] = "fp8_e5m2"
    assert client.get("/recommend", params=asked).status_code == 200


def test_a_pair_whose_last_live_start_is_retracted_says_what_to_post(client: Client) -> None:
    """Nothing is known of it now: no advice, and every other question about it and its model is answered."""
    pair_id = client.post("/observations", json=start()).json()["pair_id"]
    other = {"gpu": "NVIDIA H200", "gpu_count": 8}
    client.post("/observations", json=start(1, hardware=other))
    client.post(f"/observations/{start()['id']}/retraction", json={"reason": "wrong host"})
    asked = {"pair_id": pair_id, "engine": "sglang", "target_tokens": 20_000}
    assert client.get("/recommend", params=asked).json()["status"] == "not_enough_evidence"
    assert client.get("/recommend", params={**NAMES, **other, "target_tokens": 20_000}).status_code == 200
    assert client.get(f"/pairs/{pair_id}/fits").json()["items"] == []
    assert client.get(f"/pairs/{pair_id}/curve").status_code == 404
    assert client.get(f"/ui/pairs/{pair_id}").status_code == 200
