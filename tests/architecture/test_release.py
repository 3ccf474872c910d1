"""What a release uploads: both distributions carry their licence and whole metadata, and the index would take them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LICENCE = (ROOT / "LICENSE").read_text()
FOLDERS = {"kvyield": ROOT / "clients" / "python", "kvyield_server": ROOT}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheels and sources of both, as make release does."""
    folder = tmp_path_factory.mktemp("dist")
    for source in FOLDERS.values():
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_index_would_take_them(built: Path) -> None:
    """Twine finds no fault in any of the four files."""
    files = sorted(built.iterdir())
    assert len(files) == 4
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FOLDERS))
def test_a_wheel_carries_licence_and_metadata(built: Path, name: str) -> None:
    """The licence is in wheel and sources; classifiers, keywords, the Python needed and a description are told."""
    (wheel,) = built.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = [one for one in archive.namelist() if one.endswith("dist-info/licenses/LICENSE")]
        assert archive.read(licence).decode() == LICENCE
        (metadata,) = [one for one in archive.namelist() if one.endswith("dist-info/METADATA")]
        told = Parser().parsestr(archive.read(metadata).decode())
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"]
    assert told["Summary"]
    assert "llm" in told["Keywords"]
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    assert len(told.get_payload()) > 500
    (source,) = built.glob(f"{name}-*.tar.gz")
    with tarfile.open(source) as packed:
        assert any(member.name.endswith("/LICENSE") for member in packed.getmembers())


def test_the_client_s_licence_is_the_project_s() -> None:
    """A distribution's licence lies in its own folder; both say the same."""
    assert (ROOT / "clients" / "python" / "LICENSE").read_text() == LICENCE
