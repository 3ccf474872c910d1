"""What one token costs in a simulated engine: the engines' own formulas, written down apart from the domain's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvyield_server.domain.facts.observation import EngineName, Scalar

ELEMENT_BYTES = 2
WINDOW_RATIO = 0.8
STATE_RATIO = 0.9
BATCHED_TOKENS = 8192
STATE_BLOCK = 1056

DENSE = {"hidden_size": 4096, "max_position_embeddings": 131072}
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "mha": {**DENSE, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128},
    "gqa": {**DENSE, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "gqa-wide": {
        **{"hidden_size": 8192, "max_position_embeddings": 32768, "num_hidden_layers": 80},
        **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128},
    },
    "mla": {
        **{"hidden_size": 7168, "max_position_embeddings": 262144, "num_hidden_layers": 61},
        **{"num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
    },
    "window": {
        **{**DENSE, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
        **{"sliding_window": 1024, "sliding_window_pattern": 6},
    },
    "recurrent": {
        **{**DENSE, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256},
        "full_attention_interval": 4,
    },
}
HYBRIDS = ("window", "recurrent")
DRAFT_LAYERS, DRAFT_HEADS, DRAFT_WIDTH = 6, 8, 128
VERSIONS = {
    EngineName.SGLANG: ("0.5.8", "0.5.12", "0.5.15", "0.5.18"),
    EngineName.VLLM: ("0.20.0", "0.26.0"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A draft model: what flags and config say of it; ``is_told`` is false where nobody said whether one runs."""

    algorithm: str | None
    is_told: bool = True
    has_facts: bool = True

    def facts(self) -> dict[str, Any]:
        """Return the config's fields that tell the draft's size."""
        if self.algorithm == "DFLASH" and self.has_facts:
            return {
                "draft_num_hidden_layers": DRAFT_LAYERS,
                "draft_num_key_value_heads": DRAFT_HEADS,
                "draft_head_dim": DRAFT_WIDTH,
            }
        return {"num_nextn_predict_layers": 1} if self.algorithm is not None and self.has_facts else {}

    def flags(self, engine: EngineName) -> dict[str, Scalar]:
        """Return the flags that name the draft, or name it as off."""
        name = "speculative_config" if engine is EngineName.VLLM else "speculative_algorithm"
        return {name: self.algorithm} if self.is_told else {}


def token_bytes(kind: str, engine: EngineName, version: str | None, tensor: int) -> float:
    """Return bytes of one token of the target on one GPU."""
    facts = ARCHITECTURES[kind]
    layers = int(facts["num_hidden_layers"])
    if kind == "mla":
        return float(576 * ELEMENT_BYTES * layers)
    heads = max(1, facts["num_key_value_heads"] // tensor)
    layer = float(heads * 2 * facts["head_dim"] * ELEMENT_BYTES)
    full = int({"window": layers // 6, "recurrent": layers // 4}.get(kind, layers))
    if kind not in HYBRIDS:
        return layer * layers
    if engine is EngineName.SGLANG:
        return layer * (full + WINDOW_RATIO * (layers - full)) if kind == "window" else layer * full * (1 + STATE_RATIO)
    if version == "0.20.0":
        return layer * layers
    longest = int(facts["max_position_embeddings"])
    kept = int(facts["sliding_window"]) + BATCHED_TOKENS if kind == "window" else STATE_BLOCK
    return layer * (full + (layers - full) * kept / longest)


def draft_factor(draft: Draft, era: tuple[EngineName, str], target: float, tensor: int, layers: int) -> float:
    """Return by what the engine's era multiplies the target's bytes for a draft whose size is known."""
    engine, version = era
    release = tuple(int(part) for part in version.split("."))
    own = max(1, DRAFT_HEADS // tensor) * 2 * DRAFT_WIDTH * DRAFT_LAYERS * ELEMENT_BYTES
    if draft.algorithm is None:
        return 1.0
    if engine is EngineName.VLLM:
        return 1.0 + (1 / layers if draft.algorithm == "EAGLE" else own / target)
    if release < (0, 5, 11):
        return 1.0
    if draft.algorithm == "EAGLE":
        return 1.0 if release < (0, 5, 15) else 1.0 + 1 / layers
    return (layers + DRAFT_LAYERS) / layers if release <= (0, 5, 15) else 1.0 + own / target


def prompt_prior(facts: Mapping[str, Any], engine: EngineName, tensor: int, prompt_tokens: int) -> tuple[float, float]:
    """Return median GiB and log-sd of what a prompt takes in chunks of 8,192 tokens, before any was seen.

    The model's stated prior, written down apart from it; latent attention's is for 16 heads a GPU.
    """
    if engine is EngineName.VLLM:
        return 0.25, 0.8
    if "kv_lora_rank" in facts:
        heads = max(1.0, int(facts["num_attention_heads"]) / tensor)
        return 2.0 * max(1.0, prompt_tokens / 65_536) * heads / 16, 0.6
    return 1.2 * int(facts["hidden_size"]) / 4096, 0.6
