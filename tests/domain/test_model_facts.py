"""What configs, flags, GPUs and versions say, as plain numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domain.real_starts import DATA, KIMI
from kvyield_server.domain.facts.devices import (
    find_device,
    free_before_load,
    has_unified_memory,
    usable_memory,
)
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import is_latent_attention, read_shape
from kvyield_server.domain.facts.observation import Flags, Hardware, Model
from kvyield_server.domain.facts.versions import parse_version
from kvyield_server.domain.facts.weights import parameter_counts, weights_of_gpu

MODELS: dict[str, dict[str, Any]] = json.loads((DATA / "models.json").read_text())
LLAMA_70B = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "vocab_size": 128256,
}


def test_shapes_are_read_under_any_of_their_names() -> None:
    """GPT-2's names, a head size that follows from the hidden size, and a nested language part are all understood."""
    old = read_shape({"n_layer": 12, "n_head": 12, "n_embd": 768})
    assert (old.layers, old.kv_heads, old.head_dim) == (12, 12, 64)
    nested = read_shape({"text_config": {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64}})
    assert (nested.layers, nested.head_dim) == (4, 8)
    assert read_shape(KIMI.facts).latent_width == 576


@pytest.mark.parametrize(
    ("facts", "full", "window", "recurrent"),
    [
        ({"num_hidden_layers": 6}, 6, 0, 0),
        ({"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}, 2, 2, 0),
        ({"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}, 1, 0, 3),
        ({"num_hidden_layers": 48, "full_attention_interval": 4}, 12, 0, 36),
        ({"num_hidden_layers": 7, "hybrid_override_pattern": "M-M*-M*"}, 2, 0, 3),
        ({"num_hidden_layers": 12, "sliding_window_pattern": 6, "sliding_window": 1024}, 2, 10, 0),
        ({"num_hidden_layers": 12, "sliding_window": 4096}, 12, 0, 0),
    ],
)
def test_layers_are_counted_by_kind(facts: dict[str, Any], full: int, window: int, recurrent: int) -> None:
    """Layers that keep every token, a window, or a state are told apart however the config lists them."""
    shape = read_shape(facts)
    assert (shape.full_layers, shape.window_layers, shape.recurrent_layers) == (full, window, recurrent)
    assert shape.is_hybrid is (window + recurrent > 0)


def test_latent_attention_is_known_unknown_or_absent() -> None:
    """MLA and sparse indexes are latent, plain heads are not, and no facts say nothing."""
    assert is_latent_attention(KIMI.facts) is True
    assert is_latent_attention(MODELS["qwen3-8b"]) is False
    assert is_latent_attention({}) is None


@pytest.mark.parametrize(
    ("facts", "billions"),
    [(MODELS["qwen3-8b"], 8.19), (MODELS["dsv2-lite"], 15.7), (LLAMA_70B, 70.55)],
)
def test_parameters_are_counted_to_two_per_cent(facts: dict[str, Any], billions: float) -> None:
    """Dense, grouped and latent mixture-of-experts models have the published number of weights."""
    counts = parameter_counts(facts)
    assert counts is not None
    assert counts.total / 1e9 == pytest.approx(billions, rel=0.02)


def weights_gib(model: Model, flags: Flags, gpu_count: int) -> float | None:
    found = weights_of_gpu(model, flags, gpu_count)
    return None if found is None else found.gib


def test_weights_on_one_gpu_agree_with_measured_loads() -> None:
    """On the H200 Qwen3-8B took 15.32 GiB and DeepSeek-V2-Lite 29.47 GiB; eight ranks hold an eighth each."""
    wide = {"torch_dtype": "bfloat16"}
    qwen, lite = (Model(name=name, facts={**MODELS[name], **wide}) for name in ("qwen3-8b", "dsv2-lite"))
    assert weights_gib(qwen, {"tp_size": 1}, 1) == pytest.approx(15.32, rel=0.03)
    assert weights_gib(lite, {"tp_size": 1}, 1) == pytest.approx(29.47, rel=0.03)
    stated = Model(name="m", facts={"checkpoint_bytes": 554 * 2**30})
    assert weights_gib(stated, {"tp_size": 8}, 8) == pytest.approx(69.25)
    assert weights_gib(Model(name="m"), {}, 1) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5.12", (0, 5, 12, 0)),
        ("v0.5.12.post1", (0, 5, 12, 1)),
        ("0.20.0 fork", (0, 20, 0, 0)),
        ("0.1.dev20073", None),
        ("3d35b45f7", None),
        ("", None),
        (None, None),
    ],
)
def test_versions_compare_only_when_they_are_releases(text: str | None, expected: tuple[int, ...] | None) -> None:
    """Releases become numbers; development builds, hashes and nothing stay unknown."""
    assert parse_version(text) == expected


@pytest.mark.parametrize(
    ("flags", "count", "attention", "is_known"),
    [
        ({}, 1, 1, True),
        ({}, 8, 8, False),
        ({"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}, 8, 2, True),
        ({"tensor_parallel_size": "4", "data_parallel_size": 2}, 8, 4, True),
        ({"dp_size": 2}, 8, 4, False),
        ({"tp_size": None}, 8, 1, True),
    ],
)
def test_layouts_follow_the_flags_and_else_the_gpus(
    flags: dict[str, Any], count: int, attention: int, is_known: bool
) -> None:
    """Attention's share of GPUs comes from the flags; an unnamed size takes what the others leave."""
    layout = parallel_layout(flags, count)
    assert (layout.attention_tensor, layout.is_known) == (attention, is_known)


@pytest.mark.parametrize(
    ("gpu", "stated", "usable"),
    [
        ("NVIDIA H200", None, 139.80),
        ("NVIDIA H200", 140.40, 139.80),
        ("NVIDIA H200", 141, 139.80),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95.59, 94.97),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 94.97, 94.97),
        ("NVIDIA H100 80GB HBM3", None, 79.19),
        ("NVIDIA A10-24Q", 23.722, 23.66),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.75, 9.73),
    ],
)
def test_gpus_have_the_memory_that_frameworks_see(gpu: str, stated: float | None, usable: float) -> None:
    """Reported, usable and marketing sizes lead to the usable one; a MIG slice is not the whole GPU."""
    found = usable_memory(Hardware(gpu=gpu, gpu_count=1, memory_gib=stated))
    assert found is not None
    assert found.gib == pytest.approx(usable, rel=0.001)


def test_unknown_gpus_without_a_size_have_none() -> None:
    """No guess is made for a GPU that is neither in the table nor described."""
    assert usable_memory(Hardware(gpu="Mystery accelerator", gpu_count=1)) is None
    assert find_device("NVIDIA L4000") is None


def test_free_before_load_agrees_with_measured_starts() -> None:
    """139.19 GiB on one H200 and 93.7 on eight RTX PRO 6000 were measured."""
    alone = free_before_load(Hardware(gpu="NVIDIA H200", gpu_count=1), is_spread=False)
    spread = free_before_load(Hardware(gpu="RTX PRO 6000 Blackwell", gpu_count=8), is_spread=True)
    assert alone is not None
    assert spread is not None
    assert alone.gib == pytest.approx(139.19, rel=0.001)
    assert spread.gib == pytest.approx(93.7, rel=0.002)


@pytest.mark.parametrize(
    ("gpu", "stated", "expected"),
    [
        ("NVIDIA GB10", None, True),
        ("GB10 (DGX Spark)", None, True),
        ("NVIDIA Jetson AGX Thor", None, True),
        ("AMD ROCm unified-memory device", None, True),
        ("NVIDIA GB200", None, False),
        ("NVIDIA H200", None, False),
        ("NVIDIA GB10", False, False),
        ("NVIDIA H200", True, True),
    ],
)
def test_shared_memory_is_known_by_name_or_said(gpu: str, stated: bool | None, expected: bool) -> None:
    """What the host says wins over what the name suggests."""
    assert has_unified_memory(Hardware(gpu=gpu, gpu_count=1, unified_memory=stated)) is expected
