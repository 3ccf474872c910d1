"""What must hold of advice whatever the deployment, the question and the history."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.given_model import GivenModel, with_starts
from domain.real_starts import worked_case
from domain.worked_starts import KIMI, start
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.advice.render import render
from kvyield_server.domain.answers import Advice, Prefer, Question, Status
from kvyield_server.domain.engines.registry import NAMES
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
    Phase,
    Scalar,
    Verification,
)
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

PLAIN = Model(name="plain", facts={"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096})
PREFERENCES = st.sampled_from(list(Prefer))
HEADROOM = st.just(Prefer.HEADROOM)
TOKENS = st.integers(1, 3_000_000)
CONFIDENCE = st.floats(0.5, 0.9999)
FREE = st.floats(0.0, 200.0)


@st.composite
def deployments(draw: st.DrawFn, engines: tuple[EngineName, ...] = tuple(EngineName)) -> GivenModel:
    """Draw a straight line with up to four starts on it, some of which ran out of memory."""
    page = draw(st.sampled_from([1, 16, 64, 256]))
    given_model = GivenModel(
        model=draw(st.sampled_from([PLAIN, KIMI])),
        hardware=Hardware(gpu="NVIDIA H200", gpu_count=1, memory_gib=139.8),
        engine=Engine(name=draw(st.sampled_from(engines)), version=draw(st.sampled_from([None, "0.5.12", "dev"]))),
        flags={},
        base=draw(st.floats(8.0, 200.0)),
        zero=draw(st.floats(0.0, 0.9)),
        token_bytes=draw(st.floats(2_000.0, 1_000_000.0)),
        page_tokens=page,
        pool_noise=draw(st.floats(0.0, 0.05)),
        free_at_zero=draw(st.none() | st.floats(5.0, 250.0)),
        need_gib=draw(st.floats(0.05, 20.0)),
    )
    starts = [draw(observations(given_model, number)) for number in range(1, draw(st.integers(1, 4)) + 1)]
    return with_starts(given_model, *starts)


@st.composite
def observations(draw: st.DrawFn, model: GivenModel, number: int) -> Observation:
    """Draw one start on the line."""
    names = NAMES[model.engine.name]
    fraction = round(draw(st.floats(model.zero + 0.01, 0.99)), 3)
    flags: dict[str, Scalar] = {
        names.fraction: fraction,
        names.context: draw(st.sampled_from([None, 4096, 131_072])),
        names.requests: draw(st.sampled_from([None, 1, 8, 4096])),
        names.chunk: draw(st.sampled_from([-1, 2048, 8192])),
    }
    predicted = model.at(flags, np.array([fraction]))
    pool = 1 if predicted.pool is None else max(1, int(predicted.pool.estimate(0).median))
    free = None if predicted.free is None else max(0.0, predicted.free.estimate(0).median)
    outcome = draw(st.sampled_from([Outcome.READY, Outcome.READY, Outcome.OOM_STARTUP, Outcome.OOM_RUNTIME]))
    check = Verification(
        prompt_tokens=draw(TOKENS),
        passed=draw(st.booleans()),
        elapsed_seconds=draw(st.sampled_from([None, 0.0, 12.5])),
        free_before_gib=draw(st.sampled_from([None, free])),
        lowest_free_gib=draw(st.sampled_from([None, 0.0])),
    )
    return start(
        number,
        flags,
        pool_tokens=pool,
        free_at_ready_gib=free,
        outcome=outcome,
        failure=None
        if outcome is Outcome.READY
        else Failure(phase=draw(st.sampled_from(list(Phase))), prompt_tokens=draw(st.none() | TOKENS)),
        verifications=(check,) if outcome is Outcome.READY else (),
        model=model.model,
        engine=model.engine,
    )


def questions(prefer: st.SearchStrategy[Prefer] = PREFERENCES) -> st.SearchStrategy[Question]:
    return st.builds(
        Question,
        target_tokens=TOKENS,
        reply_tokens=st.integers(0, 10_000),
        concurrent=st.integers(1, 64),
        confidence=CONFIDENCE,
        prompt_need_gib=st.none() | st.floats(0.0, 50.0),
        prefer=prefer,
    )


def fraction(fit: GivenModel, advice: Advice) -> float:
    value = advice.flags[FRACTION_FLAG[fit.summary.engine]]
    assert isinstance(value, float)
    return value


def is_answer(advice: Advice) -> bool:
    return advice.status in (Status.OK, Status.AT_RISK)


@settings(max_examples=150, deadline=None)
@given(deployments(), questions())
def test_every_answer_is_whole(fit: GivenModel, question: Question) -> None:
    """No figure is NaN or infinite, probabilities are probabilities, intervals are ordered, and every form renders."""
    advice = recommend(fit, question)
    _assert_finite(advice)
    assert not is_answer(advice) or 0.0 < fraction(fit, advice) < 1.0
    if advice.probability is not None:
        memory = advice.probability.memory
        assert all(0.0 <= p <= 1.0 for p in (advice.probability.pool, 0.5 if memory is None else memory))
    if advice.window is not None:
        assert advice.window.lowest <= advice.window.highest
    assert advice.status is not Status.OK or advice.window is not None or not advice.changes
    assert advice.headline is not None
    assert advice.headline.text
    assert all(render(advice, form) for form in ("args", "systemd", "docker", "compose", "kubernetes"))


@settings(max_examples=150, deadline=None)
@given(deployments(), questions(HEADROOM), TOKENS)
def test_a_larger_target_never_lowers_the_fraction(fit: GivenModel, question: Question, more: int) -> None:
    """Of two questions that can be answered, the one with more tokens never gets the lower fraction."""
    small, large = (
        recommend(fit, question),
        recommend(fit, replace(question, target_tokens=question.target_tokens + more)),
    )
    if is_answer(small) and is_answer(large):
        assert fraction(fit, large) >= fraction(fit, small)


@settings(max_examples=150, deadline=None)
@given(deployments(), questions(HEADROOM), CONFIDENCE)
def test_more_confidence_never_lowers_the_fraction(fit: GivenModel, question: Question, other: float) -> None:
    """More confidence asks for no less pool."""
    low, high = sorted((question.confidence, other))
    first, second = (recommend(fit, replace(question, confidence=confidence)) for confidence in (low, high))
    if is_answer(first) and is_answer(second):
        assert fraction(fit, second) >= fraction(fit, first)


@settings(max_examples=150, deadline=None)
@given(deployments(), questions())
def test_never_at_or_above_a_death_that_counts(fit: GivenModel, question: Question) -> None:
    """An answer lies below every fraction that a death rules out; only what runs may be kept there, at risk."""
    advice = recommend(fit, question)
    if is_answer(advice):
        barred, _ = fit.forbidden(advice.flags, np.array([fraction(fit, advice)]), question.target_tokens, 1)
        assert not (barred[0] and (advice.status is Status.OK or advice.changes))


@settings(max_examples=100, deadline=None)
@given(st.floats(30.0, 150.0), st.floats(0.05, 0.7), st.integers(2, 8), st.integers(10_000, 400_000))
def test_scaling_tokens_and_target_alike_changes_nothing(base: float, zero: float, by: int, target: int) -> None:
    """A model whose tokens cost half as much reaches twice the target at the same fraction."""

    def advised(cost: float, tokens: int) -> float:
        engine = Engine(name=EngineName.LMDEPLOY)
        fit = GivenModel(
            model=PLAIN,
            hardware=Hardware(gpu="NVIDIA H200", gpu_count=1, memory_gib=139.8),
            engine=engine,
            flags={},
            base=base,
            zero=zero,
            token_bytes=cost,
            pool_noise=0.01,
        )
        return fraction(fit, recommend(fit, Question(target_tokens=tokens, prefer=Prefer.HEADROOM)))

    assert advised(131_072.0 / by, target * by) == pytest.approx(advised(131_072.0, target), abs=0.0011)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 1.0),
            st.integers(1, 10**9) | st.none(),
            FREE | st.none(),
            st.sampled_from(list(Outcome)),
            st.sampled_from([None, 0, -1, 1, 10**9, "7", True]),
        ),
        min_size=1,
        max_size=6,
    ),
    questions(),
    st.sampled_from(list(EngineName)),
    st.sampled_from([None, 0.5, 95.59]),
)
def test_odd_histories_are_answered(
    rows: list[tuple[float, int | None, float | None, Outcome, Scalar]],
    question: Question,
    engine: EngineName,
    memory_gib: float | None,
) -> None:
    """Whatever valid starts are posted, contradictory ones too, the real fit is answered with finite figures."""
    names = NAMES[engine]
    starts = [
        start(
            number,
            {names.fraction: f, names.requests: odd, names.context: odd, names.chunk: odd},
            pool_tokens=pool if outcome is not Outcome.READY else pool or 1,
            free_at_ready_gib=free,
            outcome=outcome,
            engine=Engine(name=engine),
            hardware=Hardware(gpu="NVIDIA H200", gpu_count=1, memory_gib=memory_gib),
        )
        for number, (f, pool, free, outcome, odd) in enumerate(rows)
    ]
    for fit in fit_pair(PairEvidence(tuple(starts))).deployments:
        advice = recommend(fit, question)
        _assert_finite(advice)
        assert advice.explanation


def _assert_finite(value: Any, where: str = "advice") -> None:
    """Assert that no float anywhere in a value is NaN or infinite."""
    if isinstance(value, float):
        assert isfinite(value), where
    elif is_dataclass(value):
        for each in fields(value):
            _assert_finite(getattr(value, each.name), f"{where}.{each.name}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _assert_finite(inner, f"{where}.{key}")
    elif isinstance(value, tuple | list):
        for inner in value:
            _assert_finite(inner, where)


@pytest.mark.parametrize("extreme", [1e30, -1e30, 1e300, 10**400, 5e-324, 2**31 - 1, -1, "1e400"])
@pytest.mark.parametrize(
    "name",
    [
        *("mem_fraction_static", "context_length", "max_running_requests", "tp_size", "chunked_prefill_size"),
        *("cuda_graph_max_bs", "max_total_tokens", "dp_size", "dcp_size", "mamba_full_memory_ratio", "page_size"),
    ],
)
def test_extreme_flags_are_answered(name: str, extreme: Scalar) -> None:
    """Absurd flags, in evidence and in questions alike, overflow nothing and leave figures finite."""
    first, *others = worked_case()
    odd = replace(first, flags={**first.flags, name: extreme})
    for fit in fit_pair(PairEvidence((odd, *others))).deployments:
        fit.predict({name: extreme})
        _assert_finite(recommend(fit, Question(target_tokens=200_000)))
        _assert_finite(recommend(fit, Question(target_tokens=200_000, flags={name: extreme})))


@pytest.mark.parametrize("figure", ["free_at_ready_gib", "free_before_load_gib", "kv_cache_gib", "weights_gib"])
@pytest.mark.parametrize("extreme", [1e300, -1e300, 1e30, 5e-324, 0.0])
def test_extreme_measurements_are_answered(figure: str, extreme: float) -> None:
    """A figure that no GPU can have overflows nothing."""
    first, *others = worked_case()
    figures: dict[str, Any] = {"pool_tokens": 101_134, figure: extreme}
    measured = Measurements(**figures)
    for fit in fit_pair(PairEvidence((replace(first, measurements=measured), *others))).deployments:
        _assert_finite(recommend(fit, Question(target_tokens=200_000)))
