"""Advice for a page: the form's question, asked of the use cases that ``GET /recommend`` asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kvyield_server.api.services import Services
from kvyield_server.domain.answers import Advice, Question
from kvyield_server.domain.observation import FRACTION_FLAG
from kvyield_server.errors import InvalidError
from kvyield_server.pages.asking import Asked, asked, default_target
from kvyield_server.pages.views.advice import FORMATS, advice_view
from kvyield_server.pages.views.plot import overlay
from kvyield_server.schemas.common import EstimateOut
from kvyield_server.schemas.recommendations import QuestionIn, advice_out, question_of
from kvyield_server.schemas.selectors import selector_fields, selector_kept
from kvyield_server.usecases.deployments import Subject, subject_of
from kvyield_server.usecases.ports import Pair, StoredRecommendation, UnitOfWork
from kvyield_server.usecases.recommend import keep, recommend, rendered
from kvyield_server.usecases.select import Selector

if TYPE_CHECKING:
    from kvyield_server.domain.fit import DeploymentFit, PairFit


def advised(uow: UnitOfWork, services: Services, pair: Pair, given: Mapping[str, str]) -> dict[str, Any]:
    """Return what the advice's template shows: the advice, or the faults of the form."""
    form = form_of(services.fits.of_pair(uow, pair), pair, given)
    values: dict[str, Any] = {"asked": form.values, "faults": form.faults, "advice": None, "overlay": None}
    if form.question is None:
        return values
    subject, question, advice = answer_of(uow, services, form.question)
    services.metrics.recommendations.labels(advice.status.value).inc()
    out, target = advice_out(advice, pair.id), question.target_tokens
    fit = subject.deployment(advice.flags)
    values["advice"] = advice_view(out, target_tokens=target, texts=texts_of(advice))
    running = fit.running.flags.get(FRACTION_FLAG[advice.engine]) if fit.running else None
    values["overlay"] = overlay(out, running=running, target_tokens=target, need=prompt_need(fit, question, advice))
    return values


def keep_advice(
    uow: UnitOfWork, services: Services, pair: Pair, given: Mapping[str, str], *, new_id: UUID, now: datetime
) -> Callable[[UnitOfWork], StoredRecommendation]:
    """Return the job that stores the advice of a form.

    Raises:
        InvalidError: the form has a fault.
    """
    form = form_of(services.fits.of_pair(uow, pair), pair, given)
    if form.question is None:
        raise InvalidError([(f"/{name}", detail) for name, detail in form.faults.items()])
    subject, question, advice = answer_of(uow, services, form.question)
    return keep(subject, question, advice, new_id=new_id, now=now)


def form_of(fits: PairFit, pair: Pair, given: Mapping[str, str]) -> Asked:
    """Return the question of the form; without a target, the running context length is the target."""
    fit = chosen_deployment(fits, given)
    running = fit.running if fit else None
    target = default_target(running.flags, running.measurements.pool_tokens) if running else default_target({}, None)
    return asked(given, pair_id=pair.id, like=running.id if running else None, default_target=target)


def chosen_deployment(fits: PairFit, given: Mapping[str, str]) -> DeploymentFit | None:
    """Return the deployment that the page is about: the one named, else the newest; None when there is none."""
    wanted = given.get("deployment")
    named = (fit for fit in fits.deployments if fit.summary.deployment_id == wanted)
    return next(named, fits.deployments[0] if fits.deployments else None)


def answer_of(uow: UnitOfWork, services: Services, asked: QuestionIn) -> tuple[Subject, Question, Advice]:
    """Return the answer to a question, with the pair that it is about."""
    selector = Selector(**selector_fields(asked), kept=selector_kept(asked))
    subject, question = subject_of(uow, services.fits, selector), question_of(asked)
    return subject, question, recommend(subject, question, services.answers)


def texts_of(advice: Advice) -> dict[str, str]:
    """Return the advice as text to paste, in each form; nothing when there is nothing to restart with."""
    return {key: rendered(advice, key).rstrip() for key, _ in FORMATS} if advice.flags else {}


def prompt_need(fit: DeploymentFit, question: Question, advice: Advice) -> EstimateOut:
    """Return what a prompt of the target's length takes at its peak, GiB, with its 90 % interval."""
    if question.prompt_need_gib is not None:
        fixed = question.prompt_need_gib
        return EstimateOut(median=fixed, low=fixed, high=fixed, level=0.9)
    need = fit.prompt_need.need(question.target_tokens, advice.flags)
    low, median, high = (round(need.quantile(share), 3) for share in (0.05, 0.5, 0.95))
    return EstimateOut(median=median, low=low, high=high, level=0.9)
