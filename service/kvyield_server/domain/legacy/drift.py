"""Drift: a start that its deployment's own history, or the previous version's, did not allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.facts.observation import Observation
from kvyield_server.domain.legacy.capacity import CapacityLine
from kvyield_server.domain.legacy.capacity_fit import CapacityFit
from kvyield_server.domain.legacy.evidence import Evidence, Use, fraction_of

SAME_DEPLOYMENT_LEVEL = 0.999
NEW_VERSION_LEVEL = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far a start lies off what was predicted, positive for a larger pool; GiB where a token's price is known."""

    observation_id: UUID
    tokens: float
    gib: float | None
    since_version: str | None = None

    def caution(self) -> Caution:
        """Return the warning that people see."""
        size = f"{self.tokens:+,.0f} tokens" + ("" if self.gib is None else f" ({self.gib:+.2f} GiB)")
        against = "earlier starts" if self.since_version is None else f"engine version {self.since_version}"
        detail = f"The newest start's pool is {size} off what {against} predicted; advice is widened until re-verified."
        return Caution(code="drift", detail=detail)


def newest_point(evidence: Sequence[Evidence]) -> Evidence | None:
    """Return the newest start that measured a pool, also one put aside for lying far off."""
    measured = [item for item in evidence if item.tokens is not None and item.fraction is not None]
    return measured[-1] if measured and measured[-1].use is not Use.BOUND else None


def is_on_line(fit: CapacityFit, start: Observation) -> bool:
    """Tell whether a start lies so close to a line, and weighs so little in it, that the others allow it too."""
    tokens, fraction, posterior = start.measurements.pool_tokens, fraction_of(start), fit.line.posterior
    if tokens is None or fraction is None or posterior is None:
        return False
    predicted, bare = fit.line.pool(start.flags), posterior.at(fraction, 0.0)
    if predicted is None or bare is None or bare.scale > 0.5 * predicted.scale:
        return False
    return abs(tokens - predicted.loc) <= predicted.scale


def drift_from(
    line: CapacityLine, start: Observation, *, level: float, since_version: str | None = None
) -> Drift | None:
    """Return the drift of a start from a line fitted without it, or None inside the central interval of ``level``."""
    tokens, fraction = start.measurements.pool_tokens, fraction_of(start)
    if tokens is None or fraction is None or line.posterior is None:
        return None
    predicted = line.pool(start.flags)
    if predicted is None or predicted.scale <= 0.0:
        return None
    value = tokens + line.page_tokens / 2.0
    tail = predicted.cdf(value)
    if (1.0 - level) / 2.0 <= tail <= 1.0 - (1.0 - level) / 2.0:
        return None
    miss = value - predicted.loc
    per_gib = line.tokens_per_gib
    gib = None if per_gib is None else miss / per_gib.value
    return Drift(observation_id=start.id, tokens=miss, gib=gib, since_version=since_version)
