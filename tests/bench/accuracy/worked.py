"""The worked case: what was known after each restart, and what kvyield says then."""

from __future__ import annotations

from dataclasses import replace

from bench.report import Report
from domain.real_starts import KIMI, KIMI_SLOPE, KIMI_ZERO, PRO_6000, worked_case
from domain.worked_starts import DOG
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Estimate, Question
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, cold_fit, fit_pair

TRUTH, NEEDED, DEMANDED = 218_484, 200_007, 0.926
AT_THIRD = {"mem_fraction_static": 0.94, "max_running_requests": 8}
QUESTION = Question(target_tokens=200_000)


def worked(report: Report) -> None:
    """Print advice and predictions from no start, start 1, starts 1 and 2, and all three."""
    report.section("The worked case: Kimi K2.6 on 8 GPUs, a prompt of 200,000 tokens wanted")
    first, second, third = worked_case()
    third = replace(third, verifications=(DOG,))
    one, two, three = (
        fit_pair(PairEvidence(starts)).deployments[0] for starts in ((first,), (first, second), (first, second, third))
    )
    facts = {**KIMI.facts, "total_size": 554 * 2**30}
    cold = cold_fit(
        hardware=PRO_6000,
        model=replace(KIMI, facts=facts),
        engine=first.engine,
        flags={**first.flags, "mem_fraction_static": None},
    )
    known = {"config, GPU, checkpoint size": cold, "start 1": one, "starts 1, 2": two, "starts 1, 2, 3": three}
    report.table(
        ("known", "advised", "status", "joint", "pool there", "pool at 0.94 (real 218,484)", "free at 0.94 (real 4.2)"),
        [(name, *_row(fit)) for name, fit in known.items()],
    )
    _bars_of_two(report, two)
    _bars_of_one(report, one)
    advised = _advised(three)
    report.bar("all three starts: advised fraction is 0.926", f"{advised}", is_met=advised == DEMANDED)


def _row(fit: DeploymentFit) -> tuple[str, ...]:
    advice, prediction = recommend(fit, QUESTION), fit.predict(AT_THIRD)
    return (
        str(advice.flags.get("mem_fraction_static", "-")),
        advice.status.value,
        "-" if advice.probability is None else f"{advice.probability.joint:.3f}",
        _text(advice.prediction.pool_tokens, 0),
        _text(prediction.pool_tokens, 0),
        _text(prediction.free_at_ready_gib, 2),
    )


def _text(estimate: Estimate | None, digits: int) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.median:,.{digits}f} [{estimate.low:,.{digits}f}, {estimate.high:,.{digits}f}]"


def _advised(fit: DeploymentFit) -> float:
    value = recommend(fit, QUESTION).flags.get("mem_fraction_static")
    return float(value) if isinstance(value, int | float) else 0.0


def _bars_of_two(report: Report, fit: DeploymentFit) -> None:
    prediction, advised = fit.predict(AT_THIRD), _advised(fit)
    pool, free = prediction.pool_tokens, prediction.free_at_ready_gib
    assert pool is not None
    assert free is not None
    off = abs(pool.median - TRUTH)
    report.bar("starts 1, 2: start 3's pool within 2 tokens", f"{off:.0f} tokens off", is_met=off <= 2)
    report.bar("starts 1, 2: advised fraction is 0.926", f"{advised}", is_met=advised == DEMANDED)
    away = abs(free.median - 4.2)
    report.bar("starts 1, 2: free memory at 0.94 within 0.6 GiB", f"{away:.2f} GiB off", is_met=away <= 0.6)


def _bars_of_one(report: Report, fit: DeploymentFit) -> None:
    advised, pool = _advised(fit), fit.predict(AT_THIRD).pool_tokens
    real = KIMI_SLOPE * (advised - KIMI_ZERO)
    report.bar(
        "start 1: the advised fraction truly holds 200,007", f"{advised} holds {real:,.0f}", is_met=real >= NEEDED
    )
    assert pool is not None
    held = pool.low <= TRUTH <= pool.high
    report.bar("start 1: the interval at 0.94 contains 218,484", f"[{pool.low:,.0f}, {pool.high:,.0f}]", is_met=held)
