"""The client's tests on every Python that it promises, each with the oldest dependencies that its metadata allows.

``python tests/clients/matrix.py [VERSION...]``: builds the client's wheel, gives each interpreter an environment of its
own with the wheel, pytest and hypothesis alone, and runs tests/clients there. Interpreters are found on the path and
with pyenv; one that is absent is skipped, loudly. Ends with 1 when a run failed or no interpreter was found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.115", "trustme>=1.2")
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)>=(?P<floor>[\w.]+)(?:\s*;\s*(?P<marker>.*))?$")


def main(versions: Sequence[str]) -> int:
    """Test each version; print a line for each at the end."""
    verdicts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kvyield-pythons-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        checkout = copied(folder / "checkout")
        for version in versions:
            python = interpreter(version)
            verdicts[version] = (
                run(python, wheel, folder / version, checkout) if python else "SKIPPED: NOT ON THIS MACHINE"
            )
    for version, verdict in verdicts.items():
        print(f"Python {version}: {verdict}")
    return int("passed" not in verdicts.values() or "FAILED" in verdicts.values())


def interpreter(version: str) -> Path | None:
    """The newest interpreter of a minor version: this one, on the path, or pyenv's."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return Path(sys.executable)
    builds = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    newest = sorted(builds, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parts[-3])])
    found = [*newest, *(Path(path) for path in [shutil.which(f"python{version}")] if path)]
    return next((path for path in reversed(found) if _answers(path, version)), None)


def build_wheel(folder: Path) -> Path:
    """The client's wheel, built from this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*command, str(ROOT / "clients" / "python")], check=True)
    return next(folder.glob("kvyield-*.whl"))


def copied(folder: Path) -> Path:
    """What the tests need of this checkout, so that edits meanwhile do not matter."""
    for name in ("tests", "docs", "clients"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def floors(wheel: Path) -> Iterator[str]:
    """What pip may install at most: each dependency at the lowest version that the wheel's metadata allows."""
    for text in _metadata(wheel).get_all("Requires-Dist") or []:
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} names no lowest version")
        yield f"{match['name']}=={match['floor']}" + (f"; {match['marker']}" if match["marker"] else "")


def run(python: Path, wheel: Path, folder: Path, checkout: Path) -> str:
    """Make the environment and run the tests in it: ``passed`` or ``FAILED``."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    limits = folder / "floors.txt"
    limits.write_text("".join(f"{line}\n" for line in floors(wheel)))
    own = str(folder / "bin" / "python")
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(limits)]
    subprocess.run([*install, str(wheel), *TOOLS], check=True)
    tests = [own, "-m", "pytest", "-q", "--confcutdir=tests/clients", "--override-ini=pythonpath=tests", "-p"]
    tests += ["no:cacheprovider", *(f"--ignore={path}" for path in _needing_more()), "tests/clients"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(tests, cwd=checkout, env=environment, check=False)
    return "passed" if done.returncode == 0 else "FAILED"


def _needing_more() -> Iterator[Path]:
    """Test files that need the service or other tools: they run in the whole suite."""
    needs = re.compile(r"^\s*(from|import) (e2e|kvyield_server|mypy|yaml)\b", re.MULTILINE)
    for file in sorted((ROOT / "tests" / "clients").rglob("test_*.py")):
        if needs.search(file.read_text()):
            print(f"not in an environment with the client alone: {file.relative_to(ROOT)}")
            yield file.relative_to(ROOT)


def _metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def _answers(python: Path, version: str) -> bool:
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    return done.stdout.strip() == version


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or VERSIONS))
