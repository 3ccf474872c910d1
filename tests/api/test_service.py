"""Health, metrics, logs and the OpenAPI document."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
import structlog
from litestar.testing import TestClient

from _storages import fresh_storage
from api.conftest import Client
from api.samples import start
from kvyield_server.api.router import API
from kvyield_server.app import create_app
from kvyield_server.schemas import batch, observations, pairs, predictions, recommendations
from kvyield_server.settings import Settings
from kvyield_server.storage.uow import Storage


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_a_healthy_service_says_so(client: Client, method: str, path: str) -> None:
    """Both probes answer 200, to HEAD without a body."""
    answer = client.request(method, path)
    assert answer.status_code == 200
    assert bool(answer.content) == (method == "GET")


def test_a_closed_database_is_not_ready_and_still_alive(client: Client, storage: Storage) -> None:
    """Readiness looks at the database, liveness does not; a caller is told to come again."""
    storage.close()
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.json()["type"]) == (503, "/problems/storage_unavailable")
    assert int(ready.headers["retry-after"]) > 0
    assert client.get("/health/live").status_code == 200
    for answer in (client.get("/pairs"), client.post("/observations", json=start())):
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert client.post("/observations/batch", json={"observations": [start()]}).status_code == 503


def test_a_server_that_begins_completes_what_the_release_before_wrote(tmp_path: Path) -> None:
    """A row whose host has no key, as replicas of release 0.1 write it during an upgrade, has one afterwards."""
    url = f"sqlite:///{tmp_path / 'kvyield.db'}"
    with TestClient(create_app(Settings(database=url))) as client:
        assert client.post("/observations", json=start(host="GPU-01.example")).status_code == 201
    with closing(sqlite3.connect(tmp_path / "kvyield.db")) as connection:
        connection.execute("UPDATE observation SET host_key = NULL")
        connection.commit()
        with TestClient(create_app(Settings(database=url))):
            pass  # a server that stops has emptied its writer's queue
        assert connection.execute("SELECT host_key FROM observation").fetchall() == [("gpu-01",)]


class Slow:
    """A storage whose snapshots are not given out before it is told so."""

    def __init__(self) -> None:
        self.storage = fresh_storage()
        self.may_read = Event()
        self.may_read.set()

    def read(self) -> Any:
        self.may_read.wait(20)
        return self.storage.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)


def test_long_reads_hold_up_neither_posts_nor_probes() -> None:
    """While every reader is busy, a host posts, probes and metrics are answered, and the reads are answered later."""
    storage = Slow()
    with TestClient(create_app(Settings(reader_threads=1), storage)) as client, ThreadPoolExecutor(3) as pool:
        storage.may_read.clear()
        reads = [pool.submit(client.get, "/pairs") for _ in range(3)]
        for path in ("/health/live", "/health/ready", "/metrics"):
            assert client.get(path).status_code == 200
        assert client.post("/observations", json=start()).status_code == 201
        assert not any(read.done() for read in reads)
        storage.may_read.set()
        assert [read.result().status_code for read in reads] == [200] * 3


def test_an_old_schema_is_not_ready(client: Client, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readiness tells that the database needs a migration."""
    monkeypatch.setattr(storage, "migration_current", lambda: False)
    answer = client.get("/health/ready")
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/migration_needed")


def test_an_unforeseen_error_tells_nothing_of_the_inside(
    client: Client, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours is a 500 problem without its text or a traceback."""

    def read() -> Any:
        raise RuntimeError("secret detail of the inside")

    monkeypatch.setattr(storage, "read", read)
    answer = client.get("/pairs")
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_metrics_count_by_route_template(client: Client) -> None:
    """Ids never make a series of their own, unmatched paths share one, and results of posts are counted."""
    for _ in range(2):
        client.post("/observations", json=start())
    client.get(f"/observations/{start()['id']}")
    client.get("/nothing/here")
    text = client.get("/metrics").text
    assert 'route="/observations/{observation_id}",status="200"} 1.0' in text
    assert 'route="unmatched",status="404"} 1.0' in text
    assert 'kvyield_observations_total{result="new"} 1.0' in text
    assert 'kvyield_observations_total{result="again"} 1.0' in text
    assert "kvyield_writer_queue 0.0" in text
    assert "kvyield_database_up 1.0" in text
    assert "kvyield_fits_made 0.0" in text
    assert start()["id"] not in text


def test_the_log_has_the_request_id_and_no_body(client: Client) -> None:
    """One line per request: method, route, status, time, id; neither the body nor the query nor a token."""
    headers = {"Authorization": "Bearer kvy_hidden"}
    with structlog.testing.capture_logs() as lines:
        answer = client.post("/observations?secretly=1", json=start(host="hunter2"), headers=headers)
    (line,) = [line for line in lines if line["event"] == "request"]
    assert line["request_id"] == answer.json()["request_id"] == answer.headers["x-request-id"]
    assert (line["method"], line["route"], line["status"]) == ("POST", "/observations", 422)
    assert (line["log_level"], line["caller"]) == ("info", None)
    assert not {"hunter2", "secretly", "kvy_hidden"} & set(str(line).replace("'", " ").split())


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    with TestClient(create_app(Settings(), fresh_storage())) as client:
        answer: dict[str, Any] = client.get("/schema/openapi.json").json()
    return answer


def test_every_route_is_documented(document: dict[str, Any]) -> None:
    """Each handler of the API that is for programs has its operation, with problems as the default answer."""
    operations = {op["operationId"]: op for item in document["paths"].values() for op in item.values()}
    handlers = [it for route in API.routes for it in route.route_handlers if "OPTIONS" not in it.http_methods]
    for handler in handlers:
        if isinstance(handler.operation_id, str) and handler.resolve_include_in_schema():
            assert handler.operation_id in operations
    assert len(operations) > 25
    for operation in operations.values():
        assert list(operation["responses"]["default"]["content"]) == ["application/problem+json"]
        for status in ("400", "422", "500"):
            response = operation["responses"].get(status)
            assert response is None or list(response["content"]) == ["application/problem+json"]


def test_operations_say_what_they_do_and_answer(document: dict[str, Any]) -> None:
    """Each has a name of its own, a short summary, a description that names the roles, and a sentence per status; what
    needs a token declares 401, 403 and 503, what takes a body its refusals, what takes an id 404."""
    operations = [(path, op) for path, item in document["paths"].items() for op in item.values()]
    names = [op["operationId"] for _, op in operations]
    assert len(names) == len(set(names))
    for path, operation in operations:
        declared, expected = set(operation["responses"]), {"500", "default"}
        expected |= {"401", "403", "503"} if "security" in operation else set()
        expected |= {"400", "408", "413", "415", "422"} if "requestBody" in operation else set()
        expected |= {"404"} if "{" in path else set()
        assert expected <= declared, path
        assert 10 < len(operation["summary"]) < 120
        assert "`" * 2 not in operation["description"]
        assert ("For tokens of the role" in operation["description"]) == ("security" in operation)
        assert all(len(response["description"]) > 5 for response in operation["responses"].values())
        headers = {"201": "Location", "304": "ETag", "401": "WWW-Authenticate", "503": "Retry-After"}
        assert all(headers[it] in operation["responses"][it]["headers"] for it in declared & headers.keys())


def undescribed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a component's schema without what it says to people of itself and its fields."""
    fields = schema.get("properties", {}).items()
    plain = {field: {name: value for name, value in it.items() if name != "description"} for field, it in fields}
    return {**{name: value for name, value in schema.items() if name != "description"}, "properties": plain}


@pytest.mark.parametrize(
    "struct",
    [
        observations.ObservationIn,
        observations.VerificationIn,
        observations.RetractionIn,
        batch.BatchIn,
        predictions.PredictionsIn,
        recommendations.RecommendationIn,
    ],
)
def test_bodies_are_documented_as_they_are_checked(document: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Required fields, bounds, defaults and the refusal of unknown fields in the document are those of the check."""
    _, components = msgspec.json.schema_components([struct], ref_template="#/components/schemas/{name}")
    for name, schema in components.items():
        plain = undescribed(json.loads(json.dumps(schema)))
        assert undescribed(document["components"]["schemas"][name]) == plain | (
            {"type": "string"} if "enum" in plain else {}
        )
    assert document["components"]["schemas"][struct.__name__]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("path", "struct"),
    [("/recommend", recommendations.RecommendQuery), ("/pairs/{pair_id}/curve", pairs.CurveQuery)],
)
def test_parameters_are_documented(document: dict[str, Any], path: str, struct: type[msgspec.Struct]) -> None:
    """Every query parameter is in the document with its bounds, and needed ones are marked."""
    parameters = {item["name"]: item for item in document["paths"][path]["get"]["parameters"] if item["in"] == "query"}
    assert set(parameters) == {field.encode_name for field in msgspec.structs.fields(struct)}
    assert all(parameters[field.encode_name]["required"] == field.required for field in msgspec.structs.fields(struct))


def test_references_of_the_document_resolve(document: dict[str, Any]) -> None:
    """No reference leads nowhere."""
    text = json.dumps(document)
    for part in text.split('"$ref": "')[1:]:
        kind, name = part.split('"')[0].removeprefix("#/components/").split("/")
        assert name in document["components"][kind]


def test_media_types_are_documented(document: dict[str, Any]) -> None:
    """Streams, metrics and rendered advice are documented as what they are, and unions allow overlapping types."""
    expected = {
        "/export/observations.csv": {"text/csv"},
        "/export/observations.ndjson": {"application/x-ndjson"},
        "/metrics": {"text/plain"},
        "/recommend": {"application/json", "text/plain"},
    }
    for path, media in expected.items():
        assert set(document["paths"][path]["get"]["responses"]["200"]["content"]) == media
    assert '"oneOf"' not in json.dumps(document)


def test_the_document_needs_no_network(document: dict[str, Any]) -> None:
    """Nothing in the document or the index points to another host."""
    assert "http://" not in json.dumps(document)
    assert "https://" not in json.dumps(document)


def test_answers_are_no_pages(client: Client) -> None:
    """Nothing that the API answers may be run, framed or guessed to be of another type by a browser."""
    client.post("/observations", json=start(host="<script>alert(1)</script>"))
    for path in ("/observations", "/health/live", "/nowhere", "/metrics", "/export/observations.csv"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
