"""``kvyield report``: observe, verify and post in one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from kvyield._errors import KvyieldError
from kvyield.assemble import verified_start
from kvyield.cli._checks import stop_at
from kvyield.cli._options import (
    client_of,
    fact_options,
    no_gpu_option,
    service_options_beside,
    settings_of,
    source_options,
)
from kvyield.cli._run import DONE, FAILED, UNREACHABLE, exit_code, say
from kvyield.cli._starts import show_starts
from kvyield.cli._verifying import Session, exit_code_of, pace_of, show_report, verification_options
from kvyield.cli.observe import conclusion, read_log

if TYPE_CHECKING:
    from kvyield._client import Client
    from kvyield.assemble import Assembled
    from kvyield.config import Settings
    from kvyield.delivery import Delivery, Spooled
    from kvyield.verify import Verified


@click.command()
@verification_options
@source_options
@no_gpu_option("Do not ask or sample this host's GPUs.")
@click.option("--recommendation", metavar="ID", help="The stored recommendation that this start follows.")
@fact_options
@click.option("--dry-run", is_flag=True, help="Post nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, as posted, its verifications inside.")
@click.option(
    "--spooled-exit-code",
    type=click.IntRange(0, 125),
    default=DONE,
    help="Exit code when the result waits in the spool.",
)
@service_options_beside
@click.pass_context
def report(ctx: click.Context, /, **given: Any) -> None:
    """Read the running engine's start, post it, verify it, and post the verification.

    The start is the newest of the log; without a log, the engine's endpoints describe it. Log and server are compared
    and the start is posted before a prompt is sent. If the service refuses the start, the command ends with exit code
    3; if it cannot be reached, a note says so and everything waits in the spool. Exit code 1: the prompt was not served
    whole, or the answer was wrong (it is posted all the same).
    """
    settings = settings_of(given)
    with Session(given, ctx.obj) as session:
        if session.server is None:
            say(f"kvyield: {session.refusal}")
            ctx.exit(UNREACHABLE)
        reading = read_log(given, settings)
        for note in reading.notes:
            say(f"kvyield: {note}")
        if not reading.starts:
            raise KvyieldError(f"{reading.name} shows no start that is ready; is the engine up?")
        stop_at(reading.differences)
        start = reading.starts[-1]
        posting = _Posting(settings, start, is_dry=given["dry_run"])
        posting.post()
        if session.refusal:
            say(f"kvyield: not verified: {session.refusal}")
            ctx.exit(max(FAILED, posting.code(given["spooled_exit_code"])))
        found = session.verify(posting.pace(), posting.take)
    posting.post_results()
    whole = verified_start(start, found.results)
    if given["as_json"]:
        click.echo(whole.json())
    else:
        show_starts([whole], posting.shown(whole))
        show_report(found)
    ctx.exit(max(exit_code_of(found), posting.code(given["spooled_exit_code"])))


class _Posting:
    """The start on its way to the service: posted before the prompt, its results kept as they come.

    Once the service has the start, results go to its row; until then start and results wait in the spool as one.
    """

    def __init__(self, settings: Settings, start: Assembled, *, is_dry: bool) -> None:
        from kvyield.spool import Spool

        self._settings = settings
        self._start = start
        self._is_dry = is_dry
        self._spool = Spool(settings.spool)
        self._results: list[Verified] = []
        self._first: Delivery | None = None
        self._spooled: list[Spooled] = []
        self._last: list[Delivery] = []

    def post(self) -> None:
        """Posts the bare start. Raises when the service refuses it, or when it can be brought nowhere."""
        from kvyield.delivery import spool_observations

        if self._is_dry:
            return
        self._spooled = [spool_observations([self._start.observation()], self._spool)]
        first = self._first = self._spooled[0].send_by(self._connect)[0]
        code = exit_code(first.error) if first.error else DONE
        if first.result in ("refused", "lost") or code not in (DONE, UNREACHABLE):
            waits = "; it waits in the spool" if first.result == "spooled" else ""
            say(f"kvyield: no prompt was sent, since the start could not be posted{waits}")
            raise first.error or KvyieldError(f"the start is {first.result}: {first.reason}")
        if first.stored_id is not None:
            self._spooled = []
        if first.result == "spooled":
            say(f"kvyield: {first.reason}; the prompt is sent, and all of it will wait in the spool")

    def pace(self) -> list[tuple[int, float]]:
        """What earlier prompts of this deployment took, as far as the ledger tells."""
        if self._stored_id is None:
            return []
        with client_of(self._settings) as client:
            return list(pace_of(client, self._stored_id))

    def take(self, result: Verified) -> None:
        """Brings a result to the disk. One that ended the start is an account of the start's end."""
        from kvyield.delivery import spool_observations, spool_verification

        self._results.append(result)
        if self._is_dry:
            return
        if self._stored_id is None:
            bare = self._spooled
            whole = spool_observations([verified_start(self._start, self._results).observation()], self._spool)
            for one in bare if not whole.unspooled else ():
                one.withdraw()
            self._spooled = [whole]
        elif result.outcome is None:
            self._spooled.append(spool_verification(self._stored_id, result.verification, self._spool))
        else:
            self._spooled.append(spool_observations([verified_start(self._start, [result]).observation()], self._spool))

    def post_results(self) -> None:
        """Sends what is in the spool."""
        self._last = [one for spooled in self._spooled for one in spooled.send_by(self._connect)]

    def code(self, spooled: int) -> int:
        """Says what became of start and results, and returns the exit code."""
        whole = self._last if self._stored_id is None and self._last else [*filter(None, [self._first]), *self._last]
        return max((conclusion(one, spooled) for one in whole), default=DONE)

    def shown(self, whole: Assembled) -> list[Delivery]:
        """What became of the start, under the id that it is shown with."""
        ends = [one for one in self._last if one.result not in ("stored", "known")]
        found = next(iter([*ends, *filter(None, [self._first])]), None)
        return [replace(found, item=whole.observation())] if found else []

    @property
    def _stored_id(self) -> UUID | None:
        return self._first.stored_id if self._first else None

    def _connect(self) -> Client:
        return client_of(self._settings)
