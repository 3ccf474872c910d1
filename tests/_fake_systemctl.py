"""A ``systemctl --user`` for hosts without systemd, that tests put on PATH. It starts and stops real processes.

It is the double of a program that the test machines lack, and says so in the test's output. What it knows of systemd
is little: one folder of units, drop-ins in the order of their names, ``show``, ``daemon-reload``, ``start``, ``stop``,
``restart``, ``reset-failed``. A unit file is read by ``daemon-reload`` only. ``Restart=`` is not done. What it was
called with is kept in ``calls``.

The words of ``ExecStart=`` are split by systemd itself where ``systemd-analyze`` is there, else by `shlex`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["FAKE_SYSTEMCTL_STATE"])
UNITS = Path(os.environ["XDG_CONFIG_HOME"]) / "systemd" / "user"
STOP_SECONDS = 10.0


def files_of(unit: str) -> list[Path]:
    """The unit's file and its drop-ins."""
    return [path for path in [UNITS / unit, *sorted((UNITS / f"{unit}.d").glob("*.conf"))] if path.exists()]


def main(arguments: list[str]) -> int:
    """Do what systemctl would."""
    with (STATE / "calls").open("a") as calls:
        calls.write(shlex.join(arguments) + "\n")
    words = [word for word in arguments if not word.startswith("-") or word.startswith("--property")]
    verb, *rest = words
    unit = rest[-1] if rest else ""
    if (STATE / "refuses").exists() and verb == (STATE / "refuses").read_text().strip():
        print(f"Failed to {verb} {unit}: it was told to refuse", file=sys.stderr)
        return 1
    if verb == "daemon-reload":
        loaded = {path.name: [[str(file), file.read_text()] for file in files_of(path.name)] for path in units()}
        (STATE / "loaded.json").write_text(json.dumps(loaded))
    elif verb == "show":
        wanted = rest[0].partition("=")[2].split(",")
        shown = properties(unit)
        print("\n".join(f"{name}={shown.get(name, '')}" for name in wanted))
    elif verb == "stop":
        stop(unit)
    elif verb == "start":
        start(unit)
    elif verb == "restart":
        stop(unit)
        start(unit)
    elif verb != "reset-failed":
        print(f"the fake systemctl knows no {verb}", file=sys.stderr)
        return 2
    return 0


def units() -> list[Path]:
    """All unit files."""
    return sorted(path for path in UNITS.glob("*.service") if path.is_file())


def loaded_files(unit: str) -> list[list[str]]:
    """Path and text of each file as they were when the units were read last."""
    place = STATE / "loaded.json"
    found = json.loads(place.read_text()) if place.exists() else {}
    return list(found.get(unit, []))


def properties(unit: str) -> dict[str, str]:
    """What ``show`` prints."""
    files, pid = loaded_files(unit), running(unit)
    now = [[str(file), file.read_text()] for file in files_of(unit)]
    is_masked = (UNITS / unit).is_symlink()
    overrides = STATE / f"{unit}.show"
    return {
        "Id": unit,
        "LoadState": "masked" if is_masked else "loaded" if files else "not-found",
        "UnitFileState": "masked" if is_masked else "static",
        "FragmentPath": files[0][0] if files else "",
        "DropInPaths": " ".join(path for path, _ in files[1:]),
        "NeedDaemonReload": "no" if now == files else "yes",
        "Type": "simple",
        "ActiveState": "active" if pid else "failed" if (STATE / f"{unit}.failed").exists() else "inactive",
        "SubState": "running" if pid else "dead",
        "MainPID": str(pid or 0),
        "NRestarts": "0",
        **(json.loads(overrides.read_text()) if overrides.exists() else {}),
    }


def running(unit: str) -> int | None:
    """The unit's process, if it runs; that one ended badly is kept."""
    place = STATE / f"{unit}.pid"
    if not place.exists():
        return None
    pid = int(place.read_text())
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "X"
    if state not in "ZX":
        return pid
    (STATE / f"{unit}.failed").touch()
    return None


def stop(unit: str) -> None:
    """SIGTERM, then SIGKILL."""
    pid = running(unit)
    ends = time.monotonic() + STOP_SECONDS
    if pid is not None:
        os.killpg(pid, signal.SIGTERM)
        while running(unit) and time.monotonic() < ends:
            time.sleep(0.01)
        if running(unit):
            os.killpg(pid, signal.SIGKILL)
        while running(unit):
            time.sleep(0.01)
    (STATE / f"{unit}.pid").unlink(missing_ok=True)
    (STATE / f"{unit}.failed").unlink(missing_ok=True)


def start(unit: str) -> None:
    """Start the process, its output appended to a file as ``StandardOutput=append:`` would."""
    if running(unit):
        return
    argv, environment, output = service(unit)
    (STATE / f"{unit}.failed").unlink(missing_ok=True)
    with Path(output or "/dev/null").open("ab") as file:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    (STATE / f"{unit}.pid").write_text(str(process.pid))


def service(unit: str) -> tuple[list[str], dict[str, str], str]:
    """Words, variables and log file of the loaded unit."""
    commands: list[str] = []
    environment: dict[str, str] = {}
    output = ""
    for _, text in loaded_files(unit):
        lines = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
        for line in "\n".join(lines).replace("\\\n", " ").split("\n"):
            key, equals, value = line.strip().partition("=")
            if equals and key == "ExecStart":
                commands = [*commands, value] if value else []
            elif equals and key == "Environment":
                environment |= dict(word.split("=", 1) for word in split(value))  # type: ignore[misc]
            elif equals and key == "StandardOutput":
                output = value.partition(":")[2]
    argv: list[str] = []
    for word in split(commands[-1].lstrip("-")):
        if re.fullmatch(r"\$\w+", word):
            argv += shlex.split(environment.get(word[1:], ""))
        else:
            argv.append(re.sub(r"\$\{(\w+)\}", lambda found: environment.get(found[1], ""), word).replace("$$", "$"))
    return argv, environment, output


def split(value: str) -> list[str]:
    """The words of a command, by systemd itself where it is there."""
    return analyzed(value, STATE / "analysis") if shutil.which("systemd-analyze") else shlex.split(value)


def analyzed(value: str, folder: Path) -> list[str]:
    """The words that systemd reads, from what ``systemd-analyze verify`` dumps; variables stand as they are."""
    folder.mkdir(exist_ok=True)
    for target in ("sysinit", "basic", "shutdown", "default"):
        (folder / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    (folder / "app.slice").write_text("[Unit]\n")
    text = f"[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/echo {value}\n"
    (folder / "x.service").write_text(text, encoding="utf-8", errors="surrogateescape")
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(folder / "x.service")],
        env={"PATH": os.environ["PATH"], "SYSTEMD_LOG_LEVEL": "debug", "SYSTEMD_UNIT_PATH": str(folder)},
        capture_output=True,
        check=False,
    )
    line = re.search(rb"^\s+Command Line: /bin/echo ?(.*)$", told.stderr + told.stdout, re.MULTILINE)
    if line is None:
        raise ValueError(told.stderr[-400:])
    return shell_words(line[1].decode("utf-8", "surrogateescape"))


def shell_words(text: str) -> list[str]:
    """Words as systemd's dump quotes them: in double quotes, with a backslash before what a shell would read."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|([^ ]+)', text)  # a no-break space is no blank to systemd
    codes = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}

    def plain(match: re.Match[str]) -> str:
        return chr(int(match[1], 8)) if match[1].isdecimal() else codes.get(match[1], match[1])

    return [bare or re.sub(r"\\([0-7]{3}|.)", plain, quoted) for quoted, bare in found]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
