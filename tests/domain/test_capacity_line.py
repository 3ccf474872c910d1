"""The capacity line on real starts: the worked case, one H200 measured in full, and public cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, islice
from statistics import median

import numpy as np
import pytest

from domain.real_starts import (
    KIMI_SLOPE,
    KIMI_ZERO,
    case_groups,
    h200_ladder,
    h200_starts,
    worked_case,
)
from kvyield_server.domain.answers import BasisKind, Estimate
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Model, Observation, Scalar
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, fit_pair

LINEAR_CASES = (
    "vllm|P150x1|opt-125m",
    "vllm|ladder-62606397565",
    "sglang|H100x16|MiMo-V2.5-Pro|dp-attn",
)


def fit(starts: Sequence[Observation]) -> DeploymentFit:
    (only,) = fit_pair(PairEvidence(tuple(starts))).deployments
    return only


def pool(model: DeploymentFit, start: Observation) -> Estimate:
    estimate = model.predict(start.flags).pool_tokens
    assert estimate is not None
    return estimate


def holds(estimate: Estimate, value: float) -> bool:
    return estimate.low <= value <= estimate.high


def test_two_starts_of_the_worked_case_tell_the_third_pool_to_two_tokens() -> None:
    """Starts 1 and 2 predict 218,484 tokens at 0.94, with a narrow interval around it."""
    first, second, third = worked_case()
    estimate = pool(fit([first, second]), third)
    assert abs(estimate.median - 218_484) <= 2
    assert holds(estimate, 218_484)
    assert estimate.high - estimate.low < 400


def test_three_starts_give_the_documented_interval_at_the_advised_fraction() -> None:
    """At 0.926 the median is the documented one, and the interval no wider."""
    estimate = fit(worked_case()).predict({"mem_fraction_static": 0.926}).pool_tokens
    assert estimate is not None
    assert estimate.median == pytest.approx(200_225, abs=6)
    assert 200_144 - 10 <= estimate.low <= estimate.high <= 200_306 + 10


def test_one_start_with_config_and_gpu_reaches_the_target_in_one_restart() -> None:
    """From start 1 alone the interval at 0.94 holds the truth, and the 95 % advice for 200,007 truly reaches it."""
    first, _, third = worked_case()
    model = fit([first])
    assert holds(pool(model, third), 218_484)
    grid = np.array([step / 1000 for step in range(850, 1000)])
    predicted = model.at(model.flags, grid).pool
    assert predicted is not None
    advised = float(grid[np.argmax(predicted.above(200_007) >= 0.95)])
    assert KIMI_SLOPE * (advised - KIMI_ZERO) >= 200_007
    assert advised <= 0.95


def test_worked_case_prices_a_token_as_its_layers_do() -> None:
    """The slope and the GPU together give 77,184 bytes per token to within one per cent."""
    cost = fit(worked_case()).summary.parameters["bytes_per_token"]
    assert cost.median == pytest.approx(77_184, rel=0.01)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 5])
@pytest.mark.parametrize("model", ["qwen3-8b", "dsv2-lite"])
def test_any_two_sglang_starts_predict_all_others_to_the_token(model: str, every: int) -> None:
    """Two starts 0.02 or more apart predict every other within 2 + distance / spacing tokens, inside the interval."""
    ladder = h200_ladder(model)
    inside = []
    for low, high in islice(combinations(ladder, 2), 0, None, every):
        spacing = (high.fraction or 0.0) - (low.fraction or 0.0)
        if spacing < 0.0199:
            continue
        line = fit([low, high])
        for other in ladder:
            estimate, truth = pool(line, other), other.measurements.pool_tokens or 0
            distance = min(abs((other.fraction or 0.0) - (end.fraction or 0.0)) for end in (low, high))
            assert abs(estimate.median - truth) <= 2 + distance / spacing
            inside.append(holds(estimate, truth))
    assert sum(inside) >= 0.85 * len(inside)


@pytest.mark.parametrize("model", ["qwen3-8b", "dsv2-lite"])
def test_one_sglang_start_with_its_memory_lines_predicts_other_fractions(model: str) -> None:
    """From 0.5 up the median error of the pool is at most 0.03 %, the worst 0.1 %."""
    ladder = [start for start in h200_ladder(model) if (start.fraction or 0.0) >= 0.5]
    errors, inside = one_start_errors(ladder)
    assert median(errors) <= 0.0003
    assert max(errors) <= 0.001
    assert sum(inside) >= 0.85 * len(inside)


def test_one_vllm_start_with_its_kv_memory_predicts_other_fractions() -> None:
    """With a logged K and the device total, the median error of the pool is at most 0.1 %, the worst 2 %."""
    errors, inside = one_start_errors(h200_ladder("qwen3-8b", "vllm"))
    assert median(errors) <= 0.001
    assert max(errors) <= 0.02
    assert sum(inside) >= 0.85 * len(inside)


def one_start_errors(ladder: Sequence[Observation]) -> tuple[list[float], list[bool]]:
    errors, inside = [], []
    for start in ladder:
        line = fit([start])
        for other in ladder:
            if other is not start:
                estimate, truth = pool(line, other), other.measurements.pool_tokens or 0
                errors.append(abs(estimate.median / truth - 1.0))
                inside.append(holds(estimate, truth))
    return errors, inside


def test_one_public_start_with_its_kv_memory_predicts_the_others() -> None:
    """On a GPU that is known by its size alone, one logged K gives the others to 0.1 % at the median, 2 % at worst."""
    starts = [s for s in case_groups()["vllm|A10-24Q|Qwen3-0.6B"] if s.measurements.kv_cache_gib is not None]
    errors = []
    for start in starts:
        line = fit([start])
        for other in starts:
            estimate, truth = line.predict(other.flags).kv_cache_gib, other.measurements.kv_cache_gib
            assert estimate is not None
            assert truth is not None
            assert holds(estimate, truth)
            errors.append(abs(estimate.median / truth - 1.0))
    assert median(errors) <= 0.001
    assert max(errors) <= 0.02


@pytest.mark.parametrize("name", LINEAR_CASES)
def test_public_groups_predict_the_start_left_out(name: str) -> None:
    """Fit on any two of three or more real fractions, every other pool is met within 0.5 % or one page."""
    starts = case_groups()[name]
    for kept in combinations(starts, 2):
        line = fit(kept)
        for other in starts:
            truth = other.measurements.pool_tokens or 0
            page = line.page_tokens
            assert abs(pool(line, other).median - truth) <= max(0.005 * truth, 4 * page)


def test_left_out_public_starts_lie_inside_their_intervals() -> None:
    """At least 85 % of real left-out points on discrete GPUs lie inside 90 % intervals; the median error is tiny."""
    errors, inside = [], []
    for name in LINEAR_CASES:
        starts = case_groups()[name]
        for other in starts:
            line = fit([start for start in starts if start is not other])
            estimate, truth = pool(line, other), other.measurements.pool_tokens or 0
            errors.append(abs(estimate.median / truth - 1.0))
            inside.append(holds(estimate, truth))
    print(f"left out: {sum(inside)}/{len(inside)} inside, median error {100 * median(errors):.4f} %")
    assert sum(inside) >= 0.85 * len(inside)
    assert median(errors) <= 0.0002


def test_memory_only_starts_fit_a_line_in_gib() -> None:
    """A group that printed GiB but no tokens is fitted in GiB, and one token figure prices it."""
    starts = [s for s in case_groups()["vllm|A10-24Q|Qwen3-0.6B"] if s.fraction != 0.7]
    prediction = fit(starts).predict({"gpu_memory_utilization": 0.7})
    assert prediction.kv_cache_gib is not None
    assert prediction.kv_cache_gib.median == pytest.approx(15.18, rel=0.002)
    assert prediction.pool_tokens is not None
    assert prediction.pool_tokens.median == pytest.approx(15.18 * 2**20 / 112, rel=0.005)


def test_fp8_doubles_the_pool_of_the_same_line() -> None:
    """Asked for fp8 KV, the bf16 line answers with twice the tokens and the same memory."""
    starts = h200_starts()
    line = fit([starts["c6_sgl_q8_f0.5"], starts["c6_sgl_q8_f0.9"]])
    truth = starts["c6_sgl_q8_f0.8_fp8kv"].measurements.pool_tokens or 0
    asked: dict[str, Scalar] = {"mem_fraction_static": 0.8, "kv_cache_dtype": "fp8_e4m3"}
    estimate = line.predict(asked).pool_tokens
    assert estimate is not None
    assert estimate.median == pytest.approx(truth, abs=3)
    plain, halved = line.predict({"mem_fraction_static": 0.8}).kv_cache_gib, line.predict(asked).kv_cache_gib
    assert plain is not None
    assert halved is not None
    assert halved.median == pytest.approx(plain.median, rel=1e-3)


@pytest.mark.parametrize(("dtype", "least", "most"), [("fp8_e4m3", 1.5, 2.05), ("nvfp4", 2.9, 4.0), ("auto", 1.0, 1.0)])
def test_without_a_config_a_smaller_dtype_widens_the_answer(dtype: str, least: float, most: float) -> None:
    """Where no facts tell a ratio, 8-bit and 4-bit KV are answered with the ratios seen in practice, and widely."""
    starts = [replace(h200_starts()[f"c6_sgl_q8_f{f}"], model=Model(name="unknown")) for f in (0.5, 0.9)]
    plain, smaller = (
        fit(starts).predict({"mem_fraction_static": 0.8, "kv_cache_dtype": word}).pool_tokens
        for word in ("auto", dtype)
    )
    assert plain is not None
    assert smaller is not None
    assert least <= smaller.median / plain.median <= most
    assert (smaller.high - smaller.low > 20 * (plain.high - plain.low)) is (dtype != "auto")


def test_a_deployment_borrows_the_slope_of_its_relatives() -> None:
    """One fp8 start beside two bf16 starts predicts another fp8 fraction to 0.01 %, without facts or memory lines."""
    starts = h200_starts()
    pair = [starts[name] for name in ("c6_sgl_q8_f0.5", "c6_sgl_q8_f0.9", "c6_sgl_q8_f0.8_fp8kv")]
    fitted = fit_pair(PairEvidence(tuple(pair)))
    newest = fitted.deployments[0]
    truth = starts["c6_sgl_q8_f0.9_fp8kv"]
    assert pool(newest, truth).median == pytest.approx(truth.measurements.pool_tokens, rel=1e-4)
    assert newest.summary.basis.kind is BasisKind.ONE_START


def test_flags_that_move_free_memory_alone_leave_the_pool_in_place() -> None:
    """Running requests, chunk size and graphs on the H200 share one deployment and one line."""
    names = ("f0.8_mrr16", "f0.8_mrr4096", "f0.8_chunk2048", "f0.8_chunk32768", "f0.5", "f0.9")
    line = fit([h200_starts()[f"c6_sgl_q8_{name}"] for name in names])
    assert pool(line, h200_starts()["c6_sgl_q8_f0.96"]).median == pytest.approx(860_968, abs=2)


def test_one_start_without_any_facts_predicts_no_other_fraction() -> None:
    """Without config, memory or a second fraction the pool is null elsewhere and known where it was measured."""
    (start,) = case_groups()["vllm|TP2|Llama-3.1-70B-BF16"]
    line = fit([start])
    flag = FRACTION_FLAG[start.engine.name]
    elsewhere = line.predict({flag: 0.95})
    assert elsewhere.pool_tokens is None
    assert "not_enough_evidence" in {caution.code for caution in elsewhere.warnings}
    assert pool(line, start).median == start.measurements.pool_tokens
