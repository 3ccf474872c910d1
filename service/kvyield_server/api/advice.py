"""Predictions and recommendations over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import MediaType, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from kvyield_server.api.auth import ASKERS, POSTERS, READERS, actor_of, bound_to
from kvyield_server.api.problems import LOCATION, raise_faults, responses_of
from kvyield_server.api.services import Services, services_of
from kvyield_server.domain.answers import Advice, Status
from kvyield_server.domain.records import StoredRecommendation
from kvyield_server.errors import AmbiguousError, ConflictError, NotFoundError
from kvyield_server.schemas.predictions import PredictionsIn, PredictionsOut, prediction_out, predictions_faults
from kvyield_server.schemas.recommendations import (
    AdviceOut,
    FormatQuery,
    QuestionIn,
    RecommendationIn,
    RecommendationOut,
    RecommendQuery,
    SettlementIn,
    advice_out,
    question_of,
    recommendation_faults,
    recommendation_out,
)
from kvyield_server.schemas.selectors import NamedIn, selector_as_given, selector_fields
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import new_id, utc_now
from kvyield_server.usecases.audit import audited
from kvyield_server.usecases.browse import require_own_pair, stored_recommendation
from kvyield_server.usecases.deployments import Subject, subject_of
from kvyield_server.usecases.predict import predict
from kvyield_server.usecases.recommend import recommend, rendered, store
from kvyield_server.usecases.select import Selector
from kvyield_server.usecases.settle import settle_by, settlement_of

WHICH_PAIR = responses_of(NotFoundError, AmbiguousError)


@post("/predictions", operation_id="post_predictions", guards=[ASKERS], status_code=200, responses=WHICH_PAIR)
async def post_predictions(request: Request[Any, Any, Any], data: JSONBody[PredictionsIn]) -> PredictionsOut:
    """Predict pool and free memory for sets of flags, in the order given."""
    raise_faults(predictions_faults(data))
    services = services_of(request)

    def work(uow: UnitOfWork) -> PredictionsOut:
        subject = subject_of(uow, services.fits, _selector(data.selector))
        raise_faults(predictions_faults(data, subject.engine))
        return PredictionsOut(items=[prediction_out(item) for item in predict(subject, data.flags)])

    return await services.read(work)


@get("/recommend", operation_id="get_recommend", guards=[ASKERS], responses=WHICH_PAIR)
async def get_recommend(
    request: Request[Any, Any, Any], parameters: NamedDependency[RecommendQuery]
) -> AdviceOut | Response[str]:
    """Answer which memory flags to restart with. The pair is named by ``pair_id``, or by all of ``gpu``, ``gpu_count``,
    ``model`` and ``engine``; ``format`` renders the answer as text to paste."""
    services = services_of(request)

    def work(uow: UnitOfWork) -> tuple[Status, AdviceOut | str]:
        subject, advice = _advise(uow, services, parameters)
        form = parameters.format
        return advice.status, rendered(advice, form) if form else advice_out(advice, subject.pair_id)

    status, answer = await services.read_once(request.scope["query_string"], work)
    services.metrics.recommendations.labels(status.value).inc()
    return answer if isinstance(answer, AdviceOut) else _text(answer)


@post(
    "/recommendations",
    operation_id="post_recommendation",
    guards=[ASKERS],
    responses=WHICH_PAIR,
    response_headers=[LOCATION],
)
async def post_recommendation(
    request: Request[Any, Any, Any], data: JSONBody[RecommendationIn]
) -> Response[RecommendationOut]:
    """Answer as ``GET /recommend`` does and store the answer, to be compared with the start that follows."""
    services = services_of(request)
    subject, advice = await services.read(lambda uow: _advise(uow, services, data))
    services.metrics.recommendations.labels(advice.status.value).inc()
    now = utc_now()
    job = store(subject, question_of(data), advice, new_id=new_id(), now=now)
    job = audited(job, "recommend", actor=actor_of(request), now=now, subject=lambda stored: stored.id)
    out = recommendation_out(await services.write(job))
    return Response(out, status_code=201, headers={"Location": f"/recommendations/{out.id}"})


@get(
    "/recommendations/{recommendation_id:uuid}",
    operation_id="get_recommendation",
    guards=[READERS],
    responses=responses_of(NotFoundError),
)
async def get_recommendation(
    request: Request[Any, Any, Any], recommendation_id: FromPath[UUID], parameters: NamedDependency[FormatQuery]
) -> RecommendationOut | Response[str]:
    """Return a stored answer, and the start that settled it."""
    token_id = bound_to(request)

    def work(uow: UnitOfWork) -> tuple[StoredRecommendation, str | None]:
        stored = stored_recommendation(uow, recommendation_id)
        require_own_pair(uow, stored.pair_id, token_id)
        return stored, settlement_of(uow, stored)

    stored, settlement = await services_of(request).read(work)
    form = parameters.format
    return _text(rendered(stored.advice, form)) if form else recommendation_out(stored, settlement)


@post(
    "/recommendations/{recommendation_id:uuid}/settlement",
    operation_id="post_settlement",
    guards=[POSTERS],
    responses=responses_of(NotFoundError, ConflictError),
    status_code=200,
)
async def post_settlement(
    request: Request[Any, Any, Any], recommendation_id: FromPath[UUID], data: JSONBody[SettlementIn]
) -> RecommendationOut:
    """Tie a recommendation to a stored start that does not name it; the same again changes nothing."""
    now = utc_now()
    job = audited(
        settle_by(recommendation_id, data.observation_id, token_id=bound_to(request), now=now),
        "settle",
        actor=actor_of(request),
        now=now,
        subject=lambda settled: recommendation_id if settled.is_new else None,
        details={"observation_id": str(data.observation_id)},
    )
    settled = await services_of(request).write(job)
    return recommendation_out(settled.recommendation, settled.settlement)


def _advise(uow: UnitOfWork, services: Services, asked: QuestionIn) -> tuple[Subject, Advice]:
    raise_faults(recommendation_faults(asked))
    subject = subject_of(uow, services.fits, _selector(asked))
    raise_faults(recommendation_faults(asked, engine=subject.engine))
    return subject, recommend(subject, question_of(asked))


def _selector(asked: NamedIn) -> Selector:
    return Selector(**selector_fields(asked), as_given=selector_as_given(asked))


def _text(text: str) -> Response[str]:
    return Response(text, media_type=MediaType.TEXT)
