"""From a log to assembled starts: the one path that observe, import, report and watch share."""

from __future__ import annotations

import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta, tzinfo
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvyield._bounded import MOST_BYTES
from kvyield._errors import KvyieldError
from kvyield.assemble import FREE_NOW, Assembled, Extras, assemble
from kvyield.engines import Sourced, Start, read_starts
from kvyield.modelconfig import find_model_config, name_in_config, read_model_config
from kvyield.processes import Listener, engine_on
from kvyield.sources import Source, file_source

if TYPE_CHECKING:
    from kvyield.gpu import Gpu

TAIL_LINES = 2000
LONGEST_TAIL_LINE = 1000
_READY = re.compile(
    rb"fired up and ready to roll|Application startup complete|Uvicorn running on|ready to serve|LlamaBatch<T>::Start"
)
_SERVED = re.compile(rb"\"POST /|(?:Prefill|Decode) batch|throughput: (?!0\.0)|Received request|Added request")

LONGEST_IMPORTS = timedelta(minutes=10)
"""A process that began longer before a log's first line is not taken for the one that wrote it."""
_PROGRAM = {"sglang": "sglang", "vllm": "vllm", "tensorrt-llm": "trtllm", "lmdeploy": "lmdeploy"}

Get = Callable[[str], tuple[int, bytes]]


@dataclass
class Reading:
    """What one source held. ``unfinished`` are starts whose log ends before the engine was ready or had failed: they
    are shown, never posted.

    ``differences`` says why the engine that runs is not the log's last start; nothing of it was taken then.
    """

    name: str
    starts: list[Assembled] = field(default_factory=list)
    unfinished: list[Assembled] = field(default_factory=list)
    lines: int = 0
    notes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Running:
    """The engine that runs: ``get`` reads its endpoints, ``listener`` is its process where it runs on this host.

    With ``is_forced`` it is taken for the log's last start whatever contradicts that.
    """

    get: Get
    listener: Listener | None = None
    port: int | None = None
    is_local: bool = False
    is_forced: bool = False


def read(
    source: Source,
    extras: Extras,
    *,
    engine: str | None = None,
    running: Running | None = None,
    zone: tzinfo | None = None,
) -> Reading:
    """All starts of a log, oldest first; the endpoints of the engine that runs complete the last start.

    ``zone`` is that of stamps that name none; None is this host's own.

    Values of two starts are never mixed: endpoints that contradict the log in what tells starts apart are left out.
    Raises `SourceError` when the log cannot be read.
    """
    reading = Reading(source.name)
    tail: deque[bytes] = deque(maxlen=TAIL_LINES)
    lines = _counted(source.lines(), reading, tail if source.is_local else None)
    starts = list(read_starts(lines, engine=engine, reference_time=source.written_until, zone=zone))
    if running is not None:
        starts[-1:] = _with_endpoints(running, starts[-1:], reading)
    if source.is_local and starts:
        known = running.listener if running is not None and not reading.differences else None
        starts[-1] = timed_from_process(starts[-1], known or process_of(starts[-1]))
    last = extras if source.is_local and is_untouched(tail) else without_free_memory(extras)
    earlier = replace(without_free_memory(extras), recommendation_id=None)
    for index, start in enumerate(starts):
        is_last = index == len(starts) - 1
        _take(reading, start, last if is_last else earlier, is_local=source.is_local)
    reading.notes += source.notes
    return reading


def read_endpoints_only(running: Running, extras: Extras) -> Reading:
    """The running engine's own words, without a log: host, port, pool and the start of its process make it the start
    that a log shows, whose first line comes up to minutes later.

    The time is unknown where the engine runs elsewhere and does not tell when it began.
    """
    reading = Reading("the engine's endpoints")
    for start in _with_endpoints(running, [], reading):
        if running.listener is not None:
            source = f"the process {running.listener.pid} of this host"
            start.flags.setdefault("port", Sourced(running.port, source))
            # to the second, so that asking again says the same
            start.observed_at = (running.listener.started_at + timedelta(seconds=0.5)).replace(microsecond=0)
            start.process = f"the start of process {running.listener.pid} of this host"
        _take(reading, start, without_free_memory(extras), is_local=running.is_local, source="endpoint")
    return reading


def read_file(
    path: Path, extras: Extras, engine: str | None, most_bytes: int = MOST_BYTES, zone: tzinfo | None = None
) -> Reading:
    """`read` for ``import``: a file that cannot be read becomes a note; nothing of this host is mixed in."""
    source = replace(file_source(path, most_bytes=most_bytes), is_local=False)
    try:
        return read(source, extras, engine=engine, zone=zone)
    except KvyieldError as error:
        return Reading(str(path), notes=[str(error)])
    except Exception as error:  # whatever one file does, the others are read
        return Reading(str(path), notes=[f"{path} could not be read: {type(error).__name__} {error}".rstrip()])


def host_facts(configured: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """This host's name, unless the configuration file gives another."""
    return {} if "host" in configured else {"host": Sourced(socket.gethostname(), "this host's name")}


def gpu_facts(configured: Mapping[str, Sourced]) -> tuple[dict[str, Sourced], str | None]:
    """What this host says about its GPUs and its name, and why there is nothing when there is no GPU."""
    from kvyield.gpu import GpuError, find_gpus, hardware_name  # opens the driver's library

    facts = host_facts(configured)
    try:
        found = find_gpus()
        name = hardware_name(found)
    except GpuError as error:
        return facts, str(error)
    source = f"this host's GPUs ({found[0].tool})"
    facts["gpu"] = Sourced(name, source)
    facts["gpu_count"] = Sourced(len(found), source)
    facts["gpu_memory_gib"] = _framework_total(found, source)
    facts["driver_memory_gib"] = Sourced(round(min(gpu.memory_gib for gpu in found), 2), f"{source}, driver's total")
    fullest = min(found, key=lambda gpu: gpu.free_gib)
    now = f"{source}, read after the engine was ready and before it served a request"
    facts["free_gib"] = Sourced(round(fullest.free_gib, 3), now)
    facts["held_gib"] = Sourced(round(fullest.memory_gib - fullest.free_gib, 3), now)
    facts["unified_memory"] = Sourced(any(gpu.unified_memory for gpu in found), source)
    return facts, None


def _framework_total(found: Sequence[Gpu], source: str) -> Sourced:
    """What a framework sees of one GPU's memory: the driver's total less what it reserves, where the driver tells."""
    usable = [gpu.usable_gib for gpu in found if gpu.usable_gib is not None]
    if len(usable) == len(found):
        return Sourced(round(min(usable), 2), f"{source}, driver's total less what it reserves")
    least = min(gpu.memory_gib for gpu in found)
    return Sourced(round(least, 2), f"{source}, driver's total: the driver does not report what it reserves")


def is_untouched(tail: Iterable[bytes]) -> bool:
    """Whether a log's last lines show an engine that became ready and has not served a request since."""
    lines = list(tail)
    ready = max((index for index, line in enumerate(lines) if _READY.search(line)), default=None)
    return ready is not None and not any(_SERVED.search(line) for line in lines[ready + 1 :])


def process_of(start: Start) -> Listener | None:
    """The process of this host that listens on the start's port and names its engine and model in its command."""
    told = {**start.facts, **start.flags}
    port = told["port"].value if "port" in told else None
    models = [str(told[name].value) for name in ("model_path", "model_name") if name in told and told[name].value]
    listener = engine_on(port) if isinstance(port, int) and start.outcome == "ready" else None
    command = " ".join(listener.command) if listener else ""
    is_its = _PROGRAM[start.engine] in command and any(model in command for model in models)
    return listener if is_its else None


def timed_from_process(start: Start, listener: Listener | None) -> Start:
    """The start with ``startup_seconds`` from where its process began, if that was shortly before the first line."""
    seconds = start.measurements.get("startup_seconds")
    if listener is None or seconds is None or start.observed_at is None or start.observed_at.tzinfo is None:
        return start
    before = start.observed_at - listener.started_at
    if not timedelta(0) <= before < LONGEST_IMPORTS:
        return start
    whole = round(float(str(seconds.value)) + before.total_seconds(), 3)
    source = f"from the start of process {listener.pid} of this host to the ready line"
    return replace(start, measurements={**start.measurements, "startup_seconds": Sourced(whole, source)})


def without_free_memory(extras: Extras) -> Extras:
    """The extras for a start to which the free memory of now does not belong."""
    kept = {name: fact for name, fact in extras.detected.items() if name not in FREE_NOW}
    return replace(extras, detected=kept)


def _counted(lines: Iterator[bytes], reading: Reading, tail: deque[bytes] | None) -> Iterator[bytes]:
    for reading.lines, line in enumerate(lines, 1):
        if tail is not None:
            tail.append(line[:LONGEST_TAIL_LINE])
        yield line


def _take(reading: Reading, start: Start, extras: Extras, *, is_local: bool, source: str = "log") -> None:
    if start.outcome == "unfinished" and extras.takes_unfinished and _has_pool(start):
        start = replace(start, outcome="ready")
        reading.notes.append("a start whose log ends before it is ready was taken as ready (--take-unfinished)")
    kept = reading.unfinished if start.outcome == "unfinished" else reading.starts
    kept.append(completed(start, extras, is_local=is_local, source=source))


def _has_pool(start: Start) -> bool:
    told = (start.measurements.get(name) for name in ("pool_tokens", "kv_cache_gib"))
    return any(item is not None and item.value for item in told)


def completed(start: Start, extras: Extras, *, is_local: bool, source: str = "log") -> Assembled:
    """One start with all that is known besides; of a log of this host, with the model's own ``config.json`` too."""
    whole = _with_config(start, extras) if is_local and not extras.model_facts else extras
    return assemble(start, whole, source=source)


def _with_endpoints(running: Running, last: list[Start], reading: Reading) -> list[Start]:
    """The last start with what the endpoints add; an engine that does not answer leaves it as the log told."""
    from kvyield.engines.endpoints import read_endpoints  # only --server needs it

    get = cache(running.get)
    try:
        if last and not running.is_forced:
            reading.differences = _differences(last[0], get, running, reading.name)
        return last if reading.differences else [read_endpoints(get, last[0] if last else None)]
    except (KvyieldError, ValueError) as error:
        reading.notes.append(f"the engine's endpoints could not be read: {error}")
        return last


def _differences(start: Start, get: Get, running: Running, name: str) -> list[str]:
    from kvyield import identity
    from kvyield.engines.endpoints import read_endpoints

    try:
        alone = read_endpoints(get)
    except ValueError:
        return []  # nothing tells which engine it is, so nothing contradicts
    server = identity.of_start(alone, "the server", running.listener)
    return identity.contradictions(identity.of_start(start, name), server)


def _with_config(start: Start, extras: Extras) -> Extras:
    """Adds the model's ``config.json`` when this host has the model where the log says."""
    told = start.facts.get("model_path") or start.facts.get("model_name") or start.flags.get("model_path")
    file = find_model_config(str(told.value)) if told and told.value else None
    if file is None:
        return extras
    try:
        facts, name = read_model_config(file), name_in_config(file)
    except KvyieldError:
        return extras
    named = Sourced(name, f"{file}, _name_or_path") if name else None
    return replace(extras, model_facts=facts, model_facts_source=str(file), model_name=named)
