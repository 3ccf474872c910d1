"""The wheel carries its migrations and runs them without the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from kvyield_server.storage import migrate

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from kvyield_server.storage import migrate
from kvyield_server.storage.engine import open_storage

open_storage(sys.argv[1]).close()
print(migrate.scripts(), migrate.current(sys.argv[1]), migrate.check(sys.argv[1]), sep="\\n")
"""


def run(*arguments: str, folder: Path) -> str:
    return subprocess.run([sys.executable, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_wheel_migrates_a_database(tmp_path: Path) -> None:
    """A database made by what the wheel holds is at the newest revision and needs nothing of the checkout."""
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), folder=ROOT)
    (wheel,) = tmp_path.glob("kvyield_server-*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    program = f"import sys; sys.path.insert(0, {str(installed)!r})\n{PROGRAM}"
    found, revision, problems = run("-c", program, f"sqlite:///{tmp_path / 'a.db'}", folder=tmp_path).splitlines()
    assert (installed / "kvyield_server" / "glossary.md").read_text() == (ROOT / "docs" / "glossary.md").read_text()
    assert Path(found) == installed / "kvyield_server" / "migrations"
    assert (revision, problems) == (migrate.head(), "[]")
