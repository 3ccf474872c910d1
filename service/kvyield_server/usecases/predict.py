"""Predict: pool and free memory of sets of flags, in the order asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvyield_server.domain.answers import Prediction
from kvyield_server.domain.facts.observation import Flags
from kvyield_server.usecases.deployments import Subject


def predict(subject: Subject, flag_sets: Sequence[Flags]) -> list[Prediction]:
    """Return one prediction per set of flags; flags not given are those of the deployment's newest start."""
    return [_predicted(subject, flags) for flags in flag_sets]


def _predicted(subject: Subject, flags: Flags) -> Prediction:
    fit = subject.deployment(flags)
    prediction = fit.predict(flags)
    return replace(prediction, warnings=(*prediction.warnings, *subject.cautions(fit)))
