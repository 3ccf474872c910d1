"""How past advice fared, over HTTP."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from kvyield_server.api.auth import ASKS
from kvyield_server.api.conditional import answered
from kvyield_server.schemas.calibration import ReportOut, report_out
from kvyield_server.usecases.calibrate import calibrate


@get("/calibration", operation_id="get_calibration", opt=ASKS)
async def get_calibration(request: Request[Any, Any, Any]) -> Response[ReportOut]:
    """Return coverage of intervals, hit rates of probabilities and restarts per target, by engine and basis."""
    return await answered(request, lambda uow: report_out(calibrate(uow)))
