"""``kvyield predict``: what given flags would yield."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from kvyield._errors import ConfigError
from kvyield.cli._advice import based_on, show_warnings
from kvyield.cli._asking import selection, selector_options
from kvyield.cli._options import client_of, parsed_flags, service_options, settings_of
from kvyield.cli._run import safe
from kvyield.cli._tables import flags_text, gib, span, table


@click.command()
@click.option(
    "--fraction", "fractions", type=click.FloatRange(0, min_open=True), multiple=True, help="May be repeated."
)
@click.option("--flag", "flags", multiple=True, metavar="NAME=VALUE", help="A flag that all of them have.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@selector_options
@service_options
def predict(**given: Any) -> None:
    """Ask what given flags would yield: pool and free memory, each with an interval.

    Flags that are not given are those of the deployment's newest start.
    """
    from kvyield import _wire

    settings = settings_of(given)
    if not given["fractions"] and not given["flags"]:
        raise click.UsageError("predict what? give --fraction 0.92, --flag NAME=VALUE, or both")
    with client_of(settings, is_one_question=True) as client:
        chosen = selection(client, settings, given)
        sets = _flag_sets(given, chosen.get("engine"))
        answers = client.predict(msgspec.convert(chosen, _wire.Selector, strict=False), sets)
    if given["as_json"]:
        for answer in answers:
            click.echo(msgspec.json.encode(answer))
        return
    rows = [
        (flags_text(asked), span(a.pool_tokens), span(a.free_at_ready_gib, gib))
        for asked, a in zip(sets, answers, strict=False)
    ]
    table(("flags", "pool tokens", "free at ready, GiB"), rows)
    for text in {based_on(answer.basis): None for answer in answers if answer.basis is not None}:
        click.echo(safe(f"based on  {text}"))
    show_warnings(warning for answer in answers for warning in answer.warnings)


def _flag_sets(given: dict[str, Any], engine: str | None) -> list[dict[str, Any]]:
    from kvyield.assemble import FRACTION_FLAG

    common = parsed_flags(given["flags"])
    if not given["fractions"]:
        return [common]
    if engine is None:
        raise ConfigError("--fraction needs --engine, since each engine names its fraction otherwise")
    return [common | {FRACTION_FLAG[engine]: fraction} for fraction in given["fractions"]]
