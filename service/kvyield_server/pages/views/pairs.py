"""The list of pairs, and a pair's heading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from kvyield_server.domain.answers import FitSummary
from kvyield_server.domain.facts.observation import Hardware, Outcome
from kvyield_server.pages.views.starts import fraction_text, free_at_ready_text, is_bound
from kvyield_server.pages.views.words import UNKNOWN, engine_word, gib, label_word, outcome_word, plural, tokens
from kvyield_server.schemas.observations import ObservationOut
from kvyield_server.schemas.pairs import PairOut

SHOUTING = ("drift", "confounded", "slope_disagreement")
LABEL_MEANINGS = {
    "capped": "a flag such as a token limit kept a pool below what the fraction gives.",
    "confounded": "starts contradict one another or differ in several flags: no single flag explains the pool.",
    "drift": "the newest start does not agree with earlier ones, of this or another engine version.",
    "neighbour": "another process held GPU memory during a start.",
    "outlier": "a start lies far from all others and is left out.",
    "post_capture": "the engine sizes its pool after it captured the graphs.",
    "slope_disagreement": "the measured starts rise otherwise than the model's config says.",
    "unified_memory": "GPU and host share memory, so equal starts differ.",
    "unusable": "no start of this deployment can be fitted.",
}
QUIET = frozenset({"refused", "oom_startup", "oom_runtime"})
"""Labels that the count of failures says already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelView:
    """What a fit is marked with, and what that means; ``is_loud`` where someone should look at it."""

    word: str
    meaning: str
    is_loud: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One line of the list. ``alerts`` are the labels that someone should look at."""

    id: UUID
    model: str
    hardware: str
    engines: str
    starts: str
    last_at: datetime | None
    last_outcome: Outcome | None
    last_outcome_word: str
    fraction: str
    pool_tokens: str
    free_at_ready: str
    is_bound: bool
    deployments: str
    alerts: tuple[str, ...]
    failures: str


def pair_row(pair: PairOut, last: ObservationOut | None, fits: Sequence[FitSummary], failures: int) -> PairRow:
    """Return the line of a pair from its newest start, its fits and how many of its starts failed."""
    measured = last.measurements if last else None
    return PairRow(
        id=pair.id,
        model=pair.model.name,
        hardware=hardware_text(pair.hardware),
        engines=", ".join(engine_word(name) for name in pair.engines),
        starts=plural(pair.observation_count, "start"),
        last_at=last.observed_at if last else pair.last_observed_at,
        last_outcome=last.outcome if last else None,
        last_outcome_word=outcome_word(last.outcome) if last else UNKNOWN,
        fraction=fraction_text(last.engine.name, last.flags) if last else UNKNOWN,
        pool_tokens=tokens(measured.pool_tokens if measured else None),
        free_at_ready=free_at_ready_text(measured) if measured else UNKNOWN,
        is_bound=measured is not None and is_bound(measured),
        deployments=str(len(fits)),
        alerts=alerts_of(fits),
        failures=plural(failures, "failure") if failures else "",
    )


def hardware_text(hardware: Hardware) -> str:
    """Return GPU count and model."""
    return f"{hardware.gpu_count} × {hardware.gpu}"


def memory_text(hardware: Hardware) -> str:
    """Return the memory of one GPU, as far as it is known."""
    if hardware.memory_gib is None:
        return "memory per GPU not known"
    return f"{gib(hardware.memory_gib)} {'unified' if hardware.unified_memory else 'per GPU'}"


def alerts_of(fits: Sequence[FitSummary]) -> tuple[str, ...]:
    """Return the labels that ask for attention, each once, the most serious first."""
    found = {label for fit in fits for label in fit.labels}
    return tuple(label_word(label) for label in SHOUTING if label in found)


def labels_of(fit: FitSummary) -> tuple[LabelView, ...]:
    """Return a fit's labels in plain words."""
    shown = [label for label in fit.labels if label not in QUIET]
    return tuple(
        LabelView(word=label_word(label), meaning=LABEL_MEANINGS.get(label, ""), is_loud=label in SHOUTING)
        for label in shown
    )
