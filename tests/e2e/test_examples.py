"""The Python that the documentation shows runs, as it stands there, against the real service."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.samples import start
from e2e.running import Server, environment

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "client_example.py"
README = ROOT / "clients" / "python" / "README.md"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server.url
    server.stop()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)


def test_the_example_posts_asks_and_prints(url: str) -> None:
    """The example stores two starts, gets advice, and lists them; run again, it stores nothing."""
    first, second = (run(str(EXAMPLE), url) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stdout + first.stderr
    words = [line.split()[0] for line in first.stdout.splitlines()]
    assert words[:2] == ["stored", "stored"]
    assert words[2] in ("ok", "at_risk")
    assert first.stdout.splitlines()[3].endswith("0.9 791072")
    assert [line.split()[0] for line in second.stdout.splitlines()][:2] == ["known", "known"]


def test_the_example_says_that_a_service_is_away() -> None:
    """Without a service the example ends with a sentence and code 1."""
    away = run(str(EXAMPLE), "http://127.0.0.1:9")
    assert away.returncode == 1
    assert "could not answer" in away.stdout
    assert "Traceback" not in away.stderr


def test_the_readmes_python_runs(url: str) -> None:
    """The client README's Python block runs with an empty ledger and with the worked case in it."""
    [block] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    code = block.replace("http://127.0.0.1:8321", url).replace(', token="..."', "")
    empty = run("-c", code)
    assert empty.returncode == 0, empty.stderr
    assert "Not found" in empty.stdout
    for number in (1, 2, 3):
        httpx.post(f"{url}/observations", json=start(number))
    told = run("-c", code)
    assert told.returncode == 0, told.stderr
    assert "--mem-fraction-static 0.926" in told.stdout
    assert "218484" in told.stdout
