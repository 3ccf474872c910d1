"""``kvyield history``: the ledger, newest start first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kvyield._names import loose
from kvyield.cli._asking import MOST_PAIRS
from kvyield.cli._options import ENGINES, SERVICE_OPTIONS, client_of, service_options, settings_of
from kvyield.cli._run import say
from kvyield.cli._tables import gib, moment, table, tokens

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield._client import Client

OUTCOMES = ("ready", "refused", "oom_startup", "oom_runtime", "failed")
_HEADINGS = (
    "started",
    "~model",
    "?hardware",
    "?engine",
    ">fraction",
    "outcome",
    ">pool tokens",
    ">free, GiB",
    ">?verified tokens",
    "?!id",
)


@click.command()
@click.option("--model", help="Only this model; its owner, case and punctuation may be left out.")
@click.option("--gpu", help="Only this GPU model.")
@click.option("--engine", type=click.Choice(ENGINES), help="Only this engine.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only this outcome.")
@click.option("--host", help="Only this host.")
@click.option("--pair", "pair_id", metavar="ID", help="Only this pair.")
@click.option("--since", metavar="TIME", help="Only from this time on, e.g. 2026-05-30T00:00:00Z.")
@click.option("--until", metavar="TIME", help="Only up to this time.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many starts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@service_options
def history(limit: int, as_json: bool, **given: Any) -> None:
    """Show the ledger, newest start first."""
    filters = {name: value for name, value in given.items() if name not in SERVICE_OPTIONS}
    with client_of(settings_of(given)) as client:
        starts = _starts(client, filters, limit) or _starts(client, _as_stored(client, filters), limit)
    if as_json:
        for start in starts:
            click.echo(msgspec.json.encode(start))
        return
    if not starts:
        click.echo("no start fits")
        return
    left_out = table(_HEADINGS, [_row(start) for start in starts])
    if left_out:
        say(f"kvyield: no room for {', '.join(left_out)}; a wider terminal, COLUMNS=200 or --json shows them")


def _starts(client: Client, filters: Mapping[str, Any] | None, limit: int) -> list[_wire.StoredObservation]:
    if filters is None:
        return []
    return list(islice(client.observations(**filters, page_size=min(limit, 500)), limit))


def _as_stored(client: Client, filters: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The filters with model and GPU as the ledger spells them; None, with the nearest said, when none is meant."""
    given = {name: filters[name] for name in ("model", "gpu") if filters[name]}
    if not given:
        return None
    pairs = list(islice(client.pairs(page_size=500), MOST_PAIRS))
    known = {"model": {one.model.name for one in pairs}, "gpu": {one.hardware.gpu for one in pairs}}
    spelled = {name: _spelled(name, text, known[name]) for name, text in given.items()}
    return {**filters, **spelled} if all(spelled.values()) and spelled != given else None


def _spelled(what: str, text: str, known: Collection[str]) -> str | None:
    if text in known:
        return text
    meant = sorted(name for name in known if loose(name) == loose(text))
    if len(meant) == 1:
        say(f"kvyield: {text} is taken as {meant[0]}")
        return meant[0]
    near = meant or get_close_matches(text, sorted(known), n=3, cutoff=0.3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    say(f"kvyield: the ledger knows no {what} {text}{hint}")
    return None


def _row(start: _wire.StoredObservation) -> tuple[object, ...]:
    from kvyield.assemble import FRACTION_FLAG

    fraction = start.flags.get(FRACTION_FLAG[start.engine.name])
    longest = max((one.prompt_tokens for one in start.verifications if one.passed), default=None)
    return (
        moment(start.observed_at),
        start.model.name,
        f"{start.hardware.gpu_count} x {start.hardware.gpu}",
        f"{start.engine.name} {start.engine.version or ''}".strip(),
        "-" if fraction is None else fraction,
        start.outcome + (" (retracted)" if start.retracted_at else ""),
        tokens(start.measurements.pool_tokens),
        gib(start.measurements.free_at_ready_gib),
        tokens(longest),
        start.id,
    )
