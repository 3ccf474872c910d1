"""Settings of the client: flags first, then the environment, then ``~/.config/kvyield/config.toml``, then defaults.

::

    url = "https://kvyield.example.net"
    token = "..."            # or token_file = "/etc/kvyield/token"
    spool = "/var/lib/kvyield"
    timeout_seconds = 30     # instead of 10 s for each answer of the service
    ca_file = "/etc/ssl/our-ca.pem"   # certificates that the service's is checked against, instead of the usual ones

    [facts]                  # what no log on this host says
    gpu = "NVIDIA H200"
    gpu_count = 8
    gpu_memory_gib = 139.8
    model = "moonshotai/Kimi-K2.6"
    model_config = "/models/kimi/config.json"
    host = "gpu-01"
    engine = "sglang"
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvyield._errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8321"
LOCAL = "local"
"""The address of the embedded ledger: a service of this host's own, for the length of a command."""
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class _Facts(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    gpu: str | None = None
    gpu_count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    gpu_memory_gib: _Positive | None = None
    model: str | None = None
    model_config: str | None = None
    host: str | None = None
    engine: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    url: str | None = None
    token: str | None = None
    token_file: str | None = None
    spool: str | None = None
    timeout_seconds: _Positive | None = None
    ca_file: str | None = None
    facts: _Facts = msgspec.field(default_factory=_Facts)


@dataclass(frozen=True)
class Settings:
    """What the client works with. ``sources`` tells where url, token, spool and CA file came from, for ``doctor``.

    ``token_fault`` says why a token file could not be read: it is raised when the service is asked, not before what was
    observed is on disk. ``timeout_seconds`` replaces the bounds of the service's answers. ``ledger`` is the embedded
    ledger's folder when no service is meant; it has a spool of its own: what waits for a service does not go there.
    """

    url: str
    token: str | None
    spool: Path
    facts: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    token_fault: str | None = None
    ledger: Path | None = None
    ca_file: Path | None = None

    def __repr__(self) -> str:
        return f"Settings(url={self.url!r}, token={'set' if self.token else None}, spool={str(self.spool)!r})"


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the configuration file is looked for; ``KVYIELD_CONFIG`` names another."""
    if environment.get("KVYIELD_CONFIG"):
        return Path(environment["KVYIELD_CONFIG"])
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config"
    return Path(home) / "kvyield" / "config.toml"


def load_settings(
    *,
    url: str | None = None,
    token: str | None = None,
    timeout_seconds: float | None = None,
    ca_file: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings from flags, environment, file and defaults, in this order. Raises `ConfigError` on a wrong file."""
    path = config_path(environment)
    stored = _read_file(path, is_named=bool(environment.get("KVYIELD_CONFIG")))
    given = _first(("option", token), ("KVYIELD_TOKEN", environment.get("KVYIELD_TOKEN")), (path, stored.token))
    fault = None
    if given[1] is None and stored.token_file:
        given, fault = _token_of(Path(stored.token_file).expanduser())
    found = {
        "url": _first(("option", url), ("KVYIELD_URL", environment.get("KVYIELD_URL")), (path, stored.url)),
        "token": given,
        "spool": _first(("KVYIELD_SPOOL", environment.get("KVYIELD_SPOOL")), (path, stored.spool)),
        "ca_file": _first(
            ("--ca-file", ca_file), ("KVYIELD_CA_FILE", environment.get("KVYIELD_CA_FILE")), (path, stored.ca_file)
        ),
    }
    is_local = found["url"][1] == LOCAL
    ledger = _data(environment) / "kvyield" if is_local else None
    spool = Path(found["spool"][1]).expanduser() if found["spool"][1] else _default_spool(environment)
    return Settings(
        url=found["url"][1] or DEFAULT_URL,
        token=None if is_local else found["token"][1],
        spool=ledger / "spool" if ledger else spool,
        ledger=ledger,
        facts=msgspec.to_builtins(stored.facts),
        sources={name: source for name, (source, _) in found.items()},
        timeout_seconds=timeout_seconds or stored.timeout_seconds,
        token_fault=None if is_local else fault,
        ca_file=Path(found["ca_file"][1]).expanduser() if found["ca_file"][1] else None,
    )


def _first(*candidates: tuple[str | Path, str | None]) -> tuple[str, str | None]:
    return next(((str(source), value.strip()) for source, value in candidates if value), ("default", None))


def _default_spool(environment: Mapping[str, str]) -> Path:
    state = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME") or Path.home()) / ".local" / "state"
    return Path(state) / "kvyield" / "spool"


def _data(environment: Mapping[str, str]) -> Path:
    home = Path(environment.get("HOME") or Path.home())
    return Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")


def _token_of(file: Path) -> tuple[tuple[str, str | None], str | None]:
    """The token in a file of its own, with the file as its source, and why it could not be read."""
    try:
        return (str(file), file.read_text(encoding="utf-8").strip()), None
    except (OSError, UnicodeDecodeError) as error:
        return (str(file), None), f"the token file {file} cannot be read: {error}"


@cache
def _say_missing(path: Path) -> None:
    """Once per process, however often settings are read."""
    sys.stderr.write(f"kvyield: KVYIELD_CONFIG names {path}, which does not exist: the defaults hold\n")


def _read_file(path: Path, *, is_named: bool) -> _File:
    """The configuration; defaults when there is no file, which is said when ``KVYIELD_CONFIG`` names it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if is_named:
            _say_missing(path)
        return _File()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error}") from None
    try:
        return msgspec.convert(_parse(path, text), _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the configuration {path}: {error}; {_known()}") from None


def _known() -> str:
    names = [name for name in _File.__struct_fields__ if name != "facts"]
    return f"known are {', '.join(names)} and in [facts] {', '.join(_Facts.__struct_fields__)}"


def _parse(path: Path, text: str) -> dict[str, Any]:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return dict(import_module(name).loads(text))
    except ValueError as error:
        raise ConfigError(f"the configuration {path} is not TOML: {error}") from None
