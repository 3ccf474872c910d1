"""One start, one row: which accounts are of the same start, and what the row is that they make together.

A start reaches the ledger several times: a watch posts it from the journal, an import from a file, a command from the
engine's endpoint, a person by hand. The row is a function of the set of accounts, so that their order never matters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

from kvyield_server.domain.facts.observation import (
    NO_MEMORY_FLAGS,
    Failure,
    Flags,
    Measurements,
    Observation,
    Outcome,
    Phase,
)

T = TypeVar("T")

AT_ONCE = timedelta(seconds=2)
"""How far apart two accounts may time one start: a process's start and its first log line, clocks of one second."""

LARGEST_SHIFT = timedelta(hours=14)
"""The zone furthest from UTC is UTC+14."""

SHIFT_STEP = timedelta(minutes=15)
"""Every zone in use is a whole number of quarters of an hour from UTC."""

CLOCK_SLACK = timedelta(minutes=2)
"""How much the clock of a host may be ahead of the service's."""

FEWEST_FIGURES = 3
"""Figures that two accounts must share, all equal, to be of one start though their times are a zone apart."""

LONGEST_IMPORTS = timedelta(minutes=10)
"""Longest time from a process's start, which an endpoint's account tells, to the first line of its log."""

_SOURCE_RANKS = {"log": 3, "import": 3, "endpoint": 2, "manual": 1}
_RAW_FIGURES = ("kv_cache_gib", "free_before_load_gib", "free_after_load_gib", "weights_gib")
_GPU_VENDOR = re.compile(r"^\s*(nvidia|amd|intel)(\s*\((r|tm)\))?[\s\-_/]+(corporation\s+)?", re.IGNORECASE)
_STAMP = re.compile(r"(?:^\W*|\d[-/.]\d{2,4}[ T-]|[A-Z][a-z]{2} [ \d]\d )\d\d:\d\d:\d\d")
_CLOCK = re.compile(r"\d+[-/.:\d]*\d")
_ADDRESS = re.compile(r"[\d.]+|.*:.*")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of a start that changed; ``field`` is its dotted name, such as ``hardware.memory_gib``."""

    field: str
    before: object
    after: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One telling of a start. ``digest`` names its content; it was ``received_at`` the service at that time.

    ``is_timed`` is False when the account says no time: ``observed_at`` is then the time of its arrival.
    ``is_zoned`` is False when it was stored by a release that took a log's times without a zone for UTC.
    """

    observation: Observation
    digest: str
    received_at: datetime
    is_timed: bool = True
    is_zoned: bool = True

    @property
    def rank(self) -> int:
        """How much its source is believed: a log before an endpoint before a person."""
        return _SOURCE_RANKS.get(self.observation.source or "manual", 0)


@lru_cache(1024)
def loose_gpu(name: str) -> str:
    """Return what is left of a GPU name after vendor, case, spaces and punctuation."""
    return _letters(_GPU_VENDOR.sub("", name))


@lru_cache(1024)
def loose_model(name: str) -> str:
    """Return what is left of a model name after its owner, case, spaces and punctuation."""
    return _letters(name.rstrip("/").rsplit("/", 1)[-1])


def short_host(host: str) -> str:
    """Return a host's name without its domain; an address as it is."""
    return host if _ADDRESS.fullmatch(host) else host.partition(".")[0]


def host_key(start: Observation) -> str | None:
    """Return what two starts of one host have in common; None when the host is not told."""
    return None if start.host is None else short_host(start.host).lower()


def is_other_start(one: Observation, other: Observation) -> str | None:
    """Return the name of a field by which two observations under one id are of two starts, or None."""
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("hardware.gpu", loose_gpu(one.hardware.gpu), loose_gpu(other.hardware.gpu)),
        ("hardware.gpu_count", one.hardware.gpu_count, other.hardware.gpu_count),
        ("model.name", loose_model(one.model.name), loose_model(other.model.name)),
        ("engine.name", one.engine.name, other.engine.name),
        ("flags.fraction", one.fraction, other.fraction),
        ("host", host_key(one), host_key(other)),
        ("flags.port", one.flags.get("port"), other.flags.get("port")),
    )
    return next((name for name, first, second in pairs if _contradict(first, second)), None)


def is_same_start(one: Account, other: Account) -> bool:
    """Say whether two accounts are of one start.

    The same engine and GPUs always; no host, port or fraction that contradicts; and either times within two seconds, or
    a process and its log, or the same log read in two zones, or, where one has no time, the same host and pool.
    """
    first, second = one.observation, other.observation
    are_timed, gap = one.is_timed and other.is_timed, abs(first.observed_at - second.observed_at)
    if are_timed and gap > LONGEST_IMPORTS and not is_zone_shift(gap):
        return False
    if _is_of_another_server(first, second) or _one_died_before_the_other_served(first, second):
        return False
    if not are_timed:
        return _is_same_without_time(one, other)
    if gap <= AT_ONCE:
        return _is_same_at_once(one, other)
    return _is_process_and_log(one, other) or (is_zone_shift(gap) and _is_same_log(one, other))


def is_zone_shift(gap: timedelta) -> bool:
    """Say whether two times may be one local time read in two zones."""
    beyond = gap % SHIFT_STEP
    return AT_ONCE < gap <= LARGEST_SHIFT + AT_ONCE and min(beyond, SHIFT_STEP - beyond) <= AT_ONCE


def _is_of_another_server(one: Observation, other: Observation) -> bool:
    return (
        one.engine.name is not other.engine.name
        or _contradict(one.engine.variant, other.engine.variant)
        or one.hardware.gpu_count != other.hardware.gpu_count
        or loose_gpu(one.hardware.gpu) != loose_gpu(other.hardware.gpu)
        or _contradict(host_key(one), host_key(other))
        or _contradict(one.fraction, other.fraction)
        or _contradict(one.flags.get("port"), other.flags.get("port"))
    )


def _one_died_before_the_other_served(one: Observation, other: Observation) -> bool:
    """A start that failed before its pool and one that served a moment later are two: the second is the restart."""
    for dead, ready in ((one, other), (other, one)):
        phase = dead.failure.phase if dead.failure else Phase.UNKNOWN
        is_early = dead.outcome is Outcome.REFUSED or (
            dead.outcome is not Outcome.READY and phase in (Phase.LOAD, Phase.POOL)
        )
        if is_early and dead.measurements.pool_tokens is None and came_up(ready):
            return True
    return False


def came_up(start: Observation) -> bool:
    """Say whether a start was ready at some time."""
    return start.outcome is Outcome.READY or served(start.outcome, start.failure)


def served(outcome: Outcome, failure: Failure | None) -> bool:
    is_serving = failure is not None and failure.phase is Phase.SERVING
    return outcome is Outcome.OOM_RUNTIME or (outcome is Outcome.FAILED and is_serving)


def _is_same_at_once(one: Account, other: Account) -> bool:
    """Two starts of one host at one time have two ports; where a port is not known, the pool and figures tell."""
    first, second = one.observation, other.observation
    if are_of_two_logs(one, other):
        return False  # a log that was read in another zone may seem to begin with the next start
    same_host = first.host is not None and second.host is not None
    if same_host and first.flags.get("port") is not None and first.flags.get("port") == second.flags.get("port"):
        return True
    names = (first.model.name, second.model.name)
    if names[0] != names[1] and (one.rank == other.rank or len(set(map(loose_model, names))) > 1):
        return False  # one reader names a model in one way; a log and an endpoint may do so in two
    if _contradict(first.measurements.pool_tokens, second.measurements.pool_tokens):
        return False
    if one.rank == other.rank and _figures_contradict(first.measurements, second.measurements):
        return False
    return same_host or _agree(one, other)


def _is_same_without_time(one: Account, other: Account) -> bool:
    """An endpoint that tells no time: its start is known by host, port and pool, and came up before it was asked."""
    if not _is_same_server(one.observation, other.observation):
        return False
    for timed, timeless in ((one, other), (other, one)):
        if timed.is_timed and timed.observation.observed_at > timeless.received_at + CLOCK_SLACK:
            return False
    return True


def _is_process_and_log(one: Account, other: Account) -> bool:
    """An endpoint's time is the start of its process, a log's that of its first line, imports later.

    The endpoint answered once the log says that the server was ready, or it is of the start before.
    """
    endpoint, log = sorted((one, other), key=lambda account: account.observation.observed_at)
    first, second = endpoint.observation, log.observation
    if first.source != "endpoint" or second.source not in ("log", "import"):
        return False
    ready = second.observed_at + timedelta(seconds=second.measurements.startup_seconds or 0.0)
    is_in_time = second.observed_at - first.observed_at <= LONGEST_IMPORTS
    return is_in_time and ready <= endpoint.received_at + CLOCK_SLACK and _is_same_server(first, second)


def _is_same_server(first: Observation, second: Observation) -> bool:
    """Say whether two accounts are about servers of one host that came up with one pool and do not contradict."""
    if first.host is None or second.host is None or not (came_up(first) and came_up(second)):
        return False
    pools = (first.measurements.pool_tokens, second.measurements.pool_tokens)
    if None in pools or pools[0] != pools[1] or _flags_contradict(first.flags, second.flags):
        return False
    if _contradict(first.engine.version, second.engine.version):
        return False
    ports = (first.flags.get("port"), second.flags.get("port"))
    return loose_model(first.model.name) == loose_model(second.model.name) or None not in ports


def _is_same_log(one: Account, other: Account) -> bool:
    """Say whether two accounts whose times are a zone apart are readings of one log.

    Lines with a time decide where both kept some: half of the fewer are in both. A host that starts its engine every
    hour makes equal figures, so that without lines two accounts are of one log only if one was stored by a release that
    knew no zones. Then all that both tell must be equal, the time to start up too, and the earlier account cannot have
    been posted before the later one says that the start was.
    """
    lines = [_stamped_lines(each.observation.log_excerpt) for each in (one, other)]
    if all(lines):
        return 2 * len(lines[0] & lines[1]) >= min(map(len, lines))
    if one.is_zoned == other.is_zoned:
        return False
    earlier, later = sorted((one, other), key=lambda account: account.received_at)
    first, second = earlier.observation, later.observation
    if first.host is None or second.host is None or first.measurements.startup_seconds is None:
        return False
    return second.observed_at <= earlier.received_at + CLOCK_SLACK and _agree(one, other)


def _agree(one: Account, other: Account) -> bool:
    """Say whether two accounts say the same of outcome, flags and enough figures, where both say something."""
    first, second = one.observation, other.observation
    if loose_model(first.model.name) != loose_model(second.model.name):
        return False
    if came_up(first) != came_up(second) or _flags_contradict(first.flags, second.flags):
        return False
    figures = [
        (getattr(first.measurements, each.name), getattr(second.measurements, each.name))
        for each in fields(Measurements)
    ]
    shared = [pair for pair in figures if None not in pair]
    return len(shared) >= FEWEST_FIGURES and all(left == right for left, right in shared)


def are_of_two_logs(one: Account, other: Account) -> bool:
    """Say whether two excerpts of the same form hold lines of different times alone."""
    lines = [_stamped_lines(each.observation.log_excerpt) for each in (one, other)]
    texts = [{_CLOCK.sub("", line) for line in each} for each in lines]
    return all(lines) and not lines[0] & lines[1] and texts[0] == texts[1]


def _stamped_lines(excerpt: str | None) -> set[str]:
    """Return the lines that say when they were written; a duration that a line tells is not a time."""
    return {line.strip() for line in (excerpt or "").splitlines() if _STAMP.search(line)}


def _figures_contradict(one: Measurements, other: Measurements) -> bool:
    return any(_contradict(getattr(one, name), getattr(other, name)) for name in _RAW_FIGURES)


def _flags_contradict(one: Flags, other: Flags) -> bool:
    """Say whether two sets of flags differ in one that both give; ``auto`` and null agree with anything."""
    unsaid = (None, "auto")
    return any(
        one[name] != other[name]
        for name in one.keys() & other.keys() - NO_MEMORY_FLAGS
        if one[name] not in unsaid and other[name] not in unsaid
    )


def _contradict(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())
