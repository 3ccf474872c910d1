"""The real server over real HTTP: the main paths, limits, tokens and an orderly stop."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from api.samples import NAMES, VERIFICATION, start
from bench.processes import memory_mib
from e2e import running
from e2e.running import Server, command


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with an empty embedded database and no tokens."""
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """A client of it."""
    with server.client() as client:
        yield client


def test_the_worked_case(client: httpx.Client) -> None:
    """Starts 1 and 2 predict start 3; with all three and the verification the advice is 0.926, at risk."""
    for number in (1, 2):
        assert client.post("/observations", json=start(number)).status_code == 201
    body = {"selector": NAMES, "flags": [{"mem_fraction_static": 0.94}]}
    (prediction,) = client.post("/predictions", json=body).json()["items"]
    assert abs(prediction["pool_tokens"]["median"] - 218484) <= 2
    client.post("/observations", json=start(3))
    client.post(f"/observations/{start(3)['id']}/verifications", json=VERIFICATION)
    advice = client.get("/recommend", params={**NAMES, "target_tokens": 200000}).json()
    assert (advice["status"], advice["flags"]["mem_fraction_static"]) == ("at_risk", 0.926)
    codes = {warning["code"] for warning in advice["warnings"]}
    assert {"context_length_does_not_grow_pool", "nothing_verified_at_this_length"} <= codes


def test_a_body_without_a_length_is_bounded_too(client: httpx.Client) -> None:
    """20 MB answer 413 whether the length is announced or the body comes in chunks."""

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 1_000_000

    for content in (b" " * 20_000_000, pieces()):
        try:
            answer = client.post("/observations", content=content, headers={"content-type": "application/json"})
        except httpx.WriteError:
            continue
        assert answer.status_code == 413
    assert client.get("/health/ready").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("PUT", "/pairs", 405), ("GET", "/pairs?x=1", 422), ("HEAD", "/health/ready", 200)],
)
def test_problems_over_real_http(client: httpx.Client, method: str, path: str, status: int) -> None:
    """What the application answers in process is what comes over the wire."""
    answer = client.request(method, path)
    assert answer.status_code == status
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_the_same_start_from_many_hosts_at_once_is_one(client: httpx.Client) -> None:
    """Sixteen simultaneous posts of one content store it once: one 201, fifteen 200, one id."""
    body = start(id=None, host="race")
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: client.post("/observations", json=body), range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_the_log_is_json_without_bodies(server: Server, client: httpx.Client) -> None:
    """Each line is one JSON object, requests have their id, and nothing that was posted is in it."""
    client.post("/observations", json=start(id=None, host="nobody-sees-me"))
    assert all("text" not in entry for entry in server.log)
    requests = [entry for entry in server.log if entry["event"] == "request"]
    assert all(entry["request_id"] and entry["route"] for entry in requests)
    assert "nobody-sees-me" not in json.dumps(server.log)


def test_a_stop_loses_nothing(tmp_path: Path) -> None:
    """Posts in flight when the server is asked to stop are either answered and kept, or not answered."""
    server = Server(tmp_path)
    with server.client() as client, ThreadPoolExecutor(8) as pool:

        def post(number: int) -> str | None:
            try:
                answer = client.post("/observations", json=start(id=None, host=f"gpu-{number}"))
            except httpx.HTTPError:
                return None
            return str(answer.json()["id"]) if answer.status_code == 201 else None

        futures = [pool.submit(post, number) for number in range(400)]
        futures[50].result()
        status = server.stop()
        acknowledged = {future.result() for future in futures} - {None}
    with sqlite3.connect(tmp_path / "kvyield.db") as database:
        kept = {str(row[0]).replace("-", "") for row in database.execute("SELECT id FROM observation")}
    database.close()
    assert status == 0
    assert len(acknowledged) >= 50
    assert {str(item).replace("-", "") for item in acknowledged} <= kept


def test_a_stop_at_once_is_a_stop(tmp_path: Path) -> None:
    """A server that is told to stop as soon as it says that it serves does stop, with status 0."""
    assert [Server(tmp_path).stop() for _ in range(4)] == [0] * 4


def test_tokens_from_the_command_line(tmp_path: Path) -> None:
    """A created token opens the running server, whoever has none is refused from then on, a revoked one too."""
    server = Server(tmp_path)
    created = command(tmp_path, "token", "create", "--name", "ci", "--role", "read", "--expires", "1d")
    assert created.returncode == 0
    text = created.stdout.strip()
    headers = {"Authorization": f"Bearer {text}"}
    with server.client() as client:
        assert client.get("/pairs", headers=headers).status_code == 200
        assert client.get("/pairs").status_code == 401
        assert client.post("/observations", json=start(), headers=headers).status_code == 403
        listed = command(tmp_path, "token", "list", "--json")
        entry: dict[str, Any] = json.loads(listed.stdout)
        assert (entry["name"], entry["state"]) == ("ci", "valid")
        assert text not in listed.stdout
        assert command(tmp_path, "token", "revoke", "ci").returncode == 0
        assert client.get("/pairs", headers=headers).status_code == 401
    server.stop()
    assert text not in json.dumps(server.log)


def test_a_public_address_without_tokens_refuses_to_start(tmp_path: Path) -> None:
    """The refusal is one sentence and exit code 1, without a traceback."""
    answer = command(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert answer.returncode == 1
    assert "token create" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_taken_port_is_said(tmp_path: Path, server: Server) -> None:
    """A port in use is one sentence and exit code 1."""
    answer = command(tmp_path, "serve", "--port", server.url.rsplit(":", 1)[1])
    assert answer.returncode == 1
    assert "Cannot listen" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.fixture
def hasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that waits a second for bodies."""
    monkeypatch.setattr(running, "environment", lambda: {**os.environ, "KVYIELD_BODY_SECONDS": "1"})
    server = Server(tmp_path)
    yield server
    server.stop()


def connected(server: Server, seconds: float = 6) -> socket.socket:
    """Return a connection on which nothing was sent, and whose every wait is that long at most."""
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port or 0), timeout=seconds)


def test_a_slow_client_is_cut_off_and_delays_nobody(hasty: Server) -> None:
    """A body that trickles in is answered 408 after the time allowed; others are served meanwhile."""
    with connected(hasty, seconds=10) as slow:
        slow.sendall(b"POST /observations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Content-Length: 1000\r\n\r\n{")
        assert httpx.get(f"{hasty.url}/pairs").status_code == 200
        assert b" 408 " in slow.recv(4096)
    assert hasty.stop() == 0


@pytest.mark.parametrize("sent", [b"", b"GET /pairs HTTP/1.1\r\nHost: 127.0"])
def test_a_head_that_does_not_come_ends_the_connection(hasty: Server, sent: bytes) -> None:
    """A client that sends nothing, or half a head, also after a whole request, is hung up on in time."""
    whole = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for first in (b"", whole) if sent else (b"",):
        with connected(hasty, seconds=4) as slow:
            slow.sendall(first)
            answer = b""
            while first and not answer.endswith(b"}"):
                answer += slow.recv(4096)
            slow.sendall(sent)
            assert slow.recv(4096) == b""
    assert hasty.stop() == 0


def everything(connection: socket.socket) -> bytes:
    """Return what comes until the server hangs up."""
    return b"".join(iter(lambda: connection.recv(4096), b""))


FORM = (
    b"POST /ui/sign-in HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length: 1000\r\n"
    b"Content-Type: %s\r\n\r\n%s"
)
FORMS = [
    (b"application/x-www-form-urlencoded", b"token=a"),
    (b"multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="token"\r\n\r\na'),
]


@pytest.mark.parametrize("form", FORMS, ids=["urlencoded", "multipart"])
def test_a_form_that_does_not_come_is_not_waited_for(hasty: Server, form: tuple[bytes, bytes]) -> None:
    """A page's form has the same time as any body, and a client that goes away is not our failure."""
    with connected(hasty) as slow:
        slow.sendall(FORM % form)
        assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")
    with connected(hasty) as gone:
        gone.sendall(FORM % form)
    assert httpx.get(f"{hasty.url}/health/live").status_code == 200
    assert hasty.stop() == 0
    assert [entry for entry in hasty.log if entry.get("status") == 500 or entry.get("level") == "error"] == []


def test_a_body_that_nobody_waits_for_ends_the_connection(hasty: Server) -> None:
    """After an answer that came before the body, a client that sends on at a trickle is hung up on in time."""
    with connected(hasty) as slow:
        slow.sendall(b"POST /observations HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n")
        slow.sendall(b"Content-Length: 1000\r\n\r\n")
        assert slow.recv(4096).startswith(b"HTTP/1.1 415 ")
        slow.sendall(b"x")
        everything(slow)


BEGUN = b"POST /observations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("closing", [b"Connection: close\r\n", b""], ids=["close", "keep-alive"])
@pytest.mark.parametrize("length", [b"Content-Length: 40000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_an_early_answer_is_not_lost(server: Server, closing: bytes, length: bytes) -> None:
    """A client that sends 40 MB before it reads anything gets the 413 whole, not a reset, and reads that the connection
    ends; what it sent is not kept."""
    before = memory_mib([server.process.pid])
    with connected(server, seconds=20) as large:
        large.sendall(BEGUN + closing + length)
        for _ in range(40):
            head = b"f4240\r\n" if b"chunked" in length else b""
            large.sendall(head + b" " * 1_000_000 + (b"\r\n" if head else b""))
        if b"chunked" in length:
            large.sendall(b"0\r\n\r\n")
        head, _, body = everything(large).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["type"] == "/problems/too_large"
    assert memory_mib([server.process.pid]) - before < 60


def test_a_client_that_waits_for_leave_is_answered_at_once(server: Server) -> None:
    """Expect: 100-continue with too long a body answers 413 without the body; with a fitting one, the body is read."""
    body = json.dumps(start(id=None, host="expecting")).encode()
    for length, expected in ((40_000_000, b"HTTP/1.1 413 "), (len(body), b"HTTP/1.1 100 ")):
        with connected(server) as waiting:
            waiting.sendall(BEGUN + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length)
            assert waiting.recv(4096).startswith(expected)
            if length == len(body):
                waiting.sendall(body)
                assert waiting.recv(4096).startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.2"])
def test_a_request_that_offers_another_protocol_keeps_its_body(server: Server, protocol: str) -> None:
    """Java's HttpClient offers HTTP/2 by default: it is answered in HTTP/1.1, and the connection stays."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": protocol, "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
    body = json.dumps(start(id=None, host=f"offers-{protocol}"))
    with contextlib.closing(HTTPConnection(server.url.removeprefix("http://"), timeout=6)) as connection:
        for status in (201, 200):
            connection.request("POST", "/observations", body, {"Content-Type": "application/json", **offer})
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["host"]) == (status, f"offers-{protocol}")


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://127.0.0.1:1/health/live", b"127.0.0.1", 200),
        (b"HTTPS://localhost/pairs?page_size=1", b"elsewhere.example", 200),
        (b"http://localhost/pairs?page_size=0", b"localhost", 422),
        (b"http://localhost", b"localhost", 200),
        (b"http://localhost/no%2Dsuch", b"localhost", 404),
        (b"http://elsewhere.example/pairs", b"127.0.0.1", 403),
        (b"http://localhost@elsewhere.example/pairs", b"127.0.0.1", 403),
        (b"http:///pairs", b"127.0.0.1", 403),
        (b"ftp://localhost/pairs", b"localhost", 404),
    ],
)
def test_a_target_that_is_a_whole_uri_is_served(server: Server, target: bytes, host: bytes, status: int) -> None:
    """A client that believes it talks to a proxy is answered; the URI's host is the one that must be this machine's."""
    with connected(server) as client:
        client.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host))
        assert everything(client).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "sent",
    [
        b"NO HTTP\r\n\r\n",
        b"POST /observations HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /observations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /observations HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        b"POST /observations HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n",
        b"GET /pairs HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /pairs HTTP/1.1\r\n\r\n",
        b"GET /pairs HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000,
    ],
    ids=["words", "negative", "two lengths", "coding", "chunk", "blank", "no host", "long"],
)
def test_what_is_no_http_is_answered_as_a_problem(server: Server, sent: bytes) -> None:
    """Broken framing answers 400 with problem details, and hangs up."""
    with connected(server) as broken:
        broken.sendall(sent)
        head, _, body = everything(broken).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head
    problem = json.loads(body)
    assert (problem["type"], problem["status"]) == ("/problems/malformed", 400)


def test_large_bodies_leave_nothing_behind(tmp_path: Path, server: Server) -> None:
    """Bodies that are refused, and batches that are known already, are forgotten as soon as they are answered."""
    large = b"[" + b"1," * 100 + b'"' + b"z" * 8_000_000 + b'"]'
    body = start(id=None, log_excerpt="x" * 90_000)
    batch = json.dumps({"observations": [{**body, "host": f"gpu-{number}"} for number in range(80)]}).encode()
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        assert client.post("/observations/batch", content=batch).json()["items"][0]["status"] == 201
        before = memory_mib([server.process.pid])
        for _ in range(25):
            assert client.post("/observations", content=large).status_code == 422
            assert client.post("/observations/batch", content=batch).json()["items"][-1]["status"] == 200
    assert memory_mib([server.process.pid]) - before < 120
