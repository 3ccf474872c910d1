"""The rules of advice, one by one, on lines that are simply given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.advice_fits import SGLANG_FLAGS, codes, fraction, plain, worked
from domain.given_model import with_starts
from domain.worked_starts import DOG, kimi_flags, start
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import HeadlineCode, Prefer, Question, Status
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Failure,
    Outcome,
    Phase,
    Scalar,
    Verification,
)


def test_ok_has_a_window_and_takes_the_end_that_is_preferred() -> None:
    """With memory to spare the window is not empty: its lower end leaves headroom, its upper end holds the most."""
    fit, question = plain(EngineName.SGLANG, SGLANG_FLAGS), Question(target_tokens=400_000)
    for prefer, side in ((Prefer.HEADROOM, "lowest"), (Prefer.POOL, "highest")):
        advice = recommend(fit, replace(question, prefer=prefer))
        assert advice.status is Status.OK
        assert advice.window is not None
        assert fraction(advice) == getattr(advice.window, side)
        assert advice.window.lowest == pytest.approx(0.689, abs=0.0011)
        assert 0.9 < advice.window.highest < 1.0


def test_the_nearest_fraction_of_the_window_is_taken_by_default() -> None:
    """A target that what runs does not hold moves the fraction as little as the window allows."""
    advice = recommend(plain(EngineName.SGLANG, SGLANG_FLAGS), Question(target_tokens=500_000))
    assert advice.window is not None
    assert fraction(advice) == advice.window.lowest > 0.7
    assert advice.headline is not None
    assert advice.headline.code is HeadlineCode.CHANGE


def test_infeasible_when_the_fraction_leaves_no_memory() -> None:
    """A target whose fraction leaves no memory free is infeasible, says so, and renders nothing to restart with."""
    advice = recommend(worked(), Question(target_tokens=290_000))
    assert advice.status is Status.INFEASIBLE
    assert advice.binding_constraint == "free_memory"
    assert (advice.command_line, advice.restarts, advice.window) == ("", None, None)
    assert "Infeasible" in advice.explanation
    assert any("lower target" in lever.cost for lever in advice.alternatives)


def test_infeasible_when_even_the_largest_fraction_is_too_small() -> None:
    """A target beyond the largest possible pool is infeasible: the pool, or the memory that it leaves, binds."""
    advice = recommend(plain(EngineName.SGLANG, SGLANG_FLAGS), Question(target_tokens=5_000_000))
    assert advice.status is Status.INFEASIBLE
    assert advice.binding_constraint in ("pool", "free_memory")


def test_infeasible_when_measured_headroom_says_no() -> None:
    """A need measured at this chunk and length that exceeds what is left makes the target infeasible, not at risk."""
    taken = Verification(prompt_tokens=200_000, passed=True, free_before_gib=12.0, lowest_free_gib=3.0)
    later = start(4, kimi_flags(0.86, 8), pool_tokens=114_173, free_at_ready_gib=11.4, verifications=(taken,))
    advice = recommend(worked(later), Question(target_tokens=200_000))
    assert (advice.status, advice.binding_constraint) == (Status.INFEASIBLE, "headroom")


def test_a_lack_of_verification_is_at_risk_only() -> None:
    """Without any verification a doubtful prompt is at risk, never infeasible."""
    starts = [replace(each, verifications=()) for each in worked().starts]
    advice = recommend(with_starts(worked(), *starts), Question(target_tokens=215_000))
    assert advice.status is Status.AT_RISK
    assert "nothing_verified_at_this_length" in codes(advice)


def test_a_given_prompt_need_is_used() -> None:
    """The asker's own prompt need replaces the model's: a small one makes the answer ok, a large one infeasible."""
    small = recommend(worked(), Question(target_tokens=200_000, prompt_need_gib=1.0))
    large = recommend(worked(), Question(target_tokens=200_000, prompt_need_gib=9.0))
    assert small.status is Status.OK
    assert (large.status, large.binding_constraint) == (Status.INFEASIBLE, "headroom")


def test_never_at_or_above_a_start_that_ran_out_of_memory() -> None:
    """After a start-up OOM at 0.93 a target that needs 0.94 is infeasible, and one that needs less is not."""
    died = start(5, kimi_flags(0.93, 8), outcome=Outcome.OOM_STARTUP, failure=Failure(phase=Phase.GRAPH_CAPTURE))
    fit = worked(died)
    out = recommend(fit, Question(target_tokens=215_000))
    assert (out.status, out.binding_constraint) == (Status.INFEASIBLE, "out_of_memory")
    assert fraction(out) < 0.93
    assert "ran_out_of_memory" in codes(out)
    assert fraction(recommend(fit, Question(target_tokens=200_000))) == 0.926


def test_a_held_fraction_is_judged_as_it_is() -> None:
    """A held fraction that is too small is at risk, with the fraction that would do as a lever."""
    advice = recommend(worked(), Question(target_tokens=200_000, flags={"mem_fraction_static": 0.9}))
    assert advice.flags["mem_fraction_static"] == 0.9
    assert advice.probability is not None
    assert advice.probability.pool < 0.01
    assert advice.status is Status.AT_RISK
    assert 0.926 in {lever.flags.get("mem_fraction_static") for lever in advice.alternatives}


def test_a_held_context_length_that_is_too_short_is_named() -> None:
    """A held context length below the request is the binding constraint."""
    advice = recommend(worked(), Question(target_tokens=200_000, flags={"context_length": 100_000}))
    assert (advice.status, advice.binding_constraint) == (Status.INFEASIBLE, "context_length")
    assert "held_flag_too_small" in codes(advice)


def test_without_a_line_nothing_is_advised() -> None:
    """When the pool cannot be predicted the answer says what to post next, and does not guess a fraction."""
    for labels, words in (((), "second start"), (("confounded",), "alone"), (("capped",), "cap")):
        unknown = replace(worked(), is_known=False, labels=labels)
        advice = recommend(unknown, Question(target_tokens=300_000))
        assert advice.status is Status.NOT_ENOUGH_EVIDENCE
        assert advice.prediction.pool_tokens is None
        assert words in advice.explanation
        assert advice.warnings[0].code == "not_enough_evidence"
        assert advice.headline is not None
        assert advice.headline.code is HeadlineCode.NOT_ENOUGH_EVIDENCE


def test_a_contradiction_is_not_enough_evidence_and_is_named() -> None:
    """What contradicts what stands in the answer; what runs and holds the target is kept all the same."""
    unsound = replace(worked(), why_unsound="the line crosses zero at -0.44")
    advice = recommend(unsound, Question(target_tokens=210_000))
    assert advice.status is Status.NOT_ENOUGH_EVIDENCE
    assert "-0.44" in advice.explanation
    kept = recommend(unsound, Question(target_tokens=100_000))
    assert (kept.status, fraction(kept), kept.changes) == (Status.OK, 0.94, ())


def test_a_start_of_another_version_answers_at_risk() -> None:
    """Where no line tells the version asked for, what another version's start held is at risk, and a restart."""
    advice = recommend(replace(worked(), is_known=False), Question(target_tokens=100_000, engine_version="0.5.13"))
    assert (advice.status, fraction(advice), advice.changes) == (Status.AT_RISK, 0.94, ())
    assert "other_version" in codes(advice)
    assert advice.restarts is not None
    assert advice.restarts.expected is not None
    assert advice.restarts.expected >= 1.0


def test_nothing_to_restart_is_said() -> None:
    """When the running flags are the answer, no restart is planned and a warning says so."""
    running = start(
        4,
        kimi_flags(0.926, 8, context_length=200_007),
        pool_tokens=200_229,
        free_at_ready_gib=5.5,
        startup_seconds=360,
        verifications=(replace(DOG, prompt_tokens=200_000, free_before_gib=5.5, lowest_free_gib=3.5),),
    )
    advice = recommend(worked(running), Question(target_tokens=200_000))
    assert advice.changes == ()
    assert "flags_equal_running" in codes(advice)
    assert advice.restarts is not None
    assert advice.restarts.expected == 0


def test_a_full_length_verification_proves_the_prompt() -> None:
    """Once a 200,000-token prompt was measured to take 2 GiB, the answer is ok with a window."""
    taken = replace(DOG, prompt_tokens=200_000, free_before_gib=4.2, lowest_free_gib=2.2)
    later = start(4, kimi_flags(0.94, 8), pool_tokens=218_484, free_at_ready_gib=4.2, verifications=(taken,))
    advice = recommend(worked(later), Question(target_tokens=200_000))
    assert advice.status is Status.OK
    assert advice.window is not None
    assert "nothing_verified_at_this_length" not in codes(advice)


def test_evidence_of_another_version_and_chunk_is_said() -> None:
    """Verifications and starts of another version, and another chunk, are named in the warnings."""
    newer = replace(
        start(6, kimi_flags(0.94, 8, chunked_prefill_size=4096), pool_tokens=218_484, free_at_ready_gib=4.2),
        engine=Engine(name=EngineName.SGLANG, version="0.5.13"),
    )
    advice = recommend(worked(newer), Question(target_tokens=200_000))
    assert {"other_version", "engine_version_never_verified", "chunk_never_verified"} <= codes(advice)


def test_what_the_history_shows_of_context_length_is_quoted() -> None:
    """Two starts that differ in context length and have one pool are quoted against the belief that it grows."""
    early = start(0, kimi_flags(0.85, 64, context_length=32_768), pool_tokens=101_134)
    advice = recommend(with_starts(worked(), early, *worked().starts), Question(target_tokens=200_000))
    said = next(each.detail for each in advice.warnings if each.code == "context_length_does_not_grow_pool")
    assert "32,768 and 200,000" in said


def test_the_reason_of_a_fraction_at_the_limit_is_true() -> None:
    """Where no fraction holds the target, the reason names the limit and the pool there, not a pool that is not."""
    advice = recommend(worked(), Question(target_tokens=290_000))
    reason = next(each.reason for each in advice.changes if each.flag == "mem_fraction_static")
    assert "smallest fraction" not in reason
    assert "short of the 290,007 needed" in reason
    died = start(5, kimi_flags(0.93, 8), outcome=Outcome.OOM_STARTUP)
    out = recommend(worked(died), Question(target_tokens=215_000))
    assert "below 0.93, which ran out of memory" in next(each.reason for each in out.changes)


def test_a_lever_that_gains_no_probability_is_listed_only_where_it_helps_an_infeasible_answer() -> None:
    """Every lever beside an answer that can be had is likelier than it; none is listed at nothing."""
    for target in (200_000, 215_000):
        advice = recommend(worked(), Question(target_tokens=target))
        assert advice.probability is not None
        for lever in advice.alternatives:
            assert lever.joint > 0.0
            assert lever.joint >= advice.probability.joint


def test_a_death_at_the_smallest_fraction_leaves_none() -> None:
    """After a start-up OOM at 0.001 even one token is infeasible, and the death is the binding constraint."""
    flags: dict[str, Scalar] = {"cache_max_entry_count": 0.001}
    fit = plain(EngineName.LMDEPLOY, flags, zero=0.0, page=64, free=50.0)
    died = replace(fit.starts[0], outcome=Outcome.OOM_STARTUP, verifications=())
    advice = recommend(replace(with_starts(fit, died), flags=flags), Question(target_tokens=1))
    assert (advice.status, advice.binding_constraint) == (Status.INFEASIBLE, "out_of_memory")
    assert "ran_out_of_memory" in codes(advice)
    assert advice.command_line == ""
    assert not any(lever.target_tokens for lever in advice.alternatives)


def test_no_lever_empties_the_fraction() -> None:
    """A lower target is never had at a fraction of nothing, however small the pool that memory leaves."""
    for free in (0.01, 0.5, 2.0):
        fit = plain(EngineName.SGLANG, SGLANG_FLAGS, zero=0.0, free=free)
        for target in (2, 100, 5_000, 5_000_000):
            advice = recommend(fit, Question(target_tokens=target, prompt_need_gib=free))
            for lever in advice.alternatives:
                value = lever.flags.get("mem_fraction_static", 0.5)
                assert isinstance(value, float)
                assert value >= 0.001
