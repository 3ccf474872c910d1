"""``kvyield import``: old logs, in parallel."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvyield._errors import IncompleteError
from kvyield.cli._options import client_of, extras_of, fact_options, service_options, settings_of, size_option
from kvyield.cli._run import DONE, FAILED, REFUSED, say
from kvyield.cli._tables import elided, table

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield._client import Client
    from kvyield.assemble import Assembled
    from kvyield.config import Settings
    from kvyield.delivery import Delivery
    from kvyield.intake import Reading
    from kvyield.spool import Spool

Read = Callable[[Path], "Reading"]
WORTH_A_PROCESS_BYTES = 4 * 2**20
BATCH = 100
BATCH_SECONDS = 60.0
SHOWN_FILES = 40
WIDTH = 80
MOST_NAMED = 20
FAILURES = ("unreadable", "refused", "lost", "incomplete")
FATES = ("starts", "stored", "known", "spooled", "refused", "lost", "incomplete", "unfinished", "unreadable")


@click.command("import")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@fact_options
@size_option
@click.option("--jobs", type=click.IntRange(1), help="Processes that read.  [default: one a core]")
@click.option("--dry-run", is_flag=True, help="Post nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, exactly as posted.")
@click.option("--spooled-exit-code", type=click.IntRange(0, 125), default=DONE, help="When the service is away.")
@service_options
@click.pass_context
def import_logs(ctx: click.Context, /, **given: Any) -> None:
    """Post the starts of old logs: files, folders (*.log*, *.txt, *.out, *.err below them), quoted globs.

    Importing the same log twice stores nothing twice. Facts come from the logs and the options only, never from this
    host's cards, since the logs may be another host's.
    """
    from kvyield._bounded import MOST_BYTES
    from kvyield.intake import read_file
    from kvyield.sources import expand

    most_bytes = given["max_bytes"] or MOST_BYTES
    settings = settings_of(given)
    files = expand(given["logs"])
    extras, zone = extras_of(given, settings, {}), given.get("timezone")
    read = partial(read_file, extras=extras, engine=given["engine"], most_bytes=most_bytes, zone=zone)
    readings = _readings(files, read, given["jobs"])
    tally = _Tally(as_json=given["as_json"])
    if given["dry_run"]:
        for reading in _with_progress(readings, len(files)):
            tally.take(reading)
    else:
        _post_all(_with_progress(readings, len(files)), settings, tally)
    tally.show(is_dry=given["dry_run"])
    ctx.exit(tally.exit_code(given["spooled_exit_code"], is_dry=given["dry_run"]))


def _readings(files: Sequence[Path], read: Read, jobs: int | None) -> Iterator[Reading]:
    size = sum(file.stat().st_size for file in files if file.is_file())
    count = min(jobs or os.cpu_count() or 1, len(files))
    if count == 1 or (jobs is None and size < WORTH_A_PROCESS_BYTES):
        yield from map(read, files)
        return
    taken = 0
    try:
        for reading in _in_processes(files, read, count):
            taken += 1
            yield reading
    except BrokenProcessPool:
        yield from (_alone(file, read) for file in files[taken:])


def _in_processes(files: Sequence[Path], read: Read, count: int) -> Iterator[Reading]:
    ignored = (signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to answer
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=signal.signal, initargs=ignored) as pool:
        try:
            futures = [pool.submit(read, file) for file in files]
            while futures:
                yield futures.pop(0).result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _alone(file: Path, read: Read) -> Reading:
    """One file in a process of its own: when that dies, the file is named and the others are read."""
    from kvyield.intake import Reading

    try:
        return next(_in_processes([file], read, 1))
    except BrokenProcessPool:
        return Reading(str(file), notes=[f"{file}: the process that read it was killed (out of memory?)"])


def _with_progress(readings: Iterator[Reading], total: int) -> Iterator[Reading]:
    """A bar on standard error when it is a terminal."""
    if not sys.stderr.isatty():
        yield from readings
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(readings, "reading logs", total=total, console=Console(stderr=True), transient=True)


def _post_all(readings: Iterator[Reading], settings: Settings, tally: _Tally) -> None:
    from kvyield.spool import Spool

    waiting: list[tuple[str, _wire.Observation]] = []
    spool = Spool(settings.spool)
    with client_of(settings, total_seconds=BATCH_SECONDS) as client:
        for reading in readings:
            waiting += [(reading.name, one) for one in tally.take(reading)]
            while len(waiting) >= BATCH:
                _post(waiting[:BATCH], spool, client, tally)
                del waiting[:BATCH]
        if waiting:
            _post(waiting, spool, client, tally)


def _post(waiting: Sequence[tuple[str, _wire.Observation]], spool: Spool, client: Client, tally: _Tally) -> None:
    from kvyield.delivery import deliver_batch

    names = [name for name, _ in waiting]
    for name, delivery in zip(names, deliver_batch([one for _, one in waiting], spool, client), strict=True):
        tally.settle(name, delivery)


def _row(name: str, count: Counter[str], fates: Sequence[str]) -> tuple[str, ...]:
    shown = elided(name, WIDTH - sum(len(fate) + 3 for fate in fates) - 2)
    return (shown, *(f"{count[fate]:,}" if count[fate] else "-" for fate in fates))


class _Tally:
    """Counts per file: starts, and what became of each."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._counts: dict[str, Counter[str]] = {}
        self._said: Counter[str] = Counter()
        self._lacking: dict[str, list[str]] = defaultdict(list)

    def take(self, reading: Reading) -> list[_wire.Observation]:
        """The starts that can be posted; the others are counted and their lack is said once."""
        count = self._counts.setdefault(reading.name, Counter())
        count["starts"] = len(reading.starts)
        count["unfinished"] = reading.unfinished
        if not reading.starts and not reading.unfinished and not reading.notes:
            say(f"kvyield: no engine start in {reading.name} ({reading.lines:,} lines)")
        for note in reading.notes:
            count["unreadable"] = int(not reading.starts)
            say(f"kvyield: {note}" if reading.name in note else f"kvyield: {reading.name}: {note}")
        return [one for start in reading.starts for one in self._whole(start, reading.name)]

    def _whole(self, start: Assembled, name: str) -> list[_wire.Observation]:
        try:
            if self._as_json:
                click.echo(start.json())
            return [start.observation()]
        except IncompleteError as error:
            self._counts[name]["incomplete"] += 1
            self._lacking[str(error)].append(name)
            return []

    def settle(self, name: str, delivery: Delivery) -> None:
        """Count what became of one start; each reason is said once, a refusal or a loss once a file."""
        self._counts[name][delivery.fate] += 1
        if delivery.reason:
            said = f"{name} {delivery.reason}" if delivery.fate in FAILURES else delivery.reason
            if not self._said[said]:
                say(f"kvyield: {name}: {delivery.fate}: {delivery.reason}")
            self._said[said] += 1

    def show(self, *, is_dry: bool) -> None:
        """The table, to standard error when standard output holds JSON."""
        for lack, names in self._lacking.items():
            files = list(dict.fromkeys(names))
            which = ", ".join(files[:MOST_NAMED]) + (
                f" and {len(files) - MOST_NAMED} more" if files[MOST_NAMED:] else ""
            )
            verb = "could not be" if is_dry else "were not"
            say(f"kvyield: {len(names)} start(s) {verb} posted: {lack}: {which}")
        if self._as_json:
            return
        total = sum(self._counts.values(), Counter())
        fates = [fate for fate in FATES if total[fate] or fate == "starts"]
        counts = list(self._counts.items())
        failed = [(name, count) for name, count in counts[SHOWN_FILES:] if any(count[fate] for fate in FAILURES)]
        rows = [_row(name, count, fates) for name, count in counts[:SHOWN_FILES] + failed]
        hidden = len(counts) - len(rows)
        rows += [(f"... {hidden} more files without a failure",)] if hidden > 0 else []
        table(("log", *(f">{fate}" for fate in fates)), [*rows, _row("all", total, fates)])

    def exit_code(self, spooled: int, *, is_dry: bool) -> int:
        total = sum(self._counts.values(), Counter())
        codes = [
            DONE,
            FAILED if total["lost"] or total["unreadable"] or not (total["starts"] or total["unfinished"]) else DONE,
            FAILED if total["incomplete"] and not is_dry else DONE,
            REFUSED if total["refused"] else DONE,
            spooled if total["spooled"] else DONE,
        ]
        return max(codes)
