"""From a log to assembled starts: the one path that observe, import, report and watch share."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from kvyield._bounded import MOST_BYTES
from kvyield._errors import KvyieldError
from kvyield.assemble import Assembled, Extras, assemble
from kvyield.engines import Sourced, Start, read_starts
from kvyield.modelconfig import find_model_config, name_in_config, read_model_config
from kvyield.processes import Listener
from kvyield.sources import Source, file_source

Get = Callable[[str], tuple[int, bytes]]


@dataclass
class Reading:
    """What one source held. ``unfinished`` counts starts whose log ends before the engine was ready or had failed.

    ``differences`` says why the engine that runs is not the log's last start; nothing of it was taken then.
    """

    name: str
    starts: list[Assembled] = field(default_factory=list)
    unfinished: int = 0
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


def read(source: Source, extras: Extras, *, engine: str | None = None, running: Running | None = None) -> Reading:
    """All starts of a log, oldest first; the endpoints of the engine that runs complete the last start.

    Values of two starts are never mixed: endpoints that contradict the log in what tells starts apart are left out.
    Raises `SourceError` when the log cannot be read.
    """
    reading = Reading(source.name)
    starts = list(read_starts(_counted(source.lines(), reading), engine=engine, reference_time=source.written_until))
    if running is not None:
        starts[-1:] = _with_endpoints(running, starts[-1:], reading)
    for index, start in enumerate(starts):
        is_last = index == len(starts) - 1
        _take(reading, start, extras if is_last else replace(extras, recommendation_id=None), is_local=source.is_local)
    reading.notes += source.notes
    return reading


def read_endpoints_only(running: Running, extras: Extras) -> Reading:
    """The running engine's own words, without a log; its process tells when it was started, and its port."""
    reading = Reading("the engine's endpoints")
    for start in _with_endpoints(running, [], reading):
        if running.listener is not None:
            start.observed_at = running.listener.started_at
            source = f"the process {running.listener.pid} of this host"
            start.flags.setdefault("port", Sourced(running.port, source))
        _take(reading, start, extras, is_local=running.is_local, source="endpoint")
    return reading


def read_file(path: Path, extras: Extras, engine: str | None, most_bytes: int = MOST_BYTES) -> Reading:
    """`read` for ``import``: a file that cannot be read, whyever, becomes a note; nothing of this host is mixed in."""
    source = replace(file_source(path, most_bytes=most_bytes), is_local=False)
    try:
        return read(source, extras, engine=engine)
    except KvyieldError as error:
        return Reading(str(path), notes=[str(error)])
    except Exception as error:  # whatever one file does, the others are read
        return Reading(str(path), notes=[f"{path} could not be read: {type(error).__name__} {error}".rstrip()])


def card_facts(configured: Mapping[str, Sourced]) -> tuple[dict[str, Sourced], str | None]:
    """What this host tells of its cards and its name, and why there is nothing when there is no card."""
    from kvyield.gpu import GpuError, cards, hardware_name  # opens the driver's library

    facts = {} if "host" in configured else {"host": Sourced(socket.gethostname(), "this host's name")}
    try:
        found = cards()
        name = hardware_name(found)
    except GpuError as error:
        return facts, str(error)
    source = f"this host's cards ({found[0].tool})"
    facts["gpu"] = Sourced(name, source)
    facts["gpu_count"] = Sourced(len(found), source)
    facts["gpu_memory_gib"] = Sourced(round(min(card.memory_gib for card in found), 2), source)
    facts["unified_memory"] = Sourced(any(card.unified_memory for card in found), source)
    return facts, None


def _counted(lines: Iterator[bytes], reading: Reading) -> Iterator[bytes]:
    for line in lines:
        reading.lines += 1
        yield line


def _take(reading: Reading, start: Start, extras: Extras, *, is_local: bool, source: str = "log") -> None:
    if start.outcome == "unfinished":
        reading.unfinished += 1
        return
    reading.starts.append(completed(start, extras, is_local=is_local, source=source))


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
