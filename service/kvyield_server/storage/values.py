"""Small shared rules: ids, the clock, what a database can hold, how attributes merge."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from uuid6 import uuid7

from kvyield_server.domain.facts.observation import Hardware, Model
from kvyield_server.errors import InvalidError

_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def new_id() -> UUID:
    """Return a UUIDv7 (RFC 9562), which sorts by the millisecond at which it was made."""
    return UUID(int=uuid7().int)


def utc_now() -> datetime:
    """Return the present moment, aware and UTC."""
    return datetime.now(UTC)


def plain(value: object) -> Any:
    """Return a dataclass or mapping as dicts, lists and scalars."""
    return msgspec.to_builtins(value, enc_hook=_plain_mapping)


def _plain_mapping(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


def refuse_unstorable(value: object) -> None:
    """Raise InvalidError for what some database refuses: NaN and infinities, NUL characters, lone surrogates."""
    try:
        text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False)
        text.encode()
    except ValueError as error:
        raise InvalidError([("", f"holds a value that cannot be stored: {error}")]) from error
    if "\\u0000" in text and _NUL_ESCAPE.search(text):
        raise InvalidError([("", "holds a NUL character, which cannot be stored")])


def merge_hardware(known: Hardware, newer: Hardware) -> Hardware:
    """Return what is known after ``newer``: its attributes win where they are not None."""
    told = {each.name: getattr(newer, each.name) for each in fields(newer) if each.name not in ("gpu", "gpu_count")}
    return replace(known, **{name: value for name, value in told.items() if value is not None})


def merge_model(known: Model, newer: Model) -> Model:
    """Return what is known after ``newer``: its revision and each of its facts win where they are not None."""
    told = {name: value for name, value in newer.facts.items() if value is not None}
    return replace(known, revision=newer.revision or known.revision, facts={**known.facts, **told})
