"""What an answer says beside its figures: loans, repeats, layouts, unknown flags, and restarts that are not needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain import ledgers
from domain.advice_fits import PLAIN, SGLANG_FLAGS, codes, plain
from domain.worked_starts import KIMI, kimi_flags, start
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Advice, Prediction, Question, Status, percent
from kvyield_server.domain.facts.observation import (
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Phase,
)
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, fit_pair


def detail(answer: Advice | Prediction, code: str) -> str:
    return next(warning.detail for warning in answer.warnings if warning.code == code)


def kimi(number: int, fraction: float, **more: int | str | None) -> Observation:
    pool = round(1_303_889 * (fraction - 0.77244))
    free = 4.2 - 89.0 * (fraction - 0.94)
    return start(number, kimi_flags(fraction, 8, **more), pool_tokens=pool, free_at_ready_gib=free)


def only(*starts: Observation) -> DeploymentFit:
    (fit,) = fit_pair(PairEvidence(starts)).deployments
    return fit


@pytest.mark.parametrize(
    "question",
    [
        Question(target_tokens=140_000),
        Question(target_tokens=90_000, concurrent=33),
        Question(target_tokens=90_000, flags={"chunked_prefill_size": 4096}),
    ],
)
def test_what_runs_is_kept_only_where_it_answers(question: Question) -> None:
    """A context too short, too few requests or another held flag: what runs is not simply kept."""
    fit = plain(EngineName.SGLANG, {**SGLANG_FLAGS, "mem_fraction_static": 0.8})
    assert recommend(fit, Question(target_tokens=90_000)).changes == ()
    assert "flags_equal_running" not in codes(recommend(fit, question))


def wide(**more: str | None) -> DeploymentFit:
    model = Model(name="plain", facts={**PLAIN.facts, "torch_dtype": "bfloat16", "num_hidden_layers": 32})
    each = start(
        1,
        {**kimi_flags(0.8, 8, speculative_algorithm=None), **more},
        pool_tokens=3_611_000,
        free_at_ready_gib=15.0,
        model=model,
    )
    return only(replace(each, measurements=replace(each.measurements, weights_gib=20.0, free_before_load_gib=94.0)))


def test_a_prediction_counts_lighter_weights_as_the_lever_does() -> None:
    """Eight-bit weights where 16-bit ones run leave half of them to the pool, with doubt; free memory stays."""
    fit = wide()
    here, there = fit.predict({}), fit.predict({"quantization": "fp8"})
    assert here.pool_tokens is not None
    assert there.pool_tokens is not None
    cost = fit.bytes_per_token({})
    assert cost is not None
    gained = (there.pool_tokens.median - here.pool_tokens.median) * cost.median / 2**30
    assert gained == pytest.approx(10.0, abs=0.5)
    width, before = (x.pool_tokens.high - x.pool_tokens.low for x in (there, here) if x.pool_tokens)
    assert width > before
    assert there.free_at_ready_gib is not None
    assert here.free_at_ready_gib is not None
    assert there.free_at_ready_gib.median == pytest.approx(here.free_at_ready_gib.median, abs=1.0)


def test_a_quantisation_whose_weight_nothing_tells_is_named() -> None:
    """Where weights are not known, the flag is named as an unknown change; where it is the running one, it is not."""
    assert "quantization awq" in detail(wide().predict({"quantization": "awq"}), "unknown_change")
    same = wide(quantization="fp8").predict({"quantization": "fp8"})
    assert "unknown_change" not in {warning.code for warning in same.warnings}
    asked = recommend(wide(), Question(target_tokens=200_000, flags={"quantization": "awq"}))
    assert "quantization awq" in detail(asked, "unknown_change")


def test_a_flag_that_nothing_is_known_of_is_named() -> None:
    """A misspelt flag is named in predictions and advice; a known one, or one that a start has, is not."""
    fit = only(kimi(1, 0.9, enable_metrics="yes"), kimi(2, 0.92, enable_metrics="yes"))
    odd = fit.predict({"max_runing_requests": 8, "mem_fraction_static": 0.9})
    assert "max_runing_requests" in detail(odd, "unknown_flag")
    known = fit.predict({"enable_metrics": "no", "max_running_requests": 4, "cuda_graph_max_bs": 8})
    assert "unknown_flag" not in {warning.code for warning in known.warnings}
    asked = recommend(fit, Question(target_tokens=150_000, flags={"kv_dtpye": "fp8"}))
    assert "kv_dtpye" in detail(asked, "unknown_flag")


def test_what_other_deployments_lend_is_said() -> None:
    """A deployment of one start beside another with three says how many starts of how many lend it their slope."""
    model = Model(name="m")
    others = [replace(kimi(n, f, attention_backend="fa3"), model=model) for n, f in ((1, 0.85), (2, 0.9), (3, 0.94))]
    own = replace(kimi(9, 0.9, attention_backend="flashinfer"), model=model)
    fit = fit_pair(PairEvidence((*others, own))).deployments[0]
    basis = fit.summary.basis
    assert (basis.lent_starts, basis.lent_deployments) == (3, 1)
    said = recommend(fit, Question(target_tokens=150_000)).explanation
    assert "3 starts of 1 other deployment of this pair also inform the slope." in said
    assert only(replace(kimi(1, 0.9), model=KIMI)).summary.basis.lent_starts == 0


def test_a_start_reported_again_when_it_died_counts_once() -> None:
    """A start that was posted as ready and again as out of memory is one point, under the id of its death."""
    ready = replace(kimi(1, 0.94), host="a")
    failure = Failure(phase=Phase.SERVING, prompt_tokens=150_000)
    again = replace(
        kimi(2, 0.94), host="a", observed_at=ready.observed_at, outcome=Outcome.OOM_RUNTIME, failure=failure
    )
    fit = only(kimi(3, 0.9), ready, again)
    uses = {item.observation_id: item.use for item in fit.summary.evidence}
    assert uses == {kimi(3, 0.9).id: "point", again.id: "point"}
    assert fit.summary.labels == ("oom_runtime",)
    for other in (replace(again, host="b"), replace(again, host=None), kimi(2, 0.94)):
        assert {item.use for item in only(kimi(3, 0.9), ready, other).summary.evidence} == {"point"}


def test_a_layout_beyond_the_hardware_is_said() -> None:
    """A start over more GPUs than its hardware has warns; with data-parallel attention ranks share them."""
    beyond = only(kimi(1, 0.9, dp_size=2))
    assert "layout_exceeds_hardware" in {warning.code for warning in beyond.summary.warnings}
    shared = only(kimi(1, 0.9, dp_size=2, enable_dp_attention=1))
    assert "layout_exceeds_hardware" not in {warning.code for warning in shared.summary.warnings}


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (1.0, "> 99.9 %"),
        (0.99951, "> 99.9 %"),
        (0.9994, "99.9 %"),
        (0.9904, "99 %"),
        (0.5, "50 %"),
        (0.012, "1 %"),
        (0.004, "0.4 %"),
        (0.0004, "< 0.1 %"),
        (0.0, "< 0.1 %"),
    ],
)
def test_no_probability_is_stated_as_certainty(probability: float, words: str) -> None:
    """What rounds to one is more than 99.9 %, what rounds to nothing is less than 0.1 %."""
    assert percent(probability) == words


def test_the_explanation_states_no_certainty() -> None:
    """An explanation never says "probability 1.000"."""
    said = recommend(plain(EngineName.SGLANG, SGLANG_FLAGS), Question(target_tokens=4_000)).explanation
    assert "100 %" not in said
    assert "> 99.9 %" in said


def test_the_nearest_to_a_target_out_of_reach_is_a_pool_of_some_size() -> None:
    """A chance of almost nothing everywhere does not make a pool of no tokens the nearest answer."""
    for target in (300_000, 800_000, 5_000_000):
        advice = recommend(only(kimi(1, 0.85), kimi(2, 0.90)), Question(target_tokens=target))
        pool = advice.prediction.pool_tokens
        assert advice.status.value == "infeasible"
        assert pool is not None
        assert pool.median > 250_000, advice.explanation


def test_without_any_pool_the_answer_does_not_speak_of_one() -> None:
    """A ledger of a start that failed before its pool is told what to try next, and asked for one that came up."""
    bare = replace(kimi(1, 0.9), measurements=Measurements())
    for outcome, phase, told in (
        (Outcome.OOM_STARTUP, Phase.POOL, "ran out of GPU memory after the weights were loaded: try a smaller mem_f"),
        (Outcome.OOM_STARTUP, Phase.LOAD, "ran out of GPU memory before it had a pool: no mem_fraction_static helps"),
        (Outcome.REFUSED, Phase.POOL, "was refused for want of a pool: try a larger mem_fraction_static."),
        (Outcome.FAILED, Phase.POOL, ""),
    ):
        failed = replace(bare, outcome=outcome, failure=Failure(phase=phase))
        text = recommend(only(failed), Question(target_tokens=100_000)).headline.text
        newest = f" The newest, at 0.9, {told}" if told else " Post the log of a start that came up"
        assert text.startswith(f"Not enough evidence. No start that was posted shows a pool.{newest}")
    others = replace(bare, outcome=Outcome.OOM_STARTUP, measurements=Measurements(free_before_load_gib=40.0))
    assert "free that first." in recommend(only(others), Question(target_tokens=100_000)).explanation


def test_no_pool_below_a_death_is_said() -> None:
    """0.84 was refused, 0.85 ran out of memory (sgl-project/sglang issue 4330): nothing lies between."""
    facts = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    l40s = Hardware(gpu="NVIDIA L40S", gpu_count=1, memory_gib=44.4, unified_memory=False)
    common = {"hardware": l40s, "model": Model(name="example/8b", facts=facts), "flags": {"tp_size": 1}}
    loaded = {"free_before_load_gib": 43.81, "free_after_load_gib": 6.71}
    refused = ledgers.start(1, 0.84, outcome="refused", **loaded, **common)
    died = ledgers.start(2, 0.85, outcome="oom_startup", failure=Failure(phase=Phase.GRAPH_CAPTURE), **loaded, **common)
    answer = recommend(only(refused, died), Question(target_tokens=8_000))
    assert answer.status is Status.INFEASIBLE
    assert "No fraction at which the engine would start gives a pool." in answer.explanation
    assert "The nearest" not in answer.explanation
