"""The image without an engine: the Dockerfile is clean, the compose file is safe, the entrypoint does what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.running import environment
from kvyield_server.storage import migrate

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
BIN = Path(sys.executable).parent


def images() -> list[str]:
    """Return all images that are named in docker/ and docs/."""
    composed = yaml.safe_load((DOCKER / "compose.yml").read_text())["services"].values()
    built = [line.split()[1] for line in (DOCKER / "Dockerfile").read_text().splitlines() if line.startswith("FROM ")]
    deployed = yaml.safe_load_all((DOCKER / "kubernetes" / "service.yaml").read_text())
    pods = [it["spec"]["template"]["spec"] for it in deployed if it["kind"] == "Deployment"]
    return [it["image"] for it in composed] + built + [it["image"] for pod in pods for it in pod["containers"]]


def test_the_dockerfile_is_clean() -> None:
    """hadolint finds nothing."""
    found = subprocess.run(
        [str(BIN / "hadolint"), "--format", "json", str(DOCKER / "Dockerfile")], capture_output=True, check=False
    )
    assert json.loads(found.stdout) == []


def test_no_registry_is_named() -> None:
    """Images are named without a host, so that a mirror can be used."""
    for image in images():
        first, _, rest = image.partition("/")
        assert not rest or not set(".:") & set(first), image


def test_the_service_runs_without_privileges() -> None:
    """Not root, no capabilities, a read-only root, limits on memory and processes, a health check."""
    service: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yml").read_text())["services"]["kvyield"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "pids_limit", "stop_grace_period"} <= set(service)
    text = (DOCKER / "Dockerfile").read_text()
    last = text.rindex("FROM ")
    assert "\nUSER 10001:10001\n" in text[last:]
    assert "\nHEALTHCHECK " in text[last:]


def test_what_the_image_copies_exists() -> None:
    """Each file that the Dockerfile copies is in the repository, and the context leaves out all the rest."""
    allowed = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    for line in (DOCKER / "Dockerfile").read_text().splitlines():
        words = [word for word in line.split() if not word.startswith("--chmod")]
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            assert all((ROOT / source).exists() and source in allowed for source in words[1:-1])


def entrypoint(folder: Path, *words: str, **settings: str) -> subprocess.Popen[str]:
    """Start the entrypoint as the image does."""
    env = environment() | {"PATH": f"{BIN}:{os.environ['PATH']}", "KVYIELD_PORT": "0", **settings}
    command = [str(DOCKER / "entrypoint"), *words]
    return subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def served_at(process: subprocess.Popen[str]) -> str:
    """Return the address that a server logs."""
    assert process.stderr is not None
    for line in process.stderr:
        if '"serving"' in line:
            return str(json.loads(line)["url"])
    raise AssertionError("it did not serve")


@pytest.mark.slow
def test_two_containers_migrate_one_database_once(tmp_path: Path, empty_postgres_url: str) -> None:
    """Two entrypoints on one empty PostgreSQL both end up serving; a signal reaches the server, which stops with 0."""
    started = [entrypoint(tmp_path, "serve", KVYIELD_DATABASE=empty_postgres_url) for _ in range(2)]
    for process in started:
        assert httpx.get(f"{served_at(process)}/health/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert migrate.check(empty_postgres_url) == []


def test_other_commands_run_as_they_are(tmp_path: Path) -> None:
    """The first argument that is not serve is a command of kvyield-server."""
    process = entrypoint(tmp_path, "token", "create", "--name", "ann", "--role", "admin")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out[:4]) == (0, "kvy_")


def test_a_database_that_never_comes_ends_the_container(tmp_path: Path) -> None:
    """After the last try the entrypoint ends with an error instead of serving nothing."""
    url = "postgresql+psycopg://127.0.0.1:1/none"
    process = entrypoint(tmp_path, KVYIELD_DATABASE=url, KVYIELD_DATABASE_TRIES="1")
    process.communicate(timeout=60)
    assert process.returncode == 1
