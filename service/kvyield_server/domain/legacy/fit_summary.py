"""What people read of a fit: its basis, parameters, warnings, and pools in whole pages."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

from kvyield_server.domain.answers import BasisKind, Caution, Estimate, FitSummary
from kvyield_server.domain.facts.deployment import Key
from kvyield_server.domain.facts.scalars import as_count
from kvyield_server.domain.legacy.capacity import CapacityLine
from kvyield_server.domain.legacy.capacity_fit import CapacityFit
from kvyield_server.domain.legacy.capacity_prior import CapacityPrior
from kvyield_server.domain.legacy.drift import Drift
from kvyield_server.domain.legacy.evidence import Label
from kvyield_server.domain.legacy.free_memory import FreeMemoryLine
from kvyield_server.domain.legacy.regression import LARGEST_FIGURE
from kvyield_server.domain.legacy.student import StudentT

UNIFIED = Caution(
    code="unified_memory",
    detail="The GPU shares its memory with the host: equal starts differ by per cents, so every interval is wide.",
)
NEIGHBOUR = Caution(
    code="neighbour",
    detail="Something else held memory of the card during a start; figures were rebased on what was free then.",
)


CHANGED = Caution(
    code="drift",
    detail="Earlier starts lie on another line: something lasting changed. Only the starts since then were fitted.",
)


def whole_pages(estimate: Estimate, page_tokens: int) -> Estimate:
    """Return an estimate rounded down to whole pages; a pool is never negative."""

    def whole(tokens: float) -> float:
        return float(max(0, floor(tokens / page_tokens + 1e-9) * page_tokens))

    return Estimate(
        median=whole(estimate.median), low=whole(estimate.low), high=whole(estimate.high), level=estimate.level
    )


def finite(value: StudentT | None) -> Estimate | None:
    """Return the estimate, or None where nothing tells it or a figure of it is none that memory can have."""
    estimate = None if value is None else value.estimate()
    is_sound = estimate is not None and max(abs(estimate.low), abs(estimate.high)) < LARGEST_FIGURE
    return estimate if is_sound else None


def basis_kind(fit: CapacityFit, prior: CapacityPrior) -> BasisKind:
    """Return the rung of the cold-start ladder that a fit stands on."""
    if fit.distinct_fractions > 1:
        return BasisKind.SEVERAL_STARTS
    if fit.distinct_fractions == 1:
        return BasisKind.ONE_START
    return BasisKind.TRANSFER if prior.is_transferred else BasisKind.CONFIG_ONLY


def parameters(line: CapacityLine, free_memory: FreeMemoryLine) -> dict[str, Estimate]:
    """Return what the line is made of, each with its unit in its name; free memory is at the running flags."""
    unit = "tokens" if line.counts_tokens else "gib"
    free, share = free_memory.at_ready(line.flags), line.share(line.flags)
    found: Mapping[str, StudentT | None] = {
        f"slope_{unit}_per_fraction": line.slope and line.slope.scaled(share),
        "zero_fraction": line.zero_fraction and line.zero_fraction.scaled(1.0 / share),
        "bytes_per_token": line.bytes_per_token,
        "base_memory_gib": line.base_gib,
        "free_at_ready_gib": free,
    }
    estimates = {name: finite(value) for name, value in found.items()}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def warnings_of(fit: CapacityFit, labels: frozenset[Label], drift: Drift | None) -> tuple[Caution, ...]:
    """Return the warnings of a fit, contradictions first."""
    found = list(fit.cautions)
    if drift is not None:
        found.append(drift.caution())
    if Label.UNIFIED_MEMORY in labels:
        found.append(UNIFIED)
    if Label.NEIGHBOUR in labels:
        found.append(NEIGHBOUR)
    return tuple(found)


def layout_cautions(key: Key, gpu_count: int) -> tuple[Caution, ...]:
    """Warn of a deployment that spreads over more GPUs than its hardware has."""
    tensor, pipeline, data = (as_count(key.get(field)) or 1 for field in ("tp", "pp", "dp"))
    wanted = tensor * pipeline * data
    if wanted <= gpu_count or key.get("dp_attention", "off") != "off":
        return ()
    sizes = f"tensor {tensor}, pipeline {pipeline}, data {data}"
    detail = f"The layout ({sizes}) takes {wanted} GPUs and the hardware has {gpu_count}: is the count right?"
    return (Caution(code="layout_exceeds_hardware", detail=detail),)


def not_enough(summary: FitSummary) -> Caution:
    """Return the warning that goes with a null pool, and what to post next."""
    if Label.CONFOUNDED in summary.labels:
        detail = "The starts of this deployment contradict one another; post two that differ in the fraction alone."
    else:
        detail = (
            "Nothing tells how the pool moves with the fraction: post a second start at another fraction, the model's "
            "config.json facts, or a log with the engine's own memory lines."
        )
    return Caution(code="not_enough_evidence", detail=detail)
