"""How people tell a pool beforehand: rules of thumb and engines' own words, as baselines to compare with."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from domain.real_starts import H200, KIMI, PRO_6000, h200_starts
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Observation

GIB = float(2**30)
LOGS = Path(__file__).parents[1] / "clients" / "engines" / "data" / "h200_logs.tar.xz"
CHECKPOINT_GIB = {"qwen3-8b": 15.256, "dsv2-lite": 29.257, KIMI.name: 554.0}
"""What the checkpoint files of the configs hold, from their parameter counts (K2.6: as published)."""
GPU_GIB = {H200.gpu: 143_771 / 1024, PRO_6000.gpu: 97_887 / 1024}
"""What nvidia-smi calls the GPU's total, which is what a person reads off."""
SUGGESTION = re.compile(rb"--kv-cache-memory=(\d+)` \([0-9.]+ GiB\) to fit into requested memory")


def straight_line(first: Observation, second: Observation, asked: Observation) -> float | None:
    """Return what a straight line through two starts says, which is all that their pools can tell."""
    low, high, at = (start.fraction or 0.0 for start in (first, second, asked))
    one, two = _figure(first), _figure(second)
    return None if one is None or two is None else one + (two - one) * (at - low) / (high - low)


def tokens_per_free_gib(first: Observation, second: Observation, asked: Observation) -> float | None:
    """Return the hand rule: tokens gained per GiB of free memory lost, times the memory that more fraction takes."""
    one, two = _figure(first), _figure(second)
    before, after = first.measurements.free_at_ready_gib, second.measurements.free_at_ready_gib
    total = GPU_GIB.get(first.hardware.gpu)
    if one is None or two is None or before is None or after is None or total is None or before == after:
        return None
    rate = (two - one) / (before - after)
    return two + rate * total * ((asked.fraction or 0.0) - (second.fraction or 0.0))


def proportion(first: Observation, asked: Observation) -> float | None:
    """Return the rule of three on one start: twice the fraction, twice the pool."""
    one = _figure(first)
    return None if one is None else one * (asked.fraction or 0.0) / (first.fraction or 1.0)


def config_only(asked: Observation, facts: Mapping[str, object]) -> float | None:
    """Return GPU times fraction less the checkpoint's share, over the config's bytes per token: no engine in it."""
    total, checkpoint = GPU_GIB.get(asked.hardware.gpu), CHECKPOINT_GIB.get(asked.model.name)
    cost = _bytes_per_token(facts)
    if total is None or checkpoint is None or cost is None:
        return None
    tensor = parallel_layout(asked.flags, asked.hardware.gpu_count).tensor
    shared = 1 if "kv_lora_rank" in facts else tensor
    return (total * (asked.fraction or 0.0) - checkpoint / tensor) * GIB / (cost / shared)


def _bytes_per_token(facts: Mapping[str, object]) -> float | None:
    layers, latent, rope = (facts.get(name) for name in ("num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim"))
    if isinstance(layers, int) and isinstance(latent, int) and isinstance(rope, int):
        return 2.0 * layers * (latent + rope)
    heads, size = facts.get("num_key_value_heads"), facts.get("head_dim")
    if isinstance(layers, int) and isinstance(heads, int) and isinstance(size, int):
        return 4.0 * layers * heads * size
    return None


def _figure(start: Observation) -> float | None:
    """Return the pool in tokens, or in GiB where no start of the group printed tokens."""
    measured = start.measurements
    return measured.kv_cache_gib if measured.pool_tokens is None else measured.pool_tokens


def vllm_suggestions() -> dict[str, int]:
    """Return the bytes that vLLM itself proposes for --kv-cache-memory, by the start that printed them."""
    names, found = set(h200_starts()), {}
    with tarfile.open(LOGS) as archive:
        for member in archive.getmembers():
            name, file = Path(member.name).stem, archive.extractfile(member)
            match = SUGGESTION.search(file.read()) if file is not None and name in names else None
            if match:
                found[name] = int(match.group(1))
    return found


def fraction_flags(start: Observation) -> dict[str, float]:
    """Return the fraction alone, under the engine's own name."""
    return {FRACTION_FLAG[start.engine.name]: start.fraction or 0.0}
