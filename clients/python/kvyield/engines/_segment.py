"""Which line belongs to which start: several starts in a file, several servers in a journal."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone, tzinfo

from kvyield.engines._engine import Engine, StartReader, Surroundings
from kvyield.engines._lines import Hooks, Scanner
from kvyield.engines._prefix import Record, read_line
from kvyield.engines._start import Start
from kvyield.engines._wordings import UNTELLING, WORDINGS

DEATH_HOOKS = (b"ut of memory", b"OUT_OF_RESOURCES")
"""Looked for in all that a serving engine prints: few, since each costs a pass over every chunk."""

FAILURE_HOOKS = (
    *(b"rror: ", b"xception: ", b"OUT_OF_", b"OutOfMemory", b"hit an exception", b"EngineDead", b"EngineCore "),
    *(b"Fatal Python", b"Failed to CUDA", b"EL0004", b"207001", b"crashed with", b"unexpectedly"),
)
"""Looked for while a start is under way."""

END_HOOKS = tuple(
    needle.encode() for wording in WORDINGS if wording.kind not in UNTELLING for needle in wording.needles
)
"""Whatever may show an end: looked for while a log is small or live, and in the last lines before the next start and
before the end of the log.
"""

ARRAY_MESSAGE = b'"MESSAGE":['
_SYSTEM = re.compile(r"(?:^|/)(?:kernel|systemd)$")
_NAMED_PROCESS = re.compile(r"\b[Pp]rocess (\d{1,10})\b")
SERVED_HOOKS = (b"Decode batch", b"throughput: ")
SURVIVAL_HOOKS = (b" batch", b"throughput: ")
OPENERS_ONLY_AFTER = 1 << 23
ENDS_UNTIL = 1 << 21
LAST_BYTES = 1 << 17
MOST_OPEN_A_STREAM = 4
MOST_STREAMS = 256
MOST_UNCLAIMED = 8
MOST_TAKEN = 1 << 16
MOST_SERVED = 20
LONGEST_JOINED = 1 << 20


@dataclass
class Session:
    """One start being read, and the main process that opened it where the prefix names processes."""

    engine: Engine
    reader: StartReader
    pid: int | None
    opened: int
    reported: bool = False  # given out as ready
    is_over: bool = False  # given out with its end


@dataclass
class Stream:
    """What one unit, container or pod prints. Oldest session first."""

    sessions: list[Session] = field(default_factory=list)
    waiting: Record | None = None  # the parts so far of a record that its transport split
    unclaimed: deque[Record] = field(default_factory=lambda: deque(maxlen=MOST_UNCLAIMED))


class Segmenter:
    """Feeds lines to the readers of the starts that they belong to and gives out starts that are over."""

    def __init__(
        self,
        engines: tuple[Engine, ...],
        *,
        forced: bool,
        reference_time: datetime | None,
        follow: bool,
        zone: tzinfo | None = timezone.utc,
    ) -> None:
        self._engines = engines
        self._forced = forced
        self._follow = follow
        self._streams: dict[str, Stream] = {}
        self._opened = 0
        self._split: set[str] = set()  # streams of which a record is still in parts
        self._unsettled: dict[int, Session] = {}  # starts of which lines of the start-up are still to come, by number
        self._looked_back_at = 0
        self._scanned = 0
        self._done: list[Session] = []
        self.scanner = Scanner(self._hooks)
        self._surroundings = Surroundings(reference_time, follow, zone, self.scanner.last)
        always = (*DEATH_HOOKS, ARRAY_MESSAGE)
        openers = _unique(hook for engine in engines for hook in engine.openers)
        ready = _unique(hook for engine in engines for hook in engine.ready)
        hooks = _unique(hook for engine in engines for hook in engine.hooks)
        self._idle: Hooks = (*openers, *always)
        self._almost: Hooks = (*ready, *openers, *always)
        late = _unique(hook for engine in engines for hook in engine.late)
        self._watchful: Hooks = _unique((*ready, *openers, *late, *END_HOOKS, *always))
        self._busy: Hooks = _unique(
            (*hooks, *ready, *openers, *late, *(END_HOOKS if follow else ()), *FAILURE_HOOKS, *always)
        )
        self._doubtful: Hooks = _unique((*self._busy, *END_HOOKS, *SURVIVAL_HOOKS))
        self._mode: Hooks = self._busy
        self._watched = 0  # lines up to this one were searched for all words of an end
        self._taken: set[int] = set()  # lines since then that were read

    def _hooks(self) -> Hooks:
        return self._mode

    def read(self, chunk: bytes) -> Iterator[Start]:
        """Take in a chunk of whole lines; yield the starts that it ended."""
        for line in self.scanner.scan(chunk):
            self._taken.add(line.number)
            for record in read_line(line.number, line.raw, cut=line.cut):
                self._take(record)
            yield from self._ended()
            wanted = self._wanted()
            if wanted in (None, self._doubtful) or self._mode is not self._busy:  # busy stays so until the chunk ends
                self._look_for(wanted, line.number)
        if any(session.reader.awaits_ready for session in self._unsettled.values()):
            self._take_served(chunk)
        self._scanned += len(chunk)
        self._look_for(self._wanted(), self.scanner.lines_read)

    def _take_served(self, chunk: bytes) -> None:
        """Requests that were served show that an engine came up, where the line that says so is missing."""
        first = self.scanner.lines_read - chunk.count(b"\n") + chunk.endswith(b"\n")
        for hook in SERVED_HOOKS:
            at = chunk.find(hook)
            for _ in range(MOST_SERVED):
                if at < 0:
                    break
                begin, end = chunk.rfind(b"\n", 0, at) + 1, chunk.find(b"\n", at) + 1 or len(chunk)
                number = first + chunk.count(b"\n", 0, begin)
                for record in read_line(number, chunk[begin:end]) if number not in self._taken else ():
                    self._take(record)
                at = chunk.find(hook, end)

    def _look_for(self, hooks: Hooks, since: int) -> None:
        """Change the mode after line ``since``."""
        if self._mode in (None, self._watchful, self._doubtful) or len(self._taken) > MOST_TAKEN:
            self._watched = since
            self._taken.clear()
        self._mode = hooks

    def close(self) -> Iterator[Start]:
        """The source ended: yield what is left, oldest start first."""
        for key, stream in self._streams.items():
            if stream.waiting is not None:
                waiting, stream.waiting = stream.waiting, None
                self._route(replace(waiting, partial=False, cut=True), self._streams[key])
        self._read_last(None)
        for stream in self._streams.values():
            self._done.extend(stream.sessions)
            stream.sessions = []
        self._done.sort(key=lambda session: session.opened)
        yield from self._ended()

    def _wanted(self) -> Hooks:
        if self._split:
            return None
        if not self._opened and self._scanned < OPENERS_ONLY_AFTER:
            return self._busy
        if any(_is_doubtful(session.reader) for session in self._unsettled.values()):
            return self._doubtful
        if any(not session.reader.settled for session in self._unsettled.values()):
            return self._busy
        if self._follow or self._scanned < ENDS_UNTIL:
            return self._watchful
        return self._almost if self._unsettled else self._idle

    def _read_last(self, before: int | None) -> None:
        """Look at the last lines before line ``before``, or of all, for words of an end that no hook found."""
        unread = self.scanner.position - self._looked_back_at
        self._looked_back_at = self.scanner.position
        if self._watched >= self.scanner.lines_read:
            return
        for line in self.scanner.last(min(LAST_BYTES, unread + 1), END_HOOKS):  # one more: the end of the line before
            if line.number <= self._watched or line.number in self._taken or line.number == before:
                continue
            for record in read_line(line.number, line.raw):
                stream = self._streams.get(record.key)
                told = self._told_by_system(record) or (_of_process(stream.sessions, record.pid) if stream else None)
                if told is not None and record.number > told.reader.last_progress:
                    told.reader.read_problem(record, record.text)

    def _told_by_system(self, record: Record) -> Session | None:
        """The start that a line of the kernel or of systemd is about: that of the process it names, or the only one."""
        if not _SYSTEM.search(record.key):
            return None
        live = [session for stream in self._streams.values() for session in stream.sessions if not session.is_over]
        named = _NAMED_PROCESS.search(record.text)
        if named and any(session.pid is not None for session in live):
            return _of_process([session for session in live if session.pid is not None], int(named[1]))
        return live[0] if len(live) == 1 else None

    def _take(self, record: Record) -> None:
        stream = self._stream(record.key)
        if stream.waiting is not None:
            joined = stream.waiting.text + record.text
            record = replace(
                stream.waiting, text=joined[:LONGEST_JOINED], partial=record.partial and len(joined) < LONGEST_JOINED
            )
        stream.waiting = record if record.partial else None
        (self._split.add if record.partial else self._split.discard)(record.key)
        if not record.partial:
            self._route(record, stream)

    def _stream(self, key: str) -> Stream:
        """The stream of that name; of too many, the one unheard for longest is let go."""
        stream = self._streams.pop(key, None) or Stream()
        if len(self._streams) >= MOST_STREAMS:
            oldest = next(iter(self._streams))
            self._done.extend(self._streams.pop(oldest).sessions)
            self._split.discard(oldest)
        self._streams[key] = stream
        return stream

    def _route(self, record: Record, stream: Stream) -> None:
        told = self._told_by_system(record)
        if told is not None:
            told.reader.read_problem(record, record.text)
            return
        engine, opens = self._engine_of(record)
        session = self._session(stream, record, engine, opens=opens)
        if session is None:
            stream.unclaimed.append(record)
            return
        earlier = [] if opens else list(stream.unclaimed)
        stream.unclaimed.clear()
        for each in (*earlier, record):
            session.reader.feed(each)
        session.reader.fact("host", record.host, f"line {record.number}: the prefix")
        if (session.reader.complete or session.reader.is_dead) and not _is_doubtful(session.reader):
            self._unsettled.pop(session.opened, None)
        else:
            self._unsettled[session.opened] = session

    def _engine_of(self, record: Record) -> tuple[Engine | None, bool]:
        for engine in self._engines:
            role = engine.role(record.text)
            if role is not None:
                return engine, role == "opens"
        return (self._engines[0], False) if self._forced else (None, False)

    def _session(self, stream: Stream, record: Record, engine: Engine | None, *, opens: bool) -> Session | None:
        mine = [session for session in stream.sessions if engine is None or session.engine is engine]
        session = _of_process(mine, record.pid)
        if engine is None:
            return session
        if session is not None and session.reader.belongs(record):
            session.pid = record.pid if opens and session.pid is None else session.pid
            return session
        return self._open(stream, record, engine)

    def _open(self, stream: Stream, record: Record, engine: Engine) -> Session:
        self._read_last(record.number)
        for session in list(stream.sessions):
            same = session.pid == record.pid or record.pid is None or session.pid is None
            if session.engine is engine and (same or _has_failed(session.reader)):
                stream.sessions.remove(session)
                self._done.append(session)
        while len(stream.sessions) >= MOST_OPEN_A_STREAM:
            self._done.append(stream.sessions.pop(0))
        for session in stream.sessions:
            self._unsettled.pop(session.opened, None)
        self._opened += 1
        session = Session(engine, engine.reader(self._surroundings), record.pid, self._opened)
        stream.sessions.append(session)
        return session

    def _ended(self) -> Iterator[Start]:
        if self._follow:
            yield from self._newly_told()
        done, self._done = self._done, []
        for session in done:
            self._unsettled.pop(session.opened, None)
            told = session.is_over or (session.reported and session.reader.problems.cause is None)
            start = None if told else session.reader.finish()
            if start is not None:
                yield start

    def _newly_told(self) -> Iterator[Start]:
        for stream in self._streams.values():
            for session in stream.sessions:
                ready = session.reader.complete and not session.reported
                if session.is_over or not (ready or session.reader.is_dead):
                    continue
                session.reported, session.is_over = True, session.reader.is_dead
                start = session.reader.finish()
                if start is not None:
                    yield start


def _is_doubtful(reader: StartReader) -> bool:
    """True while a problem was seen that may or may not be the start's end."""
    return reader.problems.cause is not None and not reader.is_dead


def _has_failed(reader: StartReader) -> bool:
    return reader.problems.cause is not None and reader.problems.cause.final


def _of_process(sessions: list[Session], pid: int | None) -> Session | None:
    """The session of that process, or of the nearest main process below it: children are younger than their parent."""
    if not sessions or pid is None or all(session.pid is None for session in sessions):
        return sessions[-1] if sessions else None
    older = [session for session in sessions if session.pid is not None and session.pid <= pid]
    return max(older, key=lambda session: session.pid or 0) if older else sessions[-1]


def _unique(hooks: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(hooks))
