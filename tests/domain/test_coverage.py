"""Coverage of intervals on starts simulated from the engines' own formulas: pool, free memory, prompt peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import pytest

from domain.simulator import Task, simulate
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

Stratum = tuple[str, str]
AMOUNTS = pytest.mark.parametrize("starts", [1_000, pytest.param(5_000, marks=[pytest.mark.slow, pytest.mark.long])])


@lru_cache(maxsize=2)
def tally(starts: int) -> tuple[Counter[Stratum], Counter[Stratum]]:
    """Return how many simulated starts lie inside their 90 % interval, and of how many, by stratum."""
    inside: Counter[Stratum] = Counter()
    total: Counter[Stratum] = Counter()
    for seed in range(starts):
        task = simulate(seed)
        engine = task.evidence[0].engine.name.value
        for figure, is_inside in _held(task):
            for stratum in ("all", engine, f"{len(task.evidence)} starts", task.kind):
                inside[figure, stratum] += is_inside
                total[figure, stratum] += 1
    for key in sorted(total):
        print(f"{key[0]:6s} {key[1]:10s} {inside[key]:5d} / {total[key]:5d} = {inside[key] / total[key]:.3f}")
    return inside, total


def _held(task: Task) -> Iterator[tuple[str, bool]]:
    pair = fit_pair(PairEvidence(task.evidence))
    fit = pair.choose(engine=None, engine_version=None, like=None, flags=task.asked)
    assert fit is not None
    prediction = fit.predict(task.asked)
    pool, free = prediction.pool_tokens, prediction.free_at_ready_gib
    assert pool is not None
    assert free is not None
    yield "pool", pool.low <= task.pool_tokens <= pool.high
    if task.free_gib is not None:
        yield "free", free.low <= task.free_gib <= free.high
    need = fit.need(task.asked, task.prompt_tokens).estimate()
    yield "prompt", need.low <= task.peak_gib <= need.high


@AMOUNTS
@pytest.mark.parametrize("figure", ["pool", "free"])
def test_ninety_per_cent_intervals_hold_ninety_per_cent_of_simulated_starts(figure: str, starts: int) -> None:
    """Of the simulated starts 87 to 93 % lie inside the interval of their pool, and 87 to 95 % of free memory."""
    inside, total = tally(starts)
    assert 0.87 <= inside[figure, "all"] / total[figure, "all"] <= (0.93 if figure == "pool" else 0.95)


@AMOUNTS
@pytest.mark.parametrize("figure", ["pool", "free"])
@pytest.mark.parametrize("stratum", ["sglang", "vllm", "1 starts", "2 starts", "3 starts", "4 starts"])
def test_no_kind_of_evidence_is_too_sure(figure: str, stratum: str, starts: int) -> None:
    """Whatever the engine and the evidence at least 85 % are held. One start errs on the wide side: a stated figure of
    it may be wrong, and nothing else tells.
    """
    inside, total = tally(starts)
    assert inside[figure, stratum] / total[figure, stratum] >= 0.85


@AMOUNTS
def test_intervals_of_prompt_peaks_err_on_the_wide_side(starts: int) -> None:
    """At least 85 % of simulated peaks lie inside the 90 % interval of the prompt need."""
    inside, total = tally(starts)
    assert inside["prompt", "all"] / total["prompt", "all"] >= 0.85
