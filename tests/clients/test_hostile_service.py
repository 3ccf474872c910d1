"""Every call of the API against answers of any shape, and against certificates that do not hold."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import _stand_in_service as faults
from _samples_client import sample
from kvyield import Client, Selector, ServiceError, ServiceUnreachableError, Verification
from kvyield._transfer import Limits
from kvyield.cli import main

CALLS: dict[str, Callable[[Client], object]] = {
    "post_observation": lambda client: client.post_observation(sample()),
    "post_observations": lambda client: client.post_observations([sample()]),
    "observation": lambda client: client.observation("x"),
    "observations": lambda client: list(client.observations()),
    "add_verification": lambda client: client.add_verification("x", Verification(prompt_tokens=1, passed=True)),
    "check_verification": lambda client: client.check_verification("x"),
    "retract": lambda client: client.retract("x", "wrong"),
    "correct": lambda client: client.correct("x", "wrong", hardware={"memory_gib": 96}),
    "allowed_roles": lambda client: client.allowed_roles(),
    "pairs": lambda client: list(client.pairs()),
    "pair": lambda client: client.pair("x"),
    "fits": lambda client: client.fits("x"),
    "curve": lambda client: client.curve("x"),
    "predict": lambda client: client.predict(Selector(model="m"), [{}]),
    "recommend": lambda client: client.recommend(target_tokens=1),
    "recommend_text": lambda client: client.recommend_text("args", target_tokens=1),
    "store_recommendation": lambda client: client.store_recommendation(target_tokens=1),
    "recommendation": lambda client: client.recommendation("x"),
    "recommendation_text": lambda client: client.recommendation_text("x", "args"),
    "settle": lambda client: client.settle("x", "y"),
    "calibration": lambda client: client.calibration(),
    "health": lambda client: client.health(),
    "mcp": lambda client: client.mcp("tools/list", {}),
    "export": lambda client: list(client.export()),
}
NAMES = (
    "id",
    "items",
    "index",
    "status",
    "problem",
    "next_page_token",
    "flags",
    "hardware",
    "model",
    "engine",
    "changes",
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=12,
)
QUICK = Limits(retries=0, total_seconds=3.0, read_seconds=1.0, answer_bytes=2**20)


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[faults.StandIn]:
    """A service behind a certificate that it signed itself."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with faults.stand_in() as service:
        service.socket = context.wrap_socket(service.socket, server_side=True, do_handshake_on_connect=False)
        yield service


def test_every_call_is_covered() -> None:
    """The list of calls above names every public method of the client, single pages aside."""
    public = {name for name in dir(Client) if not name.startswith("_")}
    assert public - set(CALLS) == {"close", "url", "observations_page", "pairs_page"}


@pytest.mark.parametrize("name", CALLS)
@settings(deadline=None, max_examples=40)
@given(body=st.one_of(json_values, st.binary(max_size=40)), status=st.sampled_from([200, 201, 204, 302, 404, 422, 503]))
def test_any_answer_is_read_or_is_an_error_of_the_tree(name: str, body: Any, status: int) -> None:
    """Whatever JSON or rubbish comes with whatever status: a value of the promised kind, or a `ServiceError`."""

    def answered(_: httpx.Request) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.Response(status, headers={"content-type": "application/json"}, content=content)

    transport = httpx.MockTransport(answered)
    with Client("http://127.0.0.1:1", limits=QUICK, transport=transport) as client, suppress(ServiceError):
        CALLS[name](client)


def test_a_certificate_that_does_not_hold_is_said(tls: faults.StandIn) -> None:
    """A certificate that nobody vouches for ends in an error that names it, and nothing is sent."""
    url = tls.url.replace("http://", "https://")
    began = time.monotonic()
    with (
        Client(url, "t0k", limits=QUICK) as client,
        pytest.raises(ServiceUnreachableError, match=r"CERTIFICATE|certificate"),
    ):
        client.post_observation(sample())
    assert time.monotonic() - began < faults.SILENT_SECONDS
    assert (tls.requests, tls.tokens) == ([], [])


ODD = [faults.huge, faults.cut, faults.body(b"[]"), faults.body(b"", code=307, location="/")]


@pytest.mark.parametrize("fault", ODD)
@pytest.mark.parametrize("words", [("history",), ("recommend", "--target-tokens", "1", "--model", "m"), ("doctor",)])
def test_commands_end_in_one_sentence(
    words: tuple[str, ...], fault: Callable[[faults.Handler], None], service: faults.StandIn
) -> None:
    """A hostile service costs a command a sentence and an exit code, never a traceback or the host's memory."""
    service.faults += [fault] * 5
    result = CliRunner().invoke(main, [*words, "--url", service.url])
    assert result.exit_code in (1, 4), result.output
    assert "internal fault" not in result.output
