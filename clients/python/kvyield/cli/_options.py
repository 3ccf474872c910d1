"""Options that several commands share, and what they become."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta, timezone, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from kvyield._errors import ConfigError
from kvyield.config import LOCAL, Settings, load_settings

if TYPE_CHECKING:
    from kvyield._client import Client
    from kvyield.assemble import Extras
    from kvyield.engines import Sourced
    from kvyield.sources import Source

Function = TypeVar("Function", bound=Callable[..., Any])
ANSWER_SECONDS = 10.0
SERVICE_OPTIONS = ("url", "token", "ca_file", "is_local", "service_timeout")
ENGINES = ("sglang", "vllm", "tensorrt-llm", "lmdeploy")
_COUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([km]?)")
_OFFSET = re.compile(r"([+-])([01]?\d|2[0-3]):?([0-5]\d)?")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
_FACTS = ("gpu", "gpu_count", "gpu_memory_gib", "model", "model_revision", "engine_version", "host")


def token_count(smallest: int) -> Callable[[str], int]:
    """Reads a number of tokens: ``200000``, ``200_000``, ``200,000``, ``200k`` or ``1m``, where k is a thousand."""

    def tokens(text: str) -> int:
        match = _COUNT.fullmatch(text.strip().lower().replace(",", "").replace("_", ""))
        if match is None:
            raise click.BadParameter(f"{text!r} is not a number of tokens: write 200000, 200k or 1m (k = 1,000)")
        count = round(float(match[1]) * _UNITS[match[2]])
        if count < smallest:
            raise click.BadParameter(f"{text!r} is too few: at least {smallest}")
        return count

    return tokens


def time_zone(text: str) -> tzinfo:
    """Reads a time zone: a name of the IANA database, ``UTC``, or an offset such as ``+02:00``."""
    offset = _OFFSET.fullmatch(text)
    if text.upper() in ("UTC", "Z"):
        return timezone.utc
    if offset:
        minutes = 60 * int(offset[2]) + int(offset[3] or 0)
        return timezone(timedelta(minutes=minutes if offset[1] == "+" else -minutes))
    try:
        return ZoneInfo(text)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise click.BadParameter(
            f"{text!r} is not a zone known here: UTC, +02:00 or a name such as Europe/Berlin"
        ) from None


def service_options(function: Function) -> Function:
    """``--url``, ``--token``, ``--ca-file``, ``--local`` and ``--timeout``."""
    return _all([*_service(), _timeout("--timeout", "--service-timeout")], function)


def service_options_beside(function: Function) -> Function:
    """The same for commands whose ``--timeout`` is a prompt's."""
    return _all([*_service(), _timeout("--service-timeout")], function)


def local_option(function: Function) -> Function:
    """``--local``."""
    told = "Use a ledger on this host, not a service, as with KVYIELD_URL=local; needs kvyield[local]."
    return _all([click.option("--local", "is_local", is_flag=True, help=told)], function)


def _service() -> list[Callable[[Any], Any]]:
    return [
        click.option(
            "--url", help="The service's address.  [default: KVYIELD_URL, config file, http://127.0.0.1:8321]"
        ),
        click.option(
            "--token", help="The service's token; KVYIELD_TOKEN is safer: other users of this host can see options."
        ),
        click.option(
            "--ca-file",
            metavar="FILE",
            help="Certificates (PEM) that the service's is checked against.  [default: KVYIELD_CA_FILE, config file]",
        ),
        local_option,
    ]


def _timeout(*names: str) -> Callable[[Any], Any]:
    told = "Seconds for the service to answer, retries included.  [default: 10]"
    return click.option(*names, "service_timeout", type=click.FloatRange(0, min_open=True), help=told)


def no_gpu_option(told: str) -> Callable[[Any], Any]:
    """``--no-gpu``, and the name that it had before, which no help shows."""
    options = [
        click.option("--no-gpu", "no_gpu", is_flag=True, help=told),
        click.option("--no-card", "no_gpu", is_flag=True, hidden=True),
    ]
    return lambda function: _all(options, function)


def source_options(function: Function) -> Function:
    """Where the log is: exactly one of these, or ``-``."""
    options = [
        click.argument("stdin", required=False, metavar="[-]"),
        click.option("--journal", metavar="UNIT", help="The journal of a systemd unit; user:UNIT for your own."),
        click.option("--log", "log_file", metavar="FILE", help="A log file, plain or .gz, .bz2, .xz, .zst."),
        click.option("--docker", metavar="NAME", help="The log of a container."),
        click.option("--kubernetes", metavar="POD", help="The log of a pod."),
        click.option("--namespace", help="The pod's namespace."),
        click.option("--container", help="The container in the pod."),
        click.option("--previous", is_flag=True, help="The pod's previous container, the one that crashed."),
        click.option("--since", help="Only what was logged since then (journal, docker, kubernetes)."),
    ]
    return _all(options, function)


def size_option(function: Function) -> Function:
    """``--max-bytes``."""
    told = "Most bytes to read of one log, uncompressed.  [default: 17179869184, 16 GiB]"
    return _all([click.option("--max-bytes", type=click.IntRange(1), help=told)], function)


def fact_options(function: Function) -> Function:
    """Facts that no source holds."""
    options = [
        click.option("--gpu", help="The GPU model, with its MIG profile."),
        click.option("--gpu-count", type=click.IntRange(1), help="GPUs that the engine uses."),
        click.option("--gpu-memory-gib", type=click.FloatRange(0, min_open=True), help="Memory of one GPU in GiB."),
        click.option("--model", help="The model's name."),
        click.option("--model-revision", help="The model's revision."),
        click.option("--model-config", metavar="FILE", help="The model's config.json, or the folder that holds it."),
        click.option("--host", help="The host's name."),
        click.option("--engine", type=click.Choice(ENGINES), help="The engine, when the log does not show it."),
        click.option("--engine-version", help="The engine's version."),
        click.option("--flag", "flags", multiple=True, metavar="NAME=VALUE", help="A flag that the log does not show."),
        click.option(
            "--timezone",
            type=time_zone,
            metavar="ZONE",
            help="Time zone of log times that have none.  [default: this host's]",
        ),
        click.option(
            "--take-unfinished", is_flag=True, help="Count a start as ready when its log ends after the pool."
        ),
    ]
    return _all(options, function)


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings with the command line on top."""
    url = LOCAL if given.get("is_local") else given.get("url")
    return load_settings(
        url=url,
        token=given.get("token"),
        timeout_seconds=given.get("service_timeout"),
        ca_file=given.get("ca_file"),
    )


def client_of(settings: Settings, *, total_seconds: float = ANSWER_SECONDS, is_one_question: bool = False) -> Client:
    """A client for the service, whose answers are waited for so long; a whole question takes no longer either.

    Importing it is what costs time, so commands do it late.
    """
    from kvyield._client import Client
    from kvyield._transfer import Limits

    seconds = settings.timeout_seconds or total_seconds
    service = None
    if settings.ledger is not None:
        from kvyield.local import local_service

        service = local_service(settings.ledger)
    until = time.monotonic() + seconds if is_one_question else None
    limits = Limits(total_seconds=seconds, read_seconds=seconds, until=until)
    return (
        service.client(limits)
        if service
        else Client(settings.url, settings.token, limits=limits, ca_file=settings.ca_file)
    )


def chosen_source(given: Mapping[str, Any], *, follow: bool = False) -> Source | None:
    """The one source that was named, None when none was. Raises a usage error when there are several."""
    from kvyield import sources
    from kvyield._bounded import MOST_BYTES

    names = [name for name in ("journal", "log_file", "docker", "kubernetes", "stdin") if given.get(name)]
    if len(names) > 1:
        raise click.UsageError("give one source: --journal, --log, --docker, --kubernetes or -")
    if not names:
        return None
    name, since = given[names[0]], given.get("since")
    if names == ["journal"]:
        return sources.journal_source(name, since=since, follow=follow)
    if names == ["docker"]:
        return sources.docker_source(name, since=since, follow=follow)
    if names == ["kubernetes"]:
        details = {key: given.get(key) for key in ("namespace", "container")}
        previous = bool(given.get("previous"))
        return sources.kubernetes_source(name, **details, previous=previous, since=since, follow=follow)
    if names == ["stdin"] and name != "-":
        raise click.UsageError(f"unexpected argument {name!r}; a log file is given with --log {name}")
    most_bytes = given.get("max_bytes") or MOST_BYTES
    if names == ["stdin"] or name == "-":
        return sources.stdin_source(most_bytes=most_bytes)
    return sources.file_source(name, most_bytes=most_bytes)


def extras_of(
    given: Mapping[str, Any], settings: Settings, detected: Mapping[str, Sourced], recommendation_id: UUID | None = None
) -> Extras:
    """What options, this host and the configuration file say."""
    from kvyield.assemble import Extras

    config = given.get("model_config") or settings.facts.get("model_config")
    return Extras(
        options=_sourced({name: given.get(name) for name in _FACTS}, "option --{}"),
        detected=detected,
        configured=configured_facts(settings),
        flags=_sourced(parsed_flags(given.get("flags", ())), "option --flag {}"),
        model_facts=_config_facts(config),
        model_facts_source=f"{config}",
        model_name=_config_name(config),
        recommendation_id=recommendation_id,
        takes_unfinished=bool(given.get("take_unfinished")),
    )


def configured_facts(settings: Settings) -> dict[str, Sourced]:
    """The ``[facts]`` of the configuration file."""
    return _sourced({name: settings.facts.get(name) for name in _FACTS}, "[facts] {} of the configuration file")


def parsed_flags(texts: tuple[str, ...]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs; a value is JSON when it reads as a scalar of JSON, else text."""
    import msgspec

    flags: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--flag takes NAME=VALUE, not {text!r}")
        key = name.strip().lstrip("-").replace("-", "_")
        try:
            flags[key] = msgspec.json.decode(value, type=None | bool | int | float | str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            flags[key] = value
    return flags


def _config_facts(config: str | None) -> Mapping[str, object]:
    from kvyield.modelconfig import read_model_config

    return read_model_config(Path(config).expanduser()) if config else {}


def _config_name(config: str | None) -> Sourced | None:
    from kvyield.engines import Sourced
    from kvyield.modelconfig import name_in_config

    name = name_in_config(Path(config).expanduser()) if config else None
    return Sourced(name, f"{config}, _name_or_path") if name else None


def _sourced(values: Mapping[str, Any], source: str) -> dict[str, Sourced]:
    from kvyield.engines import Sourced

    options = {name: name.replace("_", "-") if source.startswith("option --{") else name for name in values}
    return {name: Sourced(value, source.format(options[name])) for name, value in values.items() if value is not None}


def one_of(name: str, value: str | None) -> UUID | None:
    """An id from an option. Raises `ConfigError`."""
    try:
        return UUID(value) if value else None
    except ValueError:
        raise ConfigError(f"{name} {value!r} is not an id") from None


def _all(options: Sequence[Callable[[Any], Any]], function: Function) -> Function:
    for option in reversed(options):
        function = option(function)
    return function
