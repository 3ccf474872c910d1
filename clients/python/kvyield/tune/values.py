"""Values of flags: as the API carries them, as words of a command line, and whether two of them mean the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from kvyield.engines._start import Scalar
from kvyield.tune.spellings import Option

DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NEGATIVE = re.compile(r"-(?:\d+(?:\.\d*)?|\.\d+)")
_WHOLE = re.compile(r"[+-]?\d{1,18}")


def look_like_options(values: Sequence[str]) -> bool:
    """Whether argparse takes a word for an option: a dash before it, unless it is a number or has a blank inside."""
    return any(
        word.startswith("-") and len(word) > 1 and not _NEGATIVE.fullmatch(word) and " " not in word for word in values
    )


def words_of(option: Option, value: Scalar) -> list[str]:
    """The words that give an option its value."""
    return [text_of(one) for one in listed(value)] if option.kind == "list" else [text_of(value)]


def listed(value: Scalar) -> list[Scalar]:
    """The values of a list flag from what the API carries: JSON text, or values with blanks or commas between."""
    if not isinstance(value, str):
        return [value]
    found = json_or_text([value])
    if isinstance(found, list):
        return [scalar_of(one) for one in found]
    return [parsed(one) for one in re.split(r"[\s,]+", value.strip("[] ")) if one]


def text_of(value: Scalar) -> str:
    """A value as one word; a float with at most ten digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.10g}"
    return str(value)


def variable_of(value: Scalar) -> str:
    """A value as an environment variable holds it: engines read 1 and 0."""
    return text_of(int(value) if isinstance(value, bool) else value)


def parsed(text: str) -> Scalar:
    """A word as a number where it is one, else as it is."""
    if _WHOLE.fullmatch(text):
        return int(text)
    number = float(text) if DECIMAL.fullmatch(text) else math.inf
    return number if math.isfinite(number) else text


def scalar_of(value: object) -> Scalar:
    """A configuration file's value as the API carries it: what is nested becomes compact JSON text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


def json_or_text(values: Sequence[str]) -> object:
    """The first word as the JSON value that it is, else as it is."""
    text = values[0] if values else ""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def object_of(value: object) -> dict[str, object]:
    """A flag's JSON object; empty when it holds none."""
    found = json_or_text([value]) if isinstance(value, str) else None
    return found if isinstance(found, dict) else {}


def is_same(option: Option, now: Scalar, asked: Scalar) -> bool:
    """Whether the engine would read the same; off and not given are one for a switch that is off by default."""
    if option.kind == "environment":
        return now is asked if now is None or asked is None else variable_of(now) == variable_of(asked)
    if option.kind == "switch" and not option.is_on_by_default:
        return bool(now) == bool(asked)
    if now is None or asked is None or isinstance(now, bool) or isinstance(asked, bool):
        return now is asked
    if option.kind == "list":
        return list(map(text_of, listed(now))) == list(map(text_of, listed(asked)))
    if text_of(now) == text_of(asked):
        return True
    one, other = json_or_text([text_of(now)]), json_or_text([text_of(asked)])
    return not isinstance(one, str) and one == other
