"""``kvyield doctor``: checks with advice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kvyield._errors import KvyieldError
from kvyield.cli._options import chosen_source, no_gpu_option, service_options, settings_of, source_options
from kvyield.cli._run import DONE, FAILED, safe

if TYPE_CHECKING:
    from kvyield.config import Settings
    from kvyield.doctor import Check

SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "skip"}


@click.command()
@source_options
@click.option("--server", metavar="URL", help="The running engine.")
@click.option("--server-key", envvar="KVYIELD_SERVER_KEY", help="Its API key.  [default: KVYIELD_SERVER_KEY]")
@no_gpu_option("Do not ask this host's GPUs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@service_options
@click.pass_context
def doctor(ctx: click.Context, /, **given: Any) -> None:
    """Check service, token, spool, GPU, engine (--server) and log, and say what to do. Exit code 1 on a FAIL."""
    settings = settings_of(given)
    failed = False
    for check in _checks(settings, given):
        failed = failed or check.verdict == "fail"
        if given["as_json"]:
            click.echo(msgspec.json.encode(check))
            continue
        click.echo(safe(f"{SIGNS[check.verdict]}  {check.name}: {check.finding}"))
        if check.advice and check.verdict != "ok":
            click.echo(safe(f"      {check.advice}"))
    ctx.exit(FAILED if failed else DONE)


def _checks(settings: Settings, given: dict[str, Any]) -> Iterator[Check]:
    from kvyield import doctor as checks

    yield from checks.check_settings(settings)
    yield from checks.check_service(settings)
    yield from checks.check_spool(settings)
    if not given["no_gpu"]:
        yield from checks.check_gpu()
    if given["server"]:
        from kvyield.cli.observe import engine_getter

        yield from checks.check_engine(engine_getter(given["server"], given["server_key"]), given["server"])
    yield from _check_source(given)


def _check_source(given: dict[str, Any]) -> Iterator[Check]:
    from kvyield.assemble import Extras
    from kvyield.doctor import Check
    from kvyield.intake import read
    from kvyield.sources import missing_unit

    source = chosen_source(given)
    if source is None:
        yield Check("log", "skip", "no log was named", "give --journal, --log, --docker or --kubernetes to check it")
        return
    try:
        reading = read(source, Extras())
    except KvyieldError as error:
        yield Check("log", "fail", str(error), "fix the source, then run doctor again")
        return
    if given["journal"] and not reading.lines and (missing := missing_unit(given["journal"])):
        yield Check("log", "fail", missing, "systemctl list-units --type service lists those that are there")
        return
    found = len(reading.starts) + len(reading.unfinished)
    advice = "is it the engine's own log, from its start on?"
    finding = f"{found} start(s) in {reading.lines:,} lines of {reading.name}"
    yield Check("log", "ok" if found else "fail", finding, "" if found else advice)
