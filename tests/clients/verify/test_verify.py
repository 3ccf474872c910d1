"""Verifications that pass, over real sockets against stand-in engines."""

from __future__ import annotations

import time

import pytest

import standin
from kvyield.verify import Progress
from standin import Standin

from .conftest import Verify


def test_a_verification_reports_all_that_the_wire_has(run: Verify, sglang: Standin) -> None:
    """Tokens, times, answer and memory are filled in, and memory is the lowest during the prompt."""
    ready = min(sglang.read())
    report = run(sglang, 60_010)
    (result,) = report.results
    found = result.verification
    assert (found.prompt_tokens, found.cached_tokens, found.concurrent, found.error) == (60_010, 0, 1, None)
    assert (found.answer_expected or "?") in (found.answer_received or "")
    assert found.completion_tokens == 6
    assert 0 < (found.time_to_first_token_seconds or 0) <= (found.elapsed_seconds or 0)
    assert found.free_before_gib == pytest.approx(ready, abs=1e-3)
    assert found.lowest_free_gib is not None
    assert ready - 1.3 <= found.lowest_free_gib <= ready - 1.0
    assert (report.passed, report.answered, report.outcome, found.answer) == (True, True, None, "right")


def test_the_longest_prompt_that_sglang_takes_passes(run: Verify) -> None:
    """min(context length, pool) - 7 tokens are taken, with fewer completion tokens where the context leaves none."""
    with standin.start(context_length=20_000) as engine:
        report = run(engine, 19_993)
    assert (report.passed, report.results[0].verification.prompt_tokens) == (True, 19_993)


def test_a_longer_prompt_than_the_server_takes_is_not_sent_and_explained(run: Verify, sglang: Standin) -> None:
    """One token more is refused beforehand, in words that say which of the two limits binds."""
    before = sglang.counts()["prompts"]
    report = run(sglang, 199_994)
    error = report.refusal or ""
    assert "199,993 tokens: min(context length 200,000, pool 218,484) - 7" in error
    assert "--context-length is at least 200,001" in error
    assert (report.passed, report.results, report.outcome, sglang.counts()["prompts"]) == (False, (), None, before)


def test_a_pool_that_is_too_small_is_named_as_the_limit(run: Verify) -> None:
    """Where the pool binds, a longer context length is said not to help."""
    with standin.start(fraction=0.85, max_running_requests=64) as engine:
        error = run(engine, 180_000).refusal or ""
    assert "the longest prompt that this server takes is 101,127 tokens" in error
    assert "the pool (a larger fraction; --context-length does not grow it) is at least 180,007" in error


def test_both_limits_are_named_when_both_bind(run: Verify) -> None:
    """A target above pool and context length needs both."""
    with standin.start(fraction=0.85, context_length=50_000) as engine:
        error = run(engine, 180_000).refusal or ""
    assert "both the pool" in error
    assert "--context-length are at least 180,007" in error


def test_a_ramp_goes_up_to_the_target(run: Verify, sglang: Standin) -> None:
    """Each length is one verification, and the ramp's own steps tell the pace of the next."""
    before = sglang.counts()["prompts"]
    results = run(sglang, 80_000, ramp=True).results
    assert [result.verification.prompt_tokens for result in results] == [32_768, 65_536, 80_000]
    assert sglang.counts()["prompts"] - before <= 7


def test_free_memory_before_a_prompt_is_read_after_the_flush(run: Verify) -> None:
    """What earlier prompts left in the allocator is given back by the flush: each begins at what was free at ready."""
    with standin.start() as engine:
        ready = min(engine.read())
        for _ in range(2):
            found = run(engine, 60_000).results[0].verification
            assert found.free_before_gib == pytest.approx(ready, abs=1e-3)
    with standin.start("vllm", fraction=0.95, context_length=100_000, faults=standin.Faults(no_flush=True)) as engine:
        ready = min(engine.read())
        found = run(engine, 60_000).results[0].verification
        assert found.free_before_gib == pytest.approx(ready, abs=1e-3), "vLLM keeps what the warm-up took"


def test_prompts_sent_at_once_are_one_verification(run: Verify) -> None:
    """Three prompts at once take the memory of three, and all must be answered."""
    with standin.start(prefill_tokens_per_second=15_000.0) as slow:  # slow enough to overlap on a busy machine
        found = run(slow, 9_000, concurrent=3).results[0].verification
    assert (found.passed, found.concurrent) == (True, 3)
    assert 8_955 <= found.prompt_tokens <= 9_000
    assert (found.free_before_gib or 0) - (found.lowest_free_gib or 0) > 2 * 0.8


def test_prompts_that_the_pool_cannot_hold_at_once_are_noted(run: Verify) -> None:
    """The verification says how many really run at a time."""
    with standin.start(max_total_tokens=20_000) as engine:
        notes = run(engine, 9_000, concurrent=4).notes
    assert any("only 2 of these prompts run at a time" in note for note in notes)


def test_vllm_is_verified_through_completions(run: Verify, vllm: Standin) -> None:
    """vLLM's own endpoints are used: /tokenize, /v1/completions with usage, /reset_prefix_cache."""
    report = run(vllm, 60_010)
    found = report.results[0].verification
    assert report.server is not None
    assert (report.server.kind, report.server.version, report.server.pool_tokens) == ("vllm", "0.26.0", 246_944)
    assert (found.passed, found.prompt_tokens, found.cached_tokens, report.notes) == (True, 60_010, 0, ())


def test_vllm_without_developer_mode_is_verified_and_noted(run: Verify, vllm: Standin) -> None:
    """A cache that cannot be flushed is said; the random prefix does its work."""
    vllm.set_faults(no_flush=True)
    report = run(vllm, 20_000)
    assert report.results[0].verification.cached_tokens == 0
    assert any("VLLM_SERVER_DEV_MODE=1" in note for note in report.notes)


def test_vllms_longest_prompt_leaves_one_token_for_the_answer(run: Verify, vllm: Standin) -> None:
    """A prompt as long as the context length is refused with vLLM's own flag."""
    error = run(vllm, 100_000).refusal or ""
    assert "99,999 tokens" in error
    assert "--max-model-len" in error


def test_any_other_openai_server_is_verified_by_chat_and_usage(run: Verify) -> None:
    """Without completions, /tokenize and flush, two short prompts tell the length of the long one."""
    with standin.start("openai") as engine:
        report = run(engine, 60_000)
    found = report.results[0].verification
    assert found.passed
    assert 59_700 <= found.prompt_tokens <= 60_300
    assert engine.config.engine == report.server.kind if report.server else False


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_sglang_of_both_shapes_of_server_info_is_understood(run: Verify, version: str) -> None:
    """Version, pool and GPUs are read from both."""
    with standin.start(version=version, tp_size=2) as engine:
        report = run(engine, 5_000)
    server = report.server
    assert server is not None
    assert (server.version, server.pool_tokens, server.context_tokens, server.gpus) == (
        version,
        218_484,
        200_000,
        (0, 1),
    )
    assert report.passed


def test_an_api_key_is_sent(run: Verify) -> None:
    """A server that wants its key gets it."""
    with standin.start(api_key="k-1") as engine:
        assert run(engine, 5_000).passed
        engine.config.api_key = None
        assert "API key" in (run(engine, 5_000).refusal or "")


def test_tokens_that_the_server_counts_otherwise_are_corrected_once(run: Verify, sglang: Standin) -> None:
    """When the answer's usage is over 0.5 % off, the prompt is made again by that usage and sent once more."""
    sglang.set_faults(tokenize_factor=1.1)
    before = sglang.counts()["prompts"]
    report = run(sglang, 40_000)
    assert abs(report.results[0].verification.prompt_tokens - 40_000) <= 200
    assert any("corrected and sent once more" in note for note in report.notes)
    assert sglang.counts()["prompts"] - before == 5, "warm-up, two for the pace, the prompt and its correction"


def test_a_server_without_tokenize_is_counted_by_its_usage(run: Verify, sglang: Standin) -> None:
    """Two short prompts before those for the pace are enough for 0.5 %; the long one is sent once."""
    sglang.set_faults(no_tokenize=True)
    before = sglang.counts()["prompts"]
    report = run(sglang, 60_000, pace=((20_000, 0.04),))
    assert abs(report.results[0].verification.prompt_tokens - 60_000) <= 300
    assert sglang.counts()["prompts"] - before == 3


def test_the_time_is_said_before_the_long_prompt_is_sent(run: Verify) -> None:
    """The estimate comes with the sending, from the pace of the short prompt, and is about right."""
    heard: list[Progress] = []
    with standin.start(prefill_tokens_per_second=20_000) as engine:
        report = run(engine, 30_000, heard=heard)
    (sending,) = [step for step in heard if step.stage == "sending"]
    assert sending.seconds == pytest.approx(report.results[0].verification.elapsed_seconds, rel=0.5)
    assert "30,000 tokens, about" in sending.text


@pytest.mark.parametrize(("tokens", "concurrent"), [(60_000, 1), (30_000, 3)])
def test_a_cold_server_does_not_spoil_the_estimate(run: Verify, tokens: int, concurrent: int) -> None:
    """A first prompt that compiles kernels is discarded, attention's square is seen, and prompts at once add up."""
    heard: list[Progress] = []
    cold = {"first_prompt_seconds": 3.0, "prefill_tokens_per_second": 60_000, "prefill_seconds_per_square": 3e-10}
    with standin.start(**cold, prompts_at_once=False) as engine:
        report = run(engine, tokens, heard=heard, concurrent=concurrent)
    (sending,) = [step for step in heard if step.stage == "sending"]
    elapsed = report.results[0].verification.elapsed_seconds or 0.0
    assert elapsed / 2 <= (sending.seconds or 0.0) <= 2 * elapsed


def test_the_cache_is_flushed_once_other_requests_have_ended(run: Verify, sglang: Standin) -> None:
    """A flush that is refused because of pending requests is tried again."""
    sglang.set_faults(flush_busy=2)
    flushes, began = sglang.counts()["flushes"], time.monotonic()
    heard: list[Progress] = []
    assert run(sglang, 5_000, heard=heard).notes == ()
    assert sglang.counts()["flushes"] == flushes + 1
    assert time.monotonic() - began < 5
    (waiting,) = [step.text for step in heard if step.stage == "waiting"]
    assert waiting == "other requests are running: waiting up to 30 s for them to end"


def test_a_wait_for_other_requests_is_bounded(run: Verify, sglang: Standin) -> None:
    """Requests that never end do not hold the verification for longer than the bound that was said."""
    sglang.set_faults(flush_busy=10_000)
    notes = run(sglang, 5_000, flush_seconds=0.5).notes
    assert any("after 0 s of waiting for other requests" in note or "waiting for other" in note for note in notes)


def test_pace_of_stored_verifications_is_not_measured_again(run: Verify, sglang: Standin) -> None:
    """Times that are known of this start spare the prompts that would tell them; the warm-up is still sent."""
    before = sglang.counts()["prompts"]
    assert run(sglang, 60_000, pace=((32_768, 0.07),)).passed
    assert sglang.counts()["prompts"] - before == 2


def test_memory_is_sampled_all_through_the_prompt(run: Verify) -> None:
    """A prompt of a second has about fifty readings."""
    with standin.start(prefill_tokens_per_second=10_000) as engine:
        found = run(engine, 10_000).results[0].verification
    assert 30 <= (found.memory_samples or 0) <= 70


@pytest.mark.parametrize("wrong", [False, True])
def test_an_answer_that_has_no_room_is_not_called_wrong(run: Verify, wrong: bool) -> None:
    """A context length of one token more than the prompt, as vLLM's advice gives it, leaves one for the answer."""
    with standin.start("vllm", context_length=20_001, tp_size=2) as engine:
        engine.set_faults(wrong_answer=wrong)
        report = run(engine, 20_000)
    assert (report.passed, report.answered, report.results[0].verification.answer) == (True, True, "not_checked")
    assert any("leaves no room for the answer" in note for note in report.notes)


def test_a_wrong_answer_that_ended_by_itself_is_wrong_also_with_little_room(run: Verify) -> None:
    """Seven tokens were left, and the engine used five of them."""
    with standin.start(context_length=20_000) as engine:
        engine.set_faults(wrong_answer=True)
        report = run(engine, 19_993)
    assert (report.answered, report.results[0].verification.answer) == (False, "wrong")
