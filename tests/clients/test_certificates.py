"""Certificates and proxies: a service behind a CA of one's own is reached, and what stood in the way is named."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

from kvyield import Client
from kvyield._errors import ConfigError, ServiceUnreachableError
from kvyield._transfer import Limits

QUICK = Limits(retries=0, total_seconds=5)


class _Pairs(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"items": [], "next_page_token": null}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Make a CA that no system trusts."""
    return trustme.CA()


@pytest.fixture
def url(authority: trustme.CA) -> Iterator[str]:
    """Serve an empty list of pairs over TLS, with a certificate of that CA."""
    server = HTTPServer(("127.0.0.1", 0), _Pairs)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    """Write the CA's certificate to a file."""
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return file


@pytest.mark.parametrize("given", ["argument", "variable", "file"])
def test_a_ca_of_ones_own_is_named(url: str, ca_file: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an argument, a variable or the configuration file."""
    if given == "variable":
        monkeypatch.setenv("KVYIELD_CA_FILE", str(ca_file))
    if given == "file":
        config = ca_file.with_name("config.toml")
        config.write_text(f'ca_file = "{ca_file}"\n')
        monkeypatch.setenv("KVYIELD_CONFIG", str(config))
    with Client(url, limits=QUICK, ca_file=ca_file if given == "argument" else None) as client:
        assert list(client.pairs()) == []


def test_an_unknown_ca_is_refused_and_the_options_named(url: str) -> None:
    """The service's certificate is always checked, and the message says how its CA is given."""
    with (
        Client(url, limits=QUICK) as client,
        pytest.raises(ServiceUnreachableError, match="--ca-file, KVYIELD_CA_FILE"),
    ):
        list(client.pairs())


@pytest.mark.parametrize("text", [None, "no certificate\n"])
def test_a_ca_file_that_cannot_be_used_is_named(tmp_path: Path, text: str | None) -> None:
    """One that is not there, and one that holds no certificate."""
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"the CA file .*ca\.pem cannot be used"):
        Client("https://kvyield.example.net", ca_file=file)


def test_the_proxy_that_was_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its variable and without its password; a host that NO_PROXY excepts is not said to be behind it."""
    monkeypatch.setenv("http_proxy", "http://ann:hunter2@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with (
        Client("http://kvyield.example.net", limits=QUICK) as client,
        pytest.raises(ServiceUnreachableError) as caught,
    ):
        list(client.pairs())
    assert "of HTTP_PROXY; NO_PROXY makes exceptions" in str(caught.value)
    assert "127.0.0.1:9" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "kvyield.invalid")
    with Client("http://kvyield.invalid", limits=QUICK) as client, pytest.raises(ServiceUnreachableError) as direct:
        list(client.pairs())
    assert "PROXY" not in str(direct.value)
