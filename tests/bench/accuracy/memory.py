"""Free memory at ready, prompt need and headroom against what one H200 measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from bench.accuracy.errors import fit_of
from bench.report import Report, middle, per_cent, share_of
from domain.measured_memory import in_full, ladder, measured_prompts, measured_starts
from kvyield_server.domain.facts.observation import Observation
from kvyield_server.domain.model.fit import DeploymentFit
from kvyield_server.domain.model.interface import Need

LADDERS = (("qwen3-8b", "sglang"), ("dsv2-lite", "sglang"), ("qwen3-8b", "vllm"))
SHARES = tuple((step + 0.5) / 60 for step in range(60))
HEADS = ("predictions", "median off, GiB", "worst off, GiB", "inside 90 %")


class Gaps:
    """How far GiB predictions were off, and whether their intervals held the truth."""

    def __init__(self) -> None:
        self.off: list[float] = []
        self.inside: list[bool] = []

    def add(self, median: float, low: float, high: float, truth: float, slack: float = 0.0) -> None:
        self.off.append(abs(median - truth))
        self.inside.append(low - slack <= truth <= high + slack)

    def cells(self) -> tuple[str, ...]:
        worst = max(self.off, default=0.0)
        held = f"{sum(self.inside)}/{len(self.inside)} = {per_cent(share_of(self.inside), 0)}"
        return str(len(self.off)), f"{middle(self.off):.3f}", f"{worst:.3f}", held


def memory(report: Report) -> None:
    """Print free memory at ready and headroom, predicted and measured."""
    _free_memory(report)
    _headroom(report)


def _free_memory(report: Report) -> None:
    report.section("Free memory at ready on the H200")
    rows = []
    for model, engine in LADDERS:
        starts, gaps = ladder(model, engine), Gaps()
        for pair in combinations(starts, 2):
            fit = fit_of(pair).deployments[0]
            for other in starts:
                if other not in pair:
                    _add_free(gaps, fit, other)
        rows.append((f"{model}, {engine}: any two starts, all others of the ladder", *gaps.cells()))
    for model, engine in LADDERS:
        gaps = Gaps()
        same = in_full(model, engine)
        for other in same:
            pair_fit = fit_of([start for start in same if start is not other])
            chosen = pair_fit.choose(engine=None, engine_version=None, like=None, flags=other.flags)
            if chosen is not None:
                _add_free(gaps, chosen, other)
        rows.append((f"{model}, {engine}: each start of all flags, from all others", *gaps.cells()))
    report.table(("predicted", *HEADS), rows)


def _add_free(gaps: Gaps, fit: DeploymentFit, other: Observation) -> None:
    estimate, truth = fit.predict(other.flags).free_at_ready_gib, other.measurements.free_at_ready_gib
    if estimate is not None and truth is not None:
        gaps.add(estimate.median, estimate.low, estimate.high, truth)


def _headroom(report: Report) -> None:
    report.section("Headroom on the H200: what was left at the lowest point of each real prompt")
    report.line("The need is believed after the prompts before it; 'none' is before any prompt. A granule is 0.1 GiB.")
    sums: dict[str, Gaps] = {}
    for name, prompts in measured_prompts().items():
        start = measured_starts()[name]
        for seen in range(len(prompts)):
            known = replace(start, verifications=prompts[:seen])
            fit = fit_of([known]).deployments[0]
            kind = "none" if seen == 0 else "one or more"
            for prompt in prompts[seen:]:
                row = sums.setdefault(f"{start.model.name}, {start.engine.name.value}, after {kind}", Gaps())
                _add_headroom(row, fit, known, prompt.prompt_tokens, prompt.lowest_free_gib or 0.0)
    report.table(("predicted", *HEADS), [(name, *gaps.cells()) for name, gaps in sorted(sums.items())])


def _add_headroom(gaps: Gaps, fit: DeploymentFit, start: Observation, tokens: int, lowest: float) -> None:
    free = fit.at(start.flags, np.array([start.fraction or 0.0])).free
    assert free is not None
    need = fit.need(start.flags, tokens)
    frees = np.array([float(free.quantile(share)[0]) for share in SHARES])
    needs = np.array([_quantile(need, share) for share in SHARES])
    low, median, high = np.quantile(np.subtract.outer(frees, needs), (0.05, 0.5, 0.95))
    gaps.add(float(median), float(low), float(high), lowest, slack=0.1)


def _quantile(need: Need, share: float) -> float:
    """Return what a prompt takes at most with this probability, GiB."""
    low, high = 0.0, 1_000.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if need.at_most(middle) < share else (low, middle)
    return high
