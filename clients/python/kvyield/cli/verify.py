"""``kvyield verify``: a long prompt to the running engine, its answer checked, memory sampled meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from kvyield.cli._checks import check_gpus, check_observation, check_server
from kvyield.cli._options import (
    client_of,
    no_gpu_option,
    one_of,
    service_options_beside,
    settings_of,
    source_options,
)
from kvyield.cli._run import DONE, FAILED, UNREACHABLE, say
from kvyield.cli._verifying import Session, exit_code_of, pace_of, show_report, verification_options

if TYPE_CHECKING:
    from kvyield.config import Settings
    from kvyield.delivery import Delivery
    from kvyield.verify import Report, Verified


@click.command()
@verification_options
@source_options
@click.option("--observation", metavar="ID", help="Add the verifications to this observation in the ledger.")
@no_gpu_option("Do not sample this host's GPUs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, exactly as posted.")
@click.option(
    "--spooled-exit-code",
    type=click.IntRange(0, 125),
    default=DONE,
    help="Exit code when the result waits in the spool.",
)
@service_options_beside
@click.pass_context
def verify(ctx: click.Context, /, **given: Any) -> None:
    """Send a prompt of a given length to the running engine and check that it was read.

    The prompt is made here: random words, one hidden fact and a question about it. The prefix cache is flushed, tokens
    are counted by the engine, and the lowest free memory of its GPUs is recorded. With --log, --journal, --docker or
    --kubernetes the engine's log tells an out-of-memory failure from another crash.

    With --observation the service, the token, the observation, the engine and the GPUs are checked before the prompt is
    sent. If the service cannot be reached, a note says so and the result waits in the spool; if it refuses, the command
    ends with exit code 3. Exit code 1: the prompt was not served whole, or the answer was wrong (the memory counts all
    the same); 4: no engine answers there.
    """
    observation_id = one_of("--observation", given["observation"])
    settings = settings_of(given)
    with Session(given, ctx.obj) as session:
        if session.refusal:
            say(f"kvyield: {session.refusal}")
            ctx.exit(FAILED if session.server else UNREACHABLE)
        stored = None
        if observation_id:
            stored = check_observation(settings, observation_id)
            check_server(given, stored)
            check_gpus(given, stored, session.gpus)
        results = _Results(settings, observation_id)
        report = session.verify(results.pace() if stored else [], results.take)
    _show(report, as_json=given["as_json"])
    ctx.exit(max(exit_code_of(report), *results.send(given["spooled_exit_code"]), DONE))


class _Results:
    """Brings each result to the disk as it comes, and to the service in the end."""

    def __init__(self, settings: Settings, observation_id: UUID | None) -> None:
        from kvyield.spool import Spool

        self._settings = settings
        self._observation_id = observation_id
        self._spool = Spool(settings.spool)
        self._spooled: list[Any] = []

    def take(self, result: Verified) -> None:
        from kvyield.delivery import spool_verification

        if self._observation_id is not None:
            self._spooled.append(spool_verification(self._observation_id, result.verification, self._spool))

    def pace(self) -> list[tuple[int, float]]:
        assert self._observation_id is not None
        with client_of(self._settings) as client:
            return list(pace_of(client, self._observation_id))

    def send(self, spooled: int) -> list[int]:
        from kvyield.cli.observe import conclusion

        return [conclusion(one, spooled) for one in self._deliveries()]

    def _deliveries(self) -> list[Delivery]:
        return [one for spooled in self._spooled for one in spooled.send_by(lambda: client_of(self._settings))]


def _show(report: Report, *, as_json: bool) -> None:
    import msgspec

    if not as_json:
        show_report(report)
    elif report.refusal:
        say(f"kvyield: not verified: {report.refusal}")
    for result in report.results if as_json else ():
        click.echo(msgspec.json.encode(result.verification))
    if report.outcome:
        say(f"kvyield: the start ended as {report.outcome}")
