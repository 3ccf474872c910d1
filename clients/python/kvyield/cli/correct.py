"""``kvyield correct``: wrong facts of a start in the ledger put right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kvyield._errors import ConfigError
from kvyield.cli._options import ENGINES, client_of, one_of, parsed_flags, service_options, settings_of
from kvyield.cli._tables import table

if TYPE_CHECKING:
    from kvyield import _wire

_FIELDS: Mapping[str, tuple[str, str]] = {
    "gpu": ("hardware", "gpu"),
    "gpu_count": ("hardware", "gpu_count"),
    "gpu_memory_gib": ("hardware", "memory_gib"),
    "driver_memory_gib": ("hardware", "driver_memory_gib"),
    "unified_memory": ("hardware", "unified_memory"),
    "model": ("model", "name"),
    "model_revision": ("model", "revision"),
    "engine": ("engine", "name"),
    "engine_version": ("engine", "version"),
    "engine_variant": ("engine", "variant"),
}
_MEMORY = click.FloatRange(0, min_open=True)


@click.command()
@click.argument("observation_id", metavar="ID")
@click.option("--gpu", help="The GPU model, with its MIG profile.")
@click.option("--gpu-count", type=click.IntRange(1), help="GPUs that the engine used.")
@click.option("--gpu-memory-gib", type=_MEMORY, help="Memory of one GPU in GiB, as the engine's framework sees it.")
@click.option("--driver-memory-gib", type=_MEMORY, help="Memory of one GPU in GiB, as the driver reports it.")
@click.option("--unified-memory/--own-memory", default=None, help="Whether the GPU uses the host's memory.")
@click.option("--model", help="The model's name.")
@click.option("--model-revision", help="The model's revision.")
@click.option("--engine", type=click.Choice(ENGINES), help="The engine.")
@click.option("--engine-version", help="The engine's version.")
@click.option("--engine-variant", help="The fork's name.")
@click.option(
    "--flag", "flags", multiple=True, metavar="NAME=VALUE", help="The right value of a flag; may be repeated."
)
@click.option("--reason", default="corrected with kvyield correct", show_default=True, help="Why, for the history.")
@click.option("--json", "as_json", is_flag=True, help="The corrected observation as one JSON object.")
@service_options
def correct(observation_id: str, as_json: bool, **given: Any) -> None:
    """Correct wrong facts of a start in the ledger; the former values stay readable in its history.

    A token of the role ingest may correct what it posted, one of the role admin anything. `kvyield history --json`
    shows ids. Measurements are not corrected: a start whose figures are wrong is retracted.
    """
    parts = _parts(given)
    if not parts:
        raise click.UsageError("correct what? give --gpu-memory-gib, --gpu, --model, --flag NAME=VALUE or another fact")
    key = one_of("ID", observation_id)
    if key is None:
        raise ConfigError("the id of the observation is empty")
    with client_of(settings_of(given)) as client:
        before = client.observation(key)
        after = client.correct(key, given["reason"], **parts)
    if as_json:
        click.echo(msgspec.json.encode(after))
        return
    rows = list(_changes(before, after, parts))
    if rows:
        table(("fact", "before", "now"), rows)
    else:
        click.echo("nothing changed: the ledger holds these values already")


def _parts(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options as the API takes them."""
    parts: dict[str, dict[str, Any]] = {}
    for option, (part, name) in _FIELDS.items():
        if given[option] is not None:
            parts.setdefault(part, {})[name] = given[option]
    flags = parsed_flags(given["flags"])
    return parts | ({"flags": flags} if flags else {})


def _changes(
    before: _wire.StoredObservation, after: _wire.StoredObservation, parts: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    for part, fields in parts.items():
        for name in fields:
            values = [_value(getattr(one, part), name) for one in (before, after)]
            if values[0] != values[1]:
                yield f"{part}.{name}", values[0], values[1]


def _value(part: Any, name: str) -> str:
    value = part.get(name) if isinstance(part, dict) else getattr(part, name)
    return "unknown" if value is None else str(value)
