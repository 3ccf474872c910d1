"""Starts whose figures no arithmetic can take: said and put aside, so that they never stand in the way of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.facts.observation import Observation
from kvyield_server.domain.legacy.capacity_fit import CapacityFit, fit_capacity
from kvyield_server.domain.legacy.capacity_prior import CapacityPrior, Setting
from kvyield_server.domain.legacy.evidence import Evidence, Label, Use

NUMERICAL_FAILURES = (ArithmeticError, ValueError)
"""What Python and numpy raise when figures overflow, divide by nothing, or leave no line to be solved for."""

NO_PRIOR = CapacityPrior(base=None, tokens_per_gib=None, anchor=None, slope_tokens=None)


@contextmanager
def strict_arithmetic() -> Iterator[None]:
    """Let numpy raise ``FloatingPointError`` where it would warn and go on with infinities."""
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        yield


def unusable_evidence(starts: Sequence[Observation]) -> tuple[Evidence, ...]:
    """Return every start put aside with the reason."""
    reason = "no line can be computed from the figures of these starts: one of them is beyond any sense"
    labels = frozenset({Label.UNUSABLE})
    return tuple(Evidence(start, Use.SET_ASIDE, reason, labels=labels) for start in starts)


def unusable_fit(setting: Setting, starts: Sequence[Observation]) -> CapacityFit:
    """Return a fit without a line, labelled unusable, that says why."""
    fit = fit_capacity(setting, unusable_evidence(starts), NO_PRIOR)
    detail = (
        "No line can be computed from what was posted: a figure is beyond any sense. Retract the start that holds it, "
        "or correct the card's memory or the model's facts."
    )
    return CapacityFit(
        line=fit.line,
        evidence=fit.evidence,
        labels=fit.labels | {Label.UNUSABLE},
        cautions=(Caution(code="unusable_figures", detail=detail),),
        distinct_fractions=0,
    )
