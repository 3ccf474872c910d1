"""Advice for a page: the form's question, asked of the use cases that the API's advice and predictions come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kvyield_server.api.services import Services
from kvyield_server.domain.answers import Advice, Question, Status
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Flags, Scalar
from kvyield_server.domain.records import StoredRecommendation
from kvyield_server.errors import InvalidError, NotFoundError
from kvyield_server.pages.asking import Asked, asked, default_target, is_asked
from kvyield_server.pages.running import flags_as_set, has_ended, line_along, running_fraction, running_values
from kvyield_server.pages.views.advice import FORMATS, advice_view
from kvyield_server.pages.views.plot import LineView, overlay
from kvyield_server.schemas.common import EstimateOut
from kvyield_server.schemas.recommendations import QuestionIn, advice_out, question_of
from kvyield_server.schemas.selectors import selector_as_given, selector_fields
from kvyield_server.storage.records import Pair
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.deployments import Subject, subject_of
from kvyield_server.usecases.recommend import recommend, rendered, store
from kvyield_server.usecases.select import Selector

if TYPE_CHECKING:
    from kvyield_server.domain.model.fit import DeploymentFit, PairFit


@dataclass(frozen=True)
class Answer:
    """An advice with the question and the deployment that it is about."""

    subject: Subject
    question: Question
    advice: Advice
    fit: DeploymentFit

    @property
    def flags(self) -> Flags:
        """The flags after the restart: the running ones as set, with the advised ones over them."""
        return {**flags_as_set(self.fit), **self.advice.flags}

    @property
    def running_fraction(self) -> Scalar:
        return running_fraction(self.fit)


def advised(uow: UnitOfWork, services: Services, pair: Pair, given: Mapping[str, str]) -> dict[str, Any]:
    """Return what the advice's template shows: what runs now, the advice asked for, or the form's faults."""
    fits = services.fits.of_pair(uow, pair)
    form, fit = form_of(fits, pair, given), chosen_deployment(fits, given)
    fields = [*form.values.items(), ("deployment", given.get("deployment", ""))]
    values = {"asked": form.values, "faults": form.faults, "question_fields": fields}
    nothing = {"advice": None, "running": None, "overlay": None, "numbers": ()}
    if fit is None:
        return {**values, **nothing}
    if form.question is None:
        return {**values, **nothing, **running_values(fit, None)}
    if not is_asked(given):
        headroom = _verified_headroom(uow, services, form.question, fit)
        return {**values, **nothing, **running_values(fit, headroom)}
    return {**values, **nothing, **_answered(answer_of(uow, services, form.question), services, pair)}


def _answered(answer: Answer, services: Services, pair: Pair) -> dict[str, Any]:
    services.metrics.recommendations.labels(answer.advice.status.value).inc()
    out, target = advice_out(answer.advice, pair.id), answer.question.target_tokens
    line, need = line_of(answer), prompt_need(answer)
    ended = has_ended(answer.fit)
    drawn = overlay(out, running=answer.running_fraction, target_tokens=target, need=need, has_ended=ended)
    view = advice_view(out, target_tokens=target, texts=texts_of(answer.advice))
    return {"advice": view, "overlay": {**drawn, "line": line.data}, "numbers": line.rows}


def _held(question: Question, fit: DeploymentFit, fraction: float) -> Question:
    return replace(question, flags={**question.flags, FRACTION_FLAG[fit.summary.engine]: fraction})


def _verified_headroom(
    uow: UnitOfWork, services: Services, asked: QuestionIn, fit: DeploymentFit
) -> EstimateOut | None:
    """Return the headroom that the longest verified prompt leaves under the running flags, GiB, where it is known."""
    longest, fraction = fit.summary.basis.verified_prompt_tokens, running_fraction(fit)
    if not longest or not isinstance(fraction, int | float):
        return None
    selector = Selector(**selector_fields(asked), as_given=selector_as_given(asked))
    question = _held(Question(target_tokens=longest), fit, fraction)
    advice = recommend(subject_of(uow, services.fits, selector), question)
    return advice_out(advice, None).prediction.headroom_gib


def store_advice(
    uow: UnitOfWork, services: Services, pair: Pair, given: Mapping[str, str], *, new_id: UUID, now: datetime
) -> Callable[[UnitOfWork], StoredRecommendation]:
    """Return the job that stores the advice of a form.

    Raises:
        InvalidError: the form has a fault.
    """
    form = form_of(services.fits.of_pair(uow, pair), pair, given)
    if form.question is None:
        raise InvalidError([(f"/{name}", detail) for name, detail in form.faults.items()])
    answer = answer_of(uow, services, form.question)
    return store(answer.subject, answer.question, answer.advice, new_id=new_id, now=now)


def form_of(fits: PairFit, pair: Pair, given: Mapping[str, str]) -> Asked:
    """Return the question of the form; without a target, the running context length is the target."""
    fit = chosen_deployment(fits, given)
    running = (fit.runs or fit.starts[-1]) if fit and fit.starts else None
    target = default_target(running.flags, running.measurements.pool_tokens) if running else default_target({}, None)
    return asked(given, pair_id=pair.id, like=running.id if running else None, default_target=target)


def chosen_deployment(fits: PairFit, given: Mapping[str, str]) -> DeploymentFit | None:
    """Return the deployment that the page is about: the one named, else the newest; None when there is none.

    Raises:
        NotFoundError: there is none of that name.
    """
    wanted = given.get("deployment")
    if not wanted or not fits.deployments:
        return fits.deployments[0] if fits.deployments else None
    named = next((fit for fit in fits.deployments if fit.summary.deployment_id == wanted), None)
    if named is None:
        raise NotFoundError(
            f"This pair has no deployment {wanted[:60]}; a new start or a correction may have renamed it. "
            "Open the pair without it."
        )
    return named


def answer_of(uow: UnitOfWork, services: Services, asked: QuestionIn) -> Answer:
    """Return the answer to a question, with the deployment that it is about."""
    selector = Selector(**selector_fields(asked), as_given=selector_as_given(asked))
    subject, question = subject_of(uow, services.fits, selector), question_of(asked)
    advice = recommend(subject, question)
    return Answer(subject, question, advice, subject.deployment(advice.flags))


def texts_of(advice: Advice) -> dict[str, str]:
    """Return the advice as text to paste, in each form; nothing when there are no flags to give."""
    has_flags = advice.status in (Status.OK, Status.AT_RISK) and bool(advice.command_line)
    return {key: rendered(advice, key).rstrip() for key, _ in FORMATS} if has_flags else {}


def line_of(answer: Answer) -> LineView:
    """Return the fitted lines under the flags after the restart, as the fraction moves."""
    name, window = FRACTION_FLAG[answer.advice.engine], answer.advice.window
    edges = (window.lowest, window.highest) if window else ()
    return line_along(answer.fit, answer.flags, (answer.running_fraction, answer.advice.flags.get(name), *edges))


def prompt_need(answer: Answer) -> EstimateOut:
    """Return what a prompt of the target's length takes at its peak, GiB, with its 90 % interval."""
    fixed = answer.question.prompt_need_gib
    if fixed is not None:
        return EstimateOut(median=fixed, low=fixed, high=fixed, level=0.9)
    need = answer.fit.need(answer.flags, answer.question.target_tokens).estimate()
    low, median, high = (round(value, 3) for value in (need.low, need.median, need.high))
    return EstimateOut(median=median, low=low, high=high, level=need.level)
