"""What people use instead, each installed into an environment of its own under .bench, never into the project's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HOME = Path(__file__).parents[2] / ".bench"
INSTALL_SECONDS = 480


class PeerMissingError(Exception):
    """A peer that could not be installed or does not run here."""


def peer(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of a peer's environment, made on first use; raise PeerMissingError with the reason."""
    folder = HOME / name
    python, ready = folder / "bin" / "python", folder / "ready.json"
    if ready.exists() and json.loads(ready.read_text()) == list(packages):
        return python
    print(f"(installing {' '.join(packages)} into .bench/{name})", flush=True)
    HOME.mkdir(exist_ok=True)
    if not python.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    _install(python, packages)
    ready.write_text(json.dumps(list(packages)))
    return python


def _install(python: Path, packages: Sequence[str]) -> None:
    words = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise PeerMissingError(f"not installed within {INSTALL_SECONDS} s") from error
    if done.returncode:
        raise PeerMissingError((done.stderr.strip().splitlines() or ["pip failed"])[-1])


def versions(python: Path, packages: Sequence[str]) -> str:
    """Return names and versions of packages in an environment."""
    code = "import sys, importlib.metadata as m; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    return subprocess.run(
        [str(python), "-c", code, *packages], capture_output=True, text=True, check=True
    ).stdout.strip()
