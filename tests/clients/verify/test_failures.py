"""Verifications that do not pass: each is reported, none is raised."""

from __future__ import annotations

import socket

import pytest

import standin
from kvyield._engine_http import open_engine
from kvyield.verify import Order, verify
from kvyield.verify._result import is_out_of_memory
from standin import Faults, Standin

from .conftest import Verify


def test_a_wrong_answer_is_a_result_of_its_own(run: Verify, sglang: Standin) -> None:
    """The prompt was served whole, so it passed and its memory counts; that the answer was wrong stands beside it."""
    sglang.set_faults(wrong_answer=True)
    report = run(sglang, 5_000)
    found = report.results[0].verification
    assert (report.passed, report.answered, report.outcome) == (True, False, None)
    assert (found.passed, found.answer, found.answer_received, found.error) == (True, "wrong", "I do not know.", None)
    assert any("wrong answer: 'I do not know.' instead of" in note for note in report.notes)
    assert found.lowest_free_gib is not None
    unchecked = run(sglang, 5_000, check_answer=False)
    assert (unchecked.passed, unchecked.answered, unchecked.results[0].verification.answer) == (
        True,
        True,
        "not_checked",
    )


def test_tokens_from_the_prefix_cache_spoil_the_proof(run: Verify, sglang: Standin) -> None:
    """A prompt that was mostly cached proves nothing about memory: recorded, and not passed."""
    sglang.set_faults(cached_tokens=4_000)
    found = run(sglang, 5_000).results[0].verification
    assert (found.passed, found.cached_tokens) == (False, 4_000)
    assert "4,000 of 5,000 prompt tokens came from the prefix cache" in (found.error or "")


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_running_out_of_gpu_memory_is_told_by_the_engines_own_words(run: Verify, engine: standin.config.Engine) -> None:
    """The server crashes, its log says why, and the outcome is a run-time OOM with the lowest memory seen."""
    with standin.start(engine, fraction=0.95, context_length=100_000, faults=Faults(oom_at_tokens=30_000)) as process:
        report = run(process, 60_000)
    found = report.results[0].verification
    assert (report.passed, report.outcome) == (False, "oom_runtime")
    assert "ran out of GPU memory" in (found.error or "")
    assert found.lowest_free_gib is not None
    assert 59_700 <= found.prompt_tokens <= 60_000


def test_the_memory_model_itself_runs_out(run: Verify) -> None:
    """A prompt whose need exceeds what is free kills the server, without any fault asked for."""
    with standin.start(need_gib_per_token=1e-4) as process:
        report = run(process, 60_000, ramp=True)
    assert [(result.passed, result.outcome) for result in report.results] == [(True, None), (False, "oom_runtime")]


def test_a_server_that_dies_without_a_word_is_failed_not_oom(run: Verify) -> None:
    """Out of memory is never guessed from a low figure: without the engine's words the outcome is failed."""
    with standin.start(faults=Faults(die_at_tokens=20_000)) as process:
        report = run(process, 60_000)
    error = report.results[0].verification.error or ""
    assert (report.passed, report.outcome) == (False, "failed")
    assert "the server crashed (lowest free memory seen:" in error


def test_a_ramp_ends_at_the_first_failure(run: Verify) -> None:
    """What passed before is kept; nothing longer is sent."""
    with standin.start(faults=Faults(die_at_tokens=50_000)) as process:
        report = run(process, 199_000, ramp=True)
    assert [result.passed for result in report.results] == [True, False]
    assert [result.verification.prompt_tokens for result in report.results] == [32_768, 65_536]


def test_a_server_that_hangs_is_left_after_the_timeout(run: Verify) -> None:
    """A timeout is a failed verification of a server that may well be alive."""
    with standin.start() as process:
        process.set_faults(hang=True)
        report = run(process, 5_000, timeout_seconds=0.5)
    found = report.results[0].verification
    assert (found.passed, report.outcome) == (False, None)
    assert "timed out: no answer within" in (found.error or "")
    assert "still answers" in (found.error or "")


def test_an_answer_that_stops_midway_is_bounded_too(run: Verify) -> None:
    """A stream that goes silent after its first token ends by the same timeout."""
    with standin.start(faults=Faults(hang_midway=True)) as process:
        found = run(process, 5_000, timeout_seconds=0.5).results[0].verification
    assert (found.passed, "timed out" in (found.error or "")) == (False, True)


def test_what_the_engine_did_not_take_is_no_verification(run: Verify, sglang: Standin) -> None:
    """A limit that the server did not tell beforehand comes back in its own words; nothing was served or measured."""
    sglang.set_faults(refuse_over_tokens=20_000)
    report = run(sglang, 30_000)
    assert (report.outcome, report.results, report.passed) == (None, (), False)
    assert "exceeds the maximum allowed length (20000 tokens)" in (report.refusal or "")


def test_an_error_of_a_living_server_leaves_the_outcome_alone(run: Verify, sglang: Standin) -> None:
    """A 500 of a server that still answers is a failed verification, not a failed start."""
    sglang.set_faults(error_status=500)
    report = run(sglang, 5_000)
    assert (report.passed, report.outcome) == (False, None)
    found = report.results[0].verification
    assert "the warm-up prompt: " in (found.error or "")
    assert "the server still answers" in (found.error or "")
    assert found.prompt_tokens < 2_100, "a failed warm-up is not blamed on the prompt that was never sent"


def test_a_huge_body_is_not_read_to_its_end(run: Verify, sglang: Standin) -> None:
    """An endless answer to a question about the server ends the verification, not the host's memory."""
    sglang.set_faults(huge_body_mib=80)
    report = run(sglang, 5_000)
    assert "larger than 64 MiB" in (report.refusal or "")


def test_one_failure_among_several_prompts_fails_them_all(run: Verify, sglang: Standin) -> None:
    """The error says how many of the prompts failed."""
    sglang.set_faults(cached_tokens=2_000)
    error = run(sglang, 3_000, concurrent=3).results[0].verification.error or ""
    assert error.startswith("3 of 3 prompts failed; the first: 2,000 of")
    sglang.set_faults(wrong_answer=True)
    notes = run(sglang, 3_000, concurrent=3).notes
    assert any(note.startswith("3 of 3 prompts were answered wrong; the first: wrong answer") for note in notes)


def test_no_server_is_no_verification(run: Verify) -> None:
    """Where nothing listens nothing was sent: no result, no server, and the reason."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with open_engine(address) as http:
        report = verify(http, Order(5_000))
    assert (report.server, report.passed, report.results) == (None, False, ())
    assert report.refusal


def test_a_server_that_is_not_an_engine_says_so(run: Verify, sglang: Standin) -> None:
    """An address that lists no model is not verified."""
    with open_engine(f"{sglang.url}/somewhere/else") as http:
        report = verify(http, Order(5_000))
    assert "is this an engine?" in (report.refusal or "")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.12 GiB", True),
        ("torch.cuda.OutOfMemoryError: HIP out of memory.", True),
        ("RuntimeError: CUDA error: out of memory", True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", True),
        ("Prefill out of memory. Try to lower your batch size.", False),
        ("KV cache pool is full. Retract requests.", False),
        ("", False),
    ],
)
def test_gpu_memory_and_a_full_pool_are_told_apart(words: str, meant: bool) -> None:
    """Only the driver's and the framework's words mean that GPU memory ran out."""
    assert is_out_of_memory(words) is meant
