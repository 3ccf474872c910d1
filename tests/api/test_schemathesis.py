"""Requests made from the OpenAPI document, good and bad: every answer is one that it allows, and none is a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig

from api.samples import VERIFICATION, start
from e2e.running import Server
from kvyield_server.api.openapi import document
from kvyield_server.api.router import API

load_all_checks()
# rules between fields are beyond a schema, so what it allows may be refused, by name, with a 422
SETTINGS = {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "304", "404", "409", "422"]}}}
schema = schemathesis.openapi.from_dict(document(API), config=SchemathesisConfig.from_dict(SETTINGS))
EXAMPLES = 15
KNOWN = "0197b0a0-0000-7000-8000-000000000002"


def checks(case: schemathesis.Case) -> list[Any]:
    """Return what an answer is checked for. A bad item of a batch is refused by its own status, the batch is not."""
    left_out = {"negative_data_rejection"} if case.operation.path == "/observations/batch" else set()
    return CHECKS.get_by_names([name for name in CHECKS.get_all_names() if name not in left_out])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that holds the worked case."""
    running = Server(tmp_path_factory.mktemp("schemathesis"))
    with running.client() as client:
        for number in (1, 2, 3):
            client.post("/observations", json=start(number)).raise_for_status()
        client.post(f"/observations/{KNOWN}/verifications", json=VERIFICATION).raise_for_status()
    yield running
    running.stop()


@pytest.mark.slow
@schema.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
def test_answers_are_what_the_document_says(case: schemathesis.Case, server: Server) -> None:
    """Each operation answers valid and invalid requests as documented: status, media type, headers and body."""
    case.call_and_validate(base_url=server.url, checks=checks(case))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@schema.parametrize()
@hypothesis.settings(max_examples=10 * EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_answers_are_what_the_document_says_at_length(case: schemathesis.Case, server: Server) -> None:
    """The same with new requests each time, and ten times as many."""
    case.call_and_validate(base_url=server.url, checks=checks(case))


@pytest.mark.slow
def test_no_request_was_a_fault_of_ours(server: Server) -> None:
    """After all that the server still works, and nothing in its log is an unexpected error."""
    with server.client() as client:
        assert client.get("/health/ready").status_code == 200
    assert not [line for line in server.log if line.get("event") == "unexpected_error"]
