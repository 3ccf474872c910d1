"""``kvyield tune``: restart, measure, verify, until the target is verified."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvyield._errors import KvyieldError
from kvyield.cli._options import (
    chosen_source,
    client_of,
    extras_of,
    fact_options,
    no_gpu_option,
    service_options,
    settings_of,
    token_count,
)
from kvyield.cli._run import DONE, FAILED, say
from kvyield.sources import USER_UNIT

if TYPE_CHECKING:
    from kvyield.config import Settings
    from kvyield.tune.child import Child
    from kvyield.tune.journal import Journal, Record
    from kvyield.tune.launchers import Launcher
    from kvyield.tune.loop import Tune
    from kvyield.tune.plan import Result
    from kvyield.tune.waiting import Pause

Function = TypeVar("Function", bound=Callable[..., Any])
INFEASIBLE, NOT_RESTORED = 5, 6
CODES = {
    "verified": DONE,
    "not_verified": FAILED,
    "infeasible": INFEASIBLE,
    "not_restored": NOT_RESTORED,
    "ended": FAILED,
}
SPOOL_SECONDS = 60.0
SERVICE_SECONDS = 30.0
"""How long an answer of the service is waited for: a restart costs minutes, a lost answer a restart."""
WATCH_SECONDS = 0.2
QUESTION = (
    *("reply_tokens", "confidence", "prompt_need_gib", "max_running_requests", "kv_cache_dtype"),
    *("chunked_prefill_size", "prefer"),
)
KEPT = ("server", "journal", "log_file", "docker", "engine", "model", "gpu", "gpu_count", "gpu_memory_gib")
"""Options that ``--undo`` needs to follow the engine's start."""


def _goal_options(function: Function) -> Function:
    options = [
        click.option("--target-tokens", type=token_count(1), help="The prompt that must be served: 200000, 200k, 1m."),
        click.option(
            "--concurrent",
            type=click.IntRange(1),
            default=1,
            help="Number of such prompts at the same time.  [default: 1]",
        ),
        click.option("--reply-tokens", type=token_count(0), help="Tokens of the reply to it.  [default: 0]"),
        click.option(
            "--confidence", type=click.FloatRange(0.5, 0.9999), help="Probability wanted, of pool and of memory."
        ),
        click.option(
            "--prompt-need-gib", type=click.FloatRange(0), help="Memory that a prompt takes, if you know it better."
        ),
        click.option("--max-running-requests", type=click.IntRange(1), help="Advise only with this value of the flag."),
        click.option("--kv-cache-dtype", help="Advise only with this value of the flag."),
        click.option("--chunked-prefill-size", type=int, help="Advise only with this value of the flag."),
        click.option("--prefer", type=click.Choice(("keep", "headroom", "pool")), help="See `kvyield recommend`."),
    ]
    return _all(options, function)


def _launch_options(function: Function) -> Function:
    options = [
        click.option("--unit", metavar="NAME", help="The engine is this systemd unit: flags go to a drop-in."),
        click.option("--user", "is_user", is_flag=True, help="The unit is one of your own (systemctl --user)."),
        click.option("--write", "write_file", metavar="FILE", help="Flags go to this file."),
        click.option("--format", "file_format", type=click.Choice(("args", "systemd", "compose")), help="Its format."),
        click.option("--restart-command", metavar="COMMAND", help="Restarts the engine after --write."),
        click.option("--server", metavar="URL", help="Where the engine answers.  [default: from the command line]"),
        click.option("--server-key", envvar="KVYIELD_SERVER_KEY", help="Its API key.  [default: KVYIELD_SERVER_KEY]"),
        click.option("--served-model", help="The model to ask, when the server has several."),
        click.option("--journal", metavar="UNIT", help="The engine's log: the journal of a unit, user:UNIT for yours."),
        click.option("--log", "log_file", metavar="FILE", help="The engine's log: a file."),
        click.option("--docker", metavar="NAME", help="The engine's log: a container's."),
    ]
    return _all(options, function)


def _loop_options(function: Function) -> Function:
    options = [
        click.option(
            "--max-restarts", type=click.IntRange(0), default=3, show_default=True, help="Restarts to new flags."
        ),
        click.option("--yes", is_flag=True, help="Do not ask before a restart."),
        click.option("--restart-busy", is_flag=True, help="Restart even while requests are in flight."),
        click.option(
            "--idle-timeout",
            type=click.FloatRange(0),
            default=60.0,
            show_default=True,
            help="Seconds to wait for them.",
        ),
        click.option(
            "--start-timeout", type=click.FloatRange(1), help="Seconds for a start.  [default: from the ledger]"
        ),
        click.option(
            "--stop-timeout", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds to end it."
        ),
        click.option(
            "--memory-timeout",
            type=click.FloatRange(0),
            default=120.0,
            show_default=True,
            help="Seconds for its GPU memory to be free again.",
        ),
        click.option("--prompt-timeout", "timeout", type=click.FloatRange(1), help="Seconds for one prompt."),
        click.option("--no-answer-check", is_flag=True, help="For a model that cannot give the answer."),
        click.option("--dry-run", is_flag=True, help="Say what would be done; change, send and post nothing."),
        click.option("--undo", is_flag=True, help="Put back what was there before tune, and start it."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object per round on standard output."),
        click.option("--state", metavar="FOLDER", help="The journal.  [default: ~/.local/state/kvyield/tune]"),
    ]
    return _all(options, function)


def _all(options: Sequence[Callable[[Any], Any]], function: Function) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@_goal_options
@_launch_options
@_loop_options
@no_gpu_option("Do not ask or sample this host's GPUs.")
@fact_options
@service_options
@click.pass_context
def tune(ctx: click.Context, /, **given: Any) -> None:
    """Restart the engine, measure it and verify it, until a prompt of the target's length is served.

    The engine is started by tune itself (-- COMMAND, also as a container's entrypoint), is a systemd unit (--unit), or
    is started by --restart-command after --write FILE. Whatever fails, the last good flags are put back and serve: the
    newest that passed the verification, else those that ran before. After a kill -9 of tune the next run restores them,
    and so does --undo.

    Exit codes: 0 verified; 1 not verified, the last good flags serve; 5 infeasible, nothing restarted; 6 could not
    restore, the commands to do so are printed. With -- COMMAND tune stays the engine's parent until it ends, and ends
    with its status.
    """
    if given["target_tokens"] is None and not given["undo"]:
        raise click.UsageError("--target-tokens says how long the prompt is that must be served")
    given |= {"stdin": None, "kubernetes": None, "prompt_tokens": given["target_tokens"] or 1, "force": False}
    given |= {"ramp": False, "completion_tokens": 16, "route": None, "seed": None, "since": None, "max_bytes": None}
    settings = _settings(given)
    if not given["undo"]:  # which must work whatever the service's address is
        _check_options(given, settings)
    folder = Path(given["state"]).expanduser() if given["state"] else _state_folder()
    if given["undo"] and not (given["command"] or given["unit"] or given["write_file"]):
        ctx.exit(_undo_all(folder, given, settings))
    ctx.exit(_Run(folder, given, settings).code())


@dataclass
class _Run:
    """One run on one engine, from the lock to the exit code."""

    folder: Path
    given: dict[str, Any]
    settings: Settings

    def code(self) -> int:
        from kvyield.tune.journal import Journal

        launcher = launcher_of(self.given, self.folder)
        self.given |= located(self.given, launcher)
        with Journal(self.folder, launcher.key) as journal:
            loop = self._loop(launcher, journal)
            _adopt(launcher, journal, self.given, is_dry=self.given["dry_run"])
            _hear(loop.pause, launcher)
            result = loop.undo() if self.given["undo"] else loop.run()
            is_undone = self.given["undo"] and result.end == "verified"
            say(f"kvyield: {'' if is_undone else result.end.replace('_', ' ') + ': '}{result.reason}")
            return self._conclude(loop, result)

    def _loop(self, launcher: Launcher, journal: Journal) -> Tune:
        from kvyield.cli._tuning import Site
        from kvyield.cli._verifying import pace_of
        from kvyield.spool import Spool
        from kvyield.tune.child import Child
        from kvyield.tune.ledger import Ledger
        from kvyield.tune.loop import Tune
        from kvyield.tune.plan import Desk, Goal
        from kvyield.tune.starting import Starter
        from kvyield.tune.waiting import Memory, Pause

        given, pause = self.given, Pause()
        child = launcher if isinstance(launcher, Child) else None
        site = Site(given, self.settings, child)
        goal = Goal(
            tokens=given["prompt_tokens"],
            concurrent=given["concurrent"],
            question={name: given[name] for name in QUESTION if given[name] is not None},
            max_restarts=given["max_restarts"],
            restarts_busy=given["restart_busy"],
            idle_seconds=given["idle_timeout"],
            is_dry=given["dry_run"],
        )
        memory = Memory(site.free_memory, pause, _say, given["memory_timeout"])
        return Tune(
            goal=goal,
            launcher=launcher,
            site=site,
            ledger=Ledger(
                partial(client_of, self.settings, total_seconds=SERVICE_SECONDS),
                Spool(self.settings.spool),
                _say,
                pace_of,
            ),
            journal=journal,
            starter=Starter(launcher, site, memory, pause, _say, given["start_timeout"]),
            memory=memory,
            pause=pause,
            desk=Desk(_say, partial(_ask, given), _recorder(given)),
            is_parent=child is not None,
        )

    def _conclude(self, loop: Tune, result: Result) -> int:
        from kvyield.tune.child import Child

        launcher = loop.launcher
        if not isinstance(launcher, Child):
            return CODES[result.end]
        if launcher.state() == "running":
            serves = "runs, and is not ready" if result.end == "not_restored" else "serves"
            say(f"kvyield: the engine {serves}; it is watched until it ends")
            _watched(loop, launcher, self.settings)
        launcher.rest()
        if loop.pause.number is not None:
            launcher.stop()
            say(f"kvyield: stopped; the last good flags: {loop.good_text()}")
            return DONE if result.end == "verified" else FAILED
        if result.end == "not_restored" or launcher.running is None:
            return CODES[result.end]
        return _status(launcher)


def _watched(loop: Tune, child: Child, settings: Settings) -> None:
    """Waits for the engine's end as its parent, and posts that end; what waits in the spool is sent meanwhile."""
    import time

    from kvyield.cli.watch import send_once
    from kvyield.tune.waiting import StoppedError

    due = time.monotonic() + SPOOL_SECONDS
    with suppress(StoppedError):
        while child.state() == "running":
            loop.pause.sleep(WATCH_SECONDS)
            if time.monotonic() > due:
                if fault := send_once(settings):
                    say(f"kvyield: the spool could not be sent: {fault}")
                due = time.monotonic() + SPOOL_SECONDS
        loop.tell_end()


def _status(child: Child) -> int:
    """The engine's own exit status, as a shell gives it."""
    status = child.running.poll() if child.running else None
    if status is None:
        return FAILED
    return 128 - status if status < 0 else status


def launcher_of(given: Mapping[str, Any], folder: Path) -> Launcher:
    """Who starts the engine. Raises a usage error unless exactly one is named."""
    from kvyield.tune.child import Child, port_of
    from kvyield.tune.commandline import engine_of

    named = [name for name in ("command", "unit", "write_file") if given[name]]
    if len(named) != 1:
        raise click.UsageError("name the engine by one of -- COMMAND, --unit NAME or --write FILE")
    if named == ["unit"]:
        from kvyield.tune.systemd import Unit

        return Unit(given["unit"], is_user=given["is_user"])
    if named == ["write_file"]:
        from kvyield.tune.written import Written

        if not (given["file_format"] and given["restart_command"] and given["server"]):
            raise click.UsageError("--write needs --format, --restart-command and --server")
        if not (given["journal"] or given["log_file"] or given["docker"]):
            raise click.UsageError("where does the engine log? give --journal, --log or --docker")
        return Written(
            Path(given["write_file"]),
            given["file_format"],
            given["restart_command"],
            engine=given["engine"],
            url=given["server"],
        )
    argv = list(given["command"])
    engine = given["engine"] or engine_of(argv)
    if engine is None:
        raise click.UsageError(f"{argv[0]} is not an engine that kvyield knows; --engine says which it is")
    return Child(
        argv=argv,
        engine=engine,
        folder=folder / f"starts-{engine}-{port_of(argv, engine)}",
        streams=(2, 2) if given["as_json"] else (1, 2),
        stop_seconds=given["stop_timeout"],
    )


def located(given: Mapping[str, Any], launcher: Launcher) -> dict[str, Any]:
    """Log and server, where they follow from the launcher."""
    from kvyield.tune.child import Child, url_of
    from kvyield.tune.systemd import Unit

    if isinstance(launcher, Child):
        return {"server": given["server"] or launcher.url, "engine": launcher.engine}
    if not isinstance(launcher, Unit):
        return {}
    found: dict[str, Any] = {"engine": given["engine"] or launcher.engine}
    if not (given["journal"] or given["log_file"] or given["docker"]):
        source = launcher.log_source()
        is_file = source is not None and source.name.startswith("/")
        unit = f"{USER_UNIT if launcher.is_user else ''}{launcher.unit}"
        found |= {"log_file": source.name} if source is not None and is_file else {"journal": unit}
    if not given["server"]:
        found |= {"server": url_of(launcher.argv, launcher.engine)}
    return found


def _adopt(launcher: Launcher, journal: Journal, given: Mapping[str, Any], *, is_dry: bool) -> None:
    """Takes up what an earlier run with the same command left: the engine that runs, or the flags that were good."""
    from kvyield.tune.child import Child

    options: dict[str, Any] = {"command": [*given["command"]]}
    options |= {name: given[name] for name in (*KEPT, "unit", "is_user") if given.get(name)}
    options |= {name: given[name] for name in ("write_file", "file_format", "restart_command") if given.get(name)}
    record = journal.record
    if isinstance(launcher, Child):
        if record.options.get("command", options["command"]) != options["command"]:
            record = journal.record = _anew(record)
        left = launcher.left()
        if left is not None and not is_dry:
            say(f"kvyield: the engine of an earlier run still runs (process {left.pid}); it is taken over")
            launcher.adopt(left)
        elif record.good is not None and launcher.snapshot() != record.good.snapshot and not given["undo"]:
            say("kvyield: the engine is started with the flags that passed in an earlier run")
            launcher.restore(record.good.snapshot)
    journal.record.options = options


def _anew(record: Record) -> Record:
    from kvyield.tune.journal import Record

    say(f"kvyield: an earlier run was of another command ({' '.join(record.options['command'][:3])} ...): begun anew")
    return Record()


def _hear(pause: Pause, launcher: Launcher) -> None:
    """SIGTERM and SIGINT end the run; a child gets them too."""
    from kvyield.tune.child import Child

    def take(number: int, _frame: FrameType | None) -> None:
        if isinstance(launcher, Child) and launcher.running is not None:
            launcher.running.send(number)
        pause.stop(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, take)


def _undo_all(folder: Path, given: dict[str, Any], settings: Settings) -> int:
    """Undoes what is in every journal of this user, whatever becomes of one; engines that need a parent come last."""
    from kvyield.tune.journal import records

    found = [record for _, record in records(folder) if record.options and record.good is not None]
    found.sort(key=lambda record: bool(record.options.get("command")) and record.intent is not None)
    if not found:
        say("kvyield: there is nothing to undo")
    codes = []
    for record in found:
        known = {**record.options, "command": tuple(record.options.get("command", ()))}
        if len(found) > 1:
            say(f"kvyield: {known.get('unit') or known.get('write_file') or shlex.join(known['command'])}:")
        try:
            codes.append(_Run(folder, {**given, **known}, settings).code())
        except KvyieldError as error:
            say(f"kvyield: not undone: {error}")
            codes.append(FAILED)
    return max(codes, default=DONE)


def _check_options(given: Mapping[str, Any], settings: Settings) -> None:
    """What is wrong with options is told before an engine is started or asked. Raises a usage error."""
    from kvyield._engine_http import open_engine

    for name, option, needed in (
        ("is_user", "--user", "unit"),
        ("file_format", "--format", "write_file"),
        ("restart_command", "--restart-command", "write_file"),
    ):
        if given[name] and not given[needed]:
            raise click.UsageError(f"{option} needs --{needed.removesuffix('_file')}")
    try:
        chosen_source(given)
        extras_of(given, settings, {})
        if given["server"]:
            open_engine(given["server"], given["server_key"]).close()
        if settings.ledger is None:
            client_of(settings).close()
    except KvyieldError as error:
        raise click.UsageError(str(error)) from None
    if settings.ca_file is not None and not settings.ca_file.is_file():
        raise click.UsageError(f"there is no file {settings.ca_file}, which {settings.sources['ca_file']} names")
    if given["log_file"] and Path(given["log_file"]).is_dir():
        raise click.UsageError(f"--log {given['log_file']} is a folder: name the engine's log file")


def _settings(given: Mapping[str, Any]) -> Settings:
    """A service that is named, else the ledger of this host."""
    settings = settings_of(given)
    return settings if settings.sources["url"] != "default" else settings_of({**given, "is_local": True})


def _state_folder() -> Path:
    """Where it is does not depend on the service: a run against another one must find what this one left."""
    state = os.environ.get("XDG_STATE_HOME") or Path(os.environ.get("HOME") or Path.home()) / ".local" / "state"
    return Path(state) / "kvyield" / "tune"


def _say(text: str) -> None:
    say(f"kvyield: {text}")


def _ask(given: Mapping[str, Any], lines: Sequence[str]) -> str | None:
    for line in lines:
        _say(line)
    if given["dry_run"]:
        return "this is a dry run"
    if given["yes"]:
        return None
    if not sys.stdin.isatty():
        return "nobody can be asked, since there is no terminal: --yes restarts without asking"
    return None if click.confirm("kvyield: restart?", err=True) else "no restart was wanted"


def _recorder(given: Mapping[str, Any]) -> Callable[[Any], None]:
    def record(one: Any) -> None:
        import msgspec

        if given["as_json"]:
            sys.stdout.write(msgspec.json.encode(one).decode() + "\n")
            sys.stdout.flush()

    return record
