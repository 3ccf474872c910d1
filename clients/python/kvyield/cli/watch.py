"""``kvyield watch``: follows an engine's log and posts every start."""

from __future__ import annotations

import hashlib
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvyield._errors import KvyieldError, SourceError
from kvyield.cli._options import (
    chosen_source,
    client_of,
    configured_facts,
    extras_of,
    fact_options,
    no_gpu_option,
    service_options,
    settings_of,
    source_options,
)
from kvyield.cli._run import say
from kvyield.cli.observe import facts_of_host
from kvyield.sources import USER_UNIT

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield.config import Settings
    from kvyield.watching import BookmarkFile, Watch

SPOOL_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0

UNIT = """\
[Unit]
Description=kvyield: posts every start of {name}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
EnvironmentFile=-/etc/kvyield/environment
Environment=KVYIELD_SPOOL=%S/kvyield/spool
StateDirectory=kvyield
StateDirectoryMode=0700
DynamicUser=yes
SupplementaryGroups=systemd-journal
Restart=always
RestartSec=10
Nice=19
IOSchedulingClass=idle
CPUQuota=25%
MemoryMax=512M
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only

[Install]
WantedBy=multi-user.target
"""

_SYSTEM_ONLY = ("Wants=", "After=", "DynamicUser=", "SupplementaryGroups=", "ProtectSystem=", "ProtectHome=")


@click.command()
@source_options
@click.option("--state", metavar="FILE", help="Where the watch remembers how far it is.  [default: beside the spool]")
@no_gpu_option("Do not ask this host's GPUs.")
@fact_options
@click.option("--unit", is_flag=True, help="Print a systemd unit that runs this watch, and end.")
@service_options
def watch(**given: Any) -> None:
    """Follow an engine's log and post every start as it becomes ready, or fails.

    A start that crashes later, out of memory for example, is posted once more with that outcome. The watch may be
    stopped and started at any time: it posts nothing twice, and what the service did not take waits in the spool until
    the service is back.
    """
    if given["unit"]:
        click.echo(unit_text(sys.argv[1:], given), nl=False)
        return
    settings = settings_of(given)
    found, stopped = watch_of(given, settings), threading.Event()
    say(f"kvyield: {_beginning(given)}")
    threading.Thread(target=_send_spool, args=(settings, stopped), daemon=True).start()
    try:
        follow(given, found, stopped)
    finally:
        stopped.set()


def _beginning(given: Mapping[str, Any]) -> str:
    """What is watched, and whether it is there yet."""
    from kvyield.sources import missing_unit

    source = chosen_source(given)
    lacks = missing_unit(given["journal"]) if given["journal"] else None
    if given["log_file"] and given["log_file"] != "-" and not Path(given["log_file"]).exists():
        lacks = "there is no such file yet"
    return f"watching {source.name if source else ''}" + (f"; {lacks}: waiting for it" if lacks else "")


def follow(given: Mapping[str, Any], found: Watch, stopped: threading.Event) -> None:
    """Reads the log until ``stopped`` is set; a source that ends or breaks is opened again after a pause."""
    pause = FIRST_PAUSE_SECONDS
    while not stopped.is_set():
        before = found.brought
        try:
            found.follow(_lines(given, found.bookmark, stopped))
        except SourceError as error:
            say(f"kvyield: {error}; trying again in {pause:.0f} s")
        if given["stdin"]:
            return
        pause = FIRST_PAUSE_SECONDS if found.brought > before else min(2 * pause, LONGEST_PAUSE_SECONDS)
        stopped.wait(pause)


def watch_of(given: Mapping[str, Any], settings: Settings) -> Watch:
    """The watch that the options mean. Raises a usage error without a source."""
    from kvyield.watching import BookmarkFile, Watch

    source = chosen_source(given, follow=True)
    if source is None:
        raise click.UsageError("which log? give --journal, --log, --docker, --kubernetes or -")
    digest = hashlib.sha256(source.name.encode()).hexdigest()[:12]
    state = Path(given["state"]) if given["state"] else settings.spool.parent / "watch" / f"{digest}.json"
    configured, with_gpus = configured_facts(settings), not given["no_gpu"]
    facts = partial(facts_of_host, configured, is_local=source.is_local, with_gpus=with_gpus)
    return Watch(
        bookmark=BookmarkFile(state),
        extras=extras_of(given, settings, facts()),
        bring=lambda observation: _bring(settings, observation),
        say=lambda text: say(f"kvyield: {text}"),
        engine=given["engine"] or settings.facts.get("engine"),
        is_local=source.is_local,
        zone=given.get("timezone"),
        detect=facts,
    )


def unit_text(arguments: Sequence[str], given: Mapping[str, Any]) -> str:
    """A systemd unit for this very command line; a token is left out, it belongs into the environment file."""
    file = given["log_file"]
    whole = {file: str(Path(file).absolute()), f"--log={file}": f"--log={Path(file).absolute()}"} if file else {}
    kept = [whole.get(word, word) for word in _without_token(arguments) if word != "--unit"]
    name = next((given[key] for key in ("journal", "log_file", "docker", "kubernetes") if given[key]), "an engine")
    text = UNIT.format(name=name, command=" ".join(map(_quoted, [*_program(), *kept])))
    return _for_a_user(text) if (given["journal"] or "").startswith(USER_UNIT) else text


def _for_a_user(text: str) -> str:
    """The unit for ``systemctl --user``: it runs as that user, who may read the own journal and nobody else's."""
    lines = [line for line in text.splitlines() if not line.startswith(_SYSTEM_ONLY)]
    return "\n".join([*lines, ""]).replace("multi-user.target", "default.target").replace("=-/etc/", "=-%E/")


def _program() -> list[str]:
    """This command by its whole path: systemd has no PATH of the person who asked."""
    own = Path(sys.argv[0])
    found = str(own.absolute()) if own.name == "kvyield" else shutil.which("kvyield")
    return [found] if found else [sys.executable, "-m", "kvyield"]


def _without_token(arguments: Sequence[str]) -> Iterator[str]:
    skip = False
    for word in arguments:
        if not skip and not word.startswith("--token="):
            skip = word == "--token"
            if not skip:
                yield word
        else:
            skip = False


def _quoted(word: str) -> str:
    """A word as systemd reads it: percent and dollar doubled, quoted where it has blanks or quotes."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if plain and not any(sign in plain for sign in " \t\"'\\;"):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _lines(given: Mapping[str, Any], bookmark: BookmarkFile, stopped: threading.Event) -> Iterator[bytes]:
    from kvyield.watching import follow_file

    if given["log_file"] and given["log_file"] != "-":
        return follow_file(Path(given["log_file"]), bookmark, stopped)
    since = given["since"] or _since(given, bookmark.mark.since)
    source = chosen_source({**given, "since": since}, follow=True)
    assert source is not None
    return source.lines()


def _since(given: Mapping[str, Any], moment: datetime | None) -> str | None:
    """The bookmark in the words of the source's own tool; a pod's log is read from its beginning."""
    if moment is None or given["kubernetes"]:
        return None
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if given["journal"] else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _bring(settings: Settings, observation: _wire.Observation) -> tuple[bool, str]:
    from kvyield.delivery import spool_observations
    from kvyield.spool import Spool

    delivery = spool_observations([observation], Spool(settings.spool)).send_by(lambda: client_of(settings))[0]
    words = delivery.result if delivery.reason is None else f"{delivery.result} ({delivery.reason})"
    return delivery.result != "lost", words


def _send_spool(settings: Settings, stopped: threading.Event) -> None:
    """Sends what waits on disk once the service is back, though no new start comes."""
    while not stopped.wait(SPOOL_SECONDS):
        fault = send_once(settings)
        if fault:
            say(f"kvyield: the spool could not be sent: {fault}")


def send_once(settings: Settings) -> str | None:
    from kvyield._replay import adding, posting
    from kvyield.spool import Spool

    spool = Spool(settings.spool)
    try:
        if spool.pending_count():
            with client_of(settings) as client:
                spool.send(posting(client), add=adding(client))
    except KvyieldError as error:
        return str(error)
    return None
