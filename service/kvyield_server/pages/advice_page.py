"""The advice log: what was advised, what happened, and how well intervals hold."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response

from kvyield_server.api.pagination import key_of, page_of
from kvyield_server.api.services import services_of
from kvyield_server.domain.records import StoredRecommendation
from kvyield_server.pages.rendering import page
from kvyield_server.pages.session import look
from kvyield_server.pages.views.calibration import LogRow, across, coverage_plots, log_row, restarts_text, up
from kvyield_server.pages.views.pairs import hardware_text
from kvyield_server.schemas.observations import from_domain
from kvyield_server.schemas.recommendations import recommendation_out
from kvyield_server.storage.records import NEWEST_MADE
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.browse import stored_observation
from kvyield_server.usecases.calibrate import calibrate
from kvyield_server.usecases.settle import settlement_of

PAGE_SIZE = 25
LEVELS = (0.5, 0.8, 0.9, 0.95)


@look("/ui/advice", "page_token")
async def show_log(request: Request[Any, Any, Any]) -> Response[str]:
    """Show past advice, the newest first, with its calibration."""
    services, token = services_of(request), request.query_params.get("page_token")

    def work(uow: UnitOfWork) -> dict[str, Any]:
        found = page_of(uow.recommendations.page(key_of(token, NEWEST_MADE), PAGE_SIZE), lambda each: each, NEWEST_MADE)
        report = calibrate(uow)
        rows = [_row(uow, answer) for answer in found.items]
        shown = {"plots": coverage_plots(report.overall), "restarts": restarts_text(report.overall)}
        return {"rows": rows, "next_token": found.next_page_token, "calibration": report.overall, **shown}

    values = await services.read(work)
    axis = {"across": across, "up": up, "levels": LEVELS, "is_later": bool(token), "here": "advice"}
    return page(request, "advice_log.html", {**axis, **values})


def _row(uow: UnitOfWork, answer: StoredRecommendation) -> LogRow:
    start = None if answer.observation_id is None else from_domain(stored_observation(uow, answer.observation_id))
    pair, asked = uow.pairs.get(answer.pair_id) if answer.pair_id else None, answer.selector
    named = f"{asked.get('gpu_count') or 1} × {asked.get('gpu') or 'GPU not named'}"
    return log_row(
        recommendation_out(answer, settlement_of(uow, answer)),
        start,
        model=pair.model.name if pair else str(asked.get("model") or "model not named"),
        hardware=hardware_text(pair.hardware) if pair else named,
    )
