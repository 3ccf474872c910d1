"""Starts of sibling deployments that ran out of memory: they rule their fractions out, or are said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.advice_fits import codes, fraction
from domain.worked_starts import kimi_flags, start
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Advice, Question, Status
from kvyield_server.domain.facts.observation import Engine, EngineName, Failure, Observation, Outcome, Phase, Scalar
from kvyield_server.domain.model.fit import PairEvidence, fit_pair

TARGET = Question(target_tokens=200_000)


def kimi(number: int, fraction: float, version: str | None, **more: Scalar) -> Observation:
    pool = round(1_303_889 * (fraction - 0.77244))
    engine = Engine(name=EngineName.SGLANG, version=version)
    free = 4.2 - 89.0 * (fraction - 0.94)
    return start(number, kimi_flags(fraction, 8, **more), pool_tokens=pool, free_at_ready_gib=free, engine=engine)


def dead(number: int, fraction: float, version: str | None, **more: Scalar) -> Observation:
    failure = Failure(phase=Phase.GRAPH_CAPTURE)
    return replace(kimi(number, fraction, version, **more), outcome=Outcome.OOM_STARTUP, failure=failure)


READY = (kimi(1, 0.85, "0.5.12"), kimi(2, 0.86, "0.5.12.post1"))


def advised(*more: Observation, question: Question = TARGET) -> Advice:
    fit = fit_pair(PairEvidence((*READY, *more))).choose(
        engine=EngineName.SGLANG, engine_version=None, like=READY[1].id, flags={}
    )
    assert fit is not None
    return recommend(fit, question)


@pytest.mark.parametrize("version", [None, "0.5.11", "0.5.18", "dev-abc"])
def test_a_death_of_a_null_or_sibling_version_rules_its_fraction_out(version: str | None) -> None:
    """Deaths at 0.90 and 0.91 of an unknown version, or of the same series, keep the advice below 0.90 and are said."""
    advice = advised(dead(3, 0.9, version), dead(4, 0.91, version))
    assert advice.status is Status.INFEASIBLE
    assert advice.binding_constraint == "out_of_memory"
    assert fraction(advice) < 0.9
    assert "ran_out_of_memory" in codes(advice)


def test_lighter_flags_lift_the_ban_of_a_sibling_too() -> None:
    """A sibling that died with 64 requests does not ban its fraction for 8."""
    died = dead(3, 0.9, None)
    assert fraction(advised(replace(died, flags=kimi_flags(0.9, 64)))) > 0.92


def test_a_death_of_another_series_is_said() -> None:
    """A death of another minor series at or below the advised fraction is a caution that names the fraction."""
    advice = advised(dead(3, 0.9, "0.4.9"))
    assert fraction(advice) > 0.92
    (said,) = [each for each in advice.warnings if each.code == "oom_in_another_version"]
    assert "0.9," in said.detail
    assert "0.4.9" in said.detail


def test_a_later_ready_start_at_that_fraction_leaves_a_caution() -> None:
    """Once this version became ready at 0.93, an older version's death at 0.90 warns and no longer forbids."""
    served = kimi(9, 0.93, "0.5.12.post1")
    advice = advised(dead(3, 0.9, "0.5.11"), served)
    assert fraction(advice) > 0.92
    assert "oom_in_another_version" in codes(advice)


def test_a_death_under_another_kv_dtype_or_layout_says_nothing() -> None:
    """Deaths with another KV dtype or tensor size are of other memory: they neither forbid nor warn."""
    advice = advised(dead(3, 0.9, None, kv_cache_dtype="fp8_e4m3", tp_size=4))
    assert fraction(advice) > 0.92
    assert not {code for code in codes(advice) if code.startswith(("oom_in", "ran_out"))}


def test_a_death_of_a_deployment_with_other_flags_is_said() -> None:
    """A sibling that differs in its attention backend warns under a code of its own."""
    ready = [replace(each, flags={**each.flags, "attention_backend": "fa3"}) for each in READY]
    died = dead(3, 0.9, "0.5.12.post1", attention_backend="flashinfer")
    fits = fit_pair(PairEvidence((*ready, died)))
    fit = fits.choose(engine=EngineName.SGLANG, engine_version=None, like=ready[1].id, flags={})
    assert fit is not None
    assert "oom_in_another_deployment" in codes(recommend(fit, TARGET))
