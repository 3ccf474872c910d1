"""One start of the engine, from the end of the one before until it is ready or has failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from kvyield import _wire
from kvyield.assemble import Assembled
from kvyield.tune import accounts
from kvyield.tune.launchers import Launcher
from kvyield.tune.waiting import Memory, Pause

if TYPE_CHECKING:
    from kvyield.verify import OnResult, Report

POLL_SECONDS = 0.2
SILENT_SECONDS = 20.0
"""An engine that answers for so long without a ready line in its log is read by its endpoints."""
START_SECONDS = 1800.0
"""The bound of a start of which nothing like it was ever timed."""
SLOWER = 3.0
AT_LEAST_SECONDS = 120.0


@dataclass(frozen=True)
class Look:
    """What the log shows about the last start. ``words`` are its last lines."""

    start: Assembled | None = None
    is_ready: bool = False
    words: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the log shows the start's end."""
        return self.start is not None and self.start.draft["outcome"] not in ("ready", "unfinished")


class Site(Protocol):
    """The engine at its place: its log, its endpoints, its GPUs."""

    def present(self) -> Assembled | None:
        """The start that runs now, by its log and endpoints; None when none is ready."""
        ...

    def mark(self) -> None:
        """What is logged from now on belongs to the next start."""
        ...

    def look(self, recommendation_id: UUID | None) -> Look:
        """The start since the mark, by its log alone."""
        ...

    def ready(self, recommendation_id: UUID | None) -> Assembled | None:
        """The start since the mark that is ready, with what endpoints and GPUs add; of a silent log theirs alone."""
        ...

    def free_without(self, pid: int) -> float | None:
        """GiB that would be free of the fullest GPU if a process and its family held nothing; None if nothing tells."""
        ...

    def is_healthy(self) -> bool:
        """Whether the engine answers."""
        ...

    def in_flight(self) -> int | None:
        """Requests that it works on; None when it does not tell."""
        ...

    def verify(self, pace: Sequence[tuple[int, float]], on_result: OnResult) -> Report:
        """Sends the prompts."""
        ...


@dataclass
class Starter:
    """Starts the engine with what its launcher has, and waits, bounded by what the pair's starts took so far."""

    launcher: Launcher
    site: Site
    memory: Memory
    pause: Pause
    say: Callable[[str], None]
    seconds: float | None = None
    """A bound that a person gave."""
    longest_seconds: float | None = field(default=None, init=False)
    """What the slowest start of this run, or an earlier start with the last good flags, took."""
    started_at: datetime | None = field(default=None, init=False)
    """When the last start was made, to the second as engines' own stamps are: the time of one that logs none."""

    def start(self, recommendation_id: UUID | None, advice: _wire.Recommendation | None = None) -> Assembled | None:
        """Ends the engine, waits for its memory, starts it anew and waits until it is ready or has failed.

        Returns None when neither log nor endpoints show a start.
        """
        self.memory.is_held = False
        if (pid := self.launcher.pid()) is not None:
            self.memory.note_free(self.site.free_without(pid))
        if self.launcher.stop():
            self.memory.wait()
        self.pause.check()
        self.site.mark()
        self.started_at = datetime.now(timezone.utc).replace(microsecond=0)
        self.launcher.restart()
        start = self._awaited(recommendation_id, self._bound(advice))
        if start is not None and self.memory.is_less(start.draft["measurements"]["free_before_load_gib"]):
            self.memory.is_held = True
        return start

    def note_seconds(self, seconds: float | None) -> None:
        """Takes what a start took; None changes nothing."""
        if seconds is not None:
            self.longest_seconds = max(seconds, self.longest_seconds or 0.0)

    def _bound(self, advice: _wire.Recommendation | None) -> float:
        """Seconds that a start may take, from the pair's start-up times."""
        each = advice.restarts.minutes_each if advice and advice.restarts else None
        known = [seconds for seconds in (self.longest_seconds, each and 60 * each) if seconds]
        told = max(SLOWER * max(known), AT_LEAST_SECONDS) if known else START_SECONDS
        return self.seconds or told

    def _awaited(self, recommendation_id: UUID | None, seconds: float) -> Assembled | None:
        began = time.monotonic()
        healthy_since: float | None = None
        while True:
            look = self.site.look(recommendation_id)
            if look.has_ended:
                return self._ended_start(look, recommendation_id)
            is_healthy = self.site.is_healthy()
            healthy_since = (healthy_since or time.monotonic()) if is_healthy else None
            is_silent = healthy_since is not None and time.monotonic() - healthy_since > SILENT_SECONDS
            if is_healthy and (look.is_ready or is_silent):
                return self.site.ready(recommendation_id)
            if self.launcher.state() != "running":
                return self._ended_start(look, recommendation_id)
            if time.monotonic() - began > seconds:
                self.say(f"it is not ready after {seconds:.0f} s")
                return accounts.late(look.start, seconds)
            self.pause.sleep(POLL_SECONDS)

    def _ended_start(self, look: Look, recommendation_id: UUID | None) -> Assembled | None:
        """A start whose process ended, or whose log says so: the last words come late."""
        ends = time.monotonic() + 1.0
        while not look.has_ended and time.monotonic() < ends:
            time.sleep(POLL_SECONDS)
            look = self.site.look(recommendation_id)
        if look.start is None or look.has_ended:
            return look.start
        phase = "serving" if look.is_ready else "unknown"
        return accounts.ended(look.start, "failed", phase, look.words or "the engine's process ended")
