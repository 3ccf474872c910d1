"""What runs now, as a pair's page opens with it: flags, pool, free memory, headroom. No advice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from kvyield_server.domain.facts.observation import FRACTION_FLAG, Observation, Outcome, Verification
from kvyield_server.pages.views.advice import MEASURED, Figure, flags_text
from kvyield_server.pages.views.starts import BOUND_NOTE, CONTEXT_FLAGS, REQUEST_FLAGS, free_at_ready_text, is_bound
from kvyield_server.pages.views.words import UNKNOWN, gib, outcome_word, span_gib, span_tokens, token_count
from kvyield_server.schemas.common import EstimateOut

PREDICTED = "predicted"
OTHER_FLAGS = ("kv_cache_dtype", "chunked_prefill_size", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningView:
    """The newest start that served. ``flags`` are those that decide about memory, as a command line has them;
    ``ended`` says how it ended, where it did not stay up."""

    id: UUID
    at: datetime
    flags: str
    outcome: Outcome
    ended: str
    figures: tuple[Figure, ...]


def running_view(
    start: Observation,
    *,
    pool: EstimateOut | None,
    free: EstimateOut | None,
    headroom: EstimateOut | None,
    verified_tokens: int | None,
) -> RunningView:
    """Return what runs now; estimates stand in, and say so, for what was not measured."""
    names = (FRACTION_FLAG[start.engine.name], *CONTEXT_FLAGS, *REQUEST_FLAGS, *OTHER_FLAGS)
    flags = {name: start.flags[name] for name in names if start.flags.get(name) is not None}
    return RunningView(
        id=start.id,
        at=start.observed_at,
        flags=flags_text(start.engine.name, flags) or "no flag is known",
        outcome=start.outcome,
        ended="" if start.outcome is Outcome.READY else outcome_word(start.outcome),
        figures=(_pool(start, pool), _free(start, free), _headroom(start, headroom, verified_tokens)),
    )


def _pool(start: Observation, predicted: EstimateOut | None) -> Figure:
    measured = start.measurements.pool_tokens
    if measured is not None:
        return Figure(name="Pool", value=token_count(measured), span=UNKNOWN, note=MEASURED)
    value = token_count(predicted.median) if predicted else UNKNOWN
    return Figure(name="Pool", value=value, span=span_tokens(predicted), note=PREDICTED if predicted else "")


def _free(start: Observation, predicted: EstimateOut | None) -> Figure:
    name, measured = "Free memory at ready", start.measurements
    if measured.free_at_ready_gib is not None:
        note = BOUND_NOTE if is_bound(measured) else MEASURED
        return Figure(name=name, value=free_at_ready_text(measured, " GiB"), span=UNKNOWN, note=note)
    value = gib(predicted.median, 1) if predicted else UNKNOWN
    return Figure(name=name, value=value, span=span_gib(predicted), note=PREDICTED if predicted else "")


def _headroom(start: Observation, predicted: EstimateOut | None, verified_tokens: int | None) -> Figure:
    name = "Headroom at the peak of the longest verified prompt"
    if not verified_tokens:
        return Figure(name=name, value=UNKNOWN, span=UNKNOWN, note="no prompt verified yet")
    asked = token_count(verified_tokens)
    measured = [item.lowest_free_gib for item in start.verifications if _measures(item, verified_tokens)]
    known = [lowest for lowest in measured if lowest is not None]
    if known:
        return Figure(name=name, value=gib(min(known), 1), span=UNKNOWN, note=f"{asked}, {MEASURED}")
    value = gib(predicted.median, 1) if predicted else UNKNOWN
    return Figure(
        name=name, value=value, span=span_gib(predicted), note=f"{asked}, {PREDICTED}" if predicted else asked
    )


def _measures(item: Verification, prompt_tokens: int) -> bool:
    return item.passed and item.prompt_tokens == prompt_tokens
