"""``kvyield spool``: what waits on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kvyield._errors import ConfigError, SpoolError
from kvyield.cli._options import client_of, local_option, service_options, settings_of
from kvyield.cli._run import DONE, FAILED, REFUSED, exit_code, say
from kvyield.cli._tables import moment, table

if TYPE_CHECKING:
    from kvyield.config import Settings
    from kvyield.spool import Item, Outcome, Spool

LONGEST_PAUSE_SECONDS = 60.0


@click.group()
def spool() -> None:
    """Show, send or drop what waits on disk because the service was away, or was refused by it."""


@spool.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@local_option
def list_items(as_json: bool, **given: Any) -> None:
    """Show what waits, oldest first, then what was refused and why."""
    items = _spool(given).items()
    if as_json:
        for item in items:
            click.echo(msgspec.json.encode(_plain(item)))
        return
    if not items:
        click.echo("the spool is empty")
        return
    table(("name", "since", "state", "model or verification", "reason"), [_row(item) for item in items])


@spool.command("send")
@click.option("--wait", "wait_seconds", type=click.FloatRange(0), default=0.0, help="Keep trying for so many seconds.")
@click.option("--refused", "with_refused", is_flag=True, help="Also try again what was refused.")
@service_options
@click.pass_context
def send(ctx: click.Context, /, wait_seconds: float, with_refused: bool, **given: Any) -> None:
    """Send what waits, oldest first. Exit code 4: the service is away; 1: it failed on an item.

    With --local the starts of the local ledger are posted to the service that KVYIELD_URL names.
    """
    from kvyield._replay import adding, posting

    settings = settings_of(given)
    if settings.ledger is not None:
        ctx.exit(_send_ledger(settings, given))
    queue = _spool(given)
    if with_refused:
        say(f"kvyield: {queue.retry_refused()} refused item(s) are tried again")
    with client_of(settings) as client:
        post = partial(queue.send, posting(client), add=adding(client))
        outcome = _send_until(post, time.monotonic() + wait_seconds)
    click.echo(f"sent {len(outcome.sent)}, refused {len(outcome.refused)}, waiting {outcome.pending}")
    for item in outcome.refused:
        say(f"kvyield: refused: {item.name}: {item.reason}")
    for item, error in outcome.held:
        say(f"kvyield: waits: {item.name}: {error}")
    if outcome.stopped_by is not None:
        say(f"kvyield: {outcome.stopped_by}")
        ctx.exit(exit_code(outcome.stopped_by))
    if outcome.held:
        ctx.exit(FAILED)
    ctx.exit(REFUSED if outcome.refused else DONE)


@spool.command("drop")
@click.argument("names", nargs=-1)
@click.option("--refused", "all_refused", is_flag=True, help="All that were refused.")
@local_option
def drop(names: tuple[str, ...], all_refused: bool, **given: Any) -> None:
    """Delete items by name (`kvyield spool list`), or all refused ones. What is deleted is lost."""
    if not names and not all_refused:
        raise click.UsageError("drop what? give names from `kvyield spool list`, or --refused")
    queue = _spool(given)
    dropped = queue.drop_refused() if all_refused else 0
    for name in names:
        if not queue.drop(name):
            raise SpoolError(f"nothing in the spool is named {name!r}")
        dropped += 1
    click.echo(f"dropped {dropped}")


def _send_until(send: Callable[[], Outcome], ends: float) -> Outcome:
    """Rounds with growing pauses, jittered so that many hosts do not come back at once."""
    from kvyield._transfer import backoff_seconds

    outcome = send()
    tries = 0
    while (outcome.stopped_by is not None or outcome.held) and time.monotonic() < ends:
        pause = backoff_seconds(1.0, tries, LONGEST_PAUSE_SECONDS)
        time.sleep(min(pause, max(ends - time.monotonic(), 0.0)))
        tries += 1
        following = send()
        following.sent[:0] = outcome.sent
        following.refused[:0] = outcome.refused
        outcome = following
    return outcome


def _spool(given: Mapping[str, Any]) -> Spool:
    from kvyield.spool import Spool

    return Spool(settings_of(given).spool)


def _send_ledger(settings: Settings, given: Mapping[str, Any]) -> int:
    """Posts all starts of the local ledger, with their verifications and retractions, to the service."""
    from kvyield.cli.importing import post_lines
    from kvyield.config import LOCAL
    from kvyield.exports import lines_of
    from kvyield.spool import Spool

    there = settings_of({**given, "is_local": False})
    if there.url == LOCAL or there.sources["url"] == "default":
        raise ConfigError("which service? KVYIELD_URL, --url or url in the configuration file names it")
    with client_of(settings) as ledger, client_of(there, total_seconds=60.0) as service:
        lines = lines_of(chunk for chunk in ledger.export())
        return post_lines("the local ledger", lines, Spool(there.spool), service)


def _row(item: Item) -> tuple[object, ...]:
    state = "refused" if item.reason else "waits"
    return (item.name, moment(item.spooled_at), state, _what(item), item.reason or "")


def _what(item: Item) -> str:
    if item.addition is not None:
        check = item.addition.verification
        return f"verification of {check.prompt_tokens:,} tokens for {item.addition.observation_id}"
    return item.observation.model.name if item.observation else "-"


def _plain(item: Item) -> dict[str, Any]:
    return {
        "name": item.name,
        "spooled_at": item.spooled_at,
        "state": "refused" if item.reason else "waiting",
        "reason": item.reason,
        "observation": item.observation,
        "addition": item.addition,
    }
