"""Which starts share a deployment, how null joins, and how a question finds its deployment."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from domain.real_starts import KIMI, PRO_6000, h200_starts, observe, worked_case
from kvyield_server.domain.answers import BasisKind
from kvyield_server.domain.facts.deployment import deployment_key, deployment_label, group_starts
from kvyield_server.domain.facts.observation import Engine, EngineName, Hardware, Model, Observation
from kvyield_server.domain.model.fit import PairEvidence, cold_fit, fit_pair

SGLANG = Engine(name=EngineName.SGLANG, version="0.5.12")
FULL: dict[str, Any] = {
    "mem_fraction_static": 0.9,
    "tp_size": 8,
    "speculative_algorithm": "DFLASH",
    "kv_cache_dtype": "auto",
}


def start(position: int, *, version: str | None = "0.5.12", **flags: Any) -> Observation:
    return observe(
        f"start-{position}",
        position,
        hardware=PRO_6000,
        model=KIMI,
        engine=Engine(name=EngineName.SGLANG, version=version),
        flags=flags,
        pool_tokens=100_000 + position,
    )


def test_flags_that_move_free_memory_alone_do_not_split_a_deployment() -> None:
    """Running requests, chunk size, graph batches and context length are not in SGLang's key."""
    starts = [
        start(1, **FULL, max_running_requests=64, chunked_prefill_size=8192),
        start(2, **FULL, max_running_requests=8, cuda_graph_max_bs=16, context_length=200_000),
    ]
    assert len(group_starts(starts)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"kv_cache_dtype": "fp8_e4m3"},
        {"tp_size": 4},
        {"speculative_algorithm": None},
        {"page_size": 64},
        {"quantization": "fp8"},
        {"version": "0.5.18"},
    ],
)
def test_what_moves_slope_or_start_splits_a_deployment(change: dict[str, Any]) -> None:
    """A known difference in layout, dtype, page, draft, quantisation or version makes another deployment."""
    one = start(1, **{**FULL, "page_size": 1, "quantization": "awq"})
    other = start(2, **{**FULL, "page_size": 1, "quantization": "awq", **change})
    assert len(group_starts([one, other])) == 2


def test_vllm_flags_that_move_its_profile_split_a_deployment() -> None:
    """Batched tokens move vLLM's w, so that they are in its key; its lengths are not for plain attention."""
    starts = h200_starts()
    names = ("f0.8", "f0.8_batched2048", "f0.8_len8192")
    groups = group_starts([starts[f"c4_vllm_q8_{name}"] for name in names])
    assert sorted(len(group.starts) for group in groups) == [1, 2] or len(groups) == 1
    split = group_starts([starts["c4_vllm_q8_f0.8_batched2048"], starts["c4_vllm_q8_f0.8_batched4096"]])
    assert len(split) == 2


def test_running_requests_split_old_speculating_targets_alone() -> None:
    """SGLang 0.4.6 to 0.5.5 added draft headroom per request to the pool; later versions do not."""
    eagle = {"speculative_algorithm": "EAGLE", "tp_size": 8}

    def groups(version: str) -> int:
        pair = [start(n, version=version, max_running_requests=8 * n, **eagle) for n in (1, 2)]
        return len(group_starts(pair))

    assert groups("0.5.5") == 2
    assert groups("0.5.12") == 1


def test_null_joins_the_one_deployment_that_agrees() -> None:
    """A hand-made post without version and draft joins the only deployment there is."""
    groups = group_starts([start(1, **FULL), start(2, version=None, mem_fraction_static=0.92)])
    assert [len(group.starts) for group in groups] == [2]


def test_null_stands_alone_where_two_deployments_agree() -> None:
    """A post that could belong to either of two deployments is given to neither."""
    groups = group_starts(
        [start(1, **FULL), start(2, **{**FULL, "kv_cache_dtype": "fp8"}), start(3, mem_fraction_static=0.92)]
    )
    assert sorted(len(group.starts) for group in groups) == [1, 1, 1]


def test_facts_and_gpu_memory_are_not_in_the_key() -> None:
    """Starts that differ in model facts or reported memory are one deployment."""
    bare = replace(start(2, **FULL), model=replace(KIMI, facts={}), hardware=replace(PRO_6000, memory_gib=94.97))
    assert len(group_starts([start(1, **FULL), bare])) == 1


def test_names_are_readable_and_ids_stay() -> None:
    """The label names engine, version, layout and draft; the id does not change when a start joins."""
    one = group_starts([start(1, **FULL)])[0]
    two = group_starts([start(1, **FULL), start(2, **FULL, page_size=1)])[0]
    assert one.identifier == two.identifier
    assert len(one.identifier) <= 12
    assert deployment_label(one.key) == "SGLang 0.5.12, TP 8, DFLASH"


def test_words_for_the_same_setting_are_one() -> None:
    """fp8 spellings, numbers as text, and switched-off values are canonical in the key."""
    one = deployment_key(KIMI, SGLANG, {"kv_cache_dtype": "fp8_e4m3", "tp_size": "8", "enable_lora": False}, 8)
    other = deployment_key(KIMI, SGLANG, {"kv_cache_dtype": "fp8_e5m2", "tp_size": 8.0, "enable_lora": None}, 8)
    assert one == other


def test_a_question_finds_the_newest_deployment_that_agrees() -> None:
    """Engine, version, flags and a named start each choose; the newest agreeing start wins."""
    fitted = fit_pair(
        PairEvidence(
            (start(1, **FULL), start(2, **{**FULL, "kv_cache_dtype": "fp8"}), start(3, version="0.5.18", **FULL))
        )
    )
    asked: dict[str, Any] = {"engine": EngineName.SGLANG, "engine_version": None, "like": None, "flags": {}}

    def newest(**changed: Any) -> Observation | None:
        chosen = fitted.choose(**{**asked, **changed})
        return None if chosen is None else chosen.starts[-1]

    assert newest() == fitted.deployments[0].starts[-1]
    assert newest(engine=EngineName.VLLM) is None
    assert newest(engine=None) is not None
    first = newest(engine_version="0.5.12", flags={"kv_cache_dtype": "auto"})
    assert first is not None
    assert first.id == start(1, **FULL).id
    second = newest(flags={"kv_cache_dtype": "fp8_e4m3"})
    assert second is not None
    assert second.id == start(2, **FULL).id
    assert newest(like=first.id) == first
    assert newest(like=PRO_6000_STRANGER) is None


PRO_6000_STRANGER = start(99, **FULL).id


def test_a_cold_start_says_what_it_is_based_on() -> None:
    """Config and GPU alone give a wide pool, other hardware's starts a narrower one; each names its basis."""
    flags: dict[str, Any] = {"mem_fraction_static": 0.94, "tp_size": 8, "speculative_algorithm": "DFLASH"}
    facts = {**KIMI.facts, "checkpoint_bytes": 554 * 2**30}
    cold = cold_fit(hardware=PRO_6000, model=Model(name=KIMI.name, facts=facts), engine=SGLANG, flags=flags)
    prediction = cold.predict({}).pool_tokens
    assert cold.summary.basis.kind is BasisKind.CONFIG_ONLY
    assert prediction is not None
    assert prediction.low <= 218_484 <= prediction.high
    elsewhere = h200_starts()["c6_sgl_q8_f0.8"]
    smaller = Hardware(gpu="NVIDIA H100 80GB HBM3", gpu_count=1, memory_gib=79.65)
    moved = cold_fit(
        hardware=smaller,
        model=replace(elsewhere.model, facts={}),
        engine=elsewhere.engine,
        flags={**elsewhere.flags, "mem_fraction_static": 0.9},
        transfers=(elsewhere,),
    )
    pool = moved.predict({}).pool_tokens
    assert moved.summary.basis.kind is BasisKind.TRANSFER
    assert pool is not None
    assert pool.median == pytest.approx((78.59 * 0.9 - 15.4) * 2**30 / 147_456, rel=0.02)


def test_a_cold_start_without_facts_says_so() -> None:
    """Nothing known gives null estimates and what to post next, not an error."""
    unknown = Hardware(gpu="Mystery accelerator", gpu_count=1)
    cold = cold_fit(hardware=unknown, model=Model(name="m"), engine=SGLANG, flags={"mem_fraction_static": 0.9})
    prediction = cold.predict({})
    assert prediction.pool_tokens is None
    assert prediction.kv_cache_gib is None
    assert {caution.code for caution in prediction.warnings} == {"not_enough_evidence"}


def test_the_running_start_is_the_newest_that_served() -> None:
    """A refused attempt after a good start does not become the running one."""
    first, second, _ = worked_case()
    (fit,) = fit_pair(PairEvidence((first, second))).deployments
    assert fit.runs == second


VLLM = Engine(name=EngineName.VLLM, version="0.21.0")
DRAFT = "incoai/Qwen3-235B-A22B-Instruct-2507-DFlash-b16"


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (f'{{"method":"dflash","model":"{DRAFT}","num_speculative_tokens":15}}', f"DFLASH {DRAFT[7:].lower()}"),
        (f"{{'model': '/models/{DRAFT}/', 'method': 'dflash'}}", f"DFLASH {DRAFT[7:].lower()}"),
        (f"SpeculativeConfig(method='eagle3', model='{DRAFT}', num_spec_tokens=3)", f"EAGLE3 {DRAFT[7:].lower()}"),
        ('{"num_speculative_tokens": 2, "method": "mtp"}', "MTP"),
        ('{"method":"DFLASH","model":"INCOAI/QWEN3', "DFLASH"),
        ('{"model": "a/draft"}', "draft"),
        ('{"num_speculative_tokens": 5}', "speculative decoding"),
        ("{" * 5000, "speculative decoding"),
        ("NEXTN", "NEXTN"),
    ],
)
def test_a_name_never_shows_cut_json(config: str, name: str) -> None:
    """A speculative configuration is named by its method and its draft's last path part, whatever form it has."""
    key = deployment_key(KIMI, VLLM, {"speculative_config": config}, 1)
    assert deployment_label(key) == f"vLLM 0.21.0, {name}"


def test_the_key_holds_the_whole_configuration() -> None:
    """The order of JSON keys and blanks make no other deployment; a difference at the very end does."""
    first = {"method": "dflash", "model": DRAFT, "quantization": None, "num_speculative_tokens": 15}
    texts = [
        json.dumps(first),
        json.dumps(dict(reversed(first.items())), separators=(",", ":")),
        str(first),
        json.dumps({**first, "num_speculative_tokens": 7}),
    ]
    one, reordered, python, other = (deployment_key(KIMI, VLLM, {"speculative_config": text}, 1) for text in texts)
    assert one == reordered == python
    assert one != other
    assert json.loads(one["speculation"])["model"] == DRAFT.lower()


@pytest.mark.parametrize(
    ("version", "flags", "expected"),
    [
        ("0.6.4", {"max_model_len": 20_000}, "20000"),
        ("0.6.4", {"max_model_len": 1024}, "2048"),
        ("0.6.4", {"max_model_len": 35_000}, None),
        ("0.6.4", {"max_model_len": 20_000, "enable_chunked_prefill": True}, None),
        ("0.6.4", {"max_model_len": 20_000, "max_num_batched_tokens": 512}, "512"),
        ("0.20.0", {"max_model_len": 20_000}, None),
        ("0.20.0", {"max_model_len": 40_000, "enable_chunked_prefill": False}, "40000"),
        (None, {"max_model_len": 20_000}, None),
        ("0.6.4", {}, None),
    ],
)
def test_without_chunks_vllm_profiles_the_longest_prompt(
    version: str | None, flags: dict[str, Any], expected: str | None
) -> None:
    """So the context length moves the pool there, as another number of batched tokens would."""
    key = deployment_key(Model(name="m"), Engine(name=EngineName.VLLM, version=version), flags, 1)
    assert key.get("batched_tokens") == expected


def test_a_longer_context_is_no_free_gain_where_prompts_are_profiled_whole() -> None:
    """0.6.4 at 20,000 tokens had a pool of 31,232 and at 29,000 one of 23,648 (vllm-project/vllm issue 10517)."""
    hardware = Hardware(gpu="NVIDIA GeForce RTX 3090", gpu_count=1, memory_gib=23.58, unified_memory=False)
    flags = {"gpu_memory_utilization": 0.9, "max_model_len": 20_000, "tensor_parallel_size": 1}
    ran = observe(
        "whole", 0, hardware=hardware, model=Model(name="example/8b"),
        engine=Engine(name=EngineName.VLLM, version="0.6.4.post1"), flags=flags, pool_tokens=31_232, kv_cache_gib=3.81,
        device_memory_gib=23.58,
    )  # fmt: skip
    fit = fit_pair(PairEvidence((ran,))).choose(engine=EngineName.VLLM, engine_version=None, like=ran.id, flags={})
    assert fit is not None
    same, longer = (fit.predict({**flags, "max_model_len": length}).pool_tokens for length in (20_000, 29_000))
    assert same is not None
    assert longer is not None
    assert same.high - same.low < 1_000
    assert longer.low < 23_648 < longer.high
