"""How long a fit and an advice take, in wall time and in time of the one core that does it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, thread_time

from bench.report import Report
from domain.real_starts import KIMI, PRO_6000, observe, worked_case
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question
from kvyield_server.domain.facts.observation import Engine, EngineName, Observation
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, fit_pair

STARTS, RUNS = 500, 60
QUESTIONS = (
    ("one advice, kept", Question(target_tokens=100_000, prompt_need_gib=1.0)),
    ("one advice, ok", Question(target_tokens=199_000, prompt_need_gib=1.0)),
    ("one advice, at risk", Question(target_tokens=200_000)),
    ("one advice, infeasible", Question(target_tokens=290_000)),
)


def speed(report: Report) -> None:
    """Print median times and hold the core's time against the bars."""
    report.section(f"Time of a fit of {STARTS} starts and of an advice, medians of {RUNS} runs")
    jobs = fit_jobs(STARTS)
    fit = fit_pair(PairEvidence(worked_case())).deployments[0]
    jobs |= {name: _asking(fit, question) for name, question in QUESTIONS}
    jobs["one prediction"] = lambda: fit.predict({"mem_fraction_static": 0.93})
    times = {name: milliseconds(job) for name, job in jobs.items()}
    report.table(
        ("job", "wall, ms", "core, ms"), [(name, f"{wall:.3f}", f"{core:.3f}") for name, (wall, core) in times.items()]
    )
    whole = times["one deployment, from nothing"][1]
    report.bar(f"one fit of {STARTS} observations under 3 ms", f"{whole:.2f} ms", is_met=whole < 3.0)
    slowest = max(times[name][1] for name, _ in QUESTIONS)
    report.bar("one advice from a fitted model under 2 ms", f"{slowest:.2f} ms at the slowest", is_met=slowest < 2.0)


def _asking(fit: DeploymentFit, question: Question) -> Callable[[], object]:
    return lambda: recommend(fit, question)


def milliseconds(job: Callable[[], object], runs: int = RUNS) -> tuple[float, float]:
    """Return the median wall time and core time of a job in milliseconds."""
    walls, cores = [], []
    for _ in range(runs):
        wall, core = perf_counter(), thread_time()
        job()
        walls.append(perf_counter() - wall)
        cores.append(thread_time() - core)
    return 1000.0 * median(walls), 1000.0 * median(cores)


def fit_jobs(count: int) -> dict[str, Callable[[], object]]:
    """Return the fits of that many starts: of one deployment, and of five."""
    one, five = PairEvidence(tuple(many_starts(count))), PairEvidence(tuple(many_starts(count, 5)))
    return {"one deployment, from nothing": lambda: fit_pair(one), "five deployments": lambda: fit_pair(five)}


def many_starts(count: int, deployments: int = 1) -> list[Observation]:
    """Return starts of the worked case's line, spread over fractions and over engine versions."""
    engines = [Engine(name=EngineName.SGLANG, version=f"0.5.{12 + number}") for number in range(deployments)]
    fractions = [0.8 + 0.16 * position / count for position in range(count)]
    return [
        observe(
            f"bench-{position}",
            position,
            hardware=PRO_6000,
            model=KIMI,
            engine=engines[position % deployments],
            flags={"mem_fraction_static": fraction, "tp_size": 8, "speculative_algorithm": "DFLASH"},
            pool_tokens=round(1_303_889 * (fraction - 0.77244)),
            free_at_ready_gib=6.0 - 89.0 * (fraction - 0.92),
        )
        for position, fraction in enumerate(fractions)
    ]
