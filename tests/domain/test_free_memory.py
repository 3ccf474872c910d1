"""Free memory at ready against what one H200 and the worked case really had."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import inf, isfinite
from statistics import median

import pytest

from domain.measured_memory import ladder, measured_starts
from domain.straight_line import kimi_flags, start, worked_line, worked_starts
from kvyield_server.domain.answers import Question
from kvyield_server.domain.facts.observation import Failure, Measurements, Model, Observation, Outcome, Phase
from kvyield_server.domain.legacy.advice import recommend
from kvyield_server.domain.legacy.fit import DeploymentFit, PairEvidence, fit_pair
from kvyield_server.domain.legacy.free_memory import fit_free_memory
from kvyield_server.domain.legacy.student import StudentT


def fitted(*starts: Observation) -> DeploymentFit:
    return fit_pair(PairEvidence(starts)).deployments[0]


def at_ready(fit: DeploymentFit, start: Observation) -> StudentT:
    free = fit.free_memory.at_ready(start.flags)
    assert free is not None
    return free


@pytest.mark.parametrize(("model", "engine"), [("qwen3-8b", "sglang"), ("dsv2-lite", "sglang"), ("qwen3-8b", "vllm")])
def test_two_starts_predict_free_memory_of_all_others(model: str, engine: str) -> None:
    """From any two starts, the median error of free memory at ready is at most 0.1 GiB and intervals hold 90 %."""
    starts = ladder(model, engine)
    errors: list[float] = []
    held: list[bool] = []
    for pair in list(combinations(starts, 2))[::3]:
        fit = fitted(*pair)
        for other in starts:
            if other in pair:
                continue
            free, truth = at_ready(fit, other), other.measurements.free_at_ready_gib
            assert truth is not None
            errors.append(abs(free.loc - truth))
            held.append(free.quantile(0.05) <= truth <= free.quantile(0.95))
    assert median(errors) <= 0.1
    assert sum(held) >= 0.9 * len(held)


@pytest.mark.parametrize(
    ("name", "within_gib"),
    [
        ("c6_sgl_q8_f0.8_mrr16", 0.15),
        ("c6_sgl_q8_f0.8_mrr512", 0.15),
        ("c6_sgl_q8_f0.8_mrr4096", 0.15),
        ("c6_sgl_q8_f0.8_ctx8192", 0.15),
        ("c6_sgl_q8_f0.8_chunk32768", 0.15),
        ("c6_sgl_q8_f0.9_fp8kv", 0.15),
        ("c7_sgl_q8_f0.8_maxtot100k", 0.5),
        ("c7_sgl_q8_f0.8_graph", 0.7),
        ("c7_sgl_q8_f0.8_graphbs8", 0.7),
    ],
)
def test_flags_that_never_varied_are_answered_by_arithmetic(name: str, within_gib: float) -> None:
    """Request table, context, KV dtype and a capped pool are exact physics; graphs are known to half a GiB or so."""
    starts = measured_starts()
    fit = fitted(starts["c6_sgl_q8_f0.8"], starts["c6_sgl_q8_f0.9"])
    free, truth = at_ready(fit, starts[name]), starts[name].measurements.free_at_ready_gib
    assert free.loc == pytest.approx(truth, abs=within_gib)
    if "maxtot" not in name:
        assert truth is not None
        assert free.quantile(0.05) <= truth <= free.quantile(0.95)


def test_free_memory_at_another_fraction_from_two_starts() -> None:
    """From starts 1 and 2 of the worked case with the real fit, 0.94 is predicted within 0.6 GiB of 4.2."""
    fit = fitted(*worked_starts()[1:])
    free = fit.free_memory.at_ready(kimi_flags(0.94, 8))
    assert free is not None
    assert free.loc == pytest.approx(4.2, abs=0.6)


def test_a_figure_at_pool_end_is_an_upper_bound() -> None:
    """A figure read before graphs pulls a prediction above it down, and leaves one below it where it was."""
    third, second, first = worked_starts()

    def believed(pool_end: float) -> float:
        early = replace(
            first,
            measurements=Measurements(pool_tokens=101134, free_at_pool_end_gib=pool_end),
            flags=kimi_flags(0.85, 8),
        )
        free = fit_free_memory([third, second, early], worked_line(), third.model).at_ready(kimi_flags(0.85, 8))
        assert free is not None
        return free.loc

    unbounded = believed(40.0)
    assert believed(20.0) == pytest.approx(unbounded, abs=0.02)
    assert believed(unbounded - 0.5) < unbounded - 0.1


def test_running_out_at_startup_says_that_no_memory_was_left() -> None:
    """A start that died after its pool was sized lowers what is believed to be free there; one at load says nothing."""
    starts = worked_starts()

    def believed(phase: Phase) -> float:
        died = start(9, kimi_flags(0.95, 8), outcome=Outcome.OOM_STARTUP, failure=Failure(phase=phase))
        free = fit_free_memory([died, *starts], worked_line(), died.model).at_ready(kimi_flags(0.95, 8))
        assert free is not None
        return free.loc

    unmoved = fit_free_memory(starts, worked_line(), starts[0].model).at_ready(kimi_flags(0.95, 8))
    assert unmoved is not None
    assert believed(Phase.LOAD) == pytest.approx(unmoved.loc, abs=0.01)
    assert believed(Phase.GRAPH_CAPTURE) < unmoved.loc - 0.3


def test_an_unseen_flag_widens() -> None:
    """A flag that no start had widens the interval and leaves the median."""
    line = fit_free_memory(worked_starts(), worked_line(), worked_starts()[0].model)
    plain, odd = line.at_ready(kimi_flags(0.92, 8)), line.at_ready(kimi_flags(0.92, 8, attention_backend="triton"))
    assert plain is not None
    assert odd is not None
    assert odd.loc == plain.loc
    assert odd.scale > 1.5 * plain.scale


def test_a_port_or_a_seed_changes_nothing() -> None:
    """What addresses or seeds a server is not memory: another port leaves the whole prediction as it was."""
    line = fit_free_memory(worked_starts(), worked_line(), worked_starts()[0].model)
    plain, moved = (line.at_ready(kimi_flags(0.92, 8, **more)) for more in ({}, {"port": 30_001, "random_seed": 7}))
    assert plain is not None
    assert moved == plain


def test_nothing_is_said_without_a_card() -> None:
    """Where nothing tells the base, there is no free memory to speak of."""

    class Unknown:
        engine = worked_line().engine
        flags = kimi_flags(0.9, 8)
        base_gib = None
        bytes_per_token = None
        along = worked_line().along

    assert fit_free_memory([], Unknown(), worked_starts()[0].model).at_ready(kimi_flags(0.9, 8)) is None


def test_unified_memory_is_far_less_sure() -> None:
    """Where GPU and host share memory, equal starts differ, and free memory is told to a few GiB only."""
    starts = worked_starts()
    shared = [replace(each, hardware=replace(each.hardware, unified_memory=True)) for each in starts]
    sure, unsure = (
        fit_free_memory(some, worked_line(), starts[0].model).at_ready(kimi_flags(0.93, 8)) for some in (starts, shared)
    )
    assert sure is not None
    assert unsure is not None
    assert unsure.scale > 5 * sure.scale


def test_figures_beyond_sense_leave_no_nan() -> None:
    """Whatever starts with impossible figures leave of the line, free memory is a number or is not told."""
    served = start(1, {"mem_fraction_static": 0.95}, pool_tokens=100, free_at_ready_gib=1.0)
    odd = Measurements(pool_tokens=100, free_before_load_gib=5.0, free_after_load_gib=1e300)
    model = Model(name="m", facts={"num_hidden_layers": 32, "num_attention_heads": 32, "head_dim": 1e200})
    failed = start(2, {"mem_fraction_static": 1.0}, outcome=Outcome.FAILED)
    died = start(3, {"mem_fraction_static": 1e300}, outcome=Outcome.OOM_RUNTIME)
    starts = [replace(each, model=model) for each in (served, replace(failed, measurements=odd), died)]
    fit = fitted(*starts)
    for estimate in (
        fit.predict({"mem_fraction_static": 0.9}).free_at_ready_gib,
        recommend(fit, Question(target_tokens=1000)).prediction.free_at_ready_gib,
    ):
        assert estimate is None or isfinite(estimate.low)


def test_a_line_that_is_no_number_is_not_told() -> None:
    """Where the belief about free memory has no finite spread, nothing is told instead of NaN."""
    (fit,) = fit_pair(PairEvidence(tuple(worked_starts()))).deployments
    line = fit.free_memory.along(fit.capacity.flags, fit.capacity.along(fit.capacity.flags))
    assert line.at_ready(0.9) is not None
    assert replace(line, unseen_variance=inf).at_ready(0.9) is None
