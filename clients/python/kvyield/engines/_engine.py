"""The interface that an engine's file fills in, and what readers of all engines share."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone, tzinfo
from functools import partial
from typing import Literal

from kvyield.engines._failures import SPECIFIC, Place, Problems
from kvyield.engines._lines import Line
from kvyield.engines._literals import shortest_float32
from kvyield.engines._prefix import UNKNOWN_YEAR, Record
from kvyield.engines._start import EngineName, Phase, Scalar, Sourced, Start
from kvyield.engines._text import message_of, quote, source_of

EXCERPT_LINES = 40
TRACEBACK_BYTES = 1 << 16

Role = Literal["opens", "belongs"]

UNTAGGED = re.compile(r"v?0\.(?:1\.dev\d.*|0\.0(?:[.+]?dev.*|\+.*)?)|dev|unknown|N/A")
"""What setuptools-scm and other tools print for a source build without tags: ``0.1.dev20610+g4b276a363``."""


@dataclass(frozen=True)
class Surroundings:
    """What a reader may know beside its own lines: the lines just before, and what stamps leave out.

    ``reference_time`` places stamps without a year, of a live log (``is_live``) the present time does. ``zone`` is that
    of stamps without a zone, None this host's own.
    """

    reference_time: datetime | None = None
    is_live: bool = False
    zone: tzinfo | None = timezone.utc
    last_lines: Callable[[int], Iterable[Line]] = lambda _most_bytes: ()


class Clock:
    """First and ready time of one start, by the engine's own stamps if there are any, else by those of the prefix."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._first: dict[str, datetime] = {}
        self._ready: dict[str, datetime] = {}
        self._year: int | None = None

    def see(self, record: Record, own: datetime | None, *, opens: bool = False, ready: bool = False) -> None:
        """Take in a line's times. ``opens``: the start counts from here, whatever was printed before."""
        for kind, moment in (("own", own), ("prefix", record.time)):
            if moment is None:
                continue
            if opens or kind not in self._first:
                self._first[kind] = moment
            if ready:
                self._ready[kind] = moment
            if moment.year != UNKNOWN_YEAR:
                self._year = moment.year

    @property
    def started_at(self) -> datetime | None:
        """Aware, UTC; a stamp without a zone is in the log's, one without a year gets it from another stamp or the
        reference.
        """
        zoned = [moment for moment in self._first.values() if moment.tzinfo]
        dated = [moment for kind in ("own", "prefix") for moment in (self._first.get(kind),) if moment]
        if zoned:
            return zoned[0].astimezone(timezone.utc)
        dated.sort(key=lambda moment: moment.year == UNKNOWN_YEAR)
        return self._in_utc(dated[0]) if dated else None

    @property
    def needs_zone(self) -> bool:
        """True when the time is known from stamps that name no zone."""
        return bool(self._first) and not any(moment.tzinfo for moment in self._first.values())

    def _in_utc(self, moment: datetime) -> datetime | None:
        if moment.year != UNKNOWN_YEAR:
            return self._zoned(moment)
        reference = self._reference()
        for year in (reference.year, reference.year - 1) if reference else ():
            try:
                placed = self._zoned(moment.replace(year=year))
            except ValueError:  # 29 February of another year
                continue
            if placed is not None and reference is not None and (placed - reference).total_seconds() < 86400:
                return placed
        return None

    def _zoned(self, moment: datetime) -> datetime | None:
        zone = self._surroundings.zone
        try:
            return (moment if zone is None else moment.replace(tzinfo=zone)).astimezone(timezone.utc)
        except (OverflowError, ValueError, OSError):  # a year that no zone knows
            return None

    def _reference(self) -> datetime | None:
        if self._surroundings.reference_time is not None:
            return self._surroundings.reference_time
        if self._year is not None:
            return datetime(self._year, 12, 31, 23, 59, 59, tzinfo=timezone.utc)
        return datetime.now(timezone.utc) if self._surroundings.is_live else None

    @property
    def startup_seconds(self) -> float | None:
        """From the first line to the ready line, by stamps of one kind."""
        for kind in ("own", "prefix"):
            if kind in self._first and kind in self._ready and self._same_zone(kind):
                seconds = (self._ready[kind] - self._first[kind]).total_seconds()
                if seconds < -86400 and self._first[kind].year == UNKNOWN_YEAR:
                    seconds += 366 * 86400
                return seconds if seconds >= 0 else None
        return None

    def _same_zone(self, kind: str) -> bool:
        return (self._first[kind].tzinfo is None) == (self._ready[kind].tzinfo is None)


class StartReader(ABC):
    """Collects one start. Subclasses fill ``feed`` and ``conclude``; values are only ever set from a line that holds
    them.
    """

    def __init__(self, engine: EngineName, surroundings: Surroundings) -> None:
        self.start = Start(engine=engine, outcome="unfinished")
        self.surroundings = surroundings
        self.clock = Clock(surroundings)
        self.problems = Problems()
        self._noted: set[str] = set()
        self.phase: Phase = "load"
        self.opened = False  # the line with the arguments was seen
        self.started = False  # a line of the start-up itself was seen
        self.announced = False  # the engine said that it was ready, or served a request
        self.complete = False  # nothing more of the start-up is to come
        self.last_progress = 0  # number of the last line that showed the engine at work

    @property
    def settled(self) -> bool:
        """True when the start is over, well or badly: the next start-up line belongs to another start."""
        return self.announced or (self.problems.cause is not None and self.problems.cause.final)

    @property
    def awaits_ready(self) -> bool:
        """True when the pool may be there and no word of readiness was read."""
        return not self.settled and self.phase in ("pool", "graph_capture")

    @property
    def is_dead(self) -> bool:
        """True when the start failed for good and the cause is known as well as it will be."""
        cause = self.problems.cause
        return cause is not None and cause.final and (cause.weight >= SPECIFIC or self.problems.is_over)

    @abstractmethod
    def belongs(self, record: Record) -> bool:
        """False when the line can only be of another start."""

    @abstractmethod
    def feed(self, record: Record) -> None:
        """Take in one line."""

    @abstractmethod
    def conclude(self) -> None:
        """Fill the measurements that need the whole start."""

    def read_problem(self, record: Record, text: str) -> bool:
        """Take in a line that may show a problem; a log without any start-up line is taken for a server at work."""
        begun = self.started or self.opened or self.announced
        phase: Phase = self.phase if begun else "unknown"
        serving = self.announced or not begun
        before = partial(self.lines_before, record, TRACEBACK_BYTES, since=self.last_progress)
        place = Place(record.number, f"{record.process} {text[:200]}", before)
        return self.problems.read(place, text, phase, serving=serving, is_server=self.complete or not begun)

    def lines_before(self, record: Record, most_bytes: int, since: int = 0) -> list[bytes]:
        """The lines just before this one, as many as those bytes hold, of those after line ``since``."""
        return [line.raw for line in self.surroundings.last_lines(most_bytes) if since < line.number < record.number]

    def progressed(self, record: Record) -> None:
        """The line is of the start-up or of served requests: what went wrong before did not stop the engine."""
        self.problems.progress()
        self.last_progress = record.number

    def note(self, record: Record) -> None:
        """Keep the line for the excerpt, once however many ranks say it."""
        words = record.text.rpartition("] ")[2]
        if len(self.start.excerpt) >= EXCERPT_LINES or words in self._noted:
            return
        line = quote(record.text, 300)
        message = message_of(line)
        if message not in self._noted:
            self.start.excerpt.append(line)
        self._noted |= {words, message}

    def flag(self, name: str, value: Scalar, source: str) -> None:
        """Set a flag; None is a flag known to be off."""
        plain = shortest_float32(value) if isinstance(value, float) else value
        self.start.flags[name] = Sourced(plain, source)

    def fact(self, name: str, value: Scalar, source: str) -> None:
        """Set a fact, unless it is empty or already known."""
        if value is not None and value != "":
            self.start.facts.setdefault(name, Sourced(value, source))

    def version(self, value: str, source: str) -> None:
        """Set the engine's version; what a source build prints without tags is not a version."""
        if not UNTAGGED.fullmatch(value):
            self.fact("engine_version", value, source)

    def measure(self, name: str, value: float | None, source: str) -> None:
        """Set a measurement; negative figures are artefacts of memory that others gave back, and stay out."""
        if value is not None and 0 <= value < math.inf:
            self.start.measurements[name] = Sourced(value, source)

    def take(self, name: str, value: Sourced | None) -> None:
        """Set a measurement that was found with its source."""
        if value is not None and isinstance(value.value, int | float):
            self.measure(name, value.value, value.source)

    def finish(self) -> Start | None:
        """The start as far as it went; None when nothing was learned of it."""
        self.conclude()
        start, cause = self.start, self.problems.cause
        seconds = self.clock.startup_seconds
        if seconds is not None and self.announced and self.opened:
            start.measurements.setdefault(
                "startup_seconds",
                Sourced(seconds, "time of the ready line, from the first log line; the process began earlier"),
            )
        start.observed_at = self.clock.started_at
        if start.observed_at is not None and self.clock.needs_zone:
            start.zone = str(self.surroundings.zone or "this host's")
        ended = cause is not None and (cause.final or cause.weight >= SPECIFIC or not self.announced)
        if ended:
            self._fail()
        elif self.announced:
            start.outcome = "ready"
        known = start.flags or start.measurements or cause
        return _copied(start) if known else None

    def _fail(self) -> None:
        cause = self.problems.cause
        assert cause is not None
        where = cause.message.source
        self.start.outcome = cause.outcome
        self.start.failure = {
            "phase": Sourced(cause.phase, where),
            "message": cause.message,
            "cause": Sourced(cause.cause, where) if cause.outcome != "refused" else Sourced("gpu_memory", where),
        }
        for name, evidence in cause.evidence.items():
            place = self.start.measurements if name == "device_memory_gib" else self.start.failure
            place.setdefault(name, evidence)
        if cause.cause in ("error", "killed") and cause.outcome == "failed":
            self.start.excerpt = self.start.excerpt[: EXCERPT_LINES - len(self.problems.last_words)]
            self.start.excerpt += [line for line in self.problems.last_words if line not in self.start.excerpt]


def _copied(start: Start) -> Start:
    """A start that the reader, which may go on, no longer changes; its values cannot be changed at all."""
    return replace(
        start,
        flags=dict(start.flags),
        measurements=dict(start.measurements),
        failure=dict(start.failure),
        facts=dict(start.facts),
        model_facts=dict(start.model_facts),
        contradictions=[*start.contradictions],
        excerpt=[*start.excerpt],
    )


@dataclass(frozen=True)
class Engine:
    """One engine. A new engine is a module with such an object, listed in ``_engines.py``.

    Of ``openers`` the first line worth reading of any start holds one; they are few, and rare in a serving engine's
    output. Of ``ready`` the last line of a start-up holds one, when that comes after the engine is as good as ready. Of
    ``hooks`` every line worth reading while a start is under way holds one. ``role`` says whether a line opens a start
    of this engine, can only be this engine's, or could be anyone's; ``reader`` makes a reader for one start.
    """

    name: EngineName
    openers: tuple[bytes, ...]
    ready: tuple[bytes, ...]
    hooks: tuple[bytes, ...]
    role: Callable[[str], Role | None]
    reader: Callable[[Surroundings], StartReader]
    late: tuple[bytes, ...] = ()


def source(record: Record) -> str:
    """Where a value came from: the record's line."""
    return source_of(record.number, record.text)
