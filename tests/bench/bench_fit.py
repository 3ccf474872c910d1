"""How long one fit of 500 starts and one prediction take: medians and bests of many runs on one core.

Usage: PYTHONPATH=service:tests python tests/bench/bench_fit.py
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from domain.real_starts import KIMI, PRO_6000, observe
from kvyield_server.domain.facts.observation import Engine, EngineName
from kvyield_server.domain.model.evidence import classify
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

RUNS = 60
STARTS = 500


def report(name: str, job: Callable[[], object]) -> None:
    """Print the median time of a job, and its best, which other work on the machine disturbs least."""
    times = []
    for _ in range(RUNS):
        begun = perf_counter()
        job()
        times.append(1000.0 * (perf_counter() - begun))
    print(f"{name:32s} median {median(times):8.3f} ms, best {min(times):8.3f} ms")


def main() -> None:
    """Print the times of each step, of the whole fit and of one prediction."""
    engine = Engine(name=EngineName.SGLANG, version="0.5.12")
    starts = [
        observe(
            f"bench-{position}",
            position,
            hardware=PRO_6000,
            model=KIMI,
            engine=engine,
            flags={"mem_fraction_static": fraction, "tp_size": 8, "speculative_algorithm": "DFLASH"},
            pool_tokens=round(1_303_889 * (fraction - 0.77244)),
            free_at_ready_gib=6.0 - 89.0 * (fraction - 0.92),
        )
        for position in range(STARTS)
        for fraction in [0.8 + 0.16 * position / STARTS]
    ]
    evidence = PairEvidence(tuple(starts))
    (fit,) = fit_pair(evidence).deployments
    report(f"evidence of {STARTS} starts", lambda: [classify(start) for start in starts])
    report(f"whole pair, {STARTS} starts", lambda: fit_pair(evidence))
    report("one prediction", lambda: fit.predict({"mem_fraction_static": 0.93}))


if __name__ == "__main__":
    main()
