"""What ``tune`` waits for: requests in flight to end, GPU memory to be free, an engine to be ready. All bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvyield._errors import KvyieldError
from kvyield.engines._metrics import samples
from kvyield.intake import Get

POLL_SECONDS = 0.2
MEMORY_SECONDS = 120.0
"""A unified-memory host took up to a minute and more to give back what an engine had held."""
STABLE_SECONDS = 2.0
SLACK_GIB = 0.5
SLACK_SHARE = 0.01
RUNNING = (
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_swapped"),
    *("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    *("lmdeploy:num_requests_running", "lmdeploy:num_requests_waiting"),
    *("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
)
"""Gauges of the engines' own metrics that count requests in flight."""
METRICS = ("/metrics", "/prometheus/metrics")
"""Where they are: the second is TensorRT-LLM's, whose ``/metrics`` is something else."""

Say = Callable[[str], None]


class StoppedError(Exception):
    """A signal came: what is under way is to be put back."""


class Pause:
    """Waits that a signal ends. ``number`` is the signal that came, None as long as none did."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.number: int | None = None
        self.is_shielded = False
        self._is_interrupting = False

    def stop(self, number: int) -> None:
        """Takes a signal."""
        self.number = number
        self._event.set()
        if self._is_interrupting and not self.is_shielded:
            raise StoppedError

    def sleep(self, seconds: float) -> None:
        """Raises `StoppedError` when a signal comes meanwhile, unless what is being done must be finished."""
        if self.is_shielded:
            time.sleep(seconds)
        elif self._event.wait(seconds):
            raise StoppedError

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Lets a signal end what waits elsewhere, such as a prompt; the signal's handler runs in the main thread."""
        self.check()
        self._is_interrupting = True
        try:
            yield
        finally:
            self._is_interrupting = False

    def check(self) -> None:
        """Raises `StoppedError` when a signal came."""
        if self._event.is_set() and not self.is_shielded:
            raise StoppedError


@dataclass
class Memory:
    """Free memory of the engine's GPUs. ``read`` gives GiB per GPU, or None where this host cannot tell.

    ``free_gib`` is what is free of the fullest GPU while no engine runs, ``before_load_gib`` what engines found as they
    began, which is less by their own contexts; each as far as it is known.
    """

    read: Callable[[], Sequence[float] | None]
    pause: Pause
    say: Say
    seconds: float = MEMORY_SECONDS
    free_gib: float | None = None
    before_load_gib: float | None = None
    is_held: bool = field(default=False, init=False)
    """Whether the last wait ended before the memory was free."""

    def now(self) -> float | None:
        """Free GiB of the fullest GPU."""
        found = self.read()
        return min(found) if found else None

    def note_free(self, gib: float | None) -> None:
        """Takes what was free without the engine; the most that was ever seen counts."""
        if gib is not None:
            self.free_gib = max(gib, self.free_gib or 0.0)

    def note_before_load(self, gib: float | None) -> None:
        """Takes what an engine found free before it loaded its weights."""
        if gib is not None:
            self.before_load_gib = max(gib, self.before_load_gib or 0.0)

    def wait(self) -> None:
        """Waits until what an engine that ended has held is free again."""
        began, is_told = time.monotonic(), False
        last, since = self.now(), time.monotonic()
        while last is not None:
            if self._is_free(last, time.monotonic() - since):
                self.is_held = False
                if is_told:
                    self.say(f"the memory is free after {time.monotonic() - began:.0f} s: {last:.1f} GiB")
                return
            if time.monotonic() - began > self.seconds:
                self.is_held = True
                known = self.free_gib or self.before_load_gib
                wanted = f" of {known:.1f}" if known else ""
                self.say(
                    f"after {self.seconds:.0f} s only {last:.1f}{wanted} GiB are free; the engine is started anyway"
                )
                return
            if not is_told and time.monotonic() - began > 1.0:
                is_told = True
                self.say(
                    f"waiting up to {self.seconds:.0f} s for the memory of the engine that ended ({last:.1f} GiB free)"
                )
            self.pause.sleep(POLL_SECONDS)
            now = self.now()
            if now is not None and abs(now - last) > 0.05:
                since = time.monotonic()
            last = now
        self.is_held = False

    def is_less(self, gib: float | None) -> bool:
        """Whether a start found less than is free without an engine: another process still held some."""
        known = self.before_load_gib
        return gib is not None and known is not None and gib < known - _slack(known)

    def _is_free(self, gib: float, unchanged_seconds: float) -> bool:
        known = self.free_gib or self.before_load_gib
        if known is None:
            return unchanged_seconds >= STABLE_SECONDS
        return gib >= known - _slack(known)


def _slack(gib: float) -> float:
    return max(SLACK_GIB, SLACK_SHARE * gib)


def in_flight(get: Get, flush: Callable[[], bool | None]) -> int | None:
    """Requests that the engine works on now; None when it does not tell.

    ``flush`` empties the engine's prefix cache, which SGLang refuses while requests are pending: that tells where it
    has no metrics, and costs nothing before a restart. It returns False when refused, None when it tells nothing.
    """
    for path in METRICS:
        try:
            status, body = get(path)
        except KvyieldError:
            return 0  # what does not answer serves nobody
        counts = [sample.value for sample in samples(body) if sample.name in RUNNING] if status == 200 else []
        if counts:
            return round(sum(counts))
    try:
        flushed = flush()
    except KvyieldError:
        return None
    return None if flushed is None else 0 if flushed else 1


def wait_until_idle(count: Callable[[], int | None], seconds: float, pause: Pause, say: Say) -> int | None:
    """Waits for requests in flight to end; returns how many are left then, None when the engine does not tell."""
    ends, is_told = time.monotonic() + seconds, False
    while (left := count()) and time.monotonic() < ends:
        if not is_told:
            is_told = True
            say(f"{left} request(s) in flight: waiting up to {seconds:.0f} s for them to end")
        pause.sleep(POLL_SECONDS)
    return left
