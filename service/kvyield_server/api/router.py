"""All routes of the API under one router: their parameters, their entity tags."""

from __future__ import annotations

from litestar import Router
from litestar.di import Provide

from kvyield_server.api import about, advice, audit, batch, calibration, exports, health, mcp, observations, pairs
from kvyield_server.api.middleware import EntityTags
from kvyield_server.api.request import check_head, parameters_of

API = Router(
    "/",
    route_handlers=[
        observations.post_observation,
        batch.post_observations,
        observations.list_observations,
        observations.get_observation,
        observations.post_verification,
        observations.post_retraction,
        observations.post_correction,
        pairs.list_pairs,
        pairs.get_pair,
        pairs.get_fits,
        pairs.get_curve,
        advice.post_predictions,
        advice.get_recommend,
        advice.post_recommendation,
        advice.get_recommendation,
        advice.post_settlement,
        calibration.get_calibration,
        audit.list_audit,
        exports.export_ndjson,
        exports.export_csv,
        exports.export_parquet,
        health.live,
        health.ready,
        health.metrics,
        about.index,
        about.is_here,
        about.list_problems,
        about.get_problem,
        about.openapi,
        mcp.post_message,
    ],
    dependencies={"parameters": Provide(parameters_of)},
    middleware=[EntityTags()],
    before_request=check_head,
)
