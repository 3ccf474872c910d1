"""A client that openapi-python-client generates from the document, used against a real server."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

from api.samples import NAMES, VERIFICATION, start
from e2e.running import Server, command
from kvyield_server.api.openapi import document
from kvyield_server.api.router import API

PACKAGE = "kvyield_generated"
CONFIG = {
    "package_name_override": PACKAGE,
    "post_hooks": [],
    "content_type_overrides": {  # types that the generator does not know
        "application/x-ndjson": "text/plain",
        "application/vnd.apache.parquet": "application/octet-stream",
    },
}
GENERATOR = Path(sys.executable).with_name("openapi-python-client")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The generated package, importable; a warning of the generator fails."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_text(json.dumps(document(API)))
    (folder / "config.yml").write_text(json.dumps(CONFIG))
    words = ["generate", "--path", "openapi.json", "--config", "config.yml", "--meta", "none", "--fail-on-warning"]
    done = subprocess.run(
        [GENERATOR, *words, "--output-path", PACKAGE],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield folder / PACKAGE
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Where a server with an empty ledger listens, and a token that may do everything."""
    folder = tmp_path_factory.mktemp("server")
    made = command(folder, "token", "create", "--name", "generated", "--role", "admin")
    (token,) = [word for word in made.stdout.split() if word.startswith("kvy_")]
    running = Server(folder)
    yield running.url, token
    running.stop()


@pytest.fixture
def client(generated: Path, server: tuple[str, str]) -> Iterator[Any]:
    """The generated client of that server, with the token."""
    url, token = server
    made = module("client").AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True)
    with made as opened:
        yield opened


def module(name: str) -> ModuleType:
    """Return a module of the generated package."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def test_every_operation_is_generated(generated: Path) -> None:
    """Each operation has its module, so that the generator understood all of the document."""
    modules = {path.stem for path in generated.glob("api/*/*.py")} - {"__init__"}
    assert modules == {op["operationId"] for item in document(API)["paths"].values() for op in item.values()}


def test_a_start_is_posted_listed_and_advised_on(client: Any) -> None:
    """Bodies are made and answers read by the generated models alone; what is refused is a Problem."""
    models: Any = module("models")
    post, listed = module("api.ledger.post_observation"), module("api.ledger.list_observations")

    for number in (1, 2, 3):
        answer = post.sync_detailed(client=client, body=models.ObservationIn.from_dict(start(number)))
        assert answer.status_code == 201
        assert answer.headers["location"] == f"/observations/{answer.parsed.id}"
    again = post.sync_detailed(client=client, body=models.ObservationIn.from_dict(start(1)))
    assert (again.status_code, again.parsed.id) == (200, UUID(start(1)["id"]))
    verified = module("api.ledger.post_verification").sync_detailed(
        UUID(start(2)["id"]), client=client, body=models.VerificationIn.from_dict(VERIFICATION)
    )
    assert verified.parsed.verifications[0].prompt_tokens == 60_010

    page = listed.sync(client=client, outcome=models.Outcome.READY, page_size=2)
    assert [str(item.id) for item in page.items] == [start(3)["id"], start(2)["id"]]
    assert page.items[0].model.facts["num_hidden_layers"] == 61
    assert page.items[0].flags["mem_fraction_static"] == 0.94
    rest = listed.sync(client=client, page_size=2, page_token=page.next_page_token)
    assert [str(item.id) for item in rest.items] == [start(1)["id"]]
    assert rest.next_page_token is None

    recommend = module("api.advice.get_recommend")
    names = {**NAMES, "engine": models.EngineName(NAMES["engine"])}
    advice = recommend.sync(client=client, **names, target_tokens=200_000)
    assert advice.flags["mem_fraction_static"] == pytest.approx(0.926, abs=0.002)
    pool = advice.prediction.pool_tokens
    assert pool.low <= pool.median <= pool.high
    assert pool.median == pytest.approx(200_225, rel=0.01)
    assert advice.headline.text
    question = models.RecommendationIn.from_dict({**NAMES, "target_tokens": 200_000})
    kept = module("api.advice.post_recommendation").sync(client=client, body=question)
    assert (kept.question.target_tokens, kept.question.prefer) == (200_000, models.Prefer.KEEP)


def test_errors_are_read(client: Any, server: tuple[str, str]) -> None:
    """A refused body, an unknown pair and a missing token are problems of the generated model."""
    models: Any = module("models")
    body = start(1)
    body["flags"]["mem_fraction_static"] = 5
    refused = module("api.ledger.post_observation").sync_detailed(
        client=client, body=models.ObservationIn.from_dict(body)
    )
    assert refused.status_code == 422
    assert isinstance(refused.parsed, models.Problem)
    assert [it.pointer for it in refused.parsed.errors] == ["/flags/mem_fraction_static"]
    unknown = module("api.pairs.get_pair").sync(UUID(int=7), client=client)
    assert (unknown.status, unknown.type_) == (404, "/problems/not_found")
    with module("client").Client(base_url=server[0]) as stranger:
        assert module("api.pairs.list_pairs").sync(client=stranger).status == 401
