"""Coverage on simulated starts, and restarts on simulated tasks."""

from __future__ import annotations

from collections import Counter

from bench.report import Report, per_cent, percentile
from domain.restart_world import Search
from domain.simulator import simulate
from domain.test_restarts import SEARCHES, TASKS, restarts_and_deaths
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

STARTS = 5_000
RIVALS = ("+0.01 until OOM", "0.98 down by 0.01", "bisection", "engine default")
MINUTES_EACH = 6.0


def coverage(report: Report) -> None:
    """Print how many simulated starts lie inside their 90 % intervals, by engine and by evidence."""
    report.section(f"Coverage of 90 % intervals on {STARTS:,} simulated starts")
    inside: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for seed in range(STARTS):
        task = simulate(seed)
        fit = fit_pair(PairEvidence(task.evidence)).choose(
            engine=None, engine_version=None, like=None, flags=task.asked
        )
        estimate = None if fit is None else fit.predict(task.asked).pool_tokens
        is_inside = estimate is not None and estimate.low <= task.pool_tokens <= estimate.high
        engine = task.evidence[0].engine.name.value
        for stratum in ("all", engine, f"after {len(task.evidence)} start{'s' * (len(task.evidence) > 1)}"):
            inside[stratum] += is_inside
            total[stratum] += 1
    rows = [(name, total[name], inside[name], per_cent(inside[name] / total[name], 1)) for name in sorted(total)]
    report.table(("simulated starts", "starts", "inside", "share"), rows)
    share = inside["all"] / total["all"]
    report.bar("90 % intervals hold 87 to 93 % of simulated starts", per_cent(share, 1), is_met=0.87 <= share <= 0.93)


def restarts(report: Report) -> dict[str, list[tuple[int, int, bool]]]:
    """Print restarts and starts out of memory of every search on the same tasks, and return them task by task."""
    report.section(f"Restarts to a verified target on {TASKS:,} simulated tasks")
    found = {name: search_results(search) for name, search in SEARCHES.items()}
    report.table(RESTART_HEADS, [restart_row(name, results) for name, results in found.items()])
    own = found["kvyield"]
    mean = sum(count for count, _, _ in own) / len(own)
    report.bar("kvyield: mean restarts <= 1.15", f"{mean:.3f}", is_met=mean <= 1.15)
    deaths = {name: sum(died for _, died, _ in results) for name, results in found.items()}
    for rival in RIVALS:
        figure = f"{deaths['kvyield']} against {deaths[rival]}"
        report.bar(f"no more OOM starts than {rival}", figure, is_met=deaths["kvyield"] <= deaths[rival])
    return found


RESTART_HEADS = ("search", "mean restarts", "95th percentile", "most", "minutes, mean", "OOM starts", "unfinished")


def search_results(search: Search, tasks: int = TASKS) -> list[tuple[int, int, bool]]:
    """Return restarts, starts out of memory and success of every task."""
    return [restarts_and_deaths(search, seed) for seed in range(tasks)]


def restart_row(name: str, results: list[tuple[int, int, bool]]) -> tuple[str, ...]:
    """Return one row of the table of restarts."""
    counts = [count for count, _, _ in results]
    mean = sum(counts) / len(counts)
    return (
        name,
        f"{mean:.3f}",
        str(percentile(counts, 95)),
        str(max(counts)),
        f"{MINUTES_EACH * mean:.1f}",
        str(sum(deaths for _, deaths, _ in results)),
        str(sum(not done for _, _, done in results)),
    )
