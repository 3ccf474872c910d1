"""Settings of the client: flags first, then the environment, then ``~/.config/kvyield/config.toml``, then defaults.

::

    url = "https://kvyield.example.net"
    token = "..."            # or token_file = "/etc/kvyield/token"
    spool = "/var/lib/kvyield"

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
from importlib import import_module
from pathlib import Path
from typing import Any

from kvyield._errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8321"
_TEXT = ("url", "token", "token_file", "spool")
_FACTS: Mapping[str, type | tuple[type, ...]] = {
    "gpu": str,
    "gpu_count": int,
    "gpu_memory_gib": (int, float),
    "model": str,
    "model_config": str,
    "host": str,
    "engine": str,
}


@dataclass(frozen=True)
class Settings:
    """What the client works with. ``sources`` tells where url, token and spool came from, for ``doctor``."""

    url: str
    token: str | None
    spool: Path
    facts: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Settings(url={self.url!r}, token={'set' if self.token else None}, spool={str(self.spool)!r})"


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the configuration file is looked for; ``KVYIELD_CONFIG`` names another."""
    if environment.get("KVYIELD_CONFIG"):
        return Path(environment["KVYIELD_CONFIG"])
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config"
    return Path(home) / "kvyield" / "config.toml"


def load_settings(
    *, url: str | None = None, token: str | None = None, environment: Mapping[str, str] = os.environ
) -> Settings:
    """Settings from flags, environment, file and defaults, in this order. Raises `ConfigError` on a wrong file."""
    path = config_path(environment)
    stored = _read_file(path)
    found = {
        "url": _first(("option", url), ("KVYIELD_URL", environment.get("KVYIELD_URL")), (path, stored.get("url"))),
        "token": _first(("option", token), ("KVYIELD_TOKEN", environment.get("KVYIELD_TOKEN")), (path, _token(stored))),
        "spool": _first(("KVYIELD_SPOOL", environment.get("KVYIELD_SPOOL")), (path, stored.get("spool"))),
    }
    return Settings(
        url=found["url"][1] or DEFAULT_URL,
        token=found["token"][1],
        spool=Path(found["spool"][1]).expanduser() if found["spool"][1] else _default_spool(environment),
        facts=stored.get("facts", {}),
        sources={name: source for name, (source, _) in found.items()},
    )


def _first(*candidates: tuple[str | Path, str | None]) -> tuple[str, str | None]:
    return next(((str(source), value.strip()) for source, value in candidates if value), ("default", None))


def _default_spool(environment: Mapping[str, str]) -> Path:
    state = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME") or Path.home()) / ".local" / "state"
    return Path(state) / "kvyield" / "spool"


def _token(stored: Mapping[str, Any]) -> str | None:
    name = stored.get("token_file")
    if stored.get("token") or not name:
        return stored.get("token")
    try:
        return Path(name).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {name} cannot be read: {error}") from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error}") from None
    stored = _parse(path, text)
    _check(path, stored)
    return stored


def _parse(path: Path, text: str) -> dict[str, Any]:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return dict(import_module(name).loads(text))
    except ValueError as error:
        raise ConfigError(f"the configuration {path} is not TOML: {error}") from None


def _check(path: Path, stored: Mapping[str, Any]) -> None:
    facts = stored.get("facts", {})
    if not isinstance(facts, dict):
        raise ConfigError(f"{path}: facts must be a table, [facts]")
    kinds: dict[str, type | tuple[type, ...]] = dict.fromkeys(_TEXT, str)
    _check_table(path, "", {name: value for name, value in stored.items() if name != "facts"}, kinds)
    _check_table(path, "facts.", facts, _FACTS)


def _check_table(
    path: Path, prefix: str, table: Mapping[str, Any], kinds: Mapping[str, type | tuple[type, ...]]
) -> None:
    for name, value in table.items():
        if name not in kinds:
            raise ConfigError(f"{path}: {prefix}{name} is unknown; known are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ConfigError(f"{path}: {prefix}{name} has the wrong type: {value!r}")
