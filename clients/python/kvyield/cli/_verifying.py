"""What ``verify`` and ``report`` share: options, the engine with its GPUs and log, progress, and the results."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click

from kvyield._errors import KvyieldError, ServiceError
from kvyield.cli._options import chosen_source, token_count
from kvyield.cli._run import DONE, FAILED, say
from kvyield.cli._tables import gib, table, tokens

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield._client import Client
    from kvyield.gpu import FreeReader, Gpu
    from kvyield.verify import OnResult, Order, Progress, Report, Server

Function = TypeVar("Function", bound=Callable[..., Any])
LAST_LINES = 400
SMALLEST_PROMPT_TOKENS = 256
PACE_STARTS = 50
PACE_FLAGS = (
    *("tp_size", "pp_size", "dp_size", "chunked_prefill_size", "attention_backend", "quantization", "dtype"),
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_num_batched_tokens", "tp", "dp"),
    *("kv_cache_dtype", "enforce_eager", "disable_cuda_graph"),
)
"""Flags that change how long a prompt takes."""


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
        click.option(
            "--no-answer-check",
            is_flag=True,
            help="Do not check the answer: for a model that cannot give it. Recorded as not_checked.",
        ),
        click.option("--timeout", type=click.FloatRange(1), help="Seconds for one prompt.  [default: by the estimate]"),
        click.option("--route", type=click.Choice(("generate", "completions", "chat")), help="How to send prompts."),
        click.option("--seed", type=click.IntRange(0), help="Makes the same prompts again."),
        click.option("--force", is_flag=True, help="Send the prompt even if the server is another start."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def order_of(given: Mapping[str, Any], pace: Iterable[tuple[int, float]] = ()) -> Order:
    """The order that the options make; ``pace`` is what earlier prompts of this start took."""
    from kvyield.verify import Order

    return Order(
        prompt_tokens=given["prompt_tokens"],
        concurrent=given["concurrent"],
        ramp=given["ramp"],
        completion_tokens=given["completion_tokens"],
        check_answer=not given["no_answer_check"],
        timeout_seconds=given["timeout"],
        model=given["served_model"],
        route=given["route"],
        seed=given["seed"],
        pace=tuple(pace),
    )


class Session:
    """A running engine that was found and may be verified. Use it as a context manager."""

    def __init__(
        self, given: Mapping[str, Any], reader: FreeReader | None, last_words: Callable[[], str] | None = None
    ) -> None:
        """``reader`` replaces this host's GPUs, ``last_words`` the end of the log that ``given`` names."""
        self._given = given
        self._reader = reader
        self._last_words = last_words
        self._stack = contextlib.ExitStack()
        self.server: Server | None = None
        self.gpus: Sequence[Gpu] = ()
        self.refusal: str | None = None

    def __enter__(self) -> Session:
        """Finds the engine and its GPUs. Why the prompt cannot be sent is in ``refusal``; nothing is raised for it."""
        from kvyield._engine_http import EngineError, open_engine
        from kvyield.verify import find_server

        self._last_words = self._last_words or log_since_now(self._given)
        self._http = self._stack.enter_context(open_engine(self._given["server"], self._given["server_key"]))
        try:
            self.server = find_server(self._http, self._given["served_model"])
            self.refusal = self.server.refusal(self._given["prompt_tokens"])
        except EngineError as error:
            self.refusal = f"no engine could be asked at {self._given['server']}: {error}"
        if self.refusal is None:
            self._find_memory()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def verify(self, pace: Iterable[tuple[int, float]], on_result: OnResult) -> Report:
        """Sends the prompts, telling on standard error what happens; ``on_result`` receives each result at once."""
        from kvyield.verify import verify

        assert self.server is not None
        assert self._last_words is not None
        with _Teller() as teller:
            return verify(
                self._http,
                order_of(self._given, pace),
                server=self.server,
                reader=self._reader,
                progress=teller.hear,
                on_result=on_result,
                last_words=self._last_words,
            )

    def _find_memory(self) -> None:
        """The server's GPUs. Without any, or with the server on another host, nothing is sampled, and that is said."""
        from kvyield.gpu import find_gpus, open_reader
        from kvyield.verify import engine_gpus, is_on_this_host

        if self._reader is not None or self._given.get("no_gpu"):
            return
        try:
            if not is_on_this_host(self._given["server"]):
                raise KvyieldError("the server is on another host; run this there")
            self.gpus = engine_gpus(find_gpus(), self.server)
            self._reader = self._stack.enter_context(open_reader(self.gpus))
        except KvyieldError as error:
            say(f"kvyield: GPU memory is not sampled: {error}")


def exit_code_of(report: Report) -> int:
    """0 when all was served and no answer was wrong."""
    return DONE if report.passed and report.answered else FAILED


def pace_of(client: Client, observation_id: UUID) -> Iterator[tuple[int, float]]:
    """What prompts took by the ledger, as tokens and seconds of one alone: this start's, and those of starts like it.

    A service that does not tell leaves it to prompts of its own.
    """
    with contextlib.suppress(ServiceError):
        own = client.observation(observation_id)
        page = client.observations_page(pair_id=own.pair_id, engine=own.engine.name, page_size=PACE_STARTS)
        for start in (own, *(one for one in page.items if one.id != own.id)):
            if start.retracted_at is None and all(start.flags.get(name) == own.flags.get(name) for name in PACE_FLAGS):
                yield from filter(None, map(_pace, start.verifications))


def _pace(one: _wire.Verification) -> tuple[int, float] | None:
    """Chunks of prompts that come at once are worked on one after the other."""
    seconds = one.time_to_first_token_seconds
    return (one.prompt_tokens, seconds / (one.concurrent or 1)) if one.passed and seconds else None


def show_report(report: Report) -> None:
    """A row per verification, then what failed."""
    counted = (">prompt tokens", ">at once", ">cached", ">seconds", ">first token, s")
    headings = (*counted, ">free before, GiB", ">lowest free, GiB", "answer", "")
    rows = []
    for found in (result.verification for result in report.results):
        times = (_seconds(found.elapsed_seconds), _seconds(found.time_to_first_token_seconds))
        memory = (gib(found.free_before_gib), gib(found.lowest_free_gib))
        counts = (tokens(found.prompt_tokens), found.concurrent or 1, tokens(found.cached_tokens))
        answer = (found.answer or "-").replace("_", " ")
        rows.append((*counts, *times, *memory, answer, "passed" if found.passed else "FAILED"))
    if rows:
        table(headings, rows)
    for result in report.results:
        if result.verification.error:
            say(f"kvyield: {result.verification.error}")
    if report.refusal:
        say(f"kvyield: not verified: {report.refusal}")


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
        if step.stage in ("found", "note", "waiting", "sending"):
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
