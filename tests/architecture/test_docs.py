"""The documentation names every kind of problem, setting and command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from kvyield_server.api.problems import STATUS_BY_KIND
from kvyield_server.cli import main
from kvyield_server.errors import KvyieldError
from kvyield_server.settings import PREFIX, Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"


def kinds(kind: type[KvyieldError] = KvyieldError) -> Iterator[type[KvyieldError]]:
    """Yield all kinds of errors."""
    yield kind
    for inner in kind.__subclasses__():
        yield from kinds(inner)


def commands(group: click.Group, way: str = "") -> Iterator[str]:
    """Yield the names of all commands."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{way}{name} ")
        else:
            yield way + name


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind.__module__.startswith("kvyield_server")])
def test_every_kind_of_problem_is_documented(kind: type[KvyieldError]) -> None:
    """Each kind has a status and a row in docs/problems.md with that status."""
    status = STATUS_BY_KIND[kind]
    assert f"| `/problems/{kind.code}` | {status} |" in (DOCS / "problems.md").read_text()
    assert kind.title


def test_kinds_have_codes_of_their_own() -> None:
    """No two kinds share a code, so a type means one thing."""
    codes = [kind.code for kind in STATUS_BY_KIND]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_is_documented(name: str) -> None:
    """Each setting is in docs/service.md with its default."""
    default = getattr(Settings(), name)
    assert f"| `{PREFIX}{name.upper()}` | `{default}` |" in (DOCS / "service.md").read_text()


@pytest.mark.parametrize("name", list(commands(main)))
def test_every_command_is_documented(name: str) -> None:
    """Each command is in docs/service.md."""
    assert f"`{name}" in (DOCS / "service.md").read_text()
