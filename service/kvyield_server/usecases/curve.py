"""The yield curve of one deployment: predictions along the fraction, and the starts to compare them with."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from kvyield_server.domain.answers import Curve
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Observation
from kvyield_server.errors import InvalidError, NotFoundError

if TYPE_CHECKING:
    from kvyield_server.domain.model.fit import DeploymentFit, PairFit

_MARGIN = 0.05
_LOWEST, _HIGHEST = 0.01, 0.999


def curve(
    pair_id: UUID, fits: PairFit, *, deployment: str | None, lowest: float | None, highest: float | None, points: int
) -> Curve:
    """Return the curve of a deployment, the newest when none is named, from ``lowest`` to ``highest``.

    Raises:
        NotFoundError: the pair has no such deployment, or none at all.
        InvalidError: ``lowest`` is not under ``highest``.
    """
    fit = _deployment(fits, deployment)
    name = FRACTION_FLAG[fit.summary.engine]
    low, high = _range(fit.starts, lowest, highest)
    held = {flag: value for flag, value in (fit.runs.flags if fit.runs else fit.flags).items() if flag != name}
    fractions = [round(low + (high - low) * index / (points - 1), 6) for index in range(points)]
    return Curve(
        pair_id=pair_id,
        summary=fit.summary,
        fraction_flag=name,
        flags=held,
        points=tuple((fraction, fit.predict({name: fraction})) for fraction in fractions),
        starts=fit.starts,
    )


def _deployment(fits: PairFit, wanted: str | None) -> DeploymentFit:
    names = []
    for fit in fits.deployments:
        names.append(fit.summary.deployment_id)
        if wanted is None or wanted in (fit.summary.deployment_id, fit.summary.deployment):
            return fit
    listed = f"; it has {', '.join(names)}" if names else ""
    raise NotFoundError(f"The pair has no deployment {wanted or 'yet'}{listed}.", names[:5])


def _range(starts: tuple[Observation, ...], lowest: float | None, highest: float | None) -> tuple[float, float]:
    known = [start.fraction for start in starts if start.fraction is not None and start.fraction <= 1.0]
    low = max(_LOWEST, min(known, default=0.5) - _MARGIN) if lowest is None else lowest
    high = min(_HIGHEST, max(known, default=0.9) + _MARGIN) if highest is None else highest
    if low >= high:
        raise InvalidError([("/from", f"from is {low:g} and to is {high:g}; from must be under to.")])
    return low, high
