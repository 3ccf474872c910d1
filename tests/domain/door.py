"""The yield model's public functions, as tests and benchmarks call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Advice, Prediction, Prefer, Question
from kvyield_server.domain.facts.observation import Engine, EngineName, Hardware, Model, Observation
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, cold_fit, fit_pair


def question(target_tokens: int, prefer: str = "keep", **asked: Any) -> Question:
    """Return a question."""
    return Question(target_tokens=target_tokens, prefer=Prefer(prefer), **asked)


def fitted(
    starts: Sequence[Observation],
    flags: Mapping[str, Any] | None = None,
    *,
    engine: EngineName | None = None,
    transfers: Sequence[Observation] = (),
    version: str | None = None,
) -> DeploymentFit:
    """Return the fit of the deployment that a question with these flags is about."""
    pair = fit_pair(PairEvidence(tuple(starts), tuple(transfers)))
    fit = pair.choose(engine=engine, engine_version=version, like=None, flags=dict(flags or {}))
    assert fit is not None
    return fit


def advise(starts: Sequence[Observation], target_tokens: int, **asked: Any) -> Advice:
    """Return the advice on a ledger."""
    flags, version = asked.get("flags"), asked.get("engine_version")
    return recommend(fitted(starts, flags, version=version), question(target_tokens, **asked))


def predict(starts: Sequence[Observation], flags: Mapping[str, Any], **chosen: Any) -> Prediction:
    """Return pool and free memory predicted from a ledger."""
    return fitted(starts, flags, **chosen).predict(dict(flags))


def cold(hardware: Hardware, model: Model, engine: Engine, **flags: Any) -> DeploymentFit:
    """Return what is known before the first start."""
    return cold_fit(hardware=hardware, model=model, engine=engine, flags=flags)
