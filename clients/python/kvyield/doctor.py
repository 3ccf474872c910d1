"""Checks of everything the client needs, each with what to do when it fails."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from kvyield._errors import KvyieldError, NotAllowedError, ServiceError
from kvyield.config import Settings, config_path

Verdict = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Check:
    """One finding; ``advice`` says what to do unless all is well."""

    name: str
    verdict: Verdict
    finding: str
    advice: str = ""


def check_settings(settings: Settings) -> Iterator[Check]:
    """Where the settings come from, and whether others can read the token."""
    path = config_path()
    yield Check("settings", "ok", f"url from {settings.sources['url']}, spool {settings.spool}")
    if not path.is_file() or settings.sources["token"] != str(path):
        return
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        yield Check("token file", "warn", f"{path} can be read by others ({mode:o})", f"chmod 600 {path}")


def check_service(settings: Settings) -> Iterator[Check]:
    """Whether the service answers, can work, and takes the token."""
    from kvyield._client import Client
    from kvyield._transfer import Limits

    try:
        with Client(settings.url, settings.token, limits=Limits(total_seconds=10.0, retries=0)) as client:
            answers = _tried("service", settings.url, client.health, _service_advice(settings.url))
            yield answers
            if answers.verdict == "fail":
                yield Check("token", "skip", "not checked, since the service does not answer")
                return
            yield _tried("token", _token_words(settings), lambda: client.observations_page(page_size=1), _TOKEN_ADVICE)
    except KvyieldError as error:
        yield Check("service", "fail", str(error), "give --url, KVYIELD_URL, or url in the configuration file")


_TOKEN_ADVICE = "ask an admin for one: kvyield-server token create --name HOST --role ingest; then set KVYIELD_TOKEN"  # noqa: S105  # advice, no secret


def _service_advice(url: str) -> str:
    return f"is it running at {url}? start kvyield-server serve, or set KVYIELD_URL; observations are spooled meanwhile"


def _token_words(settings: Settings) -> str:
    return f"token from {settings.sources['token']}" if settings.token else "no token; none is needed"


def _tried(name: str, finding: str, call: Callable[[], object], advice: str) -> Check:
    try:
        call()
    except NotAllowedError as error:
        return Check(name, "fail", str(error), _TOKEN_ADVICE)
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


def check_card() -> Iterator[Check]:
    """Whether this host's cards can be read."""
    from kvyield.gpu import GpuError, cards

    try:
        found = cards()
    except GpuError as error:
        yield Check("card", "warn", str(error))
        return
    names = sorted({card.name for card in found})
    free = min(card.free_gib for card in found)
    yield Check("card", "ok", f"{len(found)} x {', '.join(names)}, {free:.2f} GiB free on the fullest")


def check_engine(get: Callable[[str], tuple[int, bytes]], url: str) -> Iterator[Check]:
    """Whether the running engine answers."""
    for path in ("/health", "/v1/models"):
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
