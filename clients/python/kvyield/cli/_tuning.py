"""The engine at its place, as ``tune`` looks at it: its log, its endpoints, its GPUs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kvyield._errors import KvyieldError
from kvyield.cli._options import chosen_source, configured_facts, extras_of
from kvyield.cli._verifying import Session, log_since_now
from kvyield.cli.observe import facts_of_host, running_engine
from kvyield.tune.starting import Look
from kvyield.tune.waiting import in_flight

if TYPE_CHECKING:
    from kvyield.assemble import Assembled
    from kvyield.config import Settings
    from kvyield.gpu import Gpu
    from kvyield.intake import Reading
    from kvyield.sources import Source
    from kvyield.tune.child import Child
    from kvyield.verify import OnResult, Report

ASK_SECONDS = 5.0
COMMAND_SECONDS = 1.0
"""A log that a command reads is not read more often."""
SHOWN_LINES = 3
BEFORE = timedelta(seconds=1)


@dataclass
class Site:
    """One engine of this host, or of another at ``given['server']``. ``child`` is set when its output is kept here."""

    given: Mapping[str, Any]
    settings: Settings
    child: Child | None = None
    _since: datetime | None = field(default=None, init=False)
    _file: tuple[int, int] = field(default=(0, 0), init=False)
    _state: object = field(default=None, init=False)
    _looked: tuple[UUID | None, Look, float] | None = field(default=None, init=False)
    _engine_gpus: Sequence[tuple[int, str | None]] = field(default=(), init=False)

    def present(self) -> Assembled | None:
        """See `kvyield.tune.starting.Site`. Raises `KvyieldError` when log and server are not one start."""
        from kvyield.intake import read_endpoints_only

        running = running_engine(self.given)
        source = self._whole_source()
        reading = self._read(source, None, running) if source else None
        if reading is not None and reading.differences:
            raise KvyieldError(f"log and server are not one start: {'; '.join(reading.differences)}")
        found = _ready_one(reading) if reading else None
        if found is None:
            alone = read_endpoints_only(running, self._extras(None, with_gpus=True))
            found = _ready_one(alone)
        self._note_gpus()
        return found

    def mark(self) -> None:
        """See `kvyield.tune.starting.Site`."""
        self._since, self._state, self._looked = datetime.now(timezone.utc), None, None
        path = self.given.get("log_file")
        if path and Path(path).is_file():
            status = Path(path).stat()
            self._file = (status.st_ino, status.st_size)
        else:
            self._file = (0, 0)

    def look(self, recommendation_id: UUID | None) -> Look:
        """See `kvyield.tune.starting.Site`."""
        state, now = self._log_state(), time.monotonic()
        if self._looked is not None and self._looked[0] == recommendation_id:
            is_fresh = now - self._looked[2] < COMMAND_SECONDS if state is None else state == self._state
            if is_fresh:
                return self._looked[1]
        self._state = state
        look = self._look(recommendation_id)
        self._looked = (recommendation_id, look, now)
        return look

    def ready(self, recommendation_id: UUID | None) -> Assembled | None:
        """See `kvyield.tune.starting.Site`."""
        from kvyield.intake import read_endpoints_only

        running = running_engine(self.given)
        source = self._source() if self.look(recommendation_id).start is not None else None
        reading = self._read(source, recommendation_id, running, with_gpus=True) if source else None
        found = _ready_one(reading) if reading else None
        if found is None:
            found = _ready_one(read_endpoints_only(running, self._extras(recommendation_id, with_gpus=True)))
        self._note_gpus()
        return found

    def is_healthy(self) -> bool:
        """See `kvyield.tune.starting.Site`."""
        try:
            status, _ = self._get("/health")
            told = self._get("/v1/models")[0] if status in (404, 405) else status
            return told < 400 or told in (401, 403)  # it answers; that a key is missing the prompt will tell
        except KvyieldError:
            return False

    def in_flight(self) -> int | None:
        """See `kvyield.tune.starting.Site`."""
        return in_flight(self._get, self._flushed)

    def verify(self, pace: Sequence[tuple[int, float]], on_result: OnResult) -> Report:
        """See `kvyield.tune.starting.Site`."""
        from kvyield.verify import Report

        words: Callable[[], str] = self.child.tail_since_now() if self.child else log_since_now(self.given)
        with Session(self.given, None, words) as session:
            if session.refusal is not None:
                return Report(session.server, refusal=session.refusal)
            return session.verify(pace, on_result)

    def free_memory(self) -> Sequence[float] | None:
        """Free GiB of each of the engine's GPUs now; None where this host cannot tell."""
        return [gpu.free_gib for gpu in self._own_gpus()] or None

    def free_without(self, pid: int) -> float | None:
        """See `kvyield.tune.starting.Site`."""
        from kvyield.processes import family

        found, own = self._own_gpus(), family(pid)
        held = [sum(one.used_gib or 0.0 for one in gpu.processes if one.pid in own) for gpu in found]
        return min(gpu.free_gib + gib for gpu, gib in zip(found, held, strict=True)) if any(held) else None

    def _own_gpus(self) -> Sequence[Gpu]:
        """The engine's GPUs; all of them where nothing tells which they are."""
        gpus = self._visible_gpus()
        return [gpu for gpu in gpus if (gpu.index, gpu.uuid) in self._engine_gpus] or gpus

    def _visible_gpus(self) -> Sequence[Gpu]:
        from kvyield.gpu import GpuError, find_gpus
        from kvyield.verify import is_on_this_host

        if self.given.get("no_gpu") or not is_on_this_host(self.given["server"]):
            return []
        try:
            return find_gpus()
        except GpuError:
            return []

    def _note_gpus(self) -> None:
        from kvyield._engine_http import EngineError, open_engine
        from kvyield.verify import engine_gpus, find_server

        gpus = self._visible_gpus()
        if not gpus:
            return
        try:
            with open_engine(self.given["server"], self.given["server_key"]) as http:
                server = find_server(http, self.given["served_model"])
        except EngineError:
            return
        self._engine_gpus = [(gpu.index, gpu.uuid) for gpu in engine_gpus(gpus, server)]

    def _get(self, path: str) -> tuple[int, bytes]:
        from kvyield._engine_http import open_engine

        with open_engine(self.given["server"], self.given["server_key"]) as http:
            reply = http.get(path, timeout_seconds=ASK_SECONDS)
        return reply.status, reply.body

    def _flushed(self) -> bool | None:
        from kvyield._engine_http import open_engine

        with open_engine(self.given["server"], self.given["server_key"]) as http:
            reply = http.post("/flush_cache", None, timeout_seconds=ASK_SECONDS)
        return {200: True, 400: False}.get(reply.status)

    def _extras(self, recommendation_id: UUID | None, *, with_gpus: bool) -> Any:
        from kvyield.verify import is_on_this_host

        is_local = is_on_this_host(self.given["server"])
        wanted = with_gpus and not self.given.get("no_gpu")
        facts = facts_of_host(configured_facts(self.settings), is_local=is_local, with_gpus=wanted)
        return extras_of(self.given, self.settings, facts, recommendation_id)

    def _read(self, source: Source, recommendation_id: UUID | None, running: Any, *, with_gpus: bool = True) -> Reading:
        from kvyield.intake import read

        extras = self._extras(recommendation_id, with_gpus=with_gpus)
        engine = self.given["engine"] or self.settings.facts.get("engine")
        return read(source, extras, engine=engine, running=running, zone=self.given.get("timezone"))

    def _look(self, recommendation_id: UUID | None) -> Look:
        source = self._source()
        if source is None:
            return Look()
        last: deque[bytes] = deque(maxlen=SHOWN_LINES)
        lines = source.lines
        source.lines = lambda: _remembered(lines(), last)
        try:
            reading = self._read(source, recommendation_id, None)
        except KvyieldError:
            return Look()  # a log that is not there yet
        words = b" | ".join(line.strip() for line in last).decode(errors="replace")[-800:]
        ended = next((one for one in reading.starts if one.draft["outcome"] != "ready"), None)
        latest = [*reading.starts, *reading.unfinished][-1:]
        start = ended or (latest[0] if latest else None)
        return Look(start, start is not None and start.draft["outcome"] == "ready", words)

    def _whole_source(self) -> Source | None:
        """All of the log."""
        return self.child.log_source() if self.child else chosen_source(self.given)

    def _source(self) -> Source | None:
        """What was logged since the mark."""
        if self.child is not None:
            return self.child.log_source()
        if self.given.get("log_file"):
            return self._rest_of_file(Path(self.given["log_file"]))
        since = self._since or datetime.now(timezone.utc)
        stamp = f"{since:%Y-%m-%d %H:%M:%S} UTC" if self.given.get("journal") else f"{since:%Y-%m-%dT%H:%M:%SZ}"
        return chosen_source({**self.given, "since": stamp})

    def _rest_of_file(self, path: Path) -> Source:
        """The file from where it ended at the mark; one that was rotated since is read to its end first."""
        from kvyield.sources import file_source
        from kvyield.watching import rotated

        source = file_source(path)
        inode, size = self._file

        def lines() -> Iterator[bytes]:
            before = rotated(path, inode or None)
            if before is not None:
                with before.open("rb") as file:
                    file.seek(size)
                    yield from file
            with path.open("rb") as file:
                status = path.stat()
                file.seek(size if status.st_ino == inode and status.st_size >= size else 0)
                yield from file

        source.lines = lines
        return source

    def _log_state(self) -> object:
        """What changes when a log file grows; None where only a command can tell."""
        if self.child is not None:
            running = self.child.running
            paths = sorted(running.folder.iterdir()) if running is not None else []
        elif self.given.get("log_file"):
            paths = [Path(self.given["log_file"])]
        else:
            return None
        return tuple((str(path), path.stat().st_ino, path.stat().st_size) for path in paths if path.exists())


def _remembered(lines: Iterator[bytes], last: deque[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.strip():
            last.append(line[:400])
        yield line


def _ready_one(reading: Reading) -> Assembled | None:
    """The last start, when it is ready."""
    last = reading.starts[-1:] if not reading.unfinished else []
    return last[0] if last and last[0].draft["outcome"] == "ready" else None
