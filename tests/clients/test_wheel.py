"""The wheel alone, in an environment of its own, as an engine's host installs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_PACKAGES = 16  # PyYAML among them, which every engine has: tune edits compose files
BACKPORTS = ("exceptiongroup", "tomli")  # of what Python 3.11 holds itself
LONGEST_IMPORT_SECONDS = 0.3
CODE = """
import json, sys, time
began = time.perf_counter()
import kvyield
seconds = time.perf_counter() - began
kvyield.Client, kvyield.Observation
from importlib.metadata import distributions
names = sorted({one.metadata["Name"].lower() for one in distributions()})
print(json.dumps({"seconds": seconds, "packages": names, "modules": sorted(sys.modules), "file": kvyield.__file__}))
"""


def run(*words: str | Path) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=280, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]  # hatchling is here
    run(*wheel, "--wheel-dir", folder, ROOT / "clients" / "python")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    own = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", own, "install", "--quiet", "--disable-pip-version-check"]
    run(*install, next(folder.glob("kvyield-*.whl")))
    return own


@pytest.mark.slow
def test_the_wheel_is_light(python: Path) -> None:
    """Fewer than 16 packages beside it, an import in well under a second, and nothing of the service or of numerics."""
    told = min((json.loads(run(python, "-I", "-c", CODE)) for _ in range(5)), key=lambda one: one["seconds"])
    assert "/venv/" in told["file"]
    assert len({*told["packages"]} - {"kvyield", *BACKPORTS}) < MOST_PACKAGES, told["packages"]
    assert told["seconds"] < LONGEST_IMPORT_SECONDS
    heavy = {"numpy", "scipy", "sqlalchemy", "litestar", "kvyield_server"}
    assert not heavy & {*told["packages"], *told["modules"]}


@pytest.mark.slow
def test_the_wheel_holds_the_command_and_its_types(python: Path) -> None:
    """The command runs from the wheel, reads a log, and the type marker is there."""
    command = python.with_name("kvyield")
    assert "recommend" in run(command, "--help")
    log = ROOT / "docs" / "examples" / "kimi-k2.6" / "start-2.log"
    printed = run(command, "import", log, "--gpu", "NVIDIA L4", "--dry-run", "--json")
    assert json.loads(printed)["measurements"]["pool_tokens"] == 192_406
    marker = "import pathlib, kvyield; print(pathlib.Path(kvyield.__file__).with_name('py.typed').exists())"
    assert run(python, "-I", "-c", marker) == "True\n"
