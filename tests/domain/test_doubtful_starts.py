"""Starts that died, failed or were posted with a wrong figure: what advice may still say beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.door import advise, cold, fitted, predict, question
from domain.ledgers import GROUPED, advised_fraction, codes, is_kept, on_line, passed, pool_at, start, words
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import AdvicePrediction, Status
from kvyield_server.domain.engines.token_cost import speculation, token_cost
from kvyield_server.domain.facts.observation import (
    Cause,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Model,
    Observation,
    Outcome,
    Phase,
)
from kvyield_server.domain.model.free_memory import UNRELATED
from kvyield_server.domain.model.need import given_deaths, unless_it_recurs

QWEN: dict[str, Any] = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "vocab_size": 151_936,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}
H100 = Hardware(gpu="NVIDIA H100 80GB HBM3", gpu_count=1, memory_gib=79.65, unified_memory=False)
ENGINES: dict[EngineName, tuple[Engine, dict[str, Any]]] = {
    EngineName.SGLANG: (
        Engine(name=EngineName.SGLANG, version="0.5.12"),
        {"tp_size": 1, "context_length": 131_072, "kv_cache_dtype": "auto", "speculative_algorithm": None},
    ),
    EngineName.VLLM: (
        Engine(name=EngineName.VLLM, version="0.26.0"),
        {"tensor_parallel_size": 1, "max_num_batched_tokens": 8192, "max_model_len": 131_072, "kv_cache_dtype": "auto"},
    ),
    EngineName.TENSORRT_LLM: (Engine(name=EngineName.TENSORRT_LLM, version="1.2.0"), {}),
    EngineName.LMDEPLOY: (Engine(name=EngineName.LMDEPLOY, version="0.10.0"), {}),
}


def qwen(number: int, fraction: float, pool: int | None = None, free: float | None = None, **more: Any) -> Observation:
    """Return a start of an 8B model on one H100."""
    engine, flags = ENGINES[more.pop("on", EngineName.SGLANG)]
    flags = {**flags, **more.pop("flags", {})}
    model = Model(name="Qwen/Qwen3-8B", facts=QWEN)
    return start(number, fraction, pool, free, hardware=H100, model=model, engine=engine, flags=flags, **more)


# Deaths


@pytest.mark.parametrize("name", list(ENGINES))
@pytest.mark.parametrize("outcome", ["oom_startup", "oom_runtime"])
@pytest.mark.parametrize("prefer", ["keep", "pool"])
def test_advice_steps_well_below_each_death_where_nothing_measured_free_memory(
    name: EngineName, outcome: str, prefer: str
) -> None:
    """Three deaths one after the other, each at what was advised: no step is a thousandth."""
    starts: list[Observation] = []
    fraction = 0.95
    for number in range(3):
        starts.append(qwen(number, fraction, on=name, outcome=outcome))
        advice = advise(starts, 100_000, prefer=prefer)
        assert advised_fraction(advice) <= fraction - 0.02, words(advice)
        fraction = advised_fraction(advice)


@given(
    death=st.integers(600, 980).map(lambda value: value / 1000),
    serving=st.booleans(),
    others=st.lists(st.integers(300, 590).map(lambda value: value / 1000), max_size=4),
    prompt=st.sampled_from([None, 1_000, 100_000]),
)
@settings(max_examples=25, deadline=None)
def test_just_below_a_death_memory_is_unlikely_to_hold(
    death: float, serving: bool, others: list[float], prompt: int | None
) -> None:
    """Whatever came up far below and never had its free memory measured."""
    outcome = "oom_runtime" if serving else "oom_startup"
    failure = Failure(phase=Phase.SERVING, prompt_tokens=prompt) if serving else Failure(phase=Phase.POOL)
    starts = [*(qwen(n, f) for n, f in enumerate(others)), qwen(9, death, outcome=outcome, failure=failure)]
    fit = fitted(starts)
    flags = {name: value for name, value in fit.flags.items() if name != "mem_fraction_static"}
    chance = fit.survives(flags, fit.at(flags, np.array([death - 0.001])), fit.need(flags, 100_000), 100_000)
    assert chance is not None
    assert chance[0] < 0.6


def test_free_memory_measured_beside_a_death_contradicts_it() -> None:
    """Four starts measured 5 GiB and more close below: one death does not make them a lie, though between the highest
    and the death nothing was measured."""
    starts = [on_line(n, fraction, model=GROUPED) for n, fraction in enumerate((0.86, 0.87, 0.88, 0.89))]
    died = start(9, 0.9, pool_at(0.9), outcome="oom_startup", model=GROUPED)
    beside = advise([*starts, died], 480_000, prefer="pool")
    assert (beside.status, advised_fraction(beside)) == (Status.OK, 0.89)


@pytest.mark.parametrize("outcome", ["oom_startup", "oom_runtime"])
@pytest.mark.parametrize("free", [15.0, None])
@pytest.mark.parametrize("confidence", [0.3, 0.5, 0.8, 0.95])
def test_ok_below_a_death_is_what_the_confidence_asks_for(outcome: str, free: float | None, confidence: float) -> None:
    """One step below a death is `ok` at a confidence of a half at most, and nowhere below the confidence asked for."""
    failure = Failure(phase=Phase.SERVING, prompt_tokens=100_000) if outcome == "oom_runtime" else None
    served = start(1, 0.8, pool_at(0.8), free, model=GROUPED)
    died = start(9, 0.9, pool_at(0.9), outcome=outcome, failure=failure, model=GROUPED)
    advice = advise([served, died], 100_000, prefer="pool", confidence=confidence)
    assert advice.status is Status.OK
    assert advice.probability is not None
    assert advice.probability.memory is not None
    assert advice.probability.memory >= confidence
    assert advice.probability.memory < max(0.55, confidence + 0.05)
    assert (advised_fraction(advice) >= 0.895) <= (confidence <= 0.5)


def test_chances_given_deaths_are_those_of_one_fraction_where_survival_ends() -> None:
    """By hand: the chance between two deaths is what is left of the prior's there, and none is left below certainty."""
    fractions = np.array([0.5, 0.8, 0.9, 0.95])
    found = given_deaths(np.array([1.0, 0.8, 0.4, 0.2]), fractions, np.array([0.8, 0.2]), np.array([0.8, 0.95]))
    one, two = UNRELATED, UNRELATED**2
    total = 0.2 + 0.6 * one + 0.2 * two
    expected = [1.0, (0.6 * one + 0.2 * two) / total, (0.2 * one + 0.2 * two) / total, 0.2 * two / total]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
@pytest.mark.parametrize("died", [0.75, 0.9, 0.95])
@pytest.mark.parametrize("outcome", ["oom_startup", "oom_runtime"])
def test_far_below_a_death_a_prompt_fits(name: EngineName, died: float, outcome: str) -> None:
    """A fifth of the GPU less for the pool is 16 GiB, whatever one start died of."""
    fit = fitted([qwen(1, died, on=name, outcome=outcome)])
    flags = {key: value for key, value in fit.flags.items() if "fraction" not in key and "utilization" not in key}
    chance = fit.survives(flags, fit.at(flags, np.array([died - 0.2])), fit.need(flags, 100_000), 100_000)
    assert chance is not None
    assert chance[0] > 0.93


def test_a_death_at_start_up_is_no_evidence_of_the_prompt() -> None:
    """It is compared with free memory: a prompt that is known to take nothing has the chance that the engine starts."""
    fit = fitted([qwen(1, 0.9, outcome="oom_startup")])
    flags = {key: value for key, value in fit.flags.items() if "fraction" not in key}
    fractions = np.array([0.6, 0.7, 0.8])
    predicted = fit.at(flags, fractions)
    small, large = (fit.survives(flags, predicted, need, 100_000) for need in (0.0, 10.0))
    assert small is not None
    assert large is not None
    assert predicted.free is not None
    recurs = unless_it_recurs(fractions, 0.9, 0.0, 79.0)
    np.testing.assert_allclose(small, predicted.free.above(0.0) * recurs, atol=0.001)
    np.testing.assert_allclose(large, predicted.free.above(10.0) * recurs, atol=0.001)


@pytest.mark.parametrize("served", [0.0, 0.85])
def test_what_died_may_die_again_right_below(served: float) -> None:
    """As likely as not at the very fraction, hardly two GiB below, and not where it came up."""
    chance = unless_it_recurs(np.array([0.8, 0.85, 0.86, 0.875, 0.9, 0.95]), 0.9, served, 80.0)
    expected = [
        1 - 0.5 * np.exp(-8.0),
        1 - 0.5 * np.exp(-4.0),
        1 - 0.5 * np.exp(-3.2),
        1 - 0.5 * np.exp(-2.0),
        0.5,
        0.5,
    ]
    np.testing.assert_allclose(chance, [1.0, 1.0, *expected[2:]] if served else expected)


@given(
    chance=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=30),
    deaths=st.lists(st.integers(0, 29), min_size=1, max_size=5, unique=True),
    shorter=st.floats(0.0, 1.0),
)
@settings(max_examples=100, deadline=None)
def test_deaths_never_raise_a_chance_and_never_make_it_rise_with_the_fraction(
    chance: list[float], deaths: list[int], shorter: float
) -> None:
    """For any falling chances."""
    falling = np.sort(np.array(chance))[::-1]
    at = np.array(sorted({min(index, falling.size - 1) for index in deaths}))
    fractions = np.arange(1, falling.size + 1) / 100.0
    at_deaths = falling[at] + shorter * (1.0 - falling[at])  # shorter prompts that died were likelier to fit
    found = given_deaths(falling, fractions, at_deaths, fractions[at])
    assert (found <= falling + 1e-9).all()
    assert (np.diff(found) <= 1e-9).all()


@pytest.mark.parametrize("fraction", [1.0, 0.9, 0.5])
@pytest.mark.parametrize("target", [1, 8_000])
@pytest.mark.parametrize("free", [None, 0.4, 20.0])
def test_a_death_while_serving_on_held_memory_rules_nothing_out_and_is_not_forgotten(
    fraction: float, target: int, free: float | None
) -> None:
    """Rule 3: 1 GiB of the GPU's 79.65 was free before load; what else holds the GPU comes before any other advice."""
    failure = Failure(phase=Phase.SERVING)
    died = start(0, fraction, 10_000, free, outcome="oom_runtime", failure=failure, free_before_load_gib=1.0)
    advice = advise([died], target)
    assert (advice.status, is_kept(advice, fraction)) == (Status.AT_RISK, True)
    assert "memory_held_elsewhere" in codes(advice)
    assert "other processes held" in advice.headline.text
    served = start(1, fraction, 600_000, 9.0, checks=[passed(8_000)], free_before_load_gib=78.9)
    again = advise([died, served], target)
    assert "memory_held_elsewhere" not in codes(again)


@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.POOL, Phase.GRAPH_CAPTURE, Phase.UNKNOWN])
@pytest.mark.parametrize("name", list(ENGINES))
def test_a_start_that_failed_for_want_of_gpu_memory_is_a_death(name: EngineName, phase: Phase) -> None:
    """The outcome says "failed" alone; the same flags are not advised again."""
    failure = Failure(phase=phase, cause=Cause.GPU_MEMORY)
    failed = qwen(1, 0.9, on=name, outcome="failed", failure=failure)
    assert failed.death is (Outcome.OOM_RUNTIME if phase is Phase.SERVING else Outcome.OOM_STARTUP)
    advice = advise([failed], 100_000)
    assert advice.status is not Status.OK or advised_fraction(advice) < 0.88
    assert "ran_out_of_memory" in codes(advice)


@pytest.mark.parametrize("cause", [Cause.GPU_MEMORY, Cause.ERROR, Cause.KILLED, None])
@pytest.mark.parametrize("outcome", ["failed", "oom_startup"])
@pytest.mark.parametrize("name", list(ENGINES))
def test_flags_under_which_the_weights_never_loaded_are_not_ok(
    name: EngineName, outcome: str, cause: Cause | None
) -> None:
    """No fraction helps there; a later start that came up does."""
    failed = qwen(1, 0.9, on=name, outcome=outcome, failure=Failure(phase=Phase.LOAD, cause=cause))
    advice = advise([failed], 100_000)
    assert advice.status is Status.AT_RISK
    assert "same_flags_failed" in codes(advice)
    later = qwen(2, 0.85, 370_000, 9.0, on=name, checks=[passed(120_000)])
    assert "same_flags_failed" not in codes(advise([failed, later], 100_000))


# Figures that cannot be


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
@pytest.mark.parametrize(("fraction", "pool"), [(0.02, 400_000), (0.09, 381_000), (0.092, None), (0.04, 1_000)])
def test_a_fraction_that_leaves_no_room_for_the_weights_is_doubted(
    name: EngineName, fraction: float, pool: int | None
) -> None:
    """What runs is kept by its own figures, but never without saying that its fraction cannot be."""
    advice = advise([qwen(1, fraction, pool, on=name)], 900)
    assert advice.status is not Status.OK
    assert "mistyped" in words(advice)


@pytest.mark.parametrize("fraction", [0.85, 0.5, 0.3])
def test_a_fraction_that_the_weights_leave_room_for_is_not_doubted(fraction: float) -> None:
    pool = round((fraction * 79.0 - 15.7) * 2**30 / 147_456)
    assert "implausible_fraction" not in codes(advise([qwen(1, fraction, pool, 9.0)], 900))


def test_a_tiny_fraction_beside_a_flag_that_sizes_the_pool_is_not_doubted() -> None:
    """vLLM takes bytes whatever the fraction says."""
    start = qwen(1, 0.02, 60_000, on=EngineName.VLLM, flags={"kv_cache_memory_bytes": 9 * 2**30})
    assert "implausible_fraction" not in codes(advise([start], 50_000))


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
@pytest.mark.parametrize("free", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("before", [(), ((0.85, 9.0), (0.87, 7.5))])
def test_no_fraction_above_what_runs_has_more_room_than_was_measured_there(
    name: EngineName, free: float, before: tuple[tuple[float, float], ...]
) -> None:
    """Little was left, which the arithmetic does not expect: more of the GPU for the pool leaves no more."""
    starts = [qwen(n, f, round(572_000 * (f - 0.198)), left, on=name) for n, (f, left) in enumerate(before)]
    starts.append(qwen(9, 0.9, round(572_000 * (0.9 - 0.198)), free, on=name))
    fit = fitted(starts)
    flags = {key: value for key, value in fit.flags.items() if "fraction" not in key and "utilization" not in key}
    measured = fit.need(flags, 100_000).at_most(free)
    advice = advise(starts, 402_300)
    is_above = advice.probability is not None and advised_fraction(advice) >= 0.9
    assert not is_above or (advice.probability.memory or 0.0) <= measured + 0.001


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
@pytest.mark.parametrize("prefer", ["pool", "headroom"])
@pytest.mark.parametrize(
    "pools", [(300_000, 200_000, 400_000), (344_000, 344_000, 172_000), (500_000, 344_000, 200_000)]
)
@pytest.mark.parametrize("free", [None, 16.0])
def test_starts_that_contradict_one_another_make_no_restart_ok(
    name: EngineName, prefer: str, pools: tuple[int, ...], free: float | None
) -> None:
    """Other pools at the very same flags: what runs is kept by its own figures, anything else is at risk, in words."""
    starts = [qwen(number, 0.8, pool, free, on=name) for number, pool in enumerate(pools)]
    advice = advise(starts, 100_000, prefer=prefer)
    assert advice.status is Status.AT_RISK or not advice.changes
    if advice.changes:
        assert "contradict one another" in advice.headline.text
    assert is_kept(advise(starts, 100_000), 0.8)


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
@pytest.mark.parametrize("odd", [0.085, 0.0085, 0.05])
@pytest.mark.parametrize("is_newest", [False, True])
def test_a_mistyped_fraction_beside_a_sound_one_moves_nothing(name: EngineName, odd: float, is_newest: bool) -> None:
    """The line is the sound start's, whichever came first, and the other is named."""
    sound = qwen(5, 0.85, 373_000, 9.0, on=name)
    starts = [sound, qwen(9 if is_newest else 1, odd, 375_000, 9.0, on=name)]
    flag = "mem_fraction_static" if name is EngineName.SGLANG else "gpu_memory_utilization"
    alone, beside = (predict(each, {flag: 0.7}).pool_tokens for each in ([sound], starts))
    assert alone is not None
    assert beside is not None
    assert beside.median == pytest.approx(alone.median, rel=0.001)
    advice = advise(starts, 200_000, prefer="headroom")
    assert "mistyped" in words(advice)
    assert not is_newest or advice.status is not Status.OK


def test_tiny_fractions_whose_pools_are_in_proportion_are_believed() -> None:
    """A tiny model is served at 0.005: as many tokens per unit of fraction as at 0.05 contradict nothing."""
    odd = Hardware(gpu="Tenstorrent P150", gpu_count=1)
    starts = [
        replace(qwen(n, f, round(345_000 * f), on=EngineName.VLLM), model=Model(name="opt-125m"), hardware=odd)
        for n, f in enumerate((0.005, 0.01, 0.05), start=1)
    ]
    for left_out in starts:
        pool = predict([one for one in starts if one is not left_out], left_out.flags).pool_tokens
        assert pool is not None
        assert pool.median == pytest.approx(left_out.measurements.pool_tokens, rel=0.02)


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
@pytest.mark.parametrize("died", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("prefer", ["keep", "pool", "headroom"])
def test_a_later_death_below_a_start_that_came_up_does_not_undo_it(name: EngineName, died: float, prefer: str) -> None:
    """No fraction below the death holds the target: the start that came up and held it is kept, at risk."""
    good = qwen(0, 0.9, 400_000, 8.0, on=name)
    advice = advise([good, qwen(1, died, on=name, outcome="oom_startup")], 130_000, concurrent=2, prefer=prefer)
    assert (advice.status, is_kept(advice, 0.9)) == (Status.AT_RISK, True)
    assert f"ran out of memory at {died:g}" in advice.headline.text
    assert "what else uses the GPU" in advice.headline.text
    serving = qwen(1, died, 100_000, on=name, outcome="oom_runtime")
    assert not is_kept(advise([good, serving], 130_000, concurrent=2, prefer=prefer), 0.9)


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
def test_a_limit_printed_at_other_flags_does_not_bind_a_start_that_held_the_target(name: EngineName) -> None:
    """Rule 1: its own pool, context length and printed limit answer for it; at flags that printed a limit it binds."""
    held = qwen(0, 0.9, 400_000, 8.0, on=name)
    short = qwen(1, 0.5, 20_000, 40.0, on=name, longest_prompt_tokens=18_425)
    assert advise([held, short], 120_000).status in (Status.OK, Status.AT_RISK)
    assert advised_fraction(advise([held, short], 120_000)) == 0.9
    same = qwen(2, 0.9, 400_000, 8.0, on=name, longest_prompt_tokens=18_425)
    bound = advise([held, same], 120_000)
    assert (bound.status, bound.binding_constraint) == (Status.INFEASIBLE, "input_limit")
    unsaid = advise([same, qwen(3, 0.9, 400_000, 8.0, on=name)], 120_000)
    assert (unsaid.status, unsaid.binding_constraint) == (Status.INFEASIBLE, "input_limit")


@pytest.mark.parametrize("free", [0.0, 5e-324, 1e-300])
def test_hardly_any_free_memory_is_no_crash(free: float) -> None:
    assert advise([qwen(1, 0.9, 400_000, free)], 100_000).status in Status


# Counts of blocks


@pytest.mark.parametrize("block", [64, 128])
def test_lmdeploy_counts_of_blocks_hold_what_they_say(block: int) -> None:
    """From one start with 4,000 blocks: kept, more blocks where more is asked for, none where memory does not allow."""
    blocks = 256_000 // block
    ran = qwen(1, blocks, blocks * block, on=EngineName.LMDEPLOY, flags={"session_len": 131_072})
    assert is_kept(advise([ran], 100_000), blocks)
    more = advise([ran], 100_000, concurrent=3)
    assert more.flags["cache_max_entry_count"] == -(-blocks * 300_000 * 102 // (256_000 * 100))
    assert more.prediction.pool_tokens is not None
    assert more.prediction.pool_tokens.median >= 300_000
    assert advise([ran], 100_000, concurrent=10).binding_constraint == "free_memory"
    pool = predict([ran], {"cache_max_entry_count": 1_000}).pool_tokens
    assert pool is not None
    assert round(pool.median) == 1_000 * block


def test_lmdeploy_counts_are_predicted_from_a_start_with_a_fraction() -> None:
    ran = qwen(1, 0.8, 300_032, on=EngineName.LMDEPLOY)
    prediction = predict([ran], {"cache_max_entry_count": 5_000})
    assert prediction.pool_tokens is not None
    assert round(prediction.pool_tokens.median) == 320_000
    assert prediction.free_at_ready_gib is not None
    assert "pool_is_capped" in {warning.code for warning in prediction.warnings}


def test_a_death_at_a_count_of_blocks_rules_out_as_many_until_a_later_start_comes_up_there() -> None:
    blocks: dict[str, Any] = {"on": EngineName.LMDEPLOY, "flags": {"session_len": 500_000}}
    ran = qwen(1, 2_000, 128_000, 50.0, **blocks)
    died = qwen(2, 4_500, **blocks, outcome="oom_startup")
    assert is_kept(advise([ran, died], 100_000), 2_000)
    assert advised_fraction(advise([ran, died], 200_000)) == 3_188
    refused = advise([ran, died], 290_000)
    assert (refused.status, refused.binding_constraint) == (Status.INFEASIBLE, "out_of_memory")
    came_up = qwen(3, 5_000, 320_000, 20.0, **blocks)
    assert is_kept(advise([ran, died, came_up], 290_000), 5_000)


def test_a_death_at_a_count_of_blocks_says_nothing_of_fractions_nor_a_fraction_of_counts() -> None:
    ran = [
        qwen(number, f, int(375_000 * f), 70 * (1 - f), on=EngineName.LMDEPLOY) for number, f in ((1, 0.5), (2, 0.8))
    ]
    died = qwen(3, 4_500, on=EngineName.LMDEPLOY, outcome="oom_startup")
    assert is_kept(advise([*ran, died], 100_000), 0.8)
    assert advised_fraction(advise([*ran, died], 310_000)) == advised_fraction(advise(ran, 310_000))
    counted = qwen(4, 2_000, 128_000, 50.0, on=EngineName.LMDEPLOY)
    assert is_kept(advise([qwen(1, 0.5, on=EngineName.LMDEPLOY, outcome="oom_startup"), counted], 100_000), 2_000)


def test_flags_of_an_older_start_are_changes_of_what_runs() -> None:
    """No line predicts other counts here, so the older start that holds the target is advised, by its flags."""
    model = Model(name="some/model")
    ran = [
        start(1, 0.8, 1_000_000, 20.0, engine=ENGINES[EngineName.LMDEPLOY][0], model=model),
        start(2, 1_000, 64_000, 60.0, engine=ENGINES[EngineName.LMDEPLOY][0], model=model),
    ]
    advice = advise(ran, 500_000)
    assert [(change.flag, change.from_value, change.to_value) for change in advice.changes] == [
        ("cache_max_entry_count", 1_000, 0.8)
    ]
    assert advice.headline.text.startswith("Restart with --cache-max-entry-count 0.8: ")


# Speculation


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"method": "ngram", "num_speculative_tokens": 3}', "ngram"),
        ('{"num_speculative_tokens": 3, "prompt_lookup_max": 4, "model": "[ngram]"}', "ngram"),
        ("{'method': 'EAGLE3', 'model': 'org/draft'}", "eagle3"),
        ('{"model": "org/draft", "num_speculative_tokens": 5}', "draft_model"),
        ('{"method": null, "model": "org/draft"}', "draft_model"),
        ("{}", ""),
        ("null", ""),
        ("none", ""),
        ("DFLASH", "dflash"),
        (None, ""),
        (False, ""),
    ],
)
def test_the_speculative_method_is_read_from_whatever_names_it(value: Any, expected: str) -> None:
    assert speculation({"speculative_config": value}) == expected


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_from_the_text_itself_cost_no_layers(method: str) -> None:
    engine = ENGINES[EngineName.VLLM][0]
    costs = [
        token_cost(QWEN, engine, {"tensor_parallel_size": 1, "speculative_config": value}, 1)
        for value in (None, f'{{"method": "{method}", "num_speculative_tokens": 4}}')
    ]
    assert costs[0] == costs[1]


# KV dtypes that a post by hand does not name


def bare(number: int, fraction: float, times: float, dtype: str | None = None) -> Observation:
    """Return a start whose pool is so many times the 16-bit one, with a KV dtype where it is named."""
    engine, flags = ENGINES[EngineName.SGLANG]
    own = {key: value for key, value in flags.items() if key != "kv_cache_dtype"}
    own |= {} if dtype is None else {"kv_cache_dtype": dtype}
    model = Model(name="Qwen/Qwen3-8B", facts=QWEN)
    pool = round(571_000 * times * (fraction - 0.2))
    return start(number, fraction, pool, hardware=H100, model=model, engine=engine, flags=own)


@pytest.mark.parametrize(("named", "there", "silent"), [("fp8_e4m3", 2.0, 1.0), ("auto", 1.0, 2.0), ("fp8", 1.9, 1.0)])
@pytest.mark.parametrize("count", [1, 2])
def test_a_post_without_a_dtype_goes_where_its_pool_shows(named: str, there: float, silent: float, count: int) -> None:
    """Beside starts of the other dtype it has a deployment of its own, and both are answered for."""
    starts = [bare(1, 0.85, there, named), bare(2, 0.8, silent), bare(3, 0.9, silent)][: 1 + count]
    fit = fitted(starts)
    assert {start.flags.get("kv_cache_dtype") == named for start in fit.starts} == {False}
    assert "confounded" not in fit.summary.labels
    pool = fit.predict({"mem_fraction_static": 0.88}).pool_tokens
    assert pool is not None
    assert pool.median == pytest.approx(571_000 * silent * 0.68, rel=0.02)


@pytest.mark.parametrize("named", ["fp8_e4m3", "auto"])
def test_a_post_without_a_dtype_joins_starts_like_itself(named: str) -> None:
    """Unknown joins known where the pools agree."""
    times = 2.0 if named != "auto" else 1.0
    assert len(fitted([bare(1, 0.85, times, named), bare(2, 0.8, times)]).starts) == 2


# Free memory that cannot be


@pytest.mark.parametrize("free", [129.0, 1e6, -5.0, -1e300])
def test_free_memory_that_the_gpu_cannot_have_is_not_counted_and_named(free: float) -> None:
    starts = [qwen(1, 0.85, 371_000), qwen(2, 0.9, 400_000, free)]
    advice = advise(starts, 100_000)
    assert "impossible_free_memory" in codes(advice)
    predicted = predict(starts, {"mem_fraction_static": 0.88}).free_at_ready_gib
    assert predicted is None or abs(predicted.median) < 80.0


@pytest.mark.parametrize("target", [100_000, 500_000_000])
def test_no_figure_beyond_the_gpu_is_answered(target: int) -> None:
    """Bytes for a pool far beyond the GPU leave -21,000 GiB: null, and named."""
    flags = {"kv_cache_memory_bytes": 2**30}
    start = qwen(1, 0.9, 7_000, on=EngineName.VLLM, flags=flags)
    free = advise([start], target).prediction.free_at_ready_gib
    assert free is None or abs(free.median) <= 80.0
    if target > 1_000_000:
        assert free is None
        assert "impossible_free_memory" in codes(advise([start], target))


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
def test_an_infeasible_answer_shows_no_fraction_that_nobody_would_start_with(name: EngineName) -> None:
    """A death at 0.02 leaves only fractions below: none is shown, and that is said."""
    starts = [qwen(1, 0.3, 40_000, 50.0, on=name, outcome="oom_runtime"), qwen(2, 0.02, on=name, outcome="oom_startup")]
    advice = advise(starts, 100_000)
    assert (advice.status, advice.binding_constraint) == (Status.INFEASIBLE, "out_of_memory")
    assert not {"mem_fraction_static", "gpu_memory_utilization"} & set(advice.flags)
    assert advice.prediction == AdvicePrediction()
    assert "no_fraction" in codes(advice)


def test_a_prompt_need_beyond_the_gpu_is_left_out_and_named() -> None:
    """Latent attention's need grows with the prompt: by arithmetic 90,000 GiB at twenty million tokens."""
    facts = {"num_hidden_layers": 61, "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    model = Model(name="some/latent", facts=facts)
    advice = advise([start(1, 0.9, 520_000, 7.0, model=model, checks=[passed(60_000, 7.0, 2.0)])], 20_000_000)
    assert advice.status is Status.INFEASIBLE
    assert advice.prediction.headroom_gib is None
    assert "impossible_prompt_need" in codes(advice)


def test_without_any_start_the_answer_does_not_speak_of_one() -> None:
    """Nothing was posted: what is lacking is a start, not a second one."""
    hardware, engine = Hardware(gpu="Some Accelerator", gpu_count=1), ENGINES[EngineName.SGLANG][0]
    advice = recommend(cold(hardware, Model(name="any/model"), engine), question(1_000))
    assert advice.status is Status.NOT_ENOUGH_EVIDENCE
    assert "No start was posted" in advice.explanation
    assert "second start" not in advice.explanation


@pytest.mark.parametrize("prefer", ["keep", "pool"])
@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM, EngineName.TENSORRT_LLM])
def test_a_restart_just_below_a_death_is_at_risk(name: EngineName, prefer: str) -> None:
    """Free memory measured a tenth below contradicts the death, and does not make the step beside it safe."""
    starts = [qwen(0, 0.8, 344_000, 16.0, on=name), qwen(1, 0.9, on=name, outcome="oom_startup")]
    for target in range(340_000, 420_000, 10_000):
        advice = advise(starts, target, prefer=prefer)
        if advice.status is Status.OK and advice.changes:
            assert advised_fraction(advice) <= 0.89 + 1e-9, words(advice)


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
@pytest.mark.parametrize("free", [None, 16.0])
@pytest.mark.parametrize(
    ("pools", "is_ok"),
    [
        ((1, 100_000_000), False),
        ((1, 10**9), False),
        ((344_000, 344_000, 34_400_000), False),
        ((344_000, 344_000, 344_000_000), False),
        ((344, 344, 344_000), False),
        ((34_400_000, 344_000, 344_000), True),
        ((344_000_000, 344_000, 344_000), True),
        ((344_000, 34_400_000, 344_000), True),
        ((344_000, 344_010), True),
    ],
)
def test_a_pool_that_others_contradict_is_not_ok_by_itself(
    name: EngineName, free: float | None, pools: tuple[int, ...], is_ok: bool
) -> None:
    """Of equal flags the newest pool is believed where the one before it, or most, bear it out; else it is named."""
    starts = [qwen(number, 0.8, pool, free, on=name) for number, pool in enumerate(pools)]
    advice = advise(starts, 100_000)
    assert is_kept(advice, 0.8)
    assert advice.status is (Status.OK if is_ok else Status.AT_RISK)
    named = {"confounded", "drift", "impossible_pool", "implausible_fraction"}
    assert max(pools) < 1.01 * min(pools) or codes(advice) & named


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
@pytest.mark.parametrize(
    ("readings", "is_ok"),
    [((0.05, 60.0), False), ((0.05, 0.06, 16.0), False), ((0.05, 16.0, 16.1), True), ((16.0, 0.05, 16.1), True)],
)
def test_free_memory_that_others_contradict_is_not_ok_by_itself(
    name: EngineName, readings: tuple[float, ...], is_ok: bool
) -> None:
    """Of equal flags the newest free memory is believed where the one before it, or most, bear it out."""
    starts = [qwen(number, 0.8, 344_000, gib, on=name) for number, gib in enumerate(readings)]
    advice = advise(starts, 100_000)
    assert is_kept(advice, 0.8)
    assert advice.status is (Status.OK if is_ok else Status.AT_RISK)
    assert ("free_memory_contradicted" in codes(advice)) is not is_ok
    proven = replace(starts[-1], verifications=(passed(100_000, readings[-1], 1.0),))
    assert advise([*starts[:-1], proven], 100_000).status is Status.OK


def test_a_pool_that_no_gpu_holds_is_not_shown() -> None:
    """54 thousand million tokens are a slip: what runs is kept at risk, without the figure, and the slip is named."""
    advice = advise([start(1, 0.8, 54_000_000_000, 16.0)], 100_000)
    assert is_kept(advice, 0.8)
    assert advice.status is Status.AT_RISK
    assert advice.prediction.pool_tokens is None
    assert "impossible_pool" in codes(advice)
    assert "54,000,000,000" not in advice.headline.text
    assert "more tokens than its GPU can hold" in advice.headline.text
