"""Restarts until a target is verified: kvyield against ladders, walks, bisection, engine defaults and a GP optimiser.

All searches get the same simulated engines (tests/domain/restart_world.py says how they are drawn) and the same
history of one or two starts. A restart counts as 6 minutes. The optimiser is Optuna's GPSampler, on the first 100 tasks
since it takes a tenth of a second and more for each proposal. Fails when a search calls a target verified that its
start does not hold, when kvyield leaves a task undone, takes more restarts than another search, or causes more starts
out of memory than any but the walk that knows when to stop.

Usage: PYTHONPATH=tests python tests/bench/bench_restarts.py [tasks for the optimiser]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import perf_counter

from bench.accuracy.simulated import RESTART_HEADS, restart_row, restarts, search_results
from bench.peers import PeerMissingError, peer, versions
from bench.pipe import Pipe
from bench.report import Report, share_of
from domain.restart_world import MOST_RESTARTS, Search, Task, by_advice, draw_task
from domain.test_restarts import SEARCHES
from kvyield_server.domain.facts.observation import Observation, Outcome

OPTUNA = ("optuna", "scipy", "torch")
CHECKED = 50


def main() -> int:
    """Print both tables and return 1 when a bar is missed."""
    report = Report(__doc__ or "")
    found = restarts(report)
    undone = sum(not done for _, _, done in found["kvyield"])
    report.bar("kvyield leaves no task undone", str(undone), is_met=undone == 0)
    means = {name: sum(count for count, _, _ in results) / len(results) for name, results in found.items()}
    is_least = min(means, key=lambda name: means[name]) == "kvyield"
    report.bar("kvyield takes the fewest restarts", f"{means['kvyield']:.3f}", is_met=is_least)
    _check_answers(report)
    _optimiser(report, int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    return report.close()


def _check_answers(report: Report) -> None:
    """Hold what was called verified against the simulated truth."""
    held = []
    for seed in range(CHECKED):
        for search in SEARCHES.values():
            task = draw_task(seed)
            for fraction in search(task):
                if task.restart(fraction) or len(task.seen) > MOST_RESTARTS:
                    break
            last, truth = task.seen[-1], task.truth
            if last.verifications:
                room = truth.free(last.fraction or 0.0)
                held.append((last.measurements.pool_tokens or 0) >= task.target + 7 and room >= truth.prompt)
    figure = f"{sum(held)} of {len(held)} held by the truth"
    report.bar("whatever a search calls verified is so", figure, is_met=share_of(held) == 1.0)


def _optimiser(report: Report, tasks: int) -> None:
    report.section(f"Optuna's GP sampler, told the verified share of the target after every start, on {tasks} tasks")
    try:
        python = peer("optuna", OPTUNA)
    except PeerMissingError as error:
        report.line(f"NOT RUN: {error}")
        return
    report.line(versions(python, OPTUNA))
    begin = perf_counter()
    with Pipe(python, "peer_optuna.py") as pipe:
        found = {"kvyield": search_results(by_advice, tasks), "optuna GP": search_results(_asking(pipe), tasks)}
    report.table(RESTART_HEADS, [restart_row(name, results) for name, results in found.items()])
    report.line(f"({perf_counter() - begin:.0f} s)")
    means = {name: sum(count for count, _, _ in results) / tasks for name, results in found.items()}
    deaths = {name: sum(died for _, died, _ in results) for name, results in found.items()}
    figure = f"{means['kvyield']:.2f} against {means['optuna GP']:.2f}"
    report.bar("fewer restarts than the optimiser", figure, is_met=means["kvyield"] < means["optuna GP"])
    figure = f"{deaths['kvyield']} against {deaths['optuna GP']}"
    report.bar("no more OOM starts than the optimiser", figure, is_met=deaths["kvyield"] <= deaths["optuna GP"])


def _asking(pipe: Pipe) -> Search:
    """Return the optimiser as a search from the largest fraction known to live up to 0.99."""

    def search(task: Task) -> Iterator[float]:
        low = max(start.fraction or 0.0 for start in task.seen)
        while True:
            seen = [
                [start.fraction, _value(start, task.target)] for start in task.seen if (start.fraction or 0.0) >= low
            ]
            yield round(float(pipe.ask({"low": low, "high": 0.99, "seen": seen, "seed": 7})), 4)

    return search


def _value(start: Observation, target: int) -> float:
    """Return the share of the target that a start holds; nothing when it ran out of memory."""
    if start.outcome is not Outcome.READY:
        return 0.0
    return min(1.0, (start.measurements.pool_tokens or 0) / (target + 7))


if __name__ == "__main__":
    sys.exit(main())
