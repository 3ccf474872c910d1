"""``kvyield history``: the ledger, newest start first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kvyield._names import loose
from kvyield.cli._asking import MOST_PAIRS, SHOWN_PAIRS
from kvyield.cli._options import ENGINES, SERVICE_OPTIONS, client_of, one_of, service_options, settings_of
from kvyield.cli._run import say
from kvyield.cli._tables import gib, moment, table, tokens

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield._client import Client

SORTS = ("-observed_at", "observed_at", "-received_at", "received_at")
NEAR, SAME_FAMILY = 0.6, 0.7  # of difflib's ratio
SHORTEST_PART = 4
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
_CHANGE_HEADINGS = ("changed", "by", "what", "~?reason", "~field", "~old value", "~new value")


@click.command()
@click.argument("observation_id", required=False, metavar="[ID]")
@click.option("--model", help="Only this model; its owner, case and punctuation may be left out.")
@click.option("--gpu", help="Only this GPU model, written as loosely.")
@click.option("--engine", type=click.Choice(ENGINES), help="Only this engine.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only this outcome.")
@click.option("--host", help="Only this host.")
@click.option("--pair", "pair_id", metavar="ID", help="Only this pair.")
@click.option("--since", metavar="TIME", help="Only from this day (UTC) or time on: 2026-05-30, 2026-05-30T22:00:00Z.")
@click.option("--until", metavar="TIME", help="Only up to the end of this day (UTC), or before this time.")
@click.option(
    "--sort", type=click.Choice(SORTS), help="By start or by arrival, - for the newest first.  [default: -observed_at]"
)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many starts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@service_options
def history(observation_id: str | None, limit: int, as_json: bool, **given: Any) -> None:
    """Show the ledger, newest start first; with an ID one start and what was changed in it, by whom and why.

    If --model or --gpu matches several names, they are listed and the exit code is 3.
    """
    filters = {name: value for name, value in given.items() if name not in SERVICE_OPTIONS}
    wanted = one_of("ID", observation_id)
    if wanted is not None:
        with client_of(settings_of(given)) as client:
            _show(client.observation(wanted), as_json=as_json)
        return
    with client_of(settings_of(given)) as client:
        starts = list(islice(client.observations(**filters, page_size=min(limit, 500)), limit))
        if not starts:
            _say_nearest(client, filters)
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


def _show(start: _wire.StoredObservation, *, as_json: bool) -> None:
    """Shows one start, and under it a line per field that a further account or a correction changed, oldest first."""
    if as_json:
        click.echo(msgspec.json.encode(start))
        return
    table(_HEADINGS, [_row(start)])
    changes = [
        (
            moment(entry.at),
            entry.actor,
            entry.action,
            entry.reason or "",
            one.field,
            _told(one.before),
            _told(one.after),
        )
        for entry in start.history
        for one in entry.changes
    ]
    if changes:
        click.echo()
        table(_CHANGE_HEADINGS, changes)


def _told(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _say_nearest(client: Client, filters: Mapping[str, Any]) -> None:
    """Says which names the ledger does not know, with those that come near."""
    given = {name: filters[name] for name in ("model", "gpu") if filters[name]}
    if not given:
        return
    pairs = list(islice(client.pairs(page_size=500), MOST_PAIRS))
    known = {"model": {one.model.name for one in pairs}, "gpu": {one.hardware.gpu for one in pairs}}
    for what, text in given.items():
        if any(loose(name) == loose(text) for name in known[what]):
            continue
        near = sorted(name for name in known[what] if _is_near(loose(text), loose(name)))[:SHOWN_PAIRS]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        say(f"kvyield: the ledger knows no {what} {text}{hint}")


def _is_near(first: str, second: str) -> bool:
    """Whether one loose name is a part of the other, or they differ by little, their first letters by less."""
    if min(len(first), len(second)) >= SHORTEST_PART and (first in second or second in first):
        return True
    families = [re.split("[^a-z]", name)[0] for name in (first, second)]
    return _likeness(first, second) >= NEAR and _likeness(*families) >= SAME_FAMILY


def _likeness(first: str, second: str) -> float:
    return SequenceMatcher(a=first, b=second, autojunk=False).ratio()


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
