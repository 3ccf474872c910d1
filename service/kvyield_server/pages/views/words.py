"""Figures and names as people read them, each with its unit."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from math import isfinite

from kvyield_server.domain import answers
from kvyield_server.domain.facts.observation import EngineName, Outcome, Scalar
from kvyield_server.schemas.common import EstimateOut

UNKNOWN = "—"
MINUS = "−"
_EXACT = Context(prec=400, rounding=ROUND_HALF_UP)

ENGINE_WORDS = {
    EngineName.SGLANG: "SGLang",
    EngineName.VLLM: "vLLM",
    EngineName.TENSORRT_LLM: "TensorRT-LLM",
    EngineName.LMDEPLOY: "LMDeploy",
}
OUTCOME_WORDS = {
    Outcome.READY: "ready",
    Outcome.REFUSED: "refused",
    Outcome.OOM_STARTUP: "OOM at start-up",
    Outcome.OOM_RUNTIME: "OOM at run time",
    Outcome.FAILED: "failed",
}


def tokens(value: float | None) -> str:
    """Return a count with thousands apart, without the word tokens."""
    return UNKNOWN if value is None else f"{round(value):,}".replace("-", MINUS)


def figure(value: float | None, digits: int = 2) -> str:
    """Return a number with at most ``digits`` decimals and no trailing zeros; halves go up, as in the plots' script."""
    if value is None or not isfinite(value):
        return UNKNOWN
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), context=_EXACT)
    text = f"{rounded:,f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return ("0" if text in ("-0", "") else text).replace("-", MINUS)


def gib(value: float | None, digits: int = 2) -> str:
    """Return an amount of memory in GiB."""
    return UNKNOWN if value is None else f"{figure(value, digits)} GiB"


def percent(probability: float | None) -> str:
    """Return a probability; what is not certain never reads as 0 % or 100 %."""
    return UNKNOWN if probability is None else answers.percent(probability)


def token_count(value: float) -> str:
    """Return a count with the word tokens."""
    return f"{tokens(value)} {'token' if round(value) == 1 else 'tokens'}"


def span_tokens(estimate: EstimateOut | None) -> str:
    """Return the interval of an estimate in tokens; what was measured has none, and is one figure."""
    return UNKNOWN if estimate is None else span(tokens(estimate.low), tokens(estimate.high))


def span_gib(estimate: EstimateOut | None, digits: int = 1) -> str:
    """Return the interval of an estimate in GiB, with more decimals where it is narrower than the last of them."""
    if estimate is None:
        return UNKNOWN
    low, high = figure(estimate.low, digits), figure(estimate.high, digits)
    is_narrow = low == high and estimate.low != estimate.high
    return span(figure(estimate.low), figure(estimate.high)) if is_narrow else span(low, high)


def span(low: str, high: str) -> str:
    """Return a range; both ends alike are one figure."""
    return low if low == high else f"{low} to {high}"


def duration(seconds: float | None) -> str:
    """Return a time span in the two largest units that it fills."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{figure(seconds, 1)} s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [f"{hours} h", f"{minutes} min"] if hours else [f"{minutes} min", f"{rest} s"]
    return " ".join(part for part in parts if not part.startswith("0 "))


def moment(at: datetime | None) -> str:
    """Return a time in UTC, as the page has it until the reader's zone is known; with seconds, which tell two
    starts of one minute apart."""
    return UNKNOWN if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def engine_word(name: EngineName) -> str:
    """Return an engine's name as its makers write it."""
    return ENGINE_WORDS[name]


def outcome_word(outcome: Outcome) -> str:
    """Return how a start ended, in words."""
    return OUTCOME_WORDS[outcome]


def flag_value(value: Scalar) -> str:
    """Return a flag's value: nothing for one that is not set, off and on in words, numbers without an exponent where
    that is shorter."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def flag_option(name: str) -> str:
    """Return a flag's name as an option of a command line."""
    return f"--{name.replace('_', '-')}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def label_word(code: str) -> str:
    """Return a fit's label or a warning's code in plain words."""
    return code.replace("_", " ")


def flag_parts(line: str) -> list[str]:
    """Return a command line as the parts that should not be torn apart; joined with spaces they are the line again."""
    return re.split(r"(?<!remove) (?=--|remove --)", line)
