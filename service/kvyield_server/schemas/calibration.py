"""Calibration on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kvyield_server.schemas.common import rounded

if TYPE_CHECKING:
    from kvyield_server.domain.calibration import Calibration, CalibrationReport


class CoverageOut(Struct, frozen=True, kw_only=True):
    """How many settled intervals of nominal ``level`` held what was then measured."""

    level: float
    held: int
    settled: int
    share: float | None


class DecileOut(Struct, frozen=True, kw_only=True):
    """Advice whose probability of a large enough pool lay in [low, high), and how often the pool was."""

    low: float
    high: float
    expected: float | None
    hits: int
    settled: int
    hit_rate: float | None


class TargetsOut(Struct, frozen=True, kw_only=True):
    """Restarts until a start held its target; ``open`` targets have not been reached yet."""

    reached: int
    open: int
    mean: float | None


class CalibrationOut(Struct, frozen=True, kw_only=True):
    """How a set of settled advice fared."""

    settled: int
    pool: list[CoverageOut]
    free_at_ready: list[CoverageOut]
    pool_hits: list[DecileOut]
    restarts: TargetsOut
    ran_out_of_memory: int


class GroupOut(CalibrationOut, frozen=True, kw_only=True):
    """The same of one engine and basis."""

    engine: str
    basis: str


class ReportOut(CalibrationOut, frozen=True, kw_only=True):
    """The same of all settled advice, and of each engine and basis by itself."""

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
