"""Constrained types that the wire structs share. Every float has both bounds, so NaN and infinities never pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import astuple

from kvyield_server.domain.answers import Caution, Estimate
from kvyield_server.schemas.strict import Fault

MAX_TOKENS = 1_000_000_000_000
MAX_GIB = 1_000_000.0
SMALLEST = 0.000_001

NOT_BLANK = r"\S"
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
TokensOrNone = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Gib = Annotated[float, Meta(ge=0.0, le=MAX_GIB)]
SignedGib = Annotated[float, Meta(ge=-MAX_GIB, le=MAX_GIB)]
PositiveGib = Annotated[float, Meta(ge=SMALLEST, le=MAX_GIB)]
MemoryGib = Annotated[float, Meta(ge=0.1, le=100_000.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=10_000_000.0)]
Fraction = Annotated[float, Meta(ge=0.001, le=1.0)]
GpuCount = Annotated[int, Meta(ge=1, le=65_536)]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=NOT_BLANK)]
ModelName = Annotated[str, Meta(min_length=1, max_length=500, pattern=NOT_BLANK)]
ShortText = Annotated[str, Meta(min_length=1, max_length=200)]
LongText = Annotated[str, Meta(max_length=16_000)]
LogText = Annotated[str, Meta(max_length=100_000)]
Instant = Annotated[datetime, Meta(tz=True)]

JsonValue = Annotated[Any, Meta(description="Any JSON value.")]  # in a schema too: generators know no recursive types
JsonObject = dict[str, JsonValue]

Item = TypeVar("Item")


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """One page of a list.

    Attributes:
        items: The rows of this page, newest first.
        next_page_token: Token of the next page, to be sent as `page_token`; null on the last page.
    """

    items: list[Item]
    next_page_token: str | None


class EstimateOut(Struct, frozen=True, kw_only=True):
    """A median and a central interval. The unit is in the name of the field that holds it.

    Attributes:
        median: The median: the truth is as likely above as below.
        low: Lower end of the interval.
        high: Upper end of the interval.
        level: Probability that the interval holds the truth, 0 to 1.
    """

    median: float
    low: float
    high: float
    level: float


class WarningOut(Struct, frozen=True, kw_only=True):
    """Something to know before the answer is used.

    Attributes:
        code: Stable name of the kind of warning, in snake_case, for programs.
        detail: What it says of this very answer, for people.
    """

    code: str
    detail: str


def size_faults(body: Struct | None, pointer: str, names: Collection[str] = ()) -> Iterator[Fault]:
    """Yield each figure of a struct that is neither 0 nor large enough to have been measured."""
    if body is None:
        return
    for name, value in zip(body.__struct_fields__, astuple(body), strict=True):
        if type(value) is float and -SMALLEST < value < SMALLEST and value and (not names or name in names):
            detail = f"{name} is {value}; it must be 0 or at least {SMALLEST:.6f}."
            yield Fault(f"{pointer}/{name}", detail)


def rounded(value: float | None, digits: int) -> float | None:
    """Round a figure for the wire; what is not finite is not known, hence null."""
    return None if value is None or not isfinite(value) else round(value, digits)


def estimate_out(estimate: Estimate | None, *, digits: int) -> EstimateOut | None:
    """Return the wire form; null when there is no estimate or one of its figures is not finite."""
    if estimate is None or not all(map(isfinite, (estimate.median, estimate.low, estimate.high))):
        return None
    median, low, high = (round(x, digits) for x in (estimate.median, estimate.low, estimate.high))
    return EstimateOut(median=median, low=low, high=high, level=round(estimate.level, 6))


def tokens_out(estimate: Estimate | None) -> EstimateOut | None:
    """Return an estimate in whole tokens."""
    out = estimate_out(estimate, digits=0)
    return out and EstimateOut(median=int(out.median), low=int(out.low), high=int(out.high), level=out.level)


def warnings_out(cautions: tuple[Caution, ...]) -> list[WarningOut]:
    return [WarningOut(code=caution.code, detail=caution.detail) for caution in cautions]


def as_utc(moment: datetime) -> datetime:
    """Return the same moment in UTC, to the microsecond that every store keeps."""
    if moment.tzinfo is UTC:
        return moment
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return moment.replace(tzinfo=UTC)
