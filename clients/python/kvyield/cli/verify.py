"""``kvyield verify``: a long prompt to the running engine, its answer checked, memory sampled meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvyield.cli._options import client_of, one_of, service_options, settings_of, source_options
from kvyield.cli._run import DONE, FAILED, UNREACHABLE, say
from kvyield.cli._verifying import carry_out, show_report, verification_options

if TYPE_CHECKING:
    from kvyield.verify import Report


@click.command()
@verification_options
@source_options
@click.option("--observation", metavar="ID", help="Add the verifications to this observation in the ledger.")
@click.option("--no-card", is_flag=True, help="Do not sample this host's cards.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, exactly as posted.")
@service_options
@click.pass_context
def verify(ctx: click.Context, /, **given: Any) -> None:
    """Send a prompt of a given length to the running engine and check that it was read.

    The prompt is made here: random words, one hidden fact, a question for it. The prefix cache is flushed, tokens are
    counted by the engine, and the lowest free memory of its cards is kept. With --log, --journal, --docker or
    --kubernetes the engine's own words tell a run-time OOM from another death. Exit code 1: it did not pass; 4:
    no engine answers there.
    """
    observation = one_of("--observation", given["observation"])
    report = carry_out(given, ctx.obj)
    if report.server is None:
        say(f"kvyield: no engine could be asked at {given['server']}: {report.results[0].verification.error}")
        ctx.exit(UNREACHABLE)
    if given["as_json"]:
        show_json(report)
    else:
        show_report(report)
    if report.outcome:
        say(f"kvyield: the start ended as {report.outcome}")
    if observation:
        with client_of(settings_of(given["url"], given["token"])) as client:
            for result in report.results:
                client.add_verification(observation, result.verification)
    ctx.exit(DONE if report.passed else FAILED)


def show_json(report: Report) -> None:
    """One verification a line."""
    import msgspec

    for result in report.results:
        click.echo(msgspec.json.encode(result.verification))
