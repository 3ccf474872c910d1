"""The rules that hold whatever a ledger contains, over ledgers that nobody chose.

The same ledgers every time; ``KVYIELD_EXAMPLES=10`` tries ten times as many, other ones each time.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from domain.door import advise, fitted
from domain.ledgers import EPOCH, GROUPED, H100S, advised_fraction, is_kept, on_line, passed, start, unserved, words
from domain.rules import ANSWERED, ask, came_up, second, violations
from kvyield_server.domain.answers import Status
from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
    Cause,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Phase,
    Verification,
)

TIMES = float(os.environ.get("KVYIELD_EXAMPLES", "1"))


def thorough(examples: int) -> settings:
    """Return settings for so many examples, times what the environment says."""
    return settings(
        max_examples=max(1, int(examples * TIMES)),
        deadline=None,
        derandomize=TIMES == 1.0,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


FACTS: tuple[dict[str, Any], ...] = (
    {},
    {
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
        "max_position_embeddings": 131_072,
    },
    {
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "hidden_size": 7168,
        "max_position_embeddings": 262_144,
    },
)
ENGINES = (
    Engine(name=EngineName.SGLANG, version="0.5.12"),
    Engine(name=EngineName.SGLANG),
    Engine(name=EngineName.VLLM, version="0.26.0"),
    Engine(name=EngineName.TENSORRT_LLM, version="1.2.0"),
    Engine(name=EngineName.LMDEPLOY, version="0.10.0"),
)
HARDWARE = (
    H100S,
    replace(H100S, memory_gib=None),
    replace(H100S, memory_gib=80.0),
    Hardware(gpu="NVIDIA GB10", gpu_count=1, memory_gib=121.69, unified_memory=True),
    Hardware(gpu="Some Accelerator", gpu_count=2, memory_gib=None),
)
FLAGS: dict[EngineName, dict[str, st.SearchStrategy[Any]]] = {
    EngineName.SGLANG: {
        "context_length": st.sampled_from([None, 4096, 131_072, 1_048_576]),
        "max_running_requests": st.sampled_from([None, 1, 64, 4096]),
        "chunked_prefill_size": st.sampled_from([-1, 2048, 8192]),
        "max_total_tokens": st.sampled_from([None, None, None, 100_000]),
        "disable_cuda_graph": st.booleans(),
    },
    EngineName.VLLM: {
        "max_model_len": st.sampled_from([None, 4096, 131_072]),
        "max_num_seqs": st.sampled_from([None, 4, 256]),
        "max_num_batched_tokens": st.sampled_from([None, 2048, 8192]),
        "kv_cache_memory_bytes": st.sampled_from([None, None, None, 2 * 2**30]),
        "enforce_eager": st.booleans(),
    },
    EngineName.TENSORRT_LLM: {"max_seq_len": st.sampled_from([None, 8192, 131_072])},
    EngineName.LMDEPLOY: {"session_len": st.sampled_from([None, 8192, 131_072])},
}
TOKENS = st.one_of(st.integers(1, 200_000), st.integers(1, 5_000_000))


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


@st.composite
def wild_ledgers(draw: st.DrawFn) -> tuple[Observation, ...]:
    """Draw starts of one pair and engine whose figures need not fit together at all."""
    engine, hardware = draw(st.sampled_from(ENGINES)), draw(st.sampled_from(HARDWARE))
    model = Model(name="any/model", facts=draw(st.sampled_from(FACTS)))
    slope, zero = draw(st.floats(1e4, 1e7)), draw(st.floats(0.0, 0.9))
    shared = draw(st.booleans())
    common = {name: draw(values) for name, values in FLAGS[engine.name].items()}
    count = draw(st.integers(1, 7))
    starts = []
    for number in range(count):
        own = common if shared else {name: draw(values) for name, values in FLAGS[engine.name].items()}
        fraction = round(draw(st.floats(0.02, 1.0)), draw(st.sampled_from([2, 3])))
        on = max(1, round(slope * max(0.0, fraction - zero) * draw(st.sampled_from([1.0, 1.0, 1.001, 0.99, 0.5, 2.0]))))
        pool = draw(st.sampled_from([on, on, on, None, 1, 10**9]))
        free = draw(maybe(st.one_of(st.floats(0.0, 5.0), st.floats(0.0, 200.0))))
        before = draw(maybe(st.floats(0.5, 200.0)))
        after = None if before is None else draw(maybe(st.floats(0.0, before)))
        measured = Measurements(
            pool_tokens=pool, free_at_ready_gib=free, free_before_load_gib=before, free_after_load_gib=after
        )
        bare = start(number, fraction, hardware=hardware, model=model, engine=engine)
        flags = {FRACTION_FLAG[engine.name]: fraction, **own}
        starts.append(_spoiled(draw, replace(bare, flags=flags, measurements=measured)))
    return tuple(starts)


def _spoiled(draw: st.DrawFn, bare: Observation) -> Observation:
    """Return the start with an outcome, further figures and prompts drawn for it."""
    pool = bare.measurements.pool_tokens
    outcome = draw(st.sampled_from([Outcome.READY] * 4 + [*Outcome]))
    kv_gib = draw(maybe(st.floats(0.01, 150.0)))
    if outcome is Outcome.READY and pool is None and kv_gib is None:
        pool = 50_000
    failure = None
    if outcome is not Outcome.READY:
        failure = Failure(
            phase=Phase.SERVING if outcome is Outcome.OOM_RUNTIME else draw(st.sampled_from(list(Phase))),
            prompt_tokens=draw(maybe(TOKENS)),
            minimum_fraction=draw(maybe(st.floats(0.0, 1.2))),
            available_kv_cache_gib=draw(maybe(st.floats(-5.0, 100.0))),
            needed_gib=draw(maybe(st.floats(0.0, 100.0))),
            longest_tokens=draw(maybe(TOKENS)),
            wanted_gib=draw(maybe(st.floats(0.0, 100.0))),
            free_gib=draw(maybe(st.floats(0.0, 100.0))),
            cause=draw(maybe(st.sampled_from(list(Cause)))),
        )
    checks = draw(st.lists(_checks(), max_size=2)) if outcome is Outcome.READY else []
    return replace(
        bare,
        observed_at=EPOCH + timedelta(hours=draw(st.integers(0, 5))),
        outcome=outcome,
        measurements=replace(
            bare.measurements,
            pool_tokens=pool,
            kv_cache_gib=kv_gib,
            weights_gib=draw(maybe(st.floats(0.1, 150.0))),
            graph_gib=draw(maybe(st.floats(0.0, 25.0))),
            longest_prompt_tokens=draw(st.sampled_from([None, None, None, 18_425])),
        ),
        failure=failure,
        verifications=tuple(checks),
    )


@st.composite
def _checks(draw: st.DrawFn) -> Verification:
    before = draw(maybe(st.floats(0.0, 100.0)))
    lowest = None if before is None else draw(maybe(st.floats(0.0, before)))
    is_passed = draw(st.booleans())
    return Verification(
        prompt_tokens=draw(TOKENS),
        passed=is_passed,
        error=None if is_passed else draw(maybe(st.just("no answer"))),
        free_before_gib=before,
        lowest_free_gib=lowest,
        concurrent=draw(maybe(st.integers(1, 16))),
        elapsed_seconds=draw(maybe(st.floats(0.0, 1e4))),
    )


@thorough(70)
@given(wild_ledgers(), TOKENS, st.integers(1, 32), st.sampled_from(["keep", "headroom", "pool"]))
def test_rules_over_arbitrary_ledgers(
    starts: tuple[Observation, ...], target: int, concurrent: int, prefer: str
) -> None:
    assert violations(ask(starts, target, concurrent, prefer)) == []


# ledgers whose truth is known

FRACTIONS = st.integers(820, 950).map(lambda thousandths: thousandths / 1000)


@st.composite
def clean_ledgers(draw: st.DrawFn, least: int = 3, spread: int = 20) -> list[Observation]:
    """Draw three to six ready starts on the true line, 0.01 per cent apart, some with their memory lines."""
    fractions = draw(st.lists(FRACTIONS, min_size=least, max_size=6, unique=True))
    assume(max(fractions) - min(fractions) >= spread / 1000)
    logged = {"free_before_load_gib": 79.0, "free_after_load_gib": 39.5} if draw(st.booleans()) else {}
    starts = []
    for number, fraction in enumerate(fractions):
        clean = on_line(10 * number, fraction, **logged)
        noise = 1.0 + draw(st.integers(-10, 10)) / 100_000
        pool = round((clean.measurements.pool_tokens or 0) * noise)
        starts.append(replace(clean, measurements=replace(clean.measurements, pool_tokens=pool)))
    return starts


@st.composite
def contradictions(draw: st.DrawFn, starts: list[Observation]) -> Observation:
    """Draw one start that contradicts the others: another pool, or a death where they ran."""
    highest = max(each.fraction or 0.0 for each in starts)
    lowest = min(each.fraction or 0.0 for each in starts)
    fraction = round(draw(st.floats(lowest, highest)), 3)
    number = draw(st.sampled_from([-5, 5, 15, 1000]))
    kind = draw(st.sampled_from(["pool", "pool", "oom_startup", "refused"]))
    if kind == "pool":
        factor = draw(st.sampled_from([0.3, 0.6, 0.9, 0.97, 1.03, 1.2, 2.0]))
        clean = on_line(number, fraction)
        pool = round((clean.measurements.pool_tokens or 0) * factor)
        return replace(clean, id=UUID(int=7), measurements=replace(clean.measurements, pool_tokens=pool))
    return replace(start(number, fraction, outcome=kind), id=UUID(int=7))


@thorough(50)
@given(st.data(), st.integers(250_000, 520_000), st.sampled_from(["keep", "headroom"]))
def test_one_start_does_not_overturn_three(data: st.DataObject, target: int, prefer: str) -> None:
    """Rule 2."""
    starts = data.draw(clean_ledgers())
    odd = data.draw(contradictions(starts))
    agreeing = frozenset(each.id for each in starts)
    before = ask(starts, target, prefer=prefer, agreeing=agreeing)
    after = ask([*starts, odd], target, prefer=prefer, agreeing=agreeing)
    is_newest = odd.observed_at > max(each.observed_at for each in starts)
    assert list(second(before, after, is_newest=is_newest)) == []
    assert violations(after) == []


@thorough(25)
@given(clean_ledgers(least=1, spread=0), st.integers(1, 600_000))
def test_what_runs_answers_for_its_own_flags(starts: list[Observation], target: int) -> None:
    """Rule 1: where the newest start holds the target with memory to spare it is kept, its own figures shown.

    How much is to spare is known where the kind of attention is.
    """
    starts = [replace(each, model=GROUPED) for each in starts]
    asked = ask(starts, target, agreeing=frozenset(each.id for each in starts))
    assert violations(asked) == []
    newest = max(starts, key=lambda each: each.observed_at)
    pool, free = newest.measurements.pool_tokens or 0, newest.measurements.free_at_ready_gib or 0.0
    if pool >= target + 8 and free > 6.5:
        advice = asked.advice
        assert is_kept(advice, newest.fraction or 0.0), (advice.status, advice.flags)
        assert advice.prediction.pool_tokens is not None
        assert advice.prediction.pool_tokens.median == pool
        assert advice.probability is not None
        assert advice.probability.pool == 1.0
        assert advice.prediction.free_at_ready_gib is not None
        assert abs(advice.prediction.free_at_ready_gib.median - free) < 0.011


@thorough(25)
@given(
    clean_ledgers(least=1, spread=0),
    FRACTIONS,
    st.integers(1_000, 300_000),
    st.integers(1_000, 300_000),
    st.sampled_from(["alone", "restarted", "cured"]),
)
def test_a_run_time_death_is_cancelled_only_by_a_passed_prompt(
    starts: list[Observation], fraction: float, died_at: int, target: int, since: str
) -> None:
    """Rule 3: not by its own readiness, and not by an automatic restart of the same flags."""
    restarted, is_cured = since == "restarted", since == "cured"
    failure = Failure(phase=Phase.SERVING, prompt_tokens=died_at)
    pool = round(1_300_000 * (fraction - 0.5))
    ledger = [*starts, start(500, fraction, pool, 3.0, outcome="oom_runtime", failure=failure)]
    checks = [passed(died_at, 3.0, 0.5)] if is_cured else []
    if restarted or is_cured:
        ledger.append(start(501, fraction, pool, 3.0, checks=checks))
    for prefer in ("keep", "headroom", "pool"):
        asked = ask(ledger, target, prefer=prefer)
        assert violations(asked) == []
        advice = asked.advice
        if target >= died_at and not is_cured and advice.status in ANSWERED:
            assert advised_fraction(advice) < fraction, (prefer, advice.flags)
    if is_cured and target <= died_at and pool >= target + 8:
        kept = advise(ledger, target)
        assert is_kept(kept, fraction), (kept.status, kept.flags, kept.explanation)


@thorough(20)
@given(clean_ledgers(least=2, spread=10), st.integers(1_000, 300_000), st.integers(1_000, 300_000))
def test_a_prompt_that_was_not_served_forbids_ok(starts: list[Observation], prompt: int, target: int) -> None:
    """Rule 3: for prompts no shorter, until one passes; a shorter one is unaffected."""
    newest = max(starts, key=lambda each: each.observed_at)
    others = [each for each in starts if each is not newest]
    failing = [*others, replace(newest, verifications=(unserved(prompt),))]
    advice = advise(failing, target)
    plain = advise(starts, target)
    if target >= prompt:
        assert advice.status is not Status.OK or advised_fraction(advice) < (newest.fraction or 0.0)
    else:
        assert (advice.status, advice.flags) == (plain.status, plain.flags)
    cured = advise([*others, replace(newest, verifications=(unserved(prompt), passed(prompt, 9.0, 8.5)))], target)
    if target <= prompt:
        assert (cured.status is Status.OK) or plain.status is not Status.OK


@thorough(25)
@given(clean_ledgers(least=1, spread=0), FRACTIONS, st.integers(1_000, 560_000))
def test_a_death_at_start_up_counts_at_and_above_its_fraction(
    starts: list[Observation], fraction: float, target: int
) -> None:
    """Rule 3: until a later start came up there."""
    highest = max(each.fraction or 0.0 for each in starts)
    died = start(900, fraction, outcome="oom_startup", failure=Failure(phase=Phase.GRAPH_CAPTURE))
    asked = ask([*starts, died], target, prefer="pool")
    assert violations(asked) == []
    if fraction > highest and asked.advice.status in ANSWERED:
        assert advised_fraction(asked.advice) < fraction
    later = ask([*starts, died, on_line(901, fraction)], target)
    if later.starts[-1].measurements.pool_tokens or target + 8 <= 0:
        assert violations(later) == []


@pytest.mark.parametrize("outcome", ["oom_startup", "refused", "failed"])
def test_a_death_of_another_kind_of_start_is_no_crash(outcome: str) -> None:
    """A ledger of nothing but deaths is answered too, with what to post next or a smaller fraction."""
    advice = advise([start(1, 0.9, outcome=outcome)], 10_000)
    assert advice.status in Status
    assert words(advice).strip()
    if advice.status in ANSWERED and outcome == "oom_startup":
        assert advised_fraction(advice) < 0.9


@thorough(25)
@given(clean_ledgers(least=2, spread=10), st.floats(0.3, 0.99), st.integers(1, 1_000_000))
def test_caps_act_as_in_the_engine(starts: list[Observation], fraction: float, cap: int) -> None:
    """Rule 6: min(line, cap) at every fraction."""
    fit = fitted(starts)
    plain = fit.predict({"mem_fraction_static": fraction}).pool_tokens
    capped = fit.predict({"mem_fraction_static": fraction, "max_total_tokens": cap}).pool_tokens
    if plain is not None and plain.low > 0:
        assert capped is not None
        assert capped.median == min(plain.median, cap)
        assert capped.high <= cap


@thorough(25)
@given(clean_ledgers(least=1, spread=0), st.integers(100, 10**6), st.integers(1, 10**6))
def test_a_printed_limit_binds(starts: list[Observation], limit: int, target: int) -> None:
    """Rule 7."""
    limited = [replace(s, measurements=replace(s.measurements, longest_prompt_tokens=limit)) for s in starts]
    advice = advise(limited, target)
    newest = max(starts, key=lambda each: each.observed_at)
    if target > limit:
        assert not is_kept(advice, newest.fraction or 0.0)
        if (newest.measurements.pool_tokens or 0) >= target + 8:
            assert (advice.status, advice.binding_constraint) == (Status.INFEASIBLE, "input_limit")


@thorough(20)
@given(wild_ledgers(), st.data())
def test_order_and_repetition_change_nothing(starts: tuple[Observation, ...], data: st.DataObject) -> None:
    """Rule 9, for fits as for advice."""
    turned = data.draw(st.permutations([*starts, *starts[:2]]))
    one, other = fitted(starts), fitted(turned)
    assert one.summary.labels == other.summary.labels
    assert one.summary.deployment_id == other.summary.deployment_id
    for name, estimate in one.summary.parameters.items():
        assert abs(other.summary.parameters[name].median - estimate.median) <= 1e-6 * max(1.0, abs(estimate.median))
    assert any(came_up(each) for each in starts) == any(came_up(each) for each in turned)
