"""How long one recommendation takes from a fitted model: the median of many runs on one core, by status.

Usage: PYTHONPATH=service:tests python tests/bench/bench_recommend.py
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from domain.real_starts import worked_case
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, fit_pair

RUNS = 500


def milliseconds(fit: DeploymentFit, question: Question) -> float:
    """Return the median time of one recommendation in milliseconds."""
    times = []
    for _ in range(RUNS):
        begun = perf_counter()
        recommend(fit, question)
        times.append(perf_counter() - begun)
    return 1000.0 * median(times)


def main() -> None:
    """Print the median times of answers that are ok, at risk and infeasible."""
    fit = fit_pair(PairEvidence(worked_case())).deployments[0]
    for question in (
        Question(target_tokens=200_000, prompt_need_gib=1.0),
        Question(target_tokens=200_000),
        Question(target_tokens=290_000),
    ):
        status = recommend(fit, question).status.value
        print(f"{status:<12}{milliseconds(fit, question):8.3f} ms")


if __name__ == "__main__":
    main()
