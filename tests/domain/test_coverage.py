"""Coverage of pool intervals on starts simulated from the engines' own formulas."""

from __future__ import annotations

from collections import Counter

from domain.simulator import simulate
from kvyield_server.domain.fit import PairEvidence, fit_pair

STARTS = 5000


def test_ninety_per_cent_intervals_hold_ninety_per_cent_of_simulated_starts() -> None:
    """Of 5,000 simulated starts 87 to 93 % lie inside their 90 % interval, whatever the number of starts behind it."""
    inside: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for seed in range(STARTS):
        task = simulate(seed)
        pair = fit_pair(PairEvidence(task.evidence))
        line = pair.choose(engine=None, engine_version=None, like=None, flags=task.asked)
        assert line is not None
        estimate = line.predict(task.asked).pool_tokens
        assert estimate is not None
        is_inside = estimate.low <= task.pool_tokens <= estimate.high
        for stratum in ("all", line.capacity.engine.name.value, f"{len(task.evidence)} starts"):
            inside[stratum] += is_inside
            total[stratum] += 1
    for stratum in sorted(total):
        print(f"{stratum:10s} {inside[stratum]:5d} / {total[stratum]:5d} = {inside[stratum] / total[stratum]:.3f}")
    assert all(0.87 <= inside[stratum] / total[stratum] <= 0.93 for stratum in total)
