"""``kvyield advise``: logs in, flags out, with no service."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kvyield._errors import IncompleteError, SourceError
from kvyield.cli._asking import NAMES, selection
from kvyield.cli._options import (
    client_of,
    extras_of,
    fact_options,
    service_options,
    settings_of,
    size_option,
)
from kvyield.cli._run import say
from kvyield.cli.importing import BATCH_SECONDS, Tally, readings_of
from kvyield.cli.recommend import answer, question_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvyield import _wire
    from kvyield.config import Settings
    from kvyield.intake import Reading


@click.command()
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@question_options
@fact_options
@size_option
@click.option("--jobs", type=click.IntRange(1), help="Processes that read.  [default: one per core]")
@service_options
@click.pass_context
def advise(ctx: click.Context, /, **given: Any) -> None:
    """Read logs and advise flags in one: `import` and `recommend`, with no service.

    The starts go to a ledger of this host's own (as with --local), unless KVYIELD_URL, --url or the configuration file
    names a service. Model, GPU and engine, where not given, are those of the newest start in the logs. Without any log
    the answer is an estimate from --model-config, --gpu, --gpu-count, --gpu-memory-gib and --engine. With --json
    standard output holds the answer alone.
    """
    settings = settings_of(given)
    if settings.sources["url"] == "default":
        settings = settings_of({**given, "is_local": True})
    given |= {"store": False, "pair_id": None, "like": None}
    newest = _imported(settings, given) if given["logs"] else None
    with client_of(settings, is_one_question=True) as client:
        if newest is not None:
            told = {
                "model": newest.model.name,
                "gpu": newest.hardware.gpu,
                "gpu_count": newest.hardware.gpu_count,
                "engine": newest.engine.name,
            }
            given |= {name: given[name] or told[name] for name in NAMES} | {"model_config": None}
        ctx.exit(answer(client, selection(client, settings, given), given))


def _imported(settings: Settings, given: dict[str, Any]) -> _wire.Observation:
    """Posts the starts of the logs and returns the newest that could be posted. Raises when there is none."""
    from kvyield._bounded import MOST_BYTES
    from kvyield.delivery import deliver_batch
    from kvyield.intake import read_file
    from kvyield.local import local_service
    from kvyield.sources import expand
    from kvyield.spool import Spool

    extras = extras_of(given, settings, {})
    most_bytes = given["max_bytes"] or MOST_BYTES
    read = partial(read_file, extras=extras, engine=given["engine"], most_bytes=most_bytes, zone=given.get("timezone"))
    files, tally = expand(given["logs"]), Tally(as_json=False)
    whole: list[tuple[str, _wire.Observation]] = []
    readings: list[Reading] = []
    with ThreadPoolExecutor(1) as meanwhile:  # a ledger of this host takes as long to start as a large log to read
        if settings.ledger is not None and settings.ledger.exists():  # none is made for logs that hold no start
            meanwhile.submit(local_service, settings.ledger)
        for reading in readings_of(files, read, given["jobs"]):
            whole += [(reading.name, one) for one in tally.take(reading)]
            readings.append(replace(reading, starts=reading.starts[-1:]))
    if not whole:
        raise _nothing(readings)
    tally.say_lacks(is_dry=False)
    with client_of(settings, total_seconds=BATCH_SECONDS) as client:
        deliveries = deliver_batch([one for _, one in whole], Spool(settings.spool), client)
    for (name, _), delivery in zip(whole, deliveries, strict=True):
        tally.settle(name, delivery)
    say(f"kvyield: {tally.summary()}")
    if all(delivery.result in ("refused", "lost") for delivery in deliveries):
        raise SourceError("no advice can be given: none of the logs' starts is in the ledger")
    return _newest(one for _, one in whole)


def _newest(starts: Iterable[_wire.Observation]) -> _wire.Observation:
    """The last by time; of those that tell none the last by place."""
    found: _wire.Observation | None = None
    for one in starts:
        is_later = found is None or found.observed_at is None
        if one.observed_at is not None and found is not None and found.observed_at is not None:
            is_later = one.observed_at >= found.observed_at
        found = one if is_later else found
    assert found is not None
    return found


def _nothing(readings: list[Reading]) -> SourceError | IncompleteError:
    """Why the logs make no advice: what they lack, in one sentence that names the option."""
    lacking = [start for reading in readings for start in reading.starts if start.missing]
    if not lacking and any(reading.unfinished for reading in readings):
        told = "the logs end before the engine was ready or had failed"
        return SourceError(f"no advice can be given: {told}; --take-unfinished takes a start with a pool as ready")
    if not lacking:
        return SourceError("no advice can be given: the logs hold no start that was ready or had failed")
    try:
        lacking[-1].observation()
    except IncompleteError as error:
        return IncompleteError(f"no advice can be given: {error}", error.missing)
    raise AssertionError("a start that lacks facts is complete")
