"""What a question is about: from options, the configuration file, this host's newest start, or the only pair."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvyield._errors import ConfigError
from kvyield._names import loose
from kvyield.cli._options import ENGINES, one_of
from kvyield.cli._run import say

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield._client import Client
    from kvyield.config import Settings

Function = TypeVar("Function", bound=Callable[..., Any])
NAMES = ("model", "gpu", "gpu_count", "engine")
MOST_PAIRS = 2000
SHOWN_PAIRS = 5


def selector_options(function: Function) -> Function:
    """What the question is about."""
    options = [
        click.option("--model", help="The model's name.  [default: that of this host's newest start]"),
        click.option("--gpu", help="The GPU model."),
        click.option("--gpu-count", type=click.IntRange(1), help="GPUs that the engine uses."),
        click.option("--engine", type=click.Choice(ENGINES), help="The engine."),
        click.option("--engine-version", help="Its version."),
        click.option("--pair", "pair_id", metavar="ID", help="The pair (one hardware and one model), by its id."),
        click.option(
            "--like",
            metavar="ID",
            help="Ask about this observation's deployment (engine, version, parallel layout, KV dtype).",
        ),
        click.option("--host", help="The host whose newest start fills in what is not given.  [default: this host's]"),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def selection(client: Client, settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """The selector's fields; what was filled in is said. Raises `ConfigError` when the ledger leaves it open."""
    chosen = {name: given.get(name) for name in (*NAMES, "engine_version", "pair_id", "like")}
    one_of("--pair", chosen["pair_id"])
    if chosen["like"] is not None:
        _fill_from(chosen, client.observation(one_of("--like", chosen["like"]) or ""))
    elif chosen["pair_id"] is None:
        for name in NAMES:
            chosen[name] = chosen[name] or settings.facts.get(name)
        _fill(client, chosen, given.get("host") or settings.facts.get("host") or socket.gethostname())
    return {name: value for name, value in chosen.items() if value is not None}


def _fill(client: Client, chosen: dict[str, Any], host: str) -> None:
    lacking = [name for name in NAMES if chosen[name] is None]
    if not lacking:
        return
    found, where = _newest(client, chosen, host)
    if found is None:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in lacking)
        raise ConfigError(f"which pair and engine? give {options}; {where}")
    told = {
        "model": found.model.name,
        "gpu": found.hardware.gpu,
        "gpu_count": found.hardware.gpu_count,
        "engine": chosen["engine"] or found.engine.name,
    }
    chosen.update(told)
    asked = f"{chosen['model']} on {chosen['gpu_count']} x {chosen['gpu']}, {chosen['engine']}"
    say(f"kvyield: asked about {asked} ({where})")


def _fill_from(chosen: dict[str, Any], start: _wire.StoredObservation) -> None:
    """What is not said is the start's that ``--like`` names; the engine too, whose flag the fraction is."""
    told: dict[str, Any] = {"engine": start.engine.name}
    if chosen["pair_id"] is None:
        told |= {"model": start.model.name, "gpu": start.hardware.gpu, "gpu_count": start.hardware.gpu_count}
    chosen.update({name: value for name, value in told.items() if chosen[name] is None})
    say(f"kvyield: asked about {asked_about(start)} (the start {start.id})")


def asked_about(start: _wire.StoredObservation) -> str:
    """Model, hardware and engine in words."""
    return f"{start.model.name} on {start.hardware.gpu_count} x {start.hardware.gpu}, {start.engine.name}"


def _newest(client: Client, chosen: Mapping[str, Any], host: str) -> tuple[_wire.StoredObservation | None, str]:
    engine = {"engine": chosen["engine"]} if chosen["engine"] else {}
    pairs = list(islice(client.pairs(page_size=500), MOST_PAIRS))
    fitting = {pair.id: pair for pair in pairs if _fits(pair, chosen)}
    for here in client.observations_page(**engine, host=host, page_size=50).items:
        if here.pair_id in fitting:
            return here, f"from the newest start of {host}"
    if len(fitting) == 1:
        [pair_id] = fitting
        starts = client.observations_page(**engine, pair_id=pair_id, page_size=1).items
        return (starts[0], "the only pair that fits") if starts else (None, f"no start of {labels(fitting.values())}")
    if fitting:
        return None, f"{len(fitting)} pairs fit: {labels(fitting.values())}"
    return None, f"the ledger holds no pair that fits; it holds {labels(pairs) or 'none at all'}"


def _fits(pair: _wire.Pair, chosen: Mapping[str, Any]) -> bool:
    """Whether a pair is one that the names may mean, written as loosely as the service takes them."""
    return (
        (chosen["model"] is None or loose(chosen["model"]) == loose(pair.model.name))
        and (chosen["gpu"] is None or loose(chosen["gpu"]) == loose(pair.hardware.gpu))
        and chosen["gpu_count"] in (None, pair.hardware.gpu_count)
        and (chosen["engine"] is None or not pair.engines or chosen["engine"] in pair.engines)
    )


def labels(pairs: Iterable[_wire.Pair]) -> str:
    """The first few pairs in words."""
    names = [f"{one.model.name} on {one.hardware.gpu_count} x {one.hardware.gpu}" for one in pairs]
    more = f"; and {len(names) - SHOWN_PAIRS} more" if len(names) > SHOWN_PAIRS else ""
    return "; ".join(names[:SHOWN_PAIRS]) + more
