"""Checks of everything the client needs, each with what to do when it fails."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvyield._errors import KvyieldError, NotAllowedError, ServiceError
from kvyield.config import Settings

if TYPE_CHECKING:
    from kvyield._client import Client

Verdict = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Check:
    """One finding; ``advice`` says what to do unless all is well."""

    name: str
    verdict: Verdict
    finding: str
    advice: str = ""


def check_settings(settings: Settings) -> Iterator[Check]:
    """Where the settings come from, and whether others can read the file that holds the token."""
    yield Check("settings", "ok", f"url from {settings.sources['url']}, spool {settings.spool}")
    if settings.ledger is not None:
        return
    if settings.token_fault:
        yield Check("token file", "fail", settings.token_fault, "correct token_file in the configuration file")
        return
    file = Path(settings.sources["token"])
    if file.is_absolute() and file.is_file() and (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
        yield Check("token file", "warn", f"{file} can be read by others ({mode:o})", f"chmod 600 {file}")


def check_service(settings: Settings) -> Iterator[Check]:
    """Whether the service answers, can work, takes the token, and which commands the token's roles allow."""
    from kvyield._client import Client
    from kvyield._transfer import Limits

    if settings.ledger is not None:
        yield _check_ledger(settings.ledger)
        return
    seconds = settings.timeout_seconds or DEADLINE_SECONDS
    limits = Limits(total_seconds=seconds, read_seconds=seconds, retries=0, until=time.monotonic() + seconds)
    try:
        with Client(settings.url, settings.token, limits=limits, ca_file=settings.ca_file) as client:
            answers = _tried("service", settings.url, client.health, _service_advice(settings.url))
            yield answers
            if answers.verdict == "fail":
                yield Check("token", "skip", "not checked, since the service does not answer")
                return
            yield from _check_token(client, settings)
    except KvyieldError as error:
        yield Check("service", "fail", str(error), "give --url, KVYIELD_URL, or url in the configuration file")


def _check_ledger(folder: Path) -> Check:
    from kvyield._transfer import Limits
    from kvyield.local import local_service

    try:
        with local_service(folder).client(Limits()) as client:
            client.health()
    except KvyieldError as error:
        return Check("local ledger", "fail", str(error), "or name a service with KVYIELD_URL")
    return Check("local ledger", "ok", f"{folder} can be used; every command is allowed")


def _check_token(client: Client, settings: Settings) -> Iterator[Check]:
    try:
        roles = client.allowed_roles()
    except NotAllowedError as error:
        yield Check("token", "fail", str(error), _TOKEN_ADVICE)
        return
    except ServiceError as error:
        yield Check("token", "fail", str(error), _service_advice(settings.url))
        return
    told = f"token from {settings.sources['token']}" if settings.token else "no token is given and none is needed"
    yield Check("token", "ok" if roles else "fail", f"{told}; roles: {', '.join(roles) or 'none'}", _TOKEN_ADVICE)
    allowed = [name for name, needed in COMMAND_ROLES.items() if "admin" in roles or needed <= set(roles)]
    if roles:
        allowed += [name for name in OF_ANY_ROLE if name not in allowed]
    if allowed:
        yield Check("commands", "ok", f"allowed: {', '.join(allowed)}")
    for needed in dict.fromkeys(COMMAND_ROLES.values()):
        names = [name for name, one in COMMAND_ROLES.items() if one == needed and name not in allowed]
        if names:
            wanted = f"the {'role' if len(needed) == 1 else 'roles'} {' and '.join(sorted(needed))}"
            advice = "if this host needs them: kvyield-server token create --name HOST --role ingest --role read"
            yield Check("commands", "warn", f"not allowed: {', '.join(names)} (needs {wanted})", advice)


DEADLINE_SECONDS = 10.0
COMMAND_ROLES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("observe", "report", "verify --observation", "watch", "import"), frozenset({"ingest"})),
    **dict.fromkeys(("recommend", "predict"), frozenset({"read"})),
    "tune": frozenset({"ingest", "read"}),
}
"""The roles that a command which asks the service needs, all of them; an admin needs no other."""
OF_ANY_ROLE = ("history",)
_TOKEN_ADVICE = "ask an admin for one: kvyield-server token create --name HOST --role ingest; then set KVYIELD_TOKEN"  # noqa: S105  # advice, no secret


def _service_advice(url: str) -> str:
    return f"is it running at {url}? start kvyield-server serve, or set KVYIELD_URL; observations are spooled meanwhile"


def _tried(name: str, finding: str, call: Callable[[], object], advice: str) -> Check:
    try:
        call()
    except ServiceError as error:
        return Check(name, "fail", str(error), advice)
    return Check(name, "ok", finding)


def check_spool(settings: Settings) -> Iterator[Check]:
    """What waits, what was refused, and whether the folder can be written."""
    from kvyield.spool import Spool

    spool = Spool(settings.spool)
    try:
        spool.prepare()
        items = spool.items()
    except KvyieldError as error:
        yield Check("spool", "fail", str(error), "make the folder writable, or set KVYIELD_SPOOL to one that is")
        return
    refused = sum(item.reason is not None for item in items)
    waiting = len(items) - refused
    advice = (
        "kvyield spool list shows why; kvyield spool send --refused tries again" if refused else "kvyield spool send"
    )
    verdict: Verdict = "warn" if items else "ok"
    yield Check("spool", verdict, f"{waiting} waiting, {refused} refused", advice if items else "")


def check_gpu() -> Iterator[Check]:
    """Whether this host's GPUs can be read."""
    from kvyield.gpu import GpuError, find_gpus

    try:
        found = find_gpus()
    except GpuError as error:
        yield Check("GPU", "warn", str(error))
        return
    names = sorted({gpu.name for gpu in found})
    free = min(gpu.free_gib for gpu in found)
    yield Check("GPU", "ok", f"{len(found)} x {', '.join(names)}, {free:.2f} GiB free on the fullest")


def check_engine(get: Callable[[str], tuple[int, bytes]], url: str) -> Iterator[Check]:
    """Whether the running engine answers, and takes its key: ``/health`` alone would answer without one."""
    for path in ("/v1/models", "/health"):
        try:
            status, _ = get(path)
        except KvyieldError as error:
            yield Check("engine", "fail", f"{url}: {error}", "is the engine running, and is the port right?")
            return
        if status < 400:
            yield Check("engine", "ok", f"{url}{path} answers")
            return
        if status in (401, 403):
            yield Check(
                "engine", "fail", f"{url}{path}: HTTP {status}", "give its key: --server-key or KVYIELD_SERVER_KEY"
            )
            return
    yield Check("engine", "fail", f"{url} answers, but not as an engine", "give the engine's own address to --server")
