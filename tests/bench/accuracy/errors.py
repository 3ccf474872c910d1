"""Errors of predicted pools against real ones, and whether intervals held them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.report import middle, per_cent, share_of
from kvyield_server.domain.answers import Estimate
from kvyield_server.domain.facts.observation import Observation
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, PairFit, fit_pair


@dataclass
class Errors:
    """Predictions against the truth: what was off by how much, what was inside, and what was refused."""

    tokens: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    inside: list[bool] = field(default_factory=list)
    beyond: list[float] = field(default_factory=list)
    refused: int = 0

    def add(self, estimate: Estimate | None, truth: float, *, allowed: float = 0.0) -> None:
        """Count one prediction; ``beyond`` is the relative error where rounding does not allow for it."""
        if estimate is None:
            self.refused += 1
            return
        off = abs(estimate.median - truth)
        self.tokens.append(off)
        self.relative.append(off / truth)
        self.beyond.append(0.0 if off <= allowed + 1e-9 else off / truth)
        self.inside.append(estimate.low <= truth <= estimate.high)

    def merge(self, other: Errors) -> None:
        self.tokens += other.tokens
        self.relative += other.relative
        self.inside += other.inside
        self.beyond += other.beyond
        self.refused += other.refused

    @property
    def count(self) -> int:
        return len(self.relative)

    def cells(self) -> tuple[str, ...]:
        """Return count, median and worst error in tokens and per cent, coverage, and refusals, as words."""
        if not self.relative:
            return ("0", "-", "-", "-", "-", "-", str(self.refused))
        return (
            str(self.count),
            f"{middle(self.tokens):,.0f}",
            f"{max(self.tokens):,.0f}",
            per_cent(middle(self.relative), 4),
            per_cent(max(self.relative)),
            f"{sum(self.inside)}/{self.count} = {per_cent(share_of(self.inside), 0)}",
            str(self.refused),
        )


HEADS = ("predictions", "median off", "worst off", "median", "worst", "inside 90 %", "refused")


@dataclass(frozen=True)
class Answer:
    """A predicted figure and the real one, in tokens where both are known, else in GiB of KV memory."""

    estimate: Estimate | None
    truth: float
    page: float
    fit: DeploymentFit | None


def fit_of(starts: Sequence[Observation]) -> PairFit:
    return fit_pair(PairEvidence(tuple(starts)))


def ask(pair: PairFit, start: Observation) -> Answer | None:
    """Ask for a start's own flags; None when the start recorded no pool at all."""
    measured = start.measurements
    fit = pair.choose(engine=start.engine.name, engine_version=start.engine.version, like=None, flags=start.flags)
    prediction = None if fit is None else fit.predict(start.flags)
    page = 1 if fit is None else fit.page_tokens
    if measured.pool_tokens is not None and (prediction is None or prediction.pool_tokens is not None):
        return Answer(None if prediction is None else prediction.pool_tokens, measured.pool_tokens, page, fit)
    if measured.kv_cache_gib is not None and start.engine.name == "vllm":
        return Answer(None if prediction is None else prediction.kv_cache_gib, measured.kv_cache_gib, 0.01, fit)
    if measured.pool_tokens is not None:
        return Answer(None, measured.pool_tokens, page, fit)
    return None
