"""Calibration on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kvyield_server.schemas.common import rounded

if TYPE_CHECKING:
    from kvyield_server.domain.calibration import Calibration, CalibrationReport


class CoverageOut(Struct, frozen=True, kw_only=True):
    """How many settled intervals held what was then measured.

    Attributes:
        level: Probability that the intervals promise, 0 to 1.
        held: Number of intervals that held the measured value.
        settled: Number of intervals that a start settled.
        share: `held` over `settled`; null when none was settled.
    """

    level: float
    held: int
    settled: int
    share: float | None


class DecileOut(Struct, frozen=True, kw_only=True):
    """Advice whose probability of a large enough pool lay in one range, and how often the pool was.

    Attributes:
        low: Lowest probability of the range, included.
        high: Highest probability of the range, excluded unless it is 1.
        expected: Mean probability of the advice in the range; null when there is none.
        hits: Number of starts whose pool held the target.
        settled: Number of settled recommendations in the range.
        hit_rate: `hits` over `settled`; null when none was settled.
    """

    low: float
    high: float
    expected: float | None
    hits: int
    settled: int
    hit_rate: float | None


class TargetsOut(Struct, frozen=True, kw_only=True):
    """Restarts until a start held its target.

    Attributes:
        reached: Number of targets that a start held.
        open: Number of targets that no start has held yet.
        mean: Mean number of restarts until a target was held; null when none was.
    """

    reached: int
    open: int
    mean: float | None


class CalibrationOut(Struct, frozen=True, kw_only=True):
    """How a set of settled recommendations compares with what was then measured.

    Attributes:
        settled: Number of recommendations that a start settled.
        pool: Coverage of the intervals of the pool, per level.
        free_at_ready: Coverage of the intervals of free memory at ready, per level.
        pool_hits: Hit rates of the pool's probability, per tenth.
        restarts: Restarts until the target was held.
        ran_out_of_memory: Number of settled recommendations whose start ran out of GPU memory.
    """

    settled: int
    pool: list[CoverageOut]
    free_at_ready: list[CoverageOut]
    pool_hits: list[DecileOut]
    restarts: TargetsOut
    ran_out_of_memory: int


class GroupOut(CalibrationOut, frozen=True, kw_only=True):
    """The same for one engine and basis.

    Attributes:
        engine: The engine.
        basis: The kind of evidence that the advice had.
    """

    engine: str
    basis: str


class ReportOut(CalibrationOut, frozen=True, kw_only=True):
    """The same for all settled recommendations, and for each engine and basis.

    Attributes:
        by_engine: The same per engine.
        by_basis: The same per kind of basis.
        by_engine_and_basis: The same per engine and kind of basis.
    """

    by_engine: dict[str, CalibrationOut]
    by_basis: dict[str, CalibrationOut]
    by_engine_and_basis: list[GroupOut]


def report_out(report: CalibrationReport) -> ReportOut:
    """Return a report in its wire form."""
    groups = report.by_engine_and_basis.items()
    return ReportOut(
        **_fields(report.overall),
        by_engine={name: CalibrationOut(**_fields(part)) for name, part in report.by_engine.items()},
        by_basis={name: CalibrationOut(**_fields(part)) for name, part in report.by_basis.items()},
        by_engine_and_basis=[GroupOut(**_fields(part), engine=name[0], basis=name[1]) for name, part in groups],
    )


def _fields(part: Calibration) -> dict[str, Any]:
    return {
        "settled": part.settled,
        "pool": [_coverage(item) for item in part.pool],
        "free_at_ready": [_coverage(item) for item in part.free_at_ready],
        "pool_hits": [_decile(item) for item in part.pool_hits],
        "restarts": TargetsOut(
            reached=part.restarts.reached, open=part.restarts.open, mean=rounded(part.restarts.mean, 3)
        ),
        "ran_out_of_memory": part.ran_out_of_memory,
    }


def _coverage(item: Any) -> CoverageOut:
    return CoverageOut(level=item.level, held=item.held, settled=item.settled, share=rounded(item.share, 4))


def _decile(item: Any) -> DecileOut:
    return DecileOut(
        low=item.low,
        high=item.high,
        expected=rounded(item.expected, 4),
        hits=item.hits,
        settled=item.settled,
        hit_rate=rounded(item.hit_rate, 4),
    )
