"""Normals given bounds: as integration does it, and what that means for an engine that died a step above what runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from domain import ledgers
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question, Status
from kvyield_server.domain.facts.observation import Engine, EngineName, Failure, Hardware, Observation, Phase
from kvyield_server.domain.model.bounds import Bound, Normals, given_bounds
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

ALONG, AGAINST = np.array([1.0, 0.0]), np.array([-1.0, 0.0])


def normals(mean: float, sd: float, scatter: float, count: int = 1) -> Normals:
    return Normals(
        weight=np.full(count, 1.0 / count),
        mean=np.array([[mean, 3.0]] * count),
        covariance=np.array([np.diag((sd**2, 1.0))] * count),
        noise=np.full(count, scatter),
    )


def integrated(mean: float, sd: float, low: float, high: float, scatter: float) -> tuple[float, float, float]:
    """Return probability, mean and standard deviation of x given x + scatter >= low and x + scatter <= high."""
    x = np.linspace(mean - 9.0 * sd, mean + 9.0 * sd, 200_001)
    density = np.exp(-0.5 * ((x - mean) / sd) ** 2) * ndtr((x - low) / scatter) * ndtr((high - x) / scatter)
    total = density.sum()
    middle = (x * density).sum() / total
    spread = np.sqrt(((x - middle) ** 2 * density).sum() / total)
    return total * (x[1] - x[0]) / (sd * np.sqrt(2.0 * np.pi)), middle, spread


@pytest.mark.parametrize("scatter", [0.03, 0.3, 2.5])
@pytest.mark.parametrize(("low", "high"), [(0.0, 0.234), (0.0, 2.0), (-5.0, 0.5), (1.0, 1.5)])
@pytest.mark.parametrize("mean", [-1.0, 0.1, 1.3, 4.0])
def test_a_window_is_as_integration_finds_it(mean: float, low: float, high: float, scatter: float) -> None:
    """Its chance within a fifth, its middle within a quarter of its width."""
    chance, middle, spread = integrated(mean, 2.0, low, high, scatter)
    window = [Bound(AGAINST, -low, 1.0), Bound(ALONG, high, 1.0)]
    both = given_bounds(normals(mean, 2.0, scatter, 2), window, np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert both.weight[0] / both.weight[1] == pytest.approx(chance, rel=0.2)
    assert both.mean[0, 0] == pytest.approx(middle, abs=0.25 * spread + 0.01)
    assert both.covariance[0, 0, 0] ** 0.5 == pytest.approx(spread, rel=0.3)
    assert (both.mean[0, 1], both.mean[1].tolist()) == (3.0, [mean, 3.0])


@given(
    st.lists(
        st.tuples(st.floats(-1e4, 1e4), st.sampled_from((-1.0, 1.0)), st.sampled_from((0.9, 0.995, 1.0))), max_size=12
    ),
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 10.0),
)
def test_bounds_of_any_kind_leave_normals(bounds: list[tuple[float, float, float]], sd: float, scatter: float) -> None:
    """Contradictions too: weights add up to one, and variances are positive and no larger than before."""
    if not bounds:
        return
    told = [Bound(sign * ALONG, limit, trust) for limit, sign, trust in bounds]
    counts = np.ones((2, len(told)))
    counts[1] = 0.0
    with np.errstate(over="raise", divide="raise", invalid="raise", under="ignore"):
        found = given_bounds(normals(0.0, sd, scatter, 2), told, counts)
    assert found.weight.sum() == pytest.approx(1.0)
    assert np.isfinite(found.mean).all()
    assert (np.linalg.eigvalsh(found.covariance) > 0.0).all()
    assert found.covariance[0, 0, 0] <= sd**2 * (1.0 + 1e-9)


LAPTOP = Hardware(gpu="NVIDIA GeForce RTX 5090 Laptop GPU", gpu_count=1, memory_gib=23.9, unified_memory=False)
NEWER = Engine(name=EngineName.VLLM, version="0.29.1")
FLAGS = {"max_model_len": 124_000, "max_num_seqs": 1, "max_num_batched_tokens": 2048, "kv_cache_dtype": "nvfp4"}


def reported(number: int, fraction: float, pool: int, kv_gib: float, outcome: str) -> Observation:
    died = Failure(phase=Phase.GRAPH_CAPTURE) if outcome != "ready" else None
    return ledgers.start(
        number, fraction, pool, outcome=outcome, hardware=LAPTOP, engine=NEWER, flags=FLAGS, failure=died,
        kv_cache_gib=kv_gib,
    )  # fmt: skip


@pytest.mark.parametrize("target", [124_000, 130_000, 136_000])
@pytest.mark.parametrize("first", ["death", "ready"])
def test_a_death_one_step_above_what_runs_makes_nothing_below_it_infeasible(target: int, first: str) -> None:
    """0.98 died capturing graphs and 0.97 serves (vllm-project/vllm issue 57475): room ends between the two.

    Whatever came first, a longer context needs no more memory, so each target has a fraction: a risk, and possible.
    """
    order = (1, 2) if first == "death" else (2, 1)
    starts = (
        reported(order[0], 0.98, 150_745, 2.97, "oom_startup"),
        reported(order[1], 0.97, 138_900, 2.74, "ready"),
    )
    fit = fit_pair(PairEvidence(tuple(sorted(starts, key=lambda each: each.observed_at)))).choose(
        engine=EngineName.VLLM, engine_version=None, like=starts[1].id, flags={}
    )
    assert fit is not None
    for fraction in (0.97, 0.96, 0.9):
        free = fit.predict({**FLAGS, "gpu_memory_utilization": fraction}).free_at_ready_gib
        assert free is not None
        assert 0.0 < free.median - 23.9 * (0.97 - fraction) < 0.239
    advice = recommend(fit, Question(target_tokens=target))
    assert advice.status is Status.AT_RISK
    assert ledgers.advised_fraction(advice) <= 0.97
    assert advice.prediction is not None
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.pool_tokens.median >= target
