"""Calibrate: how past advice fared, over all recommendations that a start settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvyield_server.storage.records import every_page
from kvyield_server.storage.uow import UnitOfWork

if TYPE_CHECKING:
    from kvyield_server.domain.calibration import CalibrationReport

_PAGE_SIZE = 500


def calibrate(uow: UnitOfWork) -> CalibrationReport:
    """Return coverage, hit rates and restarts; a retracted start counts for nothing."""
    from kvyield_server.domain import calibration  # numpy and scipy load at the first use

    return calibration.calibrate(
        calibration.Settled(
            question=item.recommendation.question,
            advice=item.recommendation.advice,
            observation=item.observation.observation,
        )
        for page in every_page(lambda after: uow.recommendations.page_settled(after, _PAGE_SIZE))
        for item in page.items
    )
