"""``kvyield report``: observe, verify and post in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kvyield._errors import IncompleteError, KvyieldError, ServiceError
from kvyield.cli._options import client_of, fact_options, service_options, settings_of, source_options
from kvyield.cli._run import DONE, FAILED, REFUSED, say
from kvyield.cli._starts import show_starts
from kvyield.cli._verifying import carry_out, show_report, verification_options
from kvyield.cli.observe import read_log

if TYPE_CHECKING:
    from kvyield.assemble import Assembled
    from kvyield.config import Settings
    from kvyield.delivery import Delivery
    from kvyield.verify import Report


@click.command()
@verification_options
@source_options
@click.option("--no-card", is_flag=True, help="Do not ask or sample this host's cards.")
@click.option("--recommendation", metavar="ID", help="The stored recommendation that this start follows.")
@fact_options
@click.option("--dry-run", is_flag=True, help="Post nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, as posted, its verifications inside.")
@click.option("--spooled-exit-code", type=click.IntRange(0, 125), default=DONE, help="When the service is away.")
@service_options
@click.pass_context
def report(ctx: click.Context, /, **given: Any) -> None:
    """Read the running engine's start, verify it, and post both.

    The newest start of the log is meant; without a log the engine's endpoints alone tell of it. Exit code 1: the
    verification did not pass (it is posted all the same).
    """
    settings = settings_of(given["url"], given["token"])
    reading = read_log(given, settings)
    for note in reading.notes:
        say(f"kvyield: {note}")
    if not reading.starts:
        raise KvyieldError(f"{reading.name} tells of no start that is ready; is the engine up?")
    found = carry_out(given, ctx.obj)
    start = verified_start(reading.starts[-1], found)
    if given["as_json"]:
        click.echo(start.json())
    delivery = None if given["dry_run"] else post(settings, reading.starts[-1], found)
    if not given["as_json"]:
        show_starts([start], [replace(delivery, observation=start.observation())] if delivery else [])
        show_report(found)
    ctx.exit(max(DONE if found.passed else FAILED, _code(delivery, given["spooled_exit_code"])))


def verified_start(start: Assembled, found: Report) -> Assembled:
    """The start with its verifications and, where it ended by one of them, with that end."""
    import msgspec

    verifications = [msgspec.to_builtins(result.verification) for result in found.results]
    draft: dict[str, Any] = {**start.draft, "verifications": verifications}
    ended = next((result for result in found.results if result.outcome), None)
    if ended is not None:
        failure = {"phase": "serving", "message": ended.verification.error}
        draft |= {"outcome": ended.outcome, "failure": {**failure, "prompt_tokens": ended.verification.prompt_tokens}}
    return replace(start, draft=draft)


def post(settings: Settings, start: Assembled, found: Report) -> Delivery:
    """Posts the start and adds its verifications, so that a start that ``observe`` posted before stays one row.

    A start that ended by its verification, or a service that is away, makes one observation with all inside: the
    spool then keeps it.
    """
    from kvyield._replay import post_start
    from kvyield.delivery import Delivery, deliver
    from kvyield.spool import Spool

    with client_of(settings) as client:
        try:
            if start.missing:
                raise IncompleteError("; ".join(start.missing), start.missing)
            if found.outcome is None:
                bare = start.observation()
                receipt = post_start(client, bare)
                for result in found.results:
                    client.add_verification(receipt.id, result.verification)
                return Delivery(bare, "stored" if receipt.created else "known", receipt.note, receipt.id)
        except ServiceError as error:
            if not _is_away(error):
                raise
        return deliver([verified_start(start, found).observation()], Spool(settings.spool), client)[0]


def _is_away(error: ServiceError) -> bool:
    from kvyield._errors import RefusedError

    return not isinstance(error, RefusedError)


def _code(delivery: Delivery | None, spooled: int) -> int:
    if delivery is None or delivery.fate in ("stored", "known"):
        return DONE
    say(f"kvyield: {delivery.fate}: {delivery.reason}")
    codes: Mapping[str, int] = {"spooled": spooled, "refused": REFUSED}
    return codes.get(delivery.fate, FAILED)
