"""Calibration of a predictor that is right: what it reads over many settled answers."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import numpy as np
from scipy.special import stdtrit

from bench.report import Report, per_cent
from domain.ledgers import on_line
from kvyield_server.domain.answers import (
    Advice,
    AdvicePrediction,
    Basis,
    BasisKind,
    Estimate,
    Question,
    Status,
)
from kvyield_server.domain.calibration import PROBABILITIES, CalibrationReport, Settled, calibrate
from kvyield_server.domain.facts.observation import EngineName

ANSWERS = 20_000
FREEDOM = (3.0, 4.0, 8.0, 30.0)
WITHIN = 0.015


def perfect(count: int = ANSWERS, seed: int = 5) -> CalibrationReport:
    """Return the calibration of answers whose truths are drawn from the very distributions that they stated.

    Pools are Student's t with few degrees of freedom: intervals scaled by a normal's would read too narrow.
    """
    random = np.random.default_rng(seed)
    quantiles = {nu: np.asarray(stdtrit(nu, PROBABILITIES)) for nu in FREEDOM}
    return calibrate(_settled(number, random, quantiles) for number in range(count))


def _settled(number: int, random: np.random.Generator, quantiles: dict[float, np.ndarray]) -> Settled:
    nu = FREEDOM[number % len(FREEDOM)]
    middle, scale = float(random.uniform(1e5, 2e6)), float(random.uniform(100.0, 5_000.0))
    free, free_scale = float(random.uniform(5.0, 50.0)), float(random.uniform(0.05, 0.5))
    values = quantiles[nu]
    stated = {
        "pool_tokens": tuple(zip(PROBABILITIES, (middle + scale * values).tolist(), strict=True)),
        "free_at_ready_gib": tuple(zip(PROBABILITIES, (free + free_scale * values).tolist(), strict=True)),
    }
    low, high = PROBABILITIES.index(0.05), PROBABILITIES.index(0.95)
    pool = Estimate(median=middle, low=middle + scale * values[low], high=middle + scale * values[high])
    start = on_line(number, 0.9)
    measured = replace(
        start.measurements,
        pool_tokens=round(middle + scale * float(random.standard_t(nu))),
        free_at_ready_gib=free + free_scale * float(random.standard_t(nu)),
    )
    advice = Advice(
        status=Status.OK,
        engine=EngineName.SGLANG,
        flags={"mem_fraction_static": 0.9},
        command_line="--mem-fraction-static 0.9",
        changes=(),
        prediction=AdvicePrediction(pool_tokens=pool, quantiles=stated),
        probability=None,
        window=None,
        restarts=None,
        verification_seconds=None,
        basis=Basis(kind=BasisKind.SEVERAL_STARTS, deployment=None),
        alternatives=(),
        warnings=(),
        explanation="",
    )
    observation = replace(start, id=UUID(int=number + 1), measurements=measured)
    return Settled(question=Question(target_tokens=round(middle)), advice=advice, observation=observation)


def settled(report: Report) -> None:
    """Print what calibration reads of a perfect predictor."""
    report.section(f"Calibration of a perfect predictor over {ANSWERS:,} settled answers")
    whole = perfect().overall
    for name, rows in (("pool", whole.pool), ("free memory", whole.free_at_ready)):
        for row in rows:
            share = row.share or 0.0
            figure = f"{per_cent(share, 2)} of {row.settled:,}"
            is_met = row.settled == ANSWERS and abs(share - row.level) <= WITHIN
            report.bar(f"{name}: {per_cent(row.level, 0)} intervals hold within 1.5 points", figure, is_met=is_met)
