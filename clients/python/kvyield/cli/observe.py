"""``kvyield observe``: one log to the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kvyield._errors import DeadlineError, IncompleteError, SourceError
from kvyield.cli._options import (
    chosen_source,
    client_of,
    configured_facts,
    extras_of,
    fact_options,
    no_gpu_option,
    one_of,
    service_options,
    settings_of,
    size_option,
    source_options,
)
from kvyield.cli._run import DONE, FAILED, REFUSED, UNREACHABLE, exit_code, say
from kvyield.cli._starts import explain, show_starts

if TYPE_CHECKING:
    from kvyield.assemble import Assembled
    from kvyield.config import Settings
    from kvyield.delivery import Delivery
    from kvyield.engines import Sourced
    from kvyield.intake import Get, Reading, Running

ENGINE_SECONDS = 15.0


@click.command()
@source_options
@click.option("--server", metavar="URL", help="The running engine; its endpoints complete what the log says.")
@click.option("--server-key", envvar="KVYIELD_SERVER_KEY", help="The engine's API key.  [default: KVYIELD_SERVER_KEY]")
@click.option("--last", is_flag=True, help="Only the newest start of the log.")
@no_gpu_option("Do not ask this host's GPUs.")
@click.option("--force", is_flag=True, help="Treat log and server as one start even if they contradict each other.")
@click.option("--recommendation", metavar="ID", help="The stored recommendation that the newest start follows.")
@fact_options
@size_option
@click.option("--dry-run", is_flag=True, help="Post nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, exactly as posted.")
@click.option("--explain", "explained", is_flag=True, help="Show for each value the line that it came from.")
@click.option(
    "--spooled-exit-code",
    type=click.IntRange(0, 125),
    default=DONE,
    help="Exit code when the result waits in the spool.",
)
@service_options
@click.pass_context
def observe(ctx: click.Context, /, **given: Any) -> None:
    """Read an engine's log and post what its starts yielded.

    One of --journal, --log, --docker, --kubernetes or - names the log; --server alone asks the running engine only.
    The log may hold any number of starts; one that was posted before is not stored twice.
    """
    settings = settings_of(given)
    reading = read_log(given, settings)
    starts = reading.starts[-1:] if given["last"] else reading.starts
    _check(reading, starts)
    if given["as_json"]:
        for start in [*starts, *(reading.unfinished if given["dry_run"] else [])]:
            click.echo(start.json())
    if given["explained"]:
        explain(starts, to_stderr=given["as_json"])
    for note in (note for start in starts for note in start.contradictions):
        say(f"kvyield: disagreement: {note}")
    deliveries = [] if given["dry_run"] else _deliver(settings, starts)
    if not given["as_json"] and not given["explained"]:
        show_starts(starts, deliveries)
    ctx.exit(_conclude(starts, deliveries, given))


def read_log(given: Mapping[str, Any], settings: Settings) -> Reading:
    """Reads what ``given`` names: a log, the engine's endpoints, this host's GPUs. Raises a usage error without any."""
    from kvyield.intake import read, read_endpoints_only

    source = chosen_source(given)
    if source is None and not given["server"]:
        raise click.UsageError("which log? give --journal, --log, --docker, --kubernetes or - (or --server alone)")
    running = running_engine(given) if given["server"] else None
    is_local = source.is_local if source else running is not None and running.is_local
    facts = facts_of_host(configured_facts(settings), is_local=is_local, with_gpus=not given["no_gpu"])
    extras = extras_of(given, settings, facts, one_of("--recommendation", given["recommendation"]))
    if source is None:
        assert running is not None
        return read_endpoints_only(running, extras)
    engine = given["engine"] or settings.facts.get("engine")
    return read(source, extras, engine=engine, running=running, zone=given.get("timezone"))


def facts_of_host(configured: Mapping[str, Sourced], *, is_local: bool, with_gpus: bool) -> dict[str, Sourced]:
    """What this host says about itself: nothing when the engine is elsewhere, its name at least when it is here."""
    from kvyield.intake import gpu_facts, host_facts

    if not is_local:
        return {}
    return gpu_facts(configured)[0] if with_gpus else host_facts(configured)


def running_engine(given: Mapping[str, Any]) -> Running:
    """The engine at ``--server``, with its process where it runs on this host."""
    from urllib.parse import urlsplit

    from kvyield.intake import Running
    from kvyield.processes import engine_on
    from kvyield.verify import is_on_this_host

    get = engine_getter(given["server"], given["server_key"])
    try:
        port = urlsplit(given["server"]).port
    except ValueError:
        port = None
    is_local = is_on_this_host(given["server"])
    listener = engine_on(port) if port and is_local else None
    return Running(get, listener, port, is_local, is_forced=bool(given.get("force")))


def engine_getter(url: str, key: str | None) -> Get:
    """Reads paths of the running engine, each over a connection of its own, so that none is left open."""
    from kvyield._engine_http import open_engine
    from kvyield._transfer import within

    def ask(path: str) -> tuple[int, bytes]:
        with open_engine(url, key) as http:
            reply = http.get(path)
        return reply.status, reply.body

    def get(path: str) -> tuple[int, bytes]:
        answer = within(ENGINE_SECONDS, lambda: ask(path))
        if answer is None:
            raise DeadlineError(f"{url}{path} did not answer within {ENGINE_SECONDS:.0f} s")
        return answer

    return get


def _check(reading: Reading, starts: Sequence[Assembled]) -> None:
    for note in reading.notes:
        say(f"kvyield: {note}")
    for difference in reading.differences:
        say(f"kvyield: log and server are not one start, the server is left out: {difference}")
    if reading.unfinished:
        count = len(reading.unfinished)
        say(f"kvyield: {count} start(s) in {reading.name} were not ready yet; run again when they are")
    if not starts and not reading.unfinished and not reading.lines:
        raise SourceError(f"no engine start: nothing was read from {reading.name}")
    if not starts and not reading.unfinished:
        raise SourceError(
            f"no engine start in {reading.name} ({reading.lines:,} lines read); expected the start-up lines of SGLang, "
            "vLLM, TensorRT-LLM or LMDeploy"
        )


def _deliver(settings: Settings, starts: Sequence[Assembled]) -> list[Delivery]:
    from kvyield.delivery import spool_observations
    from kvyield.spool import Spool

    whole = [start.observation() for start in starts if not start.missing]
    if not whole:
        return []
    return spool_observations(whole, Spool(settings.spool)).send_by(lambda: client_of(settings))


def _conclude(starts: Sequence[Assembled], deliveries: Sequence[Delivery], given: dict[str, Any]) -> int:
    codes = [DONE]
    for start in starts:
        if start.missing:
            try:
                start.observation()
            except IncompleteError as error:
                say(f"kvyield: {'could not be posted' if given['dry_run'] else 'not posted'}: {error}")
            codes.append(DONE if given["dry_run"] else FAILED)
    codes += [conclusion(delivery, given["spooled_exit_code"]) for delivery in deliveries]
    return max(codes)


def conclusion(delivery: Delivery, spooled: int) -> int:
    """Says what became of one item, unless it is stored and that is all, and returns the exit code.

    An item that waits for an absent service is not a failure; one that waits for a token, a setting or a repair is.
    """
    if delivery.result == "spooled":
        say(f"kvyield: waits in the spool: {delivery.reason}; `kvyield spool send` sends it, so does the next run")
        code = exit_code(delivery.error) if delivery.error else UNREACHABLE
        return spooled if code == UNREACHABLE else code
    if delivery.reason:
        say(f"kvyield: {delivery.result}: {delivery.reason}")
    return {"refused": REFUSED, "lost": FAILED}.get(delivery.result, DONE)
