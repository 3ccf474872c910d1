"""What all commands share: exit codes, errors as sentences, and text that cannot disturb a terminal."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from kvyield._errors import KvyieldError, RefusedError, ServiceError, is_own_fault

DONE = 0
FAILED = 1
USAGE = 2
REFUSED = 3
UNREACHABLE = 4
BELOW = 5
INTERRUPTED = 130
INTERNAL = 70


class LazyGroup(click.Group):
    """Loads a command's module when the command is run, so that the others cost nothing; ends without tracebacks."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._lazy.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.pop("standalone_mode", True):
            return self._plain(*args, **kwargs)
        sys.exit(self._run(*args, **kwargs))

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        run: Callable[..., Any] = super().main
        return run(*args, **kwargs, standalone_mode=False)

    def _run(self, *args: Any, **kwargs: Any) -> int:
        try:
            code = self._plain(*args, **kwargs)
            sys.stdout.flush()
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except KvyieldError as error:
            say(f"kvyield: {error}")
            return exit_code(error)
        except (click.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except BrokenPipeError:
            return _reader_gone()
        except Exception as error:  # a fault of kvyield itself still ends in one line
            if os.environ.get("KVYIELD_DEBUG"):
                traceback.print_exc()
            say(f"kvyield: internal fault, {type(error).__name__}: {error} (KVYIELD_DEBUG=1 shows where)")
            return INTERNAL
        return code if isinstance(code, int) else DONE


def _reader_gone() -> int:
    """Whoever read the output has left; the interpreter must not stumble over it again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def exit_code(error: KvyieldError) -> int:
    """3 when the service refused, 4 when it could not be had, 1 for all else, also when the service failed (500)."""
    if isinstance(error, RefusedError):
        return REFUSED
    return UNREACHABLE if isinstance(error, ServiceError) and not is_own_fault(error) else FAILED


def say(text: str) -> None:
    """A line for the person, on standard error."""
    click.echo(safe(text), err=True)


def safe(text: object) -> str:
    """The text without signs that move a terminal's cursor or change its colours."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "�" for sign in str(text))
