"""``kvyield import``: old logs, in parallel, and exports of a ledger."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kvyield._errors import IncompleteError, InvalidError, KvyieldError, RefusedError, SourceError
from kvyield.cli._options import client_of, extras_of, fact_options, service_options, settings_of, size_option
from kvyield.cli._run import DONE, FAILED, REFUSED, UNREACHABLE, say
from kvyield.cli._tables import elided, table

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield._client import Client
    from kvyield.assemble import Assembled
    from kvyield.config import Settings
    from kvyield.delivery import Delivery
    from kvyield.exports import Line
    from kvyield.intake import Reading
    from kvyield.spool import Spool

Read = Callable[[Path], "Reading"]
WORTH_A_PROCESS_BYTES = 4 * 2**20
BATCH = 100
BATCH_SECONDS = 60.0
SHOWN_FILES = 40
WIDTH = 80
MOST_NAMED = 20
NO_ADMIN = "only a token of the role admin may retract it here"
FAILURES = ("unreadable", "refused", "lost", "incomplete")
RESULTS = (
    "starts",
    "stored",
    "known",
    "retracted",
    "spooled",
    "refused",
    "lost",
    "incomplete",
    "unfinished",
    "unreadable",
)


@click.command("import")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@fact_options
@size_option
@click.option("--jobs", type=click.IntRange(1), help="Processes that read.  [default: one per core]")
@click.option("--dry-run", is_flag=True, help="Post nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, exactly as posted.")
@click.option(
    "--spooled-exit-code",
    type=click.IntRange(0, 125),
    default=DONE,
    help="Exit code when the result waits in the spool.",
)
@service_options
@click.pass_context
def import_logs(ctx: click.Context, /, **given: Any) -> None:
    """Post the starts of old logs: files, folders (*.log*, *.txt, *.out, *.err below them), quoted globs.

    Importing the same log twice stores nothing twice. Facts come from the logs and the options only, never from this
    host's GPUs, since the logs may be another host's. An export of a ledger (ndjson, `kvyield-server export`) is taken
    too: its observations with their verifications; those that it says are retracted with an admin's token alone.
    """
    from kvyield._bounded import MOST_BYTES
    from kvyield.exports import is_export, read_export
    from kvyield.intake import read_file
    from kvyield.sources import expand

    most_bytes = given["max_bytes"] or MOST_BYTES
    settings = settings_of(given)
    paths = expand(given["logs"])
    exports = [path for path in paths if is_export(path)]
    files = [path for path in paths if path not in exports]
    extras, zone = extras_of(given, settings, {}), given.get("timezone")
    read = partial(read_file, extras=extras, engine=given["engine"], most_bytes=most_bytes, zone=zone)
    readings = readings_of(files, read, given["jobs"])
    tally = Tally(as_json=given["as_json"])
    if given["dry_run"]:
        for reading in _with_progress(readings, len(files)):
            tally.take(reading)
            for start in reading.unfinished if given["as_json"] else ():
                click.echo(start.json())
        for path in exports:
            list(tally.lines(str(path), read_export(path)))
    else:
        _post_all(_with_progress(readings, len(files)), exports, settings, tally)
    tally.show(is_dry=given["dry_run"])
    ctx.exit(tally.exit_code(given["spooled_exit_code"], is_dry=given["dry_run"]))


def readings_of(files: Sequence[Path], read: Read, jobs: int | None) -> Iterator[Reading]:
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


def _post_all(readings: Iterator[Reading], exports: Sequence[Path], settings: Settings, tally: Tally) -> None:
    from kvyield.exports import read_export
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
        for path in exports:
            _post_lines(str(path), read_export(path), spool, client, tally)


def post_lines(name: str, lines: Iterator[Line], spool: Spool, client: Client) -> int:
    """Posts the lines of an export, says what became of them, and returns the exit code."""
    tally = Tally(as_json=False)
    _post_lines(name, lines, spool, client, tally)
    tally.show(is_dry=False)
    return tally.exit_code(UNREACHABLE, is_dry=False)


def _post_lines(name: str, lines: Iterator[Line], spool: Spool, client: Client, tally: Tally) -> None:
    whole = tally.lines(name, lines)
    why_not = cache(partial(_why_no_retraction, client))
    while batch := list(islice(whole, BATCH)):
        posted = [line for line in batch if line.retraction is None or _may_be_retracted(name, line, why_not, tally)]
        _post_export(name, posted, spool, client, tally)


def _why_no_retraction(client: Client) -> str | None:
    """Why the token may not retract, or why that is not known; None when it may."""
    try:
        return None if "admin" in client.allowed_roles() else NO_ADMIN
    except KvyieldError as error:
        return str(error)


def _may_be_retracted(name: str, line: Line, why_not: Callable[[], str | None], tally: Tally) -> bool:
    """Whether to post a retracted start: where it cannot be retracted again it would count as evidence."""
    reason = why_not()
    if reason is None:
        return True
    where = f"{name}:{line.number}: {line.observation.id if line.observation else ''}"
    say(f"kvyield: {where} is retracted in the export, and was not posted: {reason}")
    tally.count(name, "refused" if reason == NO_ADMIN else "lost")
    return False


def _post_export(name: str, lines: Sequence[Line], spool: Spool, client: Client, tally: Tally) -> None:
    """Posts lines of an export; one that names a recommendation that this ledger does not have is posted without."""
    from kvyield.delivery import deliver_batch

    whole = [line.observation for line in lines if line.observation is not None]
    deliveries = deliver_batch(whole, spool, client)
    for index, delivery in enumerate(deliveries):
        if _names_unknown_advice(delivery):
            bare = msgspec.structs.replace(delivery.observation, recommendation_id=None)
            deliveries[index] = deliver_batch([bare], spool, client)[0]
    for line, delivery in zip(lines, deliveries, strict=True):
        tally.settle(name, delivery)
        if line.retraction is not None and delivery.result in ("stored", "known", "spooled"):
            _retract(name, line, delivery, client, tally)


def _names_unknown_advice(delivery: Delivery) -> bool:
    faults = delivery.error.problem.errors if isinstance(delivery.error, InvalidError) else []
    return bool(faults) and all(fault.pointer == "/recommendation_id" for fault in faults)


def _retract(name: str, line: Line, delivery: Delivery, client: Client, tally: Tally) -> None:
    """Carries a retraction over; where that is not allowed the line is named: its start counts as evidence now."""
    where = f"{name}:{line.number}: {delivery.stored_id or delivery.observation.id}"
    try:
        if delivery.stored_id is None:
            raise IncompleteError("it waits in the spool", ())
        if client.observation(delivery.stored_id).retracted_at is None:
            client.retract(delivery.stored_id, line.retraction or "retracted where it was exported")
        tally.count(name, "retracted")
    except KvyieldError as error:
        say(f"kvyield: {where} is retracted in the export, and counts as evidence here: not retracted: {error}")
        tally.count(name, "refused" if isinstance(error, RefusedError) else "lost")


def _post(waiting: Sequence[tuple[str, _wire.Observation]], spool: Spool, client: Client, tally: Tally) -> None:
    from kvyield.delivery import deliver_batch

    names = [name for name, _ in waiting]
    for name, delivery in zip(names, deliver_batch([one for _, one in waiting], spool, client), strict=True):
        tally.settle(name, delivery)


def _row(name: str, count: Counter[str], results: Sequence[str]) -> tuple[str, ...]:
    shown = elided(name, WIDTH - sum(len(result) + 3 for result in results) - 2)
    return (shown, *(f"{count[result]:,}" if count[result] else "-" for result in results))


class Tally:
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
        count["unfinished"] = len(reading.unfinished)
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

    def lines(self, name: str, lines: Iterator[Line]) -> Iterator[Line]:
        """The lines of an export that can be posted; the others are counted, and each is named with its reason."""
        count = self._counts.setdefault(name, Counter())
        try:
            for line in lines:
                if line.observation is None:
                    count["refused"] += 1
                    say(f"kvyield: {name}:{line.number} {line.fault}")
                    continue
                count["starts"] += 1
                self._leave_out(name, line.unknown)
                if self._as_json:
                    click.echo(msgspec.json.encode(line.observation))
                yield line
        except SourceError as error:
            count["unreadable"] += 1
            say(f"kvyield: {error}")

    def _leave_out(self, name: str, fields: Sequence[str]) -> None:
        for field in fields:
            if not self._said[f"{name} {field}"]:
                say(f"kvyield: {name}: {field} is unknown to this version of kvyield and left out")
            self._said[f"{name} {field}"] += 1

    def count(self, name: str, what: str) -> None:
        """Count one more of what became of a start."""
        self._counts[name][what] += 1

    def settle(self, name: str, delivery: Delivery) -> None:
        """Count what became of one start; each reason is said once, a refusal or a loss once a file."""
        self._counts[name][delivery.result] += 1
        if delivery.reason:
            said = f"{name} {delivery.reason}" if delivery.result in FAILURES else delivery.reason
            if not self._said[said]:
                say(f"kvyield: {name}: {delivery.result}: {delivery.reason}")
            self._said[said] += 1

    def summary(self) -> str:
        """What became of all, in one line."""
        total = sum(self._counts.values(), Counter())
        counts = ", ".join(f"{total[result]:,} {result}" for result in RESULTS if total[result])
        return f"{len(self._counts):,} log(s): {counts or 'no start'}"

    def say_lacks(self, *, is_dry: bool) -> None:
        """Say once what starts lack, with the files that hold them."""
        for lack, names in self._lacking.items():
            files = list(dict.fromkeys(names))
            which = ", ".join(files[:MOST_NAMED]) + (
                f" and {len(files) - MOST_NAMED} more" if files[MOST_NAMED:] else ""
            )
            verb = "could not be" if is_dry else "were not"
            say(f"kvyield: {len(names)} start(s) {verb} posted: {lack}: {which}")

    def show(self, *, is_dry: bool) -> None:
        """What starts lack, then the table unless standard output holds JSON."""
        self.say_lacks(is_dry=is_dry)
        if self._as_json:
            return
        total = sum(self._counts.values(), Counter())
        results = [result for result in RESULTS if total[result] or result == "starts"]
        counts = list(self._counts.items())
        failed = [(name, count) for name, count in counts[SHOWN_FILES:] if any(count[result] for result in FAILURES)]
        rows = [_row(name, count, results) for name, count in counts[:SHOWN_FILES] + failed]
        hidden = len(counts) - len(rows)
        rows += [(f"... {hidden} more files without a failure",)] if hidden > 0 else []
        table(("log", *(f">{result}" for result in results)), [*rows, _row("all", total, results)])

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
