"""Settings: read once from the environment and the command line, frozen from then on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kvyield_server.errors import InvalidError

PREFIX = "KVYIELD_"
_PASSWORD_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the service runs. Each field is also ``KVYIELD_`` and its name in capitals, such as ``KVYIELD_PORT``.

    ``max_body_bytes`` bounds one request, ``body_seconds`` the time in which its head, and then its body, must arrive;
    ``reader_threads`` bounds simultaneous reads of the database, ``fit_threads`` simultaneous fits; ``log_level`` is
    debug, info, warning or error.
    """

    database: str = "sqlite:///kvyield.db"
    host: str = "127.0.0.1"
    port: int = 8321
    max_body_bytes: int = 10_000_000
    body_seconds: int = 30
    reader_threads: int = 8
    fit_threads: int = 1
    log_level: str = "info"

    def __post_init__(self) -> None:
        faults = [(f"/{name}", text) for name, text in _faults(self)]
        if faults:
            raise InvalidError(faults)


def settings_from(environment: Mapping[str, str] | None = None, **given: Any) -> Settings:
    """Return settings: what is given and not None, else the environment's, else the defaults.

    Raises:
        InvalidError: a variable is not of its field's type, or a value is out of bounds.
    """
    source = os.environ if environment is None else environment
    values = {
        field.name: source[PREFIX + field.name.upper()] for field in fields(Settings) if _is_set(source, field.name)
    }
    typed = {name: _typed(name, text) for name, text in values.items()}
    return replace(Settings(), **typed | {name: value for name, value in given.items() if value is not None})


def shown(settings: Settings) -> dict[str, str | int]:
    """Return settings as a person may see them: the password in the database's address is hidden."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return values | {"database": without_password(settings.database)}


def without_password(url: str) -> str:
    """Return a database address without its password, in the login or in the query, whatever characters it has."""
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    place = _PASSWORD_PARAMETER.sub(r"\1***", place)
    return f"{scheme}{separator}{user}:***{at}{place}" if colon else f"{scheme}{separator}{login}{at}{place}"


def _is_set(source: Mapping[str, str], name: str) -> bool:
    return source.get(PREFIX + name.upper(), "") != ""


def _typed(name: str, text: str) -> str | int:
    if not isinstance(getattr(Settings(), name), int):
        return text
    try:
        return int(text)
    except ValueError:
        variable = PREFIX + name.upper()
        raise InvalidError([(f"/{name}", f"{variable} is {text!r}; it must be a whole number.")]) from None


def _faults(settings: Settings) -> list[tuple[str, str]]:
    bounds = {
        "port": (0, 65_535),
        "max_body_bytes": (1_000, 1_000_000_000),
        "body_seconds": (1, 3_600),
        "reader_threads": (1, 256),
        "fit_threads": (1, 64),
    }
    faults = [
        (name, f"{name} is {getattr(settings, name)}; it must be from {low} to {high}.")
        for name, (low, high) in bounds.items()
        if not low <= getattr(settings, name) <= high
    ]
    if settings.log_level not in ("debug", "info", "warning", "error"):
        faults.append(("log_level", f"log_level is {settings.log_level!r}; it must be debug, info, warning or error."))
    return faults
