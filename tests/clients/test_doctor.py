"""``kvyield doctor`` against the real service and a stand-in engine: what is allowed, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import standin
from e2e.running import Server, command
from kvyield import Client
from kvyield.cli import main

APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click 8.1
ROLES = ("ingest", "read", "admin")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A token of each role, and the service's address under ``url``."""
    folder = tmp_path_factory.mktemp("service")
    told = {role: command(folder, "token", "create", "--name", role, "--role", role).stdout for role in ROLES}
    expired = command(
        folder, "token", "create", "--name", "old", "--role", "admin", "--expires", "2020-01-01T00:00:00Z"
    )
    running = Server(folder)
    yield {**{role: text.split()[-1] for role, text in told.items()}, "old": expired.stdout, "url": running.url}
    running.stop()


def doctor(tokens: Mapping[str, str], role: str, *arguments: str) -> Result:
    words = ["doctor", "--no-gpu", "--url", tokens["url"], "--token", tokens.get(role, role), *arguments]
    return CliRunner(**APART).invoke(main, words)


@pytest.mark.parametrize(
    ("role", "allowed", "refused"),
    [
        ("ingest", "allowed: observe, report, verify --observation, watch, import, history", "recommend, predict"),
        ("read", "allowed: recommend, predict, history", "observe, report, verify --observation, watch, import"),
        ("admin", "observe, report, verify --observation, watch, import, recommend, predict, tune, history", None),
    ],
)
def test_the_roles_of_the_token_and_what_they_allow(
    tokens: Mapping[str, str], role: str, allowed: str, refused: str | None
) -> None:
    """Each command is told to be allowed or not, by the service's own judgement, and nothing is stored by asking."""
    result = doctor(tokens, role)
    assert result.exit_code == 0, result.output
    assert f"roles: {'ingest, read, admin' if role == 'admin' else role}" in result.stdout
    assert allowed in result.stdout
    assert ("not allowed: tune (needs the roles ingest and read)" in result.stdout) is (refused is not None)
    assert (f"warn  commands: not allowed: {refused} (needs the role " in result.stdout) is (refused is not None)
    with Client(tokens["url"], tokens["admin"]) as client:
        assert list(client.observations()) == []


def test_an_unknown_token_fails_with_what_to_do(tokens: Mapping[str, str]) -> None:
    """A token that the service does not know is a failure, with the command that makes one."""
    result = doctor(tokens, "kvy_unknown")
    assert (result.exit_code, "FAIL  token: " in result.stdout) == (1, True)
    assert "kvyield-server token create" in result.stdout


def test_the_engines_key_is_checked(tokens: Mapping[str, str]) -> None:
    """``/health`` answers without a key; a wrong one is found all the same."""
    with standin.start(api_key="k-1") as engine:
        wrong = doctor(tokens, "admin", "--server", engine.url, "--server-key", "k-2")
        right = doctor(tokens, "admin", "--server", engine.url, "--server-key", "k-1")
    assert (wrong.exit_code, "give its key: --server-key" in wrong.stdout) == (1, True)
    assert (right.exit_code, "ok    engine" in right.stdout) == (0, True)


def test_the_file_that_holds_the_token_is_looked_at(
    tokens: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the configuration that names it: a token file that others can read is warned about, by its own name."""
    (tmp_path / "token").write_text(tokens["admin"])
    (tmp_path / "config.toml").write_text(f'url = "{tokens["url"]}"\ntoken_file = "{tmp_path}/token"\n')
    (tmp_path / "config.toml").chmod(0o644)
    monkeypatch.setenv("KVYIELD_CONFIG", str(tmp_path / "config.toml"))
    for mode, is_warned in ((0o640, True), (0o600, False)):
        (tmp_path / "token").chmod(mode)
        result = CliRunner(**APART).invoke(main, ["doctor", "--no-gpu"])
        assert (f"chmod 600 {tmp_path / 'token'}" in result.stdout) is is_warned, result.stdout
        assert f"token from {tmp_path / 'token'}" in result.stdout
    (tmp_path / "token").unlink()
    missing = CliRunner(**APART).invoke(main, ["doctor", "--no-gpu"])
    assert (missing.exit_code, "FAIL  token file: the token file" in missing.stdout) == (1, True)
