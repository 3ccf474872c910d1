"""What ``verify`` and ``report`` share: options, the engine's cards and log, progress, and the table of results."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvyield._errors import KvyieldError
from kvyield.cli._options import chosen_source, token_count
from kvyield.cli._run import say
from kvyield.cli._tables import gib, table, tokens

if TYPE_CHECKING:
    from kvyield._engine_http import EngineHttp
    from kvyield.gpu import FreeReader
    from kvyield.verify import Order, Progress, Report

Function = TypeVar("Function", bound=Callable[..., Any])
LAST_LINES = 400
SMALLEST_PROMPT_TOKENS = 256


def verification_options(function: Function) -> Function:
    """The prompts, and the server that they go to."""
    options = [
        click.option("--server", metavar="URL", required=True, help="The running engine, e.g. http://127.0.0.1:30000."),
        click.option(
            "--server-key", envvar="KVYIELD_SERVER_KEY", help="The engine's API key.  [default: KVYIELD_SERVER_KEY]"
        ),
        click.option("--served-model", help="The model to ask, when the server has several."),
        click.option(
            "--prompt-tokens",
            type=token_count(SMALLEST_PROMPT_TOKENS),
            required=True,
            help="Tokens of each prompt, by the engine's own count; 200k is 200,000.",
        ),
        click.option("--concurrent", type=click.IntRange(1, 1024), default=1, help="Prompts sent at the same time."),
        click.option("--ramp", is_flag=True, help="Shorter prompts first: 32k, 64k, ... up to the target."),
        click.option("--completion-tokens", type=click.IntRange(1), default=16, show_default=True),
        click.option("--timeout", type=click.FloatRange(1), help="Seconds for one prompt.  [default: by the estimate]"),
        click.option("--route", type=click.Choice(("generate", "completions", "chat")), help="How to send prompts."),
        click.option("--seed", type=click.IntRange(0), help="Makes the same prompts again."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def order_of(given: Mapping[str, Any]) -> Order:
    """The order that the options make."""
    from kvyield.verify import Order

    return Order(
        prompt_tokens=given["prompt_tokens"],
        concurrent=given["concurrent"],
        ramp=given["ramp"],
        completion_tokens=given["completion_tokens"],
        timeout_seconds=given["timeout"],
        model=given["served_model"],
        route=given["route"],
        seed=given["seed"],
    )


def carry_out(given: Mapping[str, Any], reader: FreeReader | None) -> Report:
    """Sends the prompts, telling on standard error what happens. ``reader`` replaces this host's cards."""
    from kvyield._engine_http import open_engine
    from kvyield.verify import verify

    last_words = log_since_now(given)
    with (
        open_engine(given["server"], given["server_key"]) as http,
        _memory(given, http, reader) as memory,
        _Teller() as teller,
    ):
        return verify(http, order_of(given), reader=memory, progress=teller.hear, last_words=last_words)


def show_report(report: Report) -> None:
    """A row a verification, then what failed."""
    counted = (">prompt tokens", ">at once", ">cached", ">seconds", ">first token, s")
    headings = (*counted, ">free before, GiB", ">lowest free, GiB", "answer", "")
    rows = []
    for found in (result.verification for result in report.results):
        times = (_seconds(found.elapsed_seconds), _seconds(found.time_to_first_token_seconds))
        memory = (gib(found.free_before_gib), gib(found.lowest_free_gib))
        counts = (tokens(found.prompt_tokens), found.concurrent or 1, tokens(found.cached_tokens))
        rows.append((*counts, *times, *memory, found.answer_received or "-", "passed" if found.passed else "FAILED"))
    table(headings, rows)
    for result in report.results:
        if result.verification.error:
            say(f"kvyield: {result.verification.error}")


def log_since_now(given: Mapping[str, Any]) -> Callable[[], str]:
    """Reads the end of the engine's log when called: what it has written since this moment, as far as times tell."""
    if given.get("stdin"):
        return lambda: ""
    file = given.get("log_file")
    if file:
        size = Path(file).stat().st_size if Path(file).is_file() else 0
        return lambda: _tail(Path(file), size)
    since = datetime.now(timezone.utc)
    stamp = f"{since:%Y-%m-%d %H:%M:%S} UTC" if given.get("journal") else f"{since:%Y-%m-%dT%H:%M:%SZ}"
    return lambda: _newest({**given, "since": None if given.get("kubernetes") else stamp})


def _tail(file: Path, size: int) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(size if file.stat().st_size >= size else 0)
            return opened.read(2**22).decode(errors="replace")
    except OSError:
        return ""


def _newest(given: Mapping[str, Any]) -> str:
    source = chosen_source(given)
    if source is None:
        return ""
    try:
        return b"".join(deque(islice(source.lines(), 10**6), maxlen=LAST_LINES)).decode(errors="replace")
    except KvyieldError as error:
        say(f"kvyield: the log could not be read: {error}")
        return ""


@contextlib.contextmanager
def _memory(given: Mapping[str, Any], http: EngineHttp, reader: FreeReader | None) -> Iterator[FreeReader | None]:
    """The server's cards. Without any, or with the server on another host, nothing is sampled, and that is said."""
    from kvyield.gpu import cards, open_reader
    from kvyield.verify import engine_cards, find_server, is_on_this_host

    if reader is not None or given.get("no_card"):
        yield reader
        return
    with contextlib.ExitStack() as stack:
        found = None
        try:
            if not is_on_this_host(given["server"]):
                raise KvyieldError("the server is on another host; run this there")
            found = stack.enter_context(open_reader(engine_cards(cards(), find_server(http))))
        except KvyieldError as error:
            say(f"kvyield: GPU memory is not sampled: {error}")
        yield found


class _Teller:
    """Lines for what happened and, on a terminal, a bar that fills by the estimate."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _Teller:
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TimeElapsedColumn())
            self._bar = self._stack.enter_context(progress.Progress(*columns, console=Console(stderr=True)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hear(self, step: Progress) -> None:
        """Tells one step; called from the verification's own threads too."""
        if step.stage in ("found", "note", "sending"):
            of = f"{step.step} of {step.steps}: " if step.steps > 1 and step.stage == "sending" else ""
            say(f"kvyield: {of}{step.text}")
        if self._bar is not None and step.stage == "sending":
            self._task = self._bar.add_task(step.text, total=step.seconds)
            self._stack.enter_context(_ticking(self._bar, self._task))
        elif self._bar is not None and step.stage == "done" and self._task is not None:
            self._bar.update(self._task, total=1, completed=1)
            self._bar.stop_task(self._task)
            self._task = None


@contextlib.contextmanager
def _ticking(bar: Any, task: Any) -> Iterator[None]:
    """Moves a bar with the clock: an engine does not tell how far a prompt is."""
    import threading

    over, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not over.wait(0.5) and not bar.tasks[task].finished:
            bar.update(task, completed=min(time.monotonic() - began, (bar.tasks[task].total or 1) * 0.99))

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
