"""``kvyield history``: the ledger, newest start first."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kvyield.cli._options import ENGINES, client_of, service_options, settings_of
from kvyield.cli._tables import gib, moment, table, tokens

if TYPE_CHECKING:
    from kvyield import _wire

OUTCOMES = ("ready", "refused", "oom_startup", "oom_runtime", "failed")
_HEADINGS = (
    "!started",
    "engine",
    "model",
    "hardware",
    ">fraction",
    "outcome",
    ">pool tokens",
    ">free, GiB",
    "verified",
    "!id",
)


@click.command()
@click.option("--model", help="Only this model.")
@click.option("--gpu", help="Only this GPU model.")
@click.option("--engine", type=click.Choice(ENGINES), help="Only this engine.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only this outcome.")
@click.option("--host", help="Only this host.")
@click.option("--pair", "pair_id", metavar="ID", help="Only this pair.")
@click.option("--since", metavar="TIME", help="Only from this time on, e.g. 2026-05-30T00:00:00Z.")
@click.option("--until", metavar="TIME", help="Only up to this time.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many starts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@service_options
def history(limit: int, as_json: bool, url: str | None, token: str | None, **filters: Any) -> None:
    """Show the ledger, newest start first."""
    settings = settings_of(url, token)
    with client_of(settings) as client:
        starts = islice(client.observations(**filters, page_size=min(limit, 500)), limit)
        if as_json:
            for start in starts:
                click.echo(msgspec.json.encode(start))
            return
        rows = [_row(start) for start in starts]
    if rows:
        table(_HEADINGS, rows)
    else:
        click.echo("no start fits")


def _row(start: _wire.StoredObservation) -> tuple[object, ...]:
    from kvyield.assemble import FRACTION_FLAG  # noqa: PLC0415

    fraction = start.flags.get(FRACTION_FLAG[start.engine.name])
    longest = max((one.prompt_tokens for one in start.verifications if one.passed), default=None)
    return (
        moment(start.observed_at),
        f"{start.engine.name} {start.engine.version or ''}".strip(),
        start.model.name,
        f"{start.hardware.gpu_count} x {start.hardware.gpu}",
        "-" if fraction is None else fraction,
        start.outcome + (" (retracted)" if start.retracted_at else ""),
        tokens(start.measurements.pool_tokens),
        gib(start.measurements.free_at_ready_gib),
        tokens(longest),
        start.id,
    )
