"""Logs in, starts out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone, tzinfo

from kvyield.engines._engine import Engine
from kvyield.engines._engines import ENGINES
from kvyield.engines._lines import chunks
from kvyield.engines._segment import Segmenter
from kvyield.engines._start import Start


def read_starts(
    lines: Iterable[bytes | str],
    *,
    engine: str | None = None,
    reference_time: datetime | None = None,
    follow: bool = False,
    zone: tzinfo | None = timezone.utc,
) -> Iterator[Start]:
    """Yield every engine start that a log holds, in the order in which they end, in constant memory.

    ``lines`` are lines of any prefix style, or a binary file, which is read in blocks. ``engine`` (``sglang``,
    ``vllm``, ``tensorrt-llm``, ``lmdeploy``) reads all lines as that engine's; None finds it by the lines that
    only one engine prints. ``reference_time`` places stamps without a year: they are taken as the last such date
    not after it by more than a day; without it those of a live source are placed by the present time. ``zone`` is
    the zone of stamps that name none; None is this host's own (TZ, /etc/localtime). ``follow`` is for live sources:
    a start comes out when the engine says that it is ready, and once more if it crashes later. A start of which the
    source holds neither readiness nor failure nor a pool has the outcome ``unfinished``. Raises ValueError for an
    engine that is not known; no content of a log raises."""
    engines = _chosen(engine)
    is_forced = engine is not None
    segmenter = Segmenter(engines, forced=is_forced, reference_time=reference_time, follow=follow, zone=zone)
    for chunk in chunks(lines, follow=follow):
        yield from segmenter.read(chunk)
    yield from segmenter.close()


def _chosen(name: str | None) -> tuple[Engine, ...]:
    if name is None:
        return ENGINES
    chosen = tuple(engine for engine in ENGINES if engine.name == name)
    if not chosen:
        known = ", ".join(engine.name for engine in ENGINES)
        raise ValueError(f"unknown engine {name!r}: one of {known}")
    return chosen
