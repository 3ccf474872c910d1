"""Every command in every document is one that there is: parsed by its own parser, or in a table with who runs it.

docs/operations.md and docs/agents.md have tests that run their commands as they stand; so has the Python of the
READMEs. Here a command of kvyield's own must be taken by kvyield's own parser, each verb by make, and a command of
another tool must be in ``OTHERS``, with the reason.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kvyield.cli import main as client_main
from kvyield_server.cli import main as server_main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "clients" / "python" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs" / "examples" / "README.md",
]
OURS: dict[str, Any] = {"kvyield": client_main, "kvyield-server": server_main}
SHELLS = {"", "sh", "bash", "shell", "console"}
PLACEHOLDERS = {"ID": "0197ffff-0000-7000-8000-000000000000", "URL": "http://127.0.0.1:30000", "COMMAND": "recommend"}

TESTED = {
    "pip install .": "tests/migrations/test_wheel.py",
    "pip install ./clients/python": "tests/clients/test_wheel.py",
    "pg_dump": "tests/e2e/test_operations_commands.py",
    "createdb": "tests/e2e/test_operations_commands.py",
    "pg_restore": "tests/e2e/test_operations_commands.py",
    "PYTHONPATH=service:tests python": "tests/e2e/test_operations_commands.py",
    "curl": "tests/e2e/test_agents.py",
    "python tests/gpu/trial.py": "tests/gpu",
}
"""Commands of other tools, by their beginning, and the test that runs them or what they install."""
UNTESTED = {
    "pip install kvyield": "needs a release in the index",
    "pip install 'kvyield": "needs a release in the index; its extras are compared with the metadata below",
    "pip install duckdb": "another project's package; the queries run in tests/usecases",
    "pip check": "part of make check",
    "export": "sets two variables of the shell",
    "systemctl": "acts on the reader's own units; a stand-in records what tune gives it in tests/clients/tune",
    "docker": "no Docker engine runs in the tests; the files are linted in tests/docker",
    "git clone": "needs the address of a copy, which the reader has",
    "claude mcp add": "another project's program; the configuration it writes is run in tests/e2e/test_agents.py",
    "python tests/bench/": "a benchmark of minutes: make bench-list names it",
}
"""Commands of other tools that no test runs, and why."""
OTHERS = tuple(
    sorted({name.split(" ")[0] for name in (*TESTED, *UNTESTED)} | {"kubectl", "helm", "sudo", "uv", "git", "cd"})
)


def commands_of(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield the commands of a page, comments and continuations resolved, and whether each is whole or a mention."""
    programs = (*OURS, "make", *OTHERS)
    fence: str | None = None
    begun = ""
    for line in page.read_text().splitlines():
        if line.strip().startswith("```"):
            fence = line.strip()[3:] if fence is None else None
            continue
        if fence in SHELLS or (fence is None and line.startswith("    ")):
            text = begun + line.strip().removeprefix("$ ")
            begun = text[:-1] if text.endswith("\\") else ""
            if begun:
                continue
            is_table = re.match(r"\S+ {2,}", text)
            text = re.split(r"\s+#\s|\s{2,}", text)[0]
            if text.split(" ")[0] in programs and " " in text and not is_table:
                yield text, True
        elif fence is None:
            for span in re.findall(r"`([^`]+)`", line):
                if span.split(" ")[0] in programs and " " in span:
                    yield span, False


COMMANDS = sorted({(page.relative_to(ROOT).as_posix(), *command) for page in PAGES for command in commands_of(page)})


def of(programs: set[str]) -> list[Any]:
    """Return the commands of some programs as parameters of a test."""
    return [
        pytest.param(command, is_whole, id=f"{page}: {command}"[:90])
        for page, command, is_whole in COMMANDS
        if command.split(" ")[0] in programs
    ]


def plain(command: str, folder: Path) -> list[str]:
    """Return a command's words as a person types them: of alternatives one, optional parts given, files there."""
    text = re.sub(r"\[(?=-)|(?<=\w)\](?=\s|$)", "", re.split(" [>|] ", command)[0])
    (folder / "file").touch()
    words = []
    for word in shlex.split(text):
        chosen = word.split("|")[0] if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word) else word
        if chosen in ("...", "…"):
            continue
        chosen = PLACEHOLDERS.get(chosen.removesuffix("...").removesuffix("_OF_THE_START"), chosen)
        words.append(
            str(folder / "file") if re.fullmatch(r"FILE|LOG(\.\.\.)?|DIR|\S+\.(log|db|ndjson)", chosen) else chosen
        )
    return words


@pytest.mark.parametrize(("command", "is_whole"), of(set(OURS)))
def test_the_parser_takes_each_command_of_ours(command: str, is_whole: bool, tmp_path: Path) -> None:
    """A whole command is parsed with its values; a mention in a sentence names commands and options that there are."""
    program, *words = plain(command, tmp_path)
    found: Any = OURS[program]
    context = click.Context(found, info_name=program)
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        inner = found.get_command(context, name)
        assert inner is not None, f"{command}: there is no command {name}"
        found, context = inner, click.Context(inner, info_name=name, parent=context)
    if is_whole and not isinstance(found, click.Group) and "..." not in command:
        found.make_context(found.name or program, list(words), parent=context.parent)
    else:
        found.make_parser(context).parse_args(list(words))


def test_an_option_that_is_not_there_is_found(tmp_path: Path) -> None:
    """The check can fail."""
    for is_whole in (True, False):
        with pytest.raises(click.UsageError, match="--no-such-option"):
            test_the_parser_takes_each_command_of_ours("kvyield recommend --no-such-option", is_whole, tmp_path)


@pytest.mark.parametrize(("command", "is_whole"), of({"make"}))
def test_make_has_each_verb(command: str, is_whole: bool) -> None:
    """Make itself says what it would run; a benchmark is one of the list."""
    words = shlex.split(command)[1:]
    if words[0] == "bench-NAME":
        return
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if words[0].startswith("bench-") and words[0] != "bench-list":
        assert (ROOT / "tests" / "bench" / f"bench_{words[0][6:].replace('-', '_')}.py").exists(), command


@pytest.mark.parametrize(("command", "is_whole"), of(set(OTHERS)))
def test_each_command_of_another_tool_is_in_the_table(command: str, is_whole: bool) -> None:
    """With the test that runs it, which is there, or the reason that none does."""
    run_by = [where for begin, where in TESTED.items() if command.startswith(begin)]
    assert run_by or [begin for begin in UNTESTED if command.startswith(begin)], command
    assert all((ROOT / where).exists() for where in run_by)


def test_documented_extras() -> None:
    """An extra that a page tells to install is one of the distribution's."""
    named = {
        tuple(found) for page in PAGES for found in re.findall(r"'(kvyield(?:-server)?)\[([\w,]+)\]'", page.read_text())
    }
    assert named
    for distribution, extras in named:
        folder = ROOT if distribution == "kvyield-server" else ROOT / "clients" / "python"
        text = (folder / "pyproject.toml").read_text()
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", text, re.MULTILINE), f"{distribution}[{extra}]"


def test_every_page_was_read() -> None:
    """The pages that tell commands do so here."""
    told = {page for page, _, _ in COMMANDS}
    assert {"README.md", "clients/python/README.md", "docs/operations.md", "docs/tune.md", "docs/service.md"} <= told
