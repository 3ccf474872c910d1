"""Bytes that one token takes of one GPU's KV budget, by architecture, KV dtype, parallel layout and engine era.

The arithmetic is the engines' own: SGLang's pool configurators from 0.4.3 to 0.5.23 and vLLM's KV cache interface.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil, hypot

from kvyield_server.domain.engines.vllm import LENGTH_DEFINITION
from kvyield_server.domain.facts.layout import ParallelLayout, parallel_layout
from kvyield_server.domain.facts.model_config import ModelShape, flat_facts, keeps_8bit_kv, keeps_states, read_shape
from kvyield_server.domain.facts.observation import Engine, EngineName, Facts, Flags, Model
from kvyield_server.domain.facts.scalars import any_named, as_count, as_number, as_word, first_given, is_on
from kvyield_server.domain.facts.versions import Version, parse_version

FORMULA_SD = 0.003
UNKNOWN_DRAFT_FACTOR = 1.06
UNKNOWN_DRAFT_SD = 0.08
INFERRED_LAYOUT_SD = 0.05
STATE_SPLIT_SD = 0.05
STATE_BLOCK_TOKENS = 1056
"""vLLM makes attention blocks as large as a recurrent layer's state, usually of 500 to 2,000 tokens."""
INDEX_BYTES = 132
SCALED_LATENT_BYTES = 656

QUANT_POLICIES = {"0": "auto", "4": "int4", "8": "int8"}
"""LMDeploy's ``quant_policy``; beside each head's 8 or 4 bits it keeps a 16-bit scale and zero point."""
QUANT_POLICY_BYTES = {"int8": 1.0 + 4 / 128, "int4": 0.5 + 4 / 128}
HYBRID_SD = 0.05

SPECULATION = ("speculative_algorithm", "speculative_config", "speculative_model", "speculative_draft_model_path")
BLOCK_DRAFTS = ("dflash", "dspark")
WITHOUT_WEIGHTS = ("", "ngram", "ngram_gpu", "suffix")
"""Speculation that is off or drafts from the text itself: no draft model, no layers of its own."""
_TURBOQUANT = re.compile(r"turboquant_(?:k(\d)v(\d)|(\d)bit)")
TURBOQUANT_SCALES = 1 / 32
"""vLLM's TurboQuant keeps norms and scales of 2 to 6 bytes beside each head's keys and values."""
_METHOD = re.compile(r"""^\{.*?['"]?\bmethod['"]?\s*[:=]\s*['"](?P<method>[\w.-]+)""", re.DOTALL)
"""The method in vLLM's speculative configuration, as JSON or as Python prints it."""


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Bytes per token and GPU that the engine budgets, with a relative standard deviation."""

    bytes_per_token: float
    relative_sd: float

    def times(self, factor: float, relative_sd: float = 0.0) -> TokenCost:
        """Return the cost times a factor that is itself known to ``relative_sd``."""
        return TokenCost(self.bytes_per_token * factor, hypot(self.relative_sd, relative_sd))


def kv_element_bytes(flags: Flags, facts: Facts) -> float:
    """Return the bytes of one KV element: 2 unless the flags, or the checkpoint under ``auto``, say otherwise."""
    policy = QUANT_POLICIES.get(str(flags.get("quant_policy") or ""))
    if policy is not None:
        return QUANT_POLICY_BYTES.get(policy, 2.0)
    word = as_word(flags.get("kv_cache_dtype")) or "auto"
    if word == "auto":
        word = "fp8" if keeps_8bit_kv(facts) else "auto"
    if "fp4" in word:
        return 0.5 + 1 / 16
    if bits := _TURBOQUANT.search(word):
        keys, values = int(bits[1] or bits[3]), int(bits[2] or bits[3])
        return (keys + values) / 16 + TURBOQUANT_SCALES
    if "int4" in word:
        return 0.5
    if "fp8" in word or "int8" in word or word in ("8", "float8"):
        return 1.0
    return 4.0 if word in ("float32", "fp32") else 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """All that a cost depends on."""

    shape: ModelShape
    config: Facts
    engine: EngineName
    version: Version | None
    flags: Flags
    layout: ParallelLayout

    @property
    def element_bytes(self) -> float:
        return kv_element_bytes(self.flags, self.config)


def token_cost(facts: Facts, engine: Engine, flags: Flags, gpu_count: int) -> TokenCost | None:
    """Return what one token takes of the KV budget of one GPU, or None where the config does not tell."""
    config = flat_facts(facts)
    case = _Case(
        shape=read_shape(config),
        config=config,
        engine=engine.name,
        version=parse_version(engine.version),
        flags=flags,
        layout=parallel_layout(flags, gpu_count),
    )
    target = _target_bytes(case)
    if target is None or target <= 0:
        return None
    cost = TokenCost(target, FORMULA_SD)
    if not case.layout.is_known and case.shape.latent_width is None:
        cost = cost.times(1.0, INFERRED_LAYOUT_SD)
    if case.shape.recurrent_layers and not is_pinned(flags):
        cost = cost.times(1.0, STATE_SPLIT_SD)
    if case.shape.is_hybrid and case.engine is EngineName.VLLM:
        cost = cost.times(1.0, HYBRID_SD)
    return _with_draft(cost, case).times(1.0 / case.layout.decode_context)


def _target_bytes(case: _Case) -> float | None:
    """Return the target's bytes in the layers of one pipeline stage."""
    shape, stages = case.shape, case.layout.pipeline
    per_layer = _layer_bytes(case)
    if shape.full_layers is None or per_layer is None:
        return None
    total = per_layer * ceil(shape.full_layers / stages)
    if not shape.is_hybrid:
        return total
    if case.engine is not EngineName.SGLANG:
        return _vllm_hybrid_bytes(case, per_layer) if case.engine is EngineName.VLLM else None
    if shape.window_layers:
        ratio = as_number(case.flags.get("swa_full_tokens_ratio")) or 0.8
        return total + ratio * per_layer * ceil(shape.window_layers / stages)
    return total * _state_share(case.flags)


def _vllm_hybrid_bytes(case: _Case, per_layer: float) -> float | None:
    """Return what one counted token of a hybrid takes: up to 0.20 as if every layer kept it, later by longest request.

    A request of the longest length takes its tokens in full layers, a window in others, and one block of state each.
    """
    shape, longest = case.shape, as_count(case.flags.get("max_model_len")) or case.shape.context_length
    if case.version is None or shape.layers is None or shape.full_layers is None:
        return None
    if case.version <= LENGTH_DEFINITION:
        return per_layer * ceil(shape.layers / case.layout.pipeline)
    if longest is None or (shape.window_layers and shape.window_tokens is None):
        return None
    in_flight = as_count(case.flags.get("max_num_batched_tokens")) or 8192
    window = min(longest, (shape.window_tokens or 0) + in_flight)
    kept = shape.full_layers * longest + shape.window_layers * window + shape.recurrent_layers * STATE_BLOCK_TOKENS
    return per_layer * kept / longest / case.layout.pipeline


def counts_alike(one: Engine, other: Engine, *, hybrid: bool) -> bool:
    """Tell whether two engine versions mean the same by pool tokens: vLLM's hybrids changed it after 0.20."""
    versions = parse_version(one.version), parse_version(other.version)
    if not hybrid or one.name is not EngineName.VLLM:
        return True
    if versions[0] is None or versions[1] is None:
        return one.version == other.version
    return (versions[0] <= LENGTH_DEFINITION) == (versions[1] <= LENGTH_DEFINITION)


def _layer_bytes(case: _Case) -> float | None:
    """Return bytes of one token in one layer that keeps every token."""
    shape, element = case.shape, case.element_bytes
    if shape.latent_width is not None:
        is_sparse = shape.index_head_dim is not None
        carries_scales = is_sparse and element == 1.0 and _scaled_latent(case)
        latent = SCALED_LATENT_BYTES if carries_scales else shape.latent_width * element
        return latent + (INDEX_BYTES if is_sparse else 0)
    if shape.kv_heads is None or shape.head_dim is None or shape.value_head_dim is None:
        return None
    heads = max(1, shape.kv_heads // case.layout.attention_tensor)
    return heads * (shape.head_dim + shape.value_head_dim) * element


def _scaled_latent(case: _Case) -> bool:
    """Tell whether an 8-bit sparse latent cache is budgeted with its scales, as FlashMLA's layout has them."""
    if case.engine is not EngineName.SGLANG:
        return True
    backend = as_word(first_given(case.flags, "nsa_decode_backend", "attention_backend")) or ""
    return case.version is not None and case.version >= (0, 5, 23, 0) and "trtllm" not in backend


def has_states_of_their_own(model: Model, flags: Flags) -> bool:
    """Tell whether states take memory beside the pool that does not grow with it: w is then more than the weights.

    Recurrent states do where their number is given or follows running requests, and with a draft; DeepSeek V4's always.
    """
    shape = read_shape(model.facts)
    if not shape.recurrent_layers:
        return keeps_states(model) and not shape.window_layers
    return is_pinned(flags) or bool(speculation(flags))


def is_pinned(flags: Flags) -> bool:
    """Tell whether flags fix how many recurrent states there are."""
    return is_on(flags.get("max_mamba_cache_size")) or is_on(flags.get("disable_radix_cache"))


def _state_share(flags: Flags) -> float:
    """Return how many times a token's bytes leave the budget because recurrent states take their share of it."""
    if is_pinned(flags):
        return 1.0
    ratio = as_number(flags.get("mamba_full_memory_ratio"))
    return 1.0 + (0.9 if ratio is None or ratio < 0 else min(ratio, 100.0))


def speculation(flags: Flags) -> str | None:
    """Return the speculative algorithm in lower case, an empty string when known to be off, None when unknown."""
    value = first_given(flags, *SPECULATION, "speculative")
    if value is None:
        return "" if any_named(flags, *SPECULATION, "speculative") else None
    word = as_word(value) or "on"
    if word.startswith("{"):
        named = _METHOD.search(word)
        word = named["method"] if named is not None else "ngram" if "[ngram]" in word else "draft_model"
    return word if is_on(value) and value != "{}" else ""


def _with_draft(cost: TokenCost, case: _Case) -> TokenCost:
    algorithm = speculation(case.flags)
    is_unbilled = case.engine is EngineName.SGLANG and case.version is not None and case.version < (0, 5, 11, 0)
    if algorithm in WITHOUT_WEIGHTS or is_unbilled:
        return cost
    share = None if algorithm is None else _draft_share(cost, algorithm, case)
    return cost.times(UNKNOWN_DRAFT_FACTOR, UNKNOWN_DRAFT_SD) if share is None else cost.times(1.0 + share)


def _draft_share(cost: TokenCost, algorithm: str, case: _Case) -> float | None:
    """Return the draft's bytes per token relative to the target's, or None where nothing tells."""
    draft_layers = as_count(case.config.get("draft_num_hidden_layers"))
    layers = case.shape.full_layers or 1
    if any(word in algorithm for word in BLOCK_DRAFTS):
        return _block_draft_share(cost, draft_layers, case)
    known = draft_layers or case.shape.next_token_layers
    if case.engine is not EngineName.SGLANG:
        return None if known is None else known / layers
    if case.version is None:
        return None
    return 0.0 if case.version <= (0, 5, 12, 1) else (known or 1) / layers


def _block_draft_share(cost: TokenCost, draft_layers: int | None, case: _Case) -> float | None:
    """SGLang up to 0.5.15 bills a block draft as so many layers of the target; later ones price its own heads."""
    if case.version is None or draft_layers is None:
        return None
    heads = as_count(case.config.get("draft_num_key_value_heads"))
    width = as_count(case.config.get("draft_head_dim"))
    if case.version <= (0, 5, 15, 99) or heads is None or width is None:
        return draft_layers / (case.shape.full_layers or 1)
    per_gpu = max(1, heads // case.layout.attention_tensor)
    return per_gpu * 2 * width * draft_layers * case.element_bytes / cost.bytes_per_token
