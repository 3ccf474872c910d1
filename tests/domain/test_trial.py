"""What real HTTP servers on one H200 showed: what runs is kept, one death forgets nothing, dropped graphs are known."""

from __future__ import annotations

import pytest

from domain.door import advise, fitted, predict
from domain.ledgers import advised_fraction, is_kept, words
from domain.trial_starts import of
from kvyield_server.domain.answers import Status
from kvyield_server.domain.facts.observation import Observation

FIRST_FOUR = (0.80, 0.822, 0.901, 0.94)


def sglang_at(*fractions: float) -> list[Observation]:
    """Return the dense model's SGLang starts at these fractions."""
    return [start for start in of("qwen3-8b", "sglang") if start.fraction in fractions]


def test_a_vllm_whose_prompts_passed_is_kept() -> None:
    """880,432 tokens are up at 0.982 and 8 x 110,000 passed there with 0.43 GiB left."""
    advice = advise(of("qwen3-8b", "vllm"), 110_000, concurrent=8)
    assert is_kept(advice, 0.982), (advice.status, advice.flags, advice.explanation)
    assert advice.status is Status.OK


def test_a_latent_attention_server_whose_prompt_passed_is_kept() -> None:
    """120,000 tokens passed twice at 0.937 with 0.71 GiB left, though a prompt took more where there was room."""
    starts = [start for start in of("dsv2-lite", "sglang") if start.fraction in (0.80, 0.937)]
    advice = advise(starts, 120_000, concurrent=29)
    assert is_kept(advice, 0.937), (advice.status, advice.flags, advice.explanation)
    assert advice.status is Status.OK


def test_a_death_at_the_next_fraction_leaves_the_verified_one() -> None:
    """0.965 ran out of memory at 120,000: 0.937 is answered, never 0.965 or above."""
    starts = of("dsv2-lite", "sglang")
    for prefer in ("keep", "pool"):
        advice = advise(starts, 120_000, concurrent=29, prefer=prefer)
        assert 0.9365 <= advised_fraction(advice) < 0.965, prefer
        assert advice.status in (Status.OK, Status.AT_RISK)


def test_one_death_at_start_up_forgets_nothing() -> None:
    """0.99 died before its KV dtype was logged; the answer stays what it was, and below 0.99.

    The last prompt of 120,000 at 0.94 was not served (the server was killed), so neither answer is `ok`.
    """
    first = sglang_at(*FIRST_FOUR)
    before = advise(first, 120_000, concurrent=7)
    after = advise([*first, *sglang_at(0.99)], 120_000, concurrent=7)
    assert is_kept(before, 0.94), (before.status, before.explanation)
    assert (after.status, after.flags, after.command_line) == (before.status, before.flags, before.command_line)
    assert after.flags.get("context_length") == 131_072
    assert len(after.basis.observation_ids) >= 4
    highest = advise([*first, *sglang_at(0.99)], 120_000, concurrent=7, prefer="pool")
    assert 0.94 <= advised_fraction(highest) < 0.99


@pytest.mark.parametrize(
    ("fraction", "requests", "measured"), [(0.973, 3414, 1.40), (0.98, 3442, 0.41), (0.98, 512, 1.84)]
)
def test_dropped_prefill_graphs_are_inside_the_interval(fraction: float, requests: int, measured: float) -> None:
    """Below 4 GiB free SGLang leaves its prefill graphs out: the starts from 0.80 to 0.94 had them, these had not."""
    known = sglang_at(*FIRST_FOUR)
    asked = {"mem_fraction_static": fraction, "max_running_requests": requests}
    free = predict(known, asked).free_at_ready_gib
    assert free is not None
    assert free.low <= measured <= free.high, free
    assert free.high - free.low <= 1.5, free


def test_starts_with_and_without_prefill_graphs_are_two_pieces() -> None:
    """With both kinds in the ledger 0.977 lies between the two nearest starts, not on the mean of the two lines."""
    known = [start for start in of("qwen3-8b", "sglang") if start.fraction != 0.99]
    free = predict(known, {"mem_fraction_static": 0.977, "max_running_requests": 3430}).free_at_ready_gib
    assert free is not None
    assert free.median == pytest.approx(0.83, abs=0.25)
    before = predict(known, {"mem_fraction_static": 0.93, "max_running_requests": 3240}).free_at_ready_gib
    assert before is not None
    assert before.median == pytest.approx(6.2, abs=0.3)


ONE = [(0.822, 721_089, 60), (0.901, 801_162, 60), (0.94, 840_691, 60)]
THREE = [(0.94, 840_691, 2), (0.973, 874_139, 2), (0.98, 881_234, 2)]


@pytest.mark.parametrize(("fraction", "pool", "allowed"), ONE)
def test_pools_from_one_start(fraction: float, pool: int, allowed: int) -> None:
    """One logged start predicts the others to 60 tokens of 700 to 840 thousand."""
    found = predict(sglang_at(0.80), {"mem_fraction_static": fraction}).pool_tokens
    assert found is not None
    assert abs(found.median - pool) <= allowed
    assert found.low <= pool <= found.high


@pytest.mark.parametrize(("fraction", "pool", "allowed"), THREE)
def test_pools_from_three_starts(fraction: float, pool: int, allowed: int) -> None:
    known = sglang_at(0.80, 0.822, 0.901) if fraction == 0.94 else sglang_at(*FIRST_FOUR)
    found = predict(known, {"mem_fraction_static": fraction}).pool_tokens
    assert found is not None
    assert abs(found.median - pool) <= allowed
    assert found.low <= pool <= found.high


def test_pools_of_latent_attention_and_of_vllm_from_one_start() -> None:
    latent = predict([of("dsv2-lite", "sglang")[0]], {"mem_fraction_static": 0.937}).pool_tokens
    assert latent is not None
    assert abs(latent.median - 3_482_734) <= 350
    vllm = of("qwen3-8b", "vllm")
    for start in (vllm[1], vllm[4]):
        found = predict(vllm[:1], start.flags).pool_tokens
        assert found is not None
        assert abs(found.median - (start.measurements.pool_tokens or 0)) <= 128


def test_free_memory_before_a_prompt_is_a_measurement() -> None:
    """vLLM's log has no free memory; the client read it before each prompt: 26.257, 11.702 and 0.804 GiB."""
    starts = of("qwen3-8b", "vllm")
    eager = [start for start in starts if start.flags.get("enforce_eager")]
    flags = {**eager[0].flags, "gpu_memory_utilization": 0.95}
    free = predict(eager, flags).free_at_ready_gib
    assert free is not None
    assert free.median == pytest.approx(5.27, abs=0.4)
    assert free.high - free.low <= 3.0


def test_a_run_time_death_keeps_its_pool() -> None:
    fit = fitted(of("dsv2-lite", "sglang"))
    pool = fit.predict({"mem_fraction_static": 0.965}).pool_tokens
    assert pool is not None
    assert abs(pool.median - 3_617_277) <= 40
    assert "120,000" in words(advise(of("dsv2-lite", "sglang"), 120_000, concurrent=30))
