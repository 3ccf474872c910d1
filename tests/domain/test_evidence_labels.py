"""Labels and evidence classes on real cases and on starts made for one class each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domain.real_starts import KIMI, PRO_6000, case_groups, h200_ladder, h200_starts, observe, worked_case
from kvyield_server.domain.facts.observation import Engine, EngineName, Failure, Observation, Outcome, Phase
from kvyield_server.domain.model.evidence import Label, Use, classify
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

# Left out, since nothing that was posted shows it: the GLM-5.1 pairs that switched MTP along with the fraction without
# saying so, and second servers on a GPU whose free memory was not logged.
CONFOUNDED = {
    "sglang|MI355Xx8|Kimi-K3|dspark",
    "vllm|RTX3090x1|Llama-3.1-8B|ctx",
    "sglang|60647481566|double-sparsity",
    "sglang|A800x2|Qwen3.6-27B",
    "sglang|GB10|Qwen3.8-27B",
    "sglang|59038344980|F/H|draft8",
}
CAPPED = {
    "vllm|GB10x2|GLM-5.3-Flash|kv-cache-memory",
    "vllm-spyre|granite-3.0-8b",
    "sglang-omni|CosyVoice3",
}


def labels_of(starts: tuple[Observation, ...]) -> set[str]:
    return {label for fit in fit_pair(PairEvidence(starts)).deployments for label in fit.summary.labels}


def groups_with(outcome: Outcome) -> set[str]:
    return {name for name, starts in case_groups().items() if any(s.outcome is outcome for s in starts)}


def expected_groups() -> dict[Label, set[str]]:
    shared = ("GB10", "unified", "shared memory")
    unified = {name for name, starts in case_groups().items() if any(word in starts[0].hardware.gpu for word in shared)}
    return {
        Label.CONFOUNDED: CONFOUNDED,
        Label.CAPPED: CAPPED,
        Label.REFUSED: groups_with(Outcome.REFUSED),
        Label.OOM_STARTUP: groups_with(Outcome.OOM_STARTUP),
        Label.OOM_RUNTIME: groups_with(Outcome.OOM_RUNTIME),
        Label.UNIFIED_MEMORY: unified,
        Label.DRIFT: set(),
    }


@pytest.mark.parametrize("label", list(expected_groups()))
def test_public_cases_carry_each_label_where_it_belongs_and_nowhere_else(label: Label) -> None:
    """Every labelled group is found, and no other group is so labelled."""
    found = {name for name, starts in case_groups().items() if label in labels_of(starts)}
    expected = expected_groups()[label]
    right = len(found & expected)
    print(f"{label:15s} precision {right}/{len(found)}, recall {right}/{len(expected)}")
    assert found == expected


def test_measured_ladders_carry_no_label() -> None:
    """One GPU measured in full shows no contradiction, outlier or drift for any model and engine."""
    for model, engine in (("qwen3-8b", "sglang"), ("dsv2-lite", "sglang"), ("qwen3-8b", "vllm")):
        assert labels_of(tuple(h200_ladder(model, engine))) == set()


def test_a_capped_start_is_a_bound_and_does_not_bend_the_line() -> None:
    """--max-total-tokens equal to the pool says only that the line holds as much, and prices no token."""
    starts = h200_starts()
    chosen = [starts[name] for name in ("c6_sgl_q8_f0.5", "c6_sgl_q8_f0.9", "c7_sgl_q8_f0.8_maxtot100k")]
    (fit,) = fit_pair(PairEvidence(tuple(chosen))).deployments
    assert [item.use for item in fit.summary.evidence] == [Use.POINT, Use.POINT, Use.BOUND]
    assert "max_total_tokens" in fit.summary.evidence[-1].reason
    assert fit.summary.labels == (Label.CAPPED,)
    estimate = fit.predict({"mem_fraction_static": 0.8, "max_total_tokens": None}).pool_tokens
    assert estimate is not None
    assert estimate.median == pytest.approx(698_795, abs=2)


def test_equal_pools_at_two_fractions_are_capped() -> None:
    """A pool that did not move with the fraction was set by something else, though no flag says so."""
    first, second, third = worked_case()
    same = replace(third, measurements=replace(third.measurements, pool_tokens=192_406))
    assert Label.CAPPED in labels_of((first, second, same))


def kimi(position: int, fraction: float, pool: int, **flags: Any) -> Observation:
    return observe(
        f"kimi-{position}",
        position,
        hardware=PRO_6000,
        model=KIMI,
        engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
        flags={"mem_fraction_static": fraction, "tp_size": 8, "speculative_algorithm": "DFLASH", **flags},
        pool_tokens=pool,
    )


def test_a_far_start_among_many_is_an_outlier_and_is_kept_in_the_ledger() -> None:
    """With five starts on a line, a sixth far off is flagged, set aside and named; the line stays."""
    starts = [kimi(i, f, round(1_303_889 * (f - 0.77244))) for i, f in enumerate((0.85, 0.87, 0.89, 0.91, 0.93))]
    far = kimi(-1, 0.90, 120_000)
    (fit,) = fit_pair(PairEvidence((*starts, far))).deployments
    assert Label.OUTLIER in fit.summary.labels
    assert [item.observation_id for item in fit.summary.evidence if item.use == Use.SET_ASIDE] == [far.id]
    estimate = fit.predict({"mem_fraction_static": 0.94}).pool_tokens
    assert estimate is not None
    assert estimate.median == pytest.approx(218_484, abs=6)


def test_a_newest_start_off_its_history_is_drift_with_its_size() -> None:
    """A start 3 % off what three earlier ones say is labelled drift, in tokens, and widens the advice."""
    steady = [kimi(i, f, round(1_303_889 * (f - 0.77244))) for i, f in enumerate((0.85, 0.88, 0.92))]
    late = kimi(9, 0.94, round(218_484 * 1.03))
    before, after = (fit_pair(PairEvidence(tuple(starts))).deployments[0] for starts in (steady, [*steady, late]))
    assert Label.DRIFT not in before.summary.labels
    assert Label.DRIFT in after.summary.labels
    caution = next(caution for caution in after.summary.warnings if caution.code == "drift")
    assert "+6,5" in caution.detail
    asked = {"mem_fraction_static": 0.94}
    narrow, wide = before.predict(asked).pool_tokens, after.predict(asked).pool_tokens
    assert narrow is not None
    assert wide is not None
    assert wide.high - wide.low > 10 * (narrow.high - narrow.low)


def test_a_new_version_off_the_old_line_is_drift() -> None:
    """The first start of another engine version outside the old version's 99 % interval is drift and names it."""
    old = [kimi(i, f, round(1_303_889 * (f - 0.77244))) for i, f in enumerate((0.85, 0.88, 0.92))]
    upgraded = replace(kimi(9, 0.94, 230_000), engine=Engine(name=EngineName.SGLANG, version="0.5.18"))
    newest = fit_pair(PairEvidence((*old, upgraded))).deployments[0]
    assert newest.summary.engine_version == "0.5.18"
    assert Label.DRIFT in newest.summary.labels
    assert any("0.5.12" in caution.detail for caution in newest.summary.warnings)


def test_another_process_on_the_gpu_is_seen_and_rebased() -> None:
    """A start with less free before load is labelled, and its pool still lies on the line of the others."""
    ladder = h200_ladder("qwen3-8b")
    lonely = [ladder[5], ladder[-3]]
    crowded = lonely[0]
    measured = crowded.measurements
    assert measured.free_before_load_gib is not None
    assert measured.free_after_load_gib is not None
    taken, fraction = 20.0, 0.85
    pool = round((139.194 - taken) * fraction * 2**30 / 147_456 - 15.391 * 2**30 / 147_456)
    crowded = replace(
        crowded,
        id=ladder[0].id,
        flags={**crowded.flags, "mem_fraction_static": fraction},
        measurements=replace(
            measured,
            pool_tokens=pool,
            kv_cache_gib=None,
            free_before_load_gib=measured.free_before_load_gib - taken,
            free_after_load_gib=measured.free_after_load_gib - taken,
        ),
    )
    (fit,) = fit_pair(PairEvidence((crowded, *lonely))).deployments
    assert Label.NEIGHBOUR in fit.summary.labels
    assert Label.CONFOUNDED not in fit.summary.labels
    truth = ladder[-1]
    estimate = fit.predict(truth.flags).pool_tokens
    assert estimate is not None
    assert estimate.median == pytest.approx(truth.measurements.pool_tokens, rel=1e-3)


def test_a_refusal_that_names_the_least_fraction_places_the_zero_crossing() -> None:
    """SGLang's "minimum viable" is w / m to four digits, from a start that never served."""
    refused = replace(
        kimi(1, 0.75, 1),
        outcome=Outcome.REFUSED,
        measurements=replace(kimi(1, 0.75, 1).measurements, pool_tokens=None, free_before_load_gib=93.73),
        failure=Failure(minimum_fraction=0.7724),
    )
    assert classify(refused).use is Use.BOUND
    (fit,) = fit_pair(PairEvidence((refused,))).deployments
    assert fit.summary.parameters["zero_fraction"].median == pytest.approx(0.7724, abs=0.001)


def test_starts_after_a_lasting_change_are_fitted_by_themselves() -> None:
    """Of three old starts and three newer ones on another line, the newer ones answer; the old are set aside."""
    old = [kimi(i, f, round(1_303_889 * (f - 0.77244))) for i, f in enumerate((0.85, 0.88, 0.92))]
    new = [kimi(9 + i, f, round(1_303_889 * (f - 0.79))) for i, f in enumerate((0.86, 0.9, 0.93))]
    (fit,) = fit_pair(PairEvidence((*old, *new))).deployments
    assert Label.DRIFT in fit.summary.labels
    assert Label.CONFOUNDED not in fit.summary.labels
    assert set(fit.summary.basis.observation_ids) == {start.id for start in new}
    estimate = fit.predict({"mem_fraction_static": 0.95}).pool_tokens
    assert estimate is not None
    assert estimate.median == pytest.approx(1_303_889 * 0.16, abs=3)


def test_a_refusal_without_figures_raises_a_cold_zero_crossing() -> None:
    """Refused at 0.80 for want of a pool the line crosses zero farther up, unless something else held the GPU."""
    facts = {**KIMI.facts, "checkpoint_bytes": 554 * 2**30}
    refused = replace(
        kimi(1, 0.80, 1),
        outcome=Outcome.REFUSED,
        model=replace(KIMI, facts=facts),
        measurements=replace(kimi(1, 0.80, 1).measurements, pool_tokens=None),
    )
    plain, at_pool = (
        fit_pair(PairEvidence((replace(refused, failure=Failure(phase=phase)),)))
        .deployments[0]
        .summary.parameters["zero_fraction"]
        for phase in (Phase.LOAD, Phase.POOL)
    )
    assert plain.median < at_pool.median < 0.90
    assert at_pool.high > 0.80
