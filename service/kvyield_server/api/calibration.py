"""How past advice fared, over HTTP."""

from __future__ import annotations

from typing import Any

from litestar import Request, get

from kvyield_server.api.auth import ASKERS
from kvyield_server.api.services import services_of
from kvyield_server.schemas.calibration import ReportOut, report_out
from kvyield_server.usecases.calibrate import calibrate


@get("/calibration", operation_id="get_calibration", guards=[ASKERS])
async def get_calibration(request: Request[Any, Any, Any]) -> ReportOut:
    """Return coverage of intervals, hit rates of probabilities and restarts per target, by engine and basis."""
    return await services_of(request).read(lambda uow: report_out(calibrate(uow)))
