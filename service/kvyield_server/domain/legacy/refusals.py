"""What a refusal without figures says: at its fraction the pool was empty, so the zero crossing lies no lower."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, pi, sqrt

from scipy.special import log_ndtr

from kvyield_server.domain.engines.fraction_share import share_of
from kvyield_server.domain.facts.observation import EngineName, Observation, Outcome, Phase
from kvyield_server.domain.legacy.evidence import fraction_of
from kvyield_server.domain.legacy.regression import Anchor

FARTHEST_Z = 30.0


def refused_up_to(starts: Sequence[Observation]) -> float | None:
    """Return the highest fraction at which SGLang found nothing left for the pool, or None."""
    refused = [start for start in starts if _is_empty_pool(start)]
    fractions = [fraction * share_of(start) for start in refused if (fraction := fraction_of(start)) is not None]
    return max(fractions, default=None)


def _is_empty_pool(start: Observation) -> bool:
    is_at_pool = start.failure is not None and start.failure.phase is Phase.POOL
    return start.engine.name is EngineName.SGLANG and start.outcome is Outcome.REFUSED and is_at_pool


def raised(anchor: Anchor, bound: float) -> Anchor:
    """Return knowledge of the zero crossing given that it lies at or above ``bound``: a truncated normal's moments."""
    z = min(FARTHEST_Z, (bound - anchor.x) / anchor.sd)
    if z < -4.0:
        return anchor
    hazard = exp(-0.5 * z * z - float(log_ndtr(-z))) / sqrt(2.0 * pi)
    shrink = max(1e-4, 1.0 + z * hazard - hazard * hazard)
    return Anchor(max(bound, anchor.x + anchor.sd * hazard), anchor.sd * sqrt(shrink))
