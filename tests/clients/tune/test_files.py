"""``kvyield tune --write``: the whole loop on a file and a restart command, its death in the middle, the way back."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from _standin_hosts import BASE, Host, Running, until

RESTART = """
import json, os, shlex, signal, subprocess, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
file, form = Path(sys.argv[2]), sys.argv[3]
pid = folder / "engine.pid"
if pid.exists():
    try:
        os.killpg(int(pid.read_text()), signal.SIGTERM)
        while True:
            os.killpg(int(pid.read_text()), 0)
            time.sleep(0.01)
    except ProcessLookupError:
        pass
command = json.loads((folder / "command.json").read_text())
text = file.read_text() if file.exists() else ""
if form == "compose":
    import yaml
    words = yaml.safe_load(text)["services"]["llm"]["command"]
    words = [word.replace("$$", "$") for word in (shlex.split(words) if isinstance(words, str) else words)]
elif form == "args":
    words = [*command, *shlex.split(text, comments=True)]
else:
    lines = [line for line in text.splitlines() if line.startswith("Environment=")]
    flags = shlex.split(shlex.split(lines[0].partition("=")[2])[0].partition("=")[2]) if lines else []
    words = [*command, *flags]
with (folder / "engine.log").open("ab") as log:
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
pid.write_text(str(process.pid))
"""


class Filed:
    """An engine whose flags are in a file, and the command that restarts it."""

    def __init__(self, host: Host, form: str, text: str | None) -> None:
        self.host, self.form = host, form
        self.file, self.log = host.folder / "flags", host.folder / "engine.log"
        (host.folder / "restart.py").write_text(RESTART)
        (host.folder / "command.json").write_text(json.dumps([*host.engine, *BASE]))
        if text is not None:
            self.file.write_text(text)
        words = [sys.executable, str(host.folder / "restart.py"), str(host.folder), str(self.file), form]
        self.command = shlex.join(words)

    def start(self) -> None:
        """As a person would."""
        environ = {**self.host.environ, "STANDIN": json.dumps(self.host.standin)}
        subprocess.run(shlex.split(self.command), env=environ, check=True)
        until(self.host.flags_running)

    def tune(self, *options: str) -> Running:
        """The loop on the file."""
        where = ["--log", str(self.log), "--server", self.host.server]
        options = ("--restart-command", self.command, "--yes", "--json", *where, *options)
        return self.host.run("--target-tokens", "200k", "--write", str(self.file), "--format", self.form, *options)

    def fraction(self) -> float | None:
        """The fraction of what answers."""
        found = self.host.flags_running()
        return None if found is None else float(found["mem_fraction_static"])

    def end(self) -> None:
        """Ends the engine."""
        place = self.host.folder / "engine.pid"
        if place.exists():
            try:
                os.killpg(int(place.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                return


def _compose(host: Host) -> str:
    words = [*host.engine, *BASE]
    command = "".join(f"      - {json.dumps(word)}\n" for word in words)
    return f"services:  # ours\n  proxy:\n    image: nginx\n  llm:\n    image: sglang\n    command:\n{command}"


@pytest.fixture(params=["args", "args-none", "systemd", "compose"])
def filed(host: Host, request: pytest.FixtureRequest) -> Iterator[Filed]:
    """The engine, running."""
    form = request.param.removesuffix("-none")
    text = {"args": "# ours\n--tp-size 8\n", "systemd": "# ours\n", "compose": _compose(host)}.get(request.param)
    found = Filed(host, form, text)
    found.start()
    yield found
    found.end()


@pytest.mark.slow
def test_a_file_is_tuned_in_one_restart(filed: Filed) -> None:
    """The advised flags serve from the file; all else in it stays."""
    before = filed.file.read_text() if filed.file.exists() else None
    running = filed.tune()
    assert running.code() == 0, running.err
    assert [record["restarts"] for record in running.records] == [0, 1]
    fraction = filed.fraction()
    assert fraction is not None
    assert fraction > 0.9
    text = filed.file.read_text()
    assert f"{fraction:.10g}" in text
    assert before is None or "# ours" in text
    undone = filed.host.run("--undo", "--yes")
    assert undone.code() in (0, 1), undone.err
    assert (filed.file.read_text() if filed.file.exists() else None) == before
    assert filed.fraction() == 0.85
    assert filed.host.rows()[1].recommendation_id is not None


@pytest.mark.slow
@pytest.mark.parametrize("filed", ["args-none", "compose"], indirect=True)
def test_a_file_whose_new_flags_do_not_start_is_as_before(filed: Filed) -> None:
    """Its former content, or no file."""
    filed.host.standin = {"oom_above_fraction": 0.9}
    before = filed.file.read_text() if filed.file.exists() else None
    running = filed.tune("--max-restarts", "1")
    assert running.code() == 1, running.err
    assert (filed.file.read_text() if filed.file.exists() else None) == before
    assert filed.fraction() == 0.85


MOMENTS: dict[str, Callable[[Filed], object]] = {
    "written": lambda filed: "0.92" in (filed.file.read_text() if filed.file.exists() else ""),
    "stopped": lambda filed: filed.fraction() is None,
    "verifying": lambda filed: (filed.fraction() or 0) > 0.9,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "back"),
    [
        ("stopped", "undo"),
        *(
            pytest.param(moment, back, marks=pytest.mark.long)
            for moment in MOMENTS
            for back in ("undo", "again")
            if (moment, back) != ("stopped", "undo")
        ),
    ],
)
@pytest.mark.parametrize("filed", ["args-none"], indirect=True)
def test_a_kill_in_the_middle_is_restored_or_finished(filed: Filed, moment: str, back: str) -> None:
    """By the next run."""
    running = filed.tune()
    ends = time.monotonic() + 60
    while not MOMENTS[moment](filed) and running.process.poll() is None and time.monotonic() < ends:
        time.sleep(0.002)
    running.kill()
    if back == "again":
        again = filed.tune()
        assert again.code() == 0, again.err
        assert (filed.fraction() or 0) > 0.9
    else:
        undone = filed.host.run("--undo", "--yes")
        assert undone.code() in (0, 1), undone.err
        assert filed.fraction() == 0.85, undone.err
        assert not filed.file.exists()


def test_a_restart_command_that_fails_is_told_and_put_back_by_hand(host: Host) -> None:
    """Exit 6: what a person must type is printed, and the file is as before."""
    filed = Filed(host, "args", None)
    filed.start()
    try:
        filed.command = "echo no such service >&2; exit 4"
        running = filed.tune()
        assert running.code() == 6, running.err
        assert "no such service" in running.err
        assert f"rm -f {filed.file}" in running.err
        assert not filed.file.exists()
        assert "Traceback" not in running.err
    finally:
        filed.end()
