"""What changed between two versions of an engine, deployment by deployment: both lines at one fraction, same flags."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import hypot

import numpy as np

from kvyield_server.domain.answers import Drift, Estimate
from kvyield_server.domain.facts.deployment import deployment_label, differing_fields
from kvyield_server.domain.facts.observation import Flags
from kvyield_server.domain.facts.versions import parse_version
from kvyield_server.domain.model.deployment import DeploymentFit, PairFit, sound_estimate
from kvyield_server.domain.model.mixture import Floats

MOST_COMPARED = 16
"""Deployments of one pair, the newest, of which every two may be compared."""
STEP = 0.01


def drifts(fit: PairFit) -> Iterator[Drift]:
    """Yield what changed in each deployment of a pair between two versions, where nothing else is known to differ."""
    known = [each for each in fit.deployments[:MOST_COMPARED] if each.starts and "version" in each.key]
    for one, other in combinations(known, 2):
        if differing_fields(one.key, other.key) == {"version"}:
            found = compared(*_in_order(one, other))
            if found is not None:
                yield found


def _in_order(one: DeploymentFit, other: DeploymentFit) -> tuple[DeploymentFit, DeploymentFit]:
    """Return the older version first; where a version is not a release, the one that was started first."""
    numbers = parse_version(one.key["version"]), parse_version(other.key["version"])
    if numbers[0] is not None and numbers[1] is not None and numbers[0] != numbers[1]:
        is_swapped = numbers[0] > numbers[1]
    else:
        is_swapped = one.starts[0].observed_at > other.starts[0].observed_at
    return (other, one) if is_swapped else (one, other)


def compared(older: DeploymentFit, newer: DeploymentFit) -> Drift | None:
    """Return how two versions differ at the fraction and flags of the newer one's running start, else the older's.

    None where nothing came up at a known fraction, or neither pool nor free memory is known of both.
    """
    judge = newer if newer.runs else older
    fraction = judge.runs.fraction if judge.runs else None
    if fraction is None or not STEP < fraction <= 1.0:
        return None
    at = np.array([fraction - STEP, fraction])
    old_pool, old_free = _lines(older, judge.flags, at)
    new_pool, new_free = _lines(newer, judge.flags, at)
    pool, free = _change(old_pool, new_pool), _change(old_free, new_free)
    if pool is None and free is None:
        return None
    return Drift(
        from_deployment_id=older.summary.deployment_id,
        to_deployment_id=newer.summary.deployment_id,
        engine=newer.summary.engine,
        from_version=older.key["version"],
        to_version=newer.key["version"],
        deployment=deployment_label({name: value for name, value in newer.key.items() if name != "version"}),
        newest_at=newer.starts[-1].observed_at,
        fraction=fraction,
        from_starts=len(older.summary.basis.observation_ids),
        to_starts=len(newer.summary.basis.observation_ids),
        from_slope_tokens=_rise(old_pool),
        to_slope_tokens=_rise(new_pool),
        pool_tokens=pool.median if pool else None,
        pool_low=pool.low if pool else None,
        pool_high=pool.high if pool else None,
        from_slope_gib=_fall(old_free),
        to_slope_gib=_fall(new_free),
        free_gib=free.median if free else None,
        free_low=free.low if free else None,
        free_high=free.high if free else None,
    )


_Ends = tuple[Estimate, Estimate] | None
"""A quantity a step below the fraction and at it; None where nothing tells it."""


def _lines(fit: DeploymentFit, flags: Flags, at: Floats) -> tuple[_Ends, _Ends]:
    """Return the pool, tokens, without caps, and free memory at ready, GiB."""
    found = fit.at({**fit.flags, **flags}, at)
    return _ends(found.line), _ends(found.free)


def _ends(quantity: object) -> _Ends:
    below, here = (sound_estimate(quantity, index) for index in (0, 1))
    return None if below is None or here is None else (below, here)


def _rise(ends: _Ends) -> float | None:
    return None if ends is None else ends[1].median - ends[0].median


def _fall(ends: _Ends) -> float | None:
    return None if ends is None else ends[0].median - ends[1].median


def _change(old: _Ends, new: _Ends) -> Estimate | None:
    """Return new less old: half widths of independent errors add up in squares."""
    if old is None or new is None:
        return None
    before, after = old[1], new[1]
    median = after.median - before.median
    return Estimate(
        median=median,
        low=median - hypot(after.median - after.low, before.high - before.median),
        high=median + hypot(after.high - after.median, before.median - before.low),
    )
