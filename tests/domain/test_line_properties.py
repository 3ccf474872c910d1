"""Properties of the fitted line that hold for any evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.real_starts import EPOCH, PRO_6000, observe
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question
from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
)
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, cold_fit, fit_pair
from kvyield_server.domain.model.pool_fit import PoolFit, fit_pool
from kvyield_server.domain.model.prior import Setting

fractions = st.integers(300, 990).map(lambda step: step / 1000)
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 10**9),
    st.floats(-1.0, 1e9),
    st.text(max_size=12),
)


def pool_start(position: int, fraction: float, pool: int, facts: dict[str, Any]) -> Observation:
    return observe(
        f"property-{position}",
        position,
        hardware=PRO_6000,
        model=Model(name="m", facts=facts),
        engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
        flags={"mem_fraction_static": fraction, "tp_size": 1, "page_size": 1, "speculative_algorithm": None},
        pool_tokens=pool,
    )


def only(starts: Sequence[Observation]) -> DeploymentFit:
    (fit,) = fit_pair(PairEvidence(tuple(starts))).deployments
    return fit


@settings(max_examples=60, deadline=None)
@given(
    at=st.lists(fractions, min_size=2, max_size=6, unique=True),
    further=fractions,
    asked=fractions,
    slope=st.floats(1e5, 1e7),
    facts=st.sampled_from([{}, {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}]),
)
def test_a_further_point_on_the_line_hardly_widens_the_interval(
    at: list[float], further: float, asked: float, slope: float, facts: dict[str, Any]
) -> None:
    """One more start where the fit predicted it narrows or keeps an interval, but for a page and the noise learned."""
    starts = [pool_start(i, f, 1 + round(slope * max(0.0, f - 0.2)), facts) for i, f in enumerate(at)]
    flags = {"mem_fraction_static": asked}
    before = only(starts).predict(flags).pool_tokens
    expected = only(starts).predict({"mem_fraction_static": further}).pool_tokens
    if before is None or expected is None:
        return
    after = only([*starts, pool_start(99, further, max(1, int(expected.median)), facts)]).predict(flags).pool_tokens
    assert after is not None
    assert after.high - after.low <= 1.25 * (before.high - before.low) + 4


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(2, 7))
def test_the_order_of_observations_does_not_matter(data: st.DataObject, count: int) -> None:
    """Any permutation of the ledger gives the same predictions to 1e-9."""
    at = data.draw(st.lists(fractions, min_size=count, max_size=count, unique=True))
    starts = [pool_start(i, f, round(1_303_889 * f) + 1, {}) for i, f in enumerate(at)]
    shuffled = data.draw(st.permutations(starts))
    one, other = only(starts), only(shuffled)
    asked = {"mem_fraction_static": 0.95}
    first, second = one.predict(asked).pool_tokens, other.predict(asked).pool_tokens
    assert first is not None
    assert second is not None
    assert (first.low, first.median, first.high) == pytest.approx((second.low, second.median, second.high), rel=1e-9)
    assert one.summary == other.summary


@settings(max_examples=60, deadline=None)
@given(factor=st.integers(2, 8), target=st.integers(150_000, 300_000))
def test_scaling_tokens_and_target_alike_leaves_the_fraction(factor: int, target: int) -> None:
    """A model whose tokens cost an nth needs the same fraction for n times the target."""

    def advised(times: int, layers: int) -> float | None:
        facts = {"num_hidden_layers": layers, "num_key_value_heads": 8, "num_attention_heads": 64, "head_dim": 128}
        starts = [
            pool_start(i, f, times * round(1_303_889 * (f - 0.4)), facts) for i, f in enumerate((0.55, 0.62, 0.7))
        ]
        fit, grid = only(starts), np.array([step / 1000 for step in range(400, 1000)])
        predicted = fit.at(fit.flags, grid).pool
        assert predicted is not None
        holds = predicted.above(times * target) >= 0.95
        return float(grid[np.argmax(holds)]) if holds.any() else None

    base, scaled = advised(1, 840), advised(factor, 840 // factor)
    assert (base is None) == (scaled is None)
    assert base is None or scaled is None or abs(base - scaled) <= 0.0011


FLAG_NAMES = (
    "mem_fraction_static",
    "gpu_memory_utilization",
    "free_gpu_memory_fraction",
    "cache_max_entry_count",
    "tp_size",
    "dp_size",
    "tensor_parallel_size",
    "page_size",
    "block_size",
    "kv_cache_dtype",
    "speculative_algorithm",
    "max_total_tokens",
    "context_length",
    "max_model_len",
    "enable_dp_attention",
    "mamba_full_memory_ratio",
)
EXTREMES = (1e-300, 1e-100, 1e-10, 1e30, 1e100, 1e200, 1e300, -1e-100, -1e300)
extremes = st.sampled_from(EXTREMES)
numbers = st.one_of(st.none(), st.floats(-10, 1e6), st.just(0.0), st.just(0.001), extremes)
failures = st.builds(Failure, minimum_fraction=numbers, available_kv_cache_gib=numbers)
counts = st.one_of(st.none(), st.integers(0, 3), st.integers(0, 10**12))


@st.composite
def odd_starts(draw: st.DrawFn) -> Observation:
    """Draw an observation that a schema would let pass, however little sense it makes."""
    engine = draw(st.sampled_from(list(EngineName)))
    values = st.one_of(scalars, st.sampled_from((0.001, 0.5, 0.9, 1.0, 8, "8")))
    flags: dict[str, Any] = draw(st.dictionaries(st.sampled_from(FLAG_NAMES), values, max_size=8))
    facts = draw(
        st.dictionaries(
            st.sampled_from(("num_hidden_layers", "num_key_value_heads", "head_dim", "kv_lora_rank", "layer_types"))
            | st.sampled_from(("hidden_size", "num_attention_heads", "sliding_window_pattern", "vocab_size"))
            | st.sampled_from(("checkpoint_bytes", "total_size", "max_position_embeddings")),
            st.one_of(scalars, extremes, st.integers(1, 128), st.lists(st.text(max_size=4), max_size=3)),
            max_size=8,
        )
    )
    return Observation(
        id=UUID(int=draw(st.integers(1, 2**100))),
        observed_at=EPOCH + timedelta(seconds=draw(st.integers(0, 10**8))),
        hardware=Hardware(
            gpu=draw(st.sampled_from(("NVIDIA H200", "GB10", "x", ""))),
            gpu_count=draw(st.integers(1, 64)),
            memory_gib=draw(st.one_of(st.none(), st.floats(0.001, 1e6), extremes)),
            unified_memory=draw(st.one_of(st.none(), st.booleans())),
        ),
        model=Model(name="m", facts=facts),
        engine=Engine(name=engine, version=draw(st.one_of(st.none(), st.text(max_size=8), st.just("0.5.18")))),
        outcome=draw(st.sampled_from(list(Outcome))),
        flags=flags,
        measurements=Measurements(
            pool_tokens=draw(counts),
            kv_cache_gib=draw(numbers),
            free_before_load_gib=draw(numbers),
            free_after_load_gib=draw(numbers),
            device_memory_gib=draw(numbers),
            weights_gib=draw(numbers),
        ),
        failure=draw(st.one_of(st.none(), failures)),
    )


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("where", ["checkpoint_bytes", "memory_gib", "kv_cache_gib"])
def test_an_impossible_figure_is_as_good_as_none(where: str, extreme: float) -> None:
    """An impossible size of the GPU, checkpoint or cache overflows nothing: a start's and a cold fit answer."""
    facts: dict[str, Any] = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
    model = Model(name="m", facts={**facts, "checkpoint_bytes": extreme if where == "checkpoint_bytes" else 1e10})
    hardware = Hardware(gpu="x", gpu_count=1, memory_gib=extreme if where == "memory_gib" else 80.0)
    for name in EngineName:
        flag = FRACTION_FLAG[name]
        base = observe("odd", 1, hardware=hardware, model=model, engine=Engine(name=name), flags={flag: 0.9})
        held = Measurements(kv_cache_gib=extreme) if where == "kv_cache_gib" else Measurements(pool_tokens=100_000)
        for outcome in (Outcome.READY, Outcome.REFUSED):
            fit = only([replace(base, measurements=held, outcome=outcome)])
            assert fit.predict({flag: 0.8}).flags
            assert recommend(fit, Question(target_tokens=1000)).explanation
        cold = cold_fit(hardware=hardware, model=model, engine=Engine(name=name), flags={})
        pool = cold.predict({flag: 0.9}).pool_tokens
        assert pool is None or 0.0 <= pool.low <= pool.high < 1e30


def test_a_deployment_that_fails_numerically_is_labelled_and_the_others_are_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where arithmetic gives up on one deployment it is labelled unusable, says why, and the others answer."""
    odd, sound = pool_start(1, 0.9, 1000, {}), pool_start(2, 0.8, 2000, {})
    odd = replace(odd, flags={**odd.flags, "tp_size": 2})

    def failing(setting: Setting, *given: Any, **named: Any) -> PoolFit:
        if setting.flags["tp_size"] == 2:
            raise OverflowError("34")
        return fit_pool(setting, *given, **named)

    monkeypatch.setattr("kvyield_server.domain.model.fit.fit_pool", failing)
    fits = {fit.flags["tp_size"]: fit for fit in fit_pair(PairEvidence((odd, sound))).deployments}
    assert fits[2].summary.labels == ("unusable",)
    assert "unusable_figures" in {warning.code for warning in fits[2].summary.warnings}
    assert fits[2].predict({"mem_fraction_static": 0.7}).pool_tokens is None
    assert fits[1].summary.labels == ()


@settings(max_examples=300, deadline=None)
@given(starts=st.lists(odd_starts(), min_size=1, max_size=5), asked=scalars)
def test_odd_but_valid_observations_never_crash_a_fit(starts: list[Observation], asked: Any) -> None:
    """Null, tiny, huge and mistyped values give a fit that answers or says that it cannot."""
    unique = {start.id: start for start in starts}
    same = [replace(start, hardware=starts[0].hardware, model=starts[0].model) for start in unique.values()]
    for fit in fit_pair(PairEvidence(tuple(same))).deployments:
        for name in ("mem_fraction_static", "gpu_memory_utilization"):
            prediction = fit.predict({name: asked})
            pool = prediction.pool_tokens
            assert pool is None or pool.low <= pool.median <= pool.high
        assert recommend(fit, Question(target_tokens=100_000)).explanation
