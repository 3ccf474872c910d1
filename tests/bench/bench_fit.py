"""How long one fit of 500 starts and one prediction take: medians of many runs on one core.

Usage: PYTHONPATH=service:tests python tests/bench/bench_fit.py
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from domain.real_starts import KIMI, PRO_6000, observe
from kvyield_server.domain.capacity_fit import fit_capacity
from kvyield_server.domain.capacity_prior import Setting, physics_prior
from kvyield_server.domain.evidence import classify
from kvyield_server.domain.fit import PairEvidence, fit_pair
from kvyield_server.domain.observation import Engine, EngineName

RUNS = 60
STARTS = 500


def milliseconds(job: Callable[[], object]) -> float:
    """Return the median time of a job in milliseconds."""
    times = []
    for _ in range(RUNS):
        begun = perf_counter()
        job()
        times.append(perf_counter() - begun)
    return 1000.0 * median(times)


def main() -> None:
    """Print the median times of the capacity fit, the whole fit and one prediction."""
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
    setting = Setting(hardware=PRO_6000, model=KIMI, engine=engine, flags=starts[-1].flags)
    evidence = PairEvidence(tuple(starts))
    (fit,) = fit_pair(evidence).deployments
    print(f"prior                       {milliseconds(lambda: physics_prior(setting, starts, ())):8.3f} ms")
    prior = physics_prior(setting, starts, ())
    found = [classify(start) for start in starts]
    print(f"evidence of {STARTS} starts        {milliseconds(lambda: [classify(start) for start in starts]):8.3f} ms")
    print(f"capacity, {STARTS} starts        {milliseconds(lambda: fit_capacity(setting, found, prior)):8.3f} ms")
    print(f"whole pair, {STARTS} starts      {milliseconds(lambda: fit_pair(evidence)):8.3f} ms")
    print(f"one prediction              {milliseconds(lambda: fit.predict({'mem_fraction_static': 0.93})):8.3f} ms")


if __name__ == "__main__":
    main()
