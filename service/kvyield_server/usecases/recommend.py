"""Recommend: the flags to restart with, answered from the pair's fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from kvyield_server.domain.answers import Advice, Question, Status
from kvyield_server.domain.records import StoredRecommendation
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.deployments import Subject


def recommend(subject: Subject, question: Question) -> Advice:
    """Answer a question about a subject."""
    from kvyield_server.domain.advice.recommend import recommend as advise  # scipy loads at the first answer
    from kvyield_server.domain.engines.registry import translated

    fit = subject.deployment(translated(subject.engine, question.flags))
    advice = advise(fit, replace(question, engine_version=subject.selector.engine_version))
    known = {warning.code for warning in advice.warnings}
    more = (caution for caution in subject.cautions(fit) if caution.code not in known)
    return replace(advice, warnings=(*advice.warnings, *more))


def store(
    subject: Subject, question: Question, advice: Advice, *, new_id: UUID, now: datetime
) -> Callable[[UnitOfWork], StoredRecommendation]:
    """Return the job that stores an answer, for ``GET /recommendations/{id}`` and to be compared with a start."""
    stored = StoredRecommendation(
        id=new_id,
        made_at=now,
        pair_id=subject.pair_id,
        question=question,
        advice=_with_quantiles(subject, question, advice),
        selector=subject.selector.as_given,
    )

    def job(uow: UnitOfWork) -> StoredRecommendation:
        uow.recommendations.add(stored)
        if stored.pair_id is not None:
            uow.fleet.ask_again(stored.pair_id)
        return stored

    return job


def _with_quantiles(subject: Subject, question: Question, advice: Advice) -> Advice:
    """Return an answer with the quantiles of its prediction, by which calibration judges it."""
    from kvyield_server.domain.calibration import quantiles
    from kvyield_server.domain.engines.registry import translated

    if advice.status not in (Status.OK, Status.AT_RISK):
        return advice
    told = quantiles(subject.deployment(translated(subject.engine, question.flags)), advice.flags)
    return replace(advice, prediction=replace(advice.prediction, quantiles=told))


def rendered(advice: Advice, form: str) -> str:
    """Return an answer as text to paste: args, systemd, docker, compose or kubernetes."""
    from kvyield_server.domain.advice.render import render  # keeps numpy out of start-up

    return render(advice, form)
