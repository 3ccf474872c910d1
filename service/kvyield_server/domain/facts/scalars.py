"""Reading of loosely typed values: flags and config fields as the numbers, words and switches that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

OFF_WORDS = frozenset({"", "none", "null", "off", "false", "no", "0"})


def as_number(value: object) -> float | None:
    """Return a finite number, also from numeric text, or None; a switch is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def as_count(value: object) -> int | None:
    """Return a positive whole number below 2^31, or None."""
    number = as_number(value)
    return int(number) if number is not None and 1 <= number < 2**31 else None


def as_word(value: object) -> str | None:
    """Return lower-case text without surrounding space, or None for anything that is not text."""
    return value.strip().lower() if isinstance(value, str) else None


def is_on(value: object) -> bool:
    """Tell whether a flag's value switches something on: true, a number but zero, or a word that does not mean off."""
    if isinstance(value, str):
        return value.strip().lower() not in OFF_WORDS
    return bool(value)


def first_given(values: Mapping[str, object], *names: str) -> object:
    """Return the first value that is not None under one of ``names``, else None."""
    return next((values[name] for name in names if values.get(name) is not None), None)


def any_named(values: Mapping[str, object], *names: str) -> bool:
    """Tell whether at least one of ``names`` was recorded, be it as known to be off."""
    return any(name in values for name in names)
