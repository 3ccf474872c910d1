"""Running a vendor's command-line tool, for at most ten seconds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence

from kvyield.gpu._gpu import GpuError

RunTool = Callable[[Sequence[str]], str]
"""Runs a command and returns what it printed; raises GpuError when it is missing, fails or hangs."""

TIMEOUT_SECONDS = 10.0


def run_tool(command: Sequence[str], timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """The standard output of a vendor's tool. Raises GpuError when it is missing, fails or takes too long."""
    path = shutil.which(command[0])
    if path is None:
        raise GpuError(f"{command[0]} is not on PATH")
    try:
        done = subprocess.run(  # noqa: S603 - a fixed tool name with fixed arguments, no shell
            [path, *command[1:]], capture_output=True, text=True, timeout=timeout_seconds, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise GpuError(f"{command[0]} did not answer within {timeout_seconds:g} s") from error
    except OSError as error:
        raise GpuError(f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise GpuError(f"{command[0]}: {said[0] if said else f'exit status {done.returncode}'}")
    return done.stdout
