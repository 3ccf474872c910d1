"""Prompt need against prompts that were really sent to an H200."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from domain.measured_memory import measured_prompts, measured_starts
from domain.worked_starts import DOG, KIMI, kimi_flags, start, worked_starts
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Failure,
    Model,
    Observation,
    Outcome,
    Scalar,
    Verification,
)
from kvyield_server.domain.model.need import PromptNeed, PromptNeeds, fit_prompt_needs, has_latent_attention

SGLANG = Engine(name=EngineName.SGLANG, version="0.5.12")
PLAIN = Model(name="plain", facts={"num_attention_heads": 32, "hidden_size": 4096, "num_key_value_heads": 8})
A_GRANULE_GIB = 0.2


def fit_prompt_need(starts: Sequence[Observation], model: Model, engine: Engine) -> PromptNeeds:
    """Return the needs of starts that logged their free memory themselves, prefill graphs captured."""
    return fit_prompt_needs(
        starts, model, engine.name, lambda start: start.measurements.free_at_ready_gib, lambda _: False
    )


def need_after(name: str, count: int) -> PromptNeeds:
    """Return the need as believed after the first ``count`` prompts of a measured start."""
    observed = measured_starts()[name]
    seen = replace(observed, verifications=measured_prompts()[name][:count])
    return fit_prompt_need([seen], observed.model, observed.engine)


def taken(name: str, prompt: Verification) -> float:
    first, lowest = measured_prompts()[name][0].free_before_gib, prompt.lowest_free_gib
    assert first is not None
    assert lowest is not None
    return first - lowest


@pytest.mark.parametrize("name", sorted(measured_prompts()))
def test_every_measured_peak_lies_in_its_interval(name: str) -> None:
    """Whatever shorter prompts came before, each prompt's peak is in the 90 % interval, MLA at 120k included.

    An engine that reserved its peak beforehand takes nothing at all: there the interval must reach down to the granules
    of two buffers a layer.
    """
    prompts, flags = measured_prompts()[name], measured_starts()[name].flags
    for seen in range(len(prompts)):
        need = need_after(name, seen)
        for prompt in prompts[seen:]:
            belief, peak = need.need(prompt.prompt_tokens, flags), taken(name, prompt)
            assert belief.quantile(0.05) <= max(peak, A_GRANULE_GIB), (seen, prompt.prompt_tokens)
            assert peak <= belief.quantile(0.95), (seen, prompt.prompt_tokens)


def test_plain_attention_is_flat_beyond_one_chunk() -> None:
    """Two chunks verify any length: the need of a longer prompt is no other, and counts as measured."""
    need = need_after("c5_sgl_srv_q8_080_c8192", 3)
    flags = measured_starts()["c5_sgl_srv_q8_080_c8192"].flags
    assert need.need(1_000_000, flags) == need.need(32_768, flags)
    assert need.need(1_000_000, flags).is_measured
    assert not need.need(1_000_000, {**flags, "chunked_prefill_size": 16384}).is_measured


def test_latent_attention_grows_with_the_prompt() -> None:
    """Beyond the longest verified prompt the need grows by a power of 1.5 and is not measured."""
    need = need_after("c5_sgl_srv_mla_080_c8192", 4)
    flags = measured_starts()["c5_sgl_srv_mla_080_c8192"].flags
    at_64k, at_128k = need.need(65_536, flags), need.need(131_072, flags)
    assert at_128k.median_gib == pytest.approx(2**1.5 * at_64k.median_gib)
    assert at_128k.log_sd >= 0.4
    assert at_64k.is_measured
    assert not at_128k.is_measured


@pytest.mark.parametrize(
    ("model", "flags", "tokens", "median_gib"),
    [
        (PLAIN, {"chunked_prefill_size": 8192}, 200_000, 1.2),
        (PLAIN, {"chunked_prefill_size": 4096}, 200_000, 0.6),
        (KIMI, kimi_flags(0.9, 8), 200_000, 2.0 * 200_000 / 65_536 * 8 / 16),
        (KIMI, kimi_flags(0.9, 8), 30_000, 1.0),
        (KIMI, {"chunked_prefill_size": 8192}, 65_536, 2.0),
    ],
)
def test_priors(model: Model, flags: dict[str, float], tokens: int, median_gib: float) -> None:
    """Without a verification the need follows chunk and width, or prompt and heads per GPU, with log-sd 0.6."""
    need = fit_prompt_need([], model, SGLANG).need(tokens, flags)
    assert (need.median_gib, need.log_sd) == pytest.approx((median_gib, 0.6))


def test_more_verifications_are_tighter() -> None:
    """Repeats at one chunk and length narrow the need."""
    flags: dict[str, Scalar] = {"mem_fraction_static": 0.8, "chunked_prefill_size": 8192}
    check = Verification(prompt_tokens=40_000, passed=True, free_before_gib=10.0, lowest_free_gib=8.9)

    def log_sd(count: int) -> float:
        starts = [start(i, flags, model=PLAIN, verifications=(check,)) for i in range(1, count + 1)]
        return fit_prompt_need(starts, PLAIN, SGLANG).need(200_000, flags).log_sd

    assert log_sd(0) > log_sd(1) > log_sd(2) > log_sd(4)


def test_a_shorter_prompt_after_a_longer_one_is_only_bounds() -> None:
    """Memory that a long prompt took stays taken: the short one after it says nothing new about the long one."""
    flags: dict[str, Scalar] = {"mem_fraction_static": 0.8, "chunked_prefill_size": 8192}
    long = Verification(prompt_tokens=100_000, passed=True, free_before_gib=20.0, lowest_free_gib=14.0)
    short = Verification(prompt_tokens=20_000, passed=True, free_before_gib=14.0, lowest_free_gib=14.0)

    def need(*checks: Verification) -> PromptNeed:
        return fit_prompt_need([start(1, flags, verifications=checks)], KIMI, SGLANG).need(100_000, flags)

    assert need(long, short) == need(long)
    assert 5.2 <= need(long).median_gib <= 6.0


def test_a_passed_prompt_bounds_from_above_and_a_death_from_below() -> None:
    """A prompt that passed with little memory lowers the need; one that the server crashed on raises it."""

    def median(observation: Observation) -> float:
        return fit_prompt_need([observation], KIMI, SGLANG).need(200_000, observation.flags).median_gib

    flags = kimi_flags(0.94, 8)
    plain = median(start(1, flags, free_at_ready_gib=2.0))
    passed = Verification(prompt_tokens=200_000, passed=True)
    assert median(start(1, flags, free_at_ready_gib=2.0, verifications=(passed,))) < plain
    died = Failure(prompt_tokens=200_000)
    assert median(start(1, flags, free_at_ready_gib=6.0, outcome=Outcome.OOM_RUNTIME, failure=died)) > plain


def test_what_was_verified_is_remembered() -> None:
    """The longest prompt that was served is known; one that was not verifies nothing."""
    need = fit_prompt_need(worked_starts(), KIMI, SGLANG)
    assert need.verified_prompt_tokens == 60_010
    failed = replace(worked_starts()[0], verifications=(replace(DOG, passed=False),))
    assert fit_prompt_need([failed], KIMI, SGLANG).verified_prompt_tokens is None


def test_a_passed_prompt_proves_its_own_length() -> None:
    """Where a prompt passed, the memory that was free then is enough for it again, and for shorter ones."""
    passed = Verification(prompt_tokens=200_000, passed=True)
    need = fit_prompt_need(
        [start(1, kimi_flags(0.94, 8), free_at_ready_gib=2.5, verifications=(passed,))], KIMI, SGLANG
    )
    assert need.need(200_000, kimi_flags(0.94, 8)).at_most(2.5) > 0.97
    assert need.need(120_000, kimi_flags(0.94, 8)).at_most(2.5) > 0.97
    assert need.need(400_000, kimi_flags(0.94, 8)).at_most(2.5) < 0.9


def without_config(*checks: Verification, name: str = "private/chat-2") -> PromptNeeds:
    """Return the needs of a model whose config nobody posted."""
    model = Model(name=name)
    flags: dict[str, Scalar] = {"chunked_prefill_size": 8192}
    starts = [start(1, flags, model=model, free_at_ready_gib=30.0, verifications=checks)]
    return fit_prompt_need(starts, model, SGLANG)


def took(prompt_tokens: int, gib: float) -> Verification:
    return Verification(prompt_tokens=prompt_tokens, passed=True, free_before_gib=30.0, lowest_free_gib=30.0 - gib)


def test_unknown_attention_is_either_kind() -> None:
    """Where nothing tells the kind of attention a long prompt may need what latent attention does, and is no proof."""
    need, flags = without_config(took(20_000, 1.2)), {"chunked_prefill_size": 8192}
    plain = fit_prompt_need([start(1, flags, verifications=(took(20_000, 1.2),))], PLAIN, SGLANG)
    long, known = need.need(200_000, flags), plain.need(200_000, flags)
    assert known.at_most(3.0) > 0.99
    assert known.at_most(3.0) - 0.05 < long.at_most(3.0) < known.at_most(3.0) - 0.01
    assert long.quantile(0.99) > 2.0 * known.quantile(0.99)
    assert known.is_measured
    assert not long.is_measured
    assert need.need(20_000, flags).is_measured
    assert known.median_gib < long.quantile(0.9) < long.quantile(0.95)
    for probability in (0.05, 0.5, 0.8, 0.95):
        assert long.at_most(long.quantile(probability)) == pytest.approx(probability, abs=1e-4)


def test_prompts_tell_the_kind_of_attention() -> None:
    """What stays the same at four times the length is plain attention's, what grows with it latent attention's."""
    flags = {"chunked_prefill_size": 8192}
    same = without_config(took(20_000, 1.2), took(80_000, 1.2)).need(200_000, flags)
    grown = without_config(took(20_000, 1.2), took(40_000, 2.8), took(80_000, 6.0)).need(200_000, flags)
    assert same.at_most(3.0) > 0.95
    assert grown.at_most(6.0) < 0.2


@pytest.mark.parametrize(
    ("name", "latent"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", False),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", False),
        ("deepseek-ai/DeepSeek-V3.2", True),
        ("moonshotai/Kimi-K3", True),
        ("private/chat-2", None),
    ],
)
def test_a_name_tells_the_kind_of_attention(name: str, latent: bool | None) -> None:
    """A distilled model has the attention of the model that it was distilled into."""
    assert has_latent_attention(Model(name=name)) is latent


def test_engines_that_reserve_their_peak_need_no_kind() -> None:
    """What vLLM takes beside its reserve does not depend on the kind of attention."""
    need = fit_prompt_needs([], Model(name="private/chat-2"), EngineName.VLLM, lambda _: None, lambda _: False)
    assert need.need(100_000, {}).kinds == ()
