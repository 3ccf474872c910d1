"""Growth of fits and advice."""

from __future__ import annotations

import tracemalloc

from bench.accuracy.speed import many_starts
from bench.growth import CONSTANT, LINEAR, Growth, core_milliseconds
from bench.report import Report
from domain.real_starts import KIMI_SLOPE, KIMI_ZERO
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question
from kvyield_server.domain.facts.observation import Scalar
from kvyield_server.domain.model.fit import PairEvidence, PairFit, fit_pair

STARTS = (100, 1_000, 10_000, 100_000)
DEPLOYMENTS = (4, 16, 64, 256)
EACH = 4


def starts_of_one_deployment(report: Report) -> None:
    """Fit and ask with ever more starts of one deployment."""
    report.section("Starts of one deployment: core time in ms")
    growth = Growth(report, "starts", STARTS)
    for count in STARTS:
        _one_deployment(growth, PairEvidence(tuple(many_starts(count))), runs=5 if count <= 10_000 else 2)
    growth.close()


def _one_deployment(growth: Growth, evidence: PairEvidence, *, runs: int) -> None:
    (fit,) = fit_pair(evidence).deployments
    asked: dict[str, Scalar] = {"mem_fraction_static": 0.94}
    pool = fit.predict(asked).pool_tokens
    assert pool is not None
    assert abs(pool.median - KIMI_SLOPE * (0.94 - KIMI_ZERO)) <= 2, pool
    growth.add("whole fit", core_milliseconds(lambda: fit_pair(evidence), runs), LINEAR)
    growth.add("one prediction", core_milliseconds(lambda: fit.predict(asked), 30), CONSTANT)
    growth.add("one advice", core_milliseconds(lambda: recommend(fit, Question(target_tokens=200_000)), 5), LINEAR)
    growth.add("peak memory of a fit, MiB", _peak_mib(evidence), LINEAR)


def deployments(report: Report) -> None:
    """Fit pairs of ever more deployments."""
    report.section(f"Deployments of one pair, {EACH} starts each: core time in ms")
    growth = Growth(report, "deployments", DEPLOYMENTS)
    for count in DEPLOYMENTS:
        _one_pair(growth, PairEvidence(tuple(many_starts(count * EACH, count))), count)
    growth.close()


def _one_pair(growth: Growth, evidence: PairEvidence, count: int) -> None:
    pair = fit_pair(evidence)
    assert len(pair.deployments) == count
    growth.add("whole fit", core_milliseconds(lambda: fit_pair(evidence), 3 if count < 100 else 1), LINEAR)
    growth.add("choosing one", core_milliseconds(lambda: _choose(pair), 9), LINEAR)
    growth.add("peak memory of a fit, MiB", _peak_mib(evidence), LINEAR)


def _choose(pair: PairFit) -> object:
    return pair.choose(engine=None, engine_version="0.5.12", like=None, flags={"mem_fraction_static": 0.9})


def _peak_mib(evidence: PairEvidence) -> float:
    tracemalloc.start()
    fit_pair(evidence)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 2**20
