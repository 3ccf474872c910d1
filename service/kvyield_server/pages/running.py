"""What runs now: the newest start that served, its figures, and the fitted lines under its flags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvyield_server.domain.facts.observation import FRACTION_FLAG, Flags, Outcome, Scalar
from kvyield_server.pages.views.plot import LineView, fractions, line_view, nothing_asked
from kvyield_server.pages.views.running import running_view
from kvyield_server.schemas.common import EstimateOut, estimate_out, tokens_out

if TYPE_CHECKING:
    from kvyield_server.domain.model.fit import DeploymentFit

POINTS = 81


def running_values(fit: DeploymentFit, headroom: EstimateOut | None) -> dict[str, Any]:
    """Return what the page shows before anything is asked; ``headroom`` is of the longest verified prompt."""
    fraction, flags = running_fraction(fit), flags_as_set(fit)
    line = line_along(fit, flags, (fraction,))
    drawn = {**nothing_asked(fraction, has_ended=has_ended(fit)), "line": line.data}
    if fit.runs is None:
        return {"running": None, "overlay": drawn, "numbers": line.rows}
    predicted = fit.predict(flags)
    view = running_view(
        fit.runs,
        pool=tokens_out(predicted.pool_tokens),
        free=estimate_out(predicted.free_at_ready_gib, digits=2),
        headroom=headroom,
        verified_tokens=fit.summary.basis.verified_prompt_tokens,
    )
    return {"running": view, "overlay": drawn, "numbers": line.rows}


def running_fraction(fit: DeploymentFit) -> Scalar:
    """Return the fraction of what runs; None when nothing came up or it is not known."""
    return fit.runs.flags.get(FRACTION_FLAG[fit.summary.engine]) if fit.runs else None


def has_ended(fit: DeploymentFit) -> bool:
    """Tell whether the newest start that came up did not stay up."""
    return fit.runs is not None and fit.runs.outcome is not Outcome.READY


def flags_as_set(fit: DeploymentFit) -> Flags:
    """Return the running flags as an advice starts from them; None for what the engine chose by itself for its pool."""
    return {**dict.fromkeys(fit.runs.flags), **fit.flags} if fit.runs else {}


def line_along(fit: DeploymentFit, flags: Flags, shown: Iterable[Scalar]) -> LineView:
    """Return the fitted lines under these flags as the fraction moves; the fractions to be ``shown`` lie on them."""
    name, told = FRACTION_FLAG[fit.summary.engine], tuple(shown)
    along = fractions(fit.starts, told, POINTS)
    return line_view([(fraction, fit.predict({**flags, name: fraction})) for fraction in along], told)
