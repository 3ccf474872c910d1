"""What a model's own ``config.json`` says about its layers, heads and latent caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvyield_server.domain.facts.observation import Facts, Model
from kvyield_server.domain.facts.scalars import as_count, as_number, as_word, first_given, is_on

QUANTISATION_CONFIGS = ("quantization_config", "compression_config", "hf_quant_config", "quantization")
INNER_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
SPARSE_NAMES = ("deepseek-v4", "deepseek_v4", "deepseekv4")
"""Models whose bytes per token differ many times with the length of a request."""
STATEFUL_NAMES = (
    *SPARSE_NAMES,
    *("qwen3-next", "qwen3_next", "qwen3.5", "qwen3_5", "qwen3.6", "qwen3.8", "kimi-linear", "kimi_linear"),
    *("nemotron-h", "nemotron_h", "falcon-h1", "falcon_h1", "granite-4.0-h", "jamba", "lfm2"),
    *("minimax-text-01", "minimax-m1", "gpt-oss", "gpt_oss", "gemma-2", "gemma2", "gemma-3", "gemma3"),
)
"""Models that keep windows or states beside some of their tokens, where no config says it."""
STATES_FACT = "pools_show_states"
"""A fact that no config states: what the pools of the pair's starts tell."""
RECURRENT_KINDS = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "gdn", "kda"})
WINDOW_KINDS = frozenset({"sliding_attention", "sliding_window", "chunked_attention", "local", "window"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes that decide what a token costs. None is unknown; layer counts are of the whole model.

    ``full_layers`` keep every token, ``window_layers`` a sliding window, ``recurrent_layers`` a state of fixed size.
    """

    layers: int | None = None
    full_layers: int | None = None
    window_layers: int = 0
    recurrent_layers: int = 0
    attention_heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    latent_width: int | None = None
    index_head_dim: int | None = None
    next_token_layers: int | None = None
    window_tokens: int | None = None
    hidden_size: int | None = None
    context_length: int | None = None

    @property
    def is_hybrid(self) -> bool:
        """Tell whether some layers do not keep every token."""
        return self.window_layers > 0 or self.recurrent_layers > 0


def flat_facts(facts: Facts) -> Facts:
    """Return the facts of the language part, where a multimodal config nests it."""
    inner = next((facts[name] for name in INNER_CONFIGS if isinstance(facts.get(name), Mapping)), None)
    return {**facts, **inner} if isinstance(inner, Mapping) else facts


def read_shape(facts: Facts) -> ModelShape:
    """Read a shape from config fields under any of the names that architectures use for them."""
    config = flat_facts(facts)
    heads = as_count(first_given(config, "num_attention_heads", "n_head", "num_heads"))
    hidden = as_count(first_given(config, "hidden_size", "n_embd", "d_model"))
    head_dim = as_count(config.get("head_dim"))
    if head_dim is None and hidden is not None and heads is not None:
        head_dim = max(1, hidden // heads)
    layers = as_count(first_given(config, "num_hidden_layers", "n_layer", "num_layers"))
    full, window, recurrent = _layer_kinds(config, layers)
    return ModelShape(
        layers=layers,
        full_layers=full,
        window_layers=window,
        recurrent_layers=recurrent,
        attention_heads=heads,
        kv_heads=as_count(first_given(config, "num_key_value_heads", "num_kv_heads", "multi_query_group_num")) or heads,
        head_dim=head_dim,
        value_head_dim=as_count(config.get("v_head_dim")) or head_dim,
        latent_width=_latent_width(config),
        index_head_dim=as_count(config.get("index_head_dim")),
        next_token_layers=as_count(first_given(config, "num_nextn_predict_layers", "mtp_num_hidden_layers")),
        window_tokens=as_count(first_given(config, "sliding_window", "attention_chunk_size")),
        hidden_size=hidden,
        context_length=_context_length(config),
    )


def _context_length(config: Facts) -> int | None:
    """Return the tokens that the model admits: its positions, times a RoPE factor unless they include it already."""
    positions = as_count(first_given(config, "max_position_embeddings", "model_max_length", "n_positions"))
    scaling = first_given(config, "rope_scaling", "rope_parameters")
    if positions is None or not isinstance(scaling, Mapping) or "original_max_position_embeddings" in scaling:
        return positions
    factor = as_number(scaling.get("factor"))
    is_included = as_word(first_given(scaling, "rope_type", "type")) in ("llama3", "longrope", "su", "mrope")
    return positions if factor is None or factor < 1.0 or is_included else as_count(positions * factor)


def keeps_states(model: Model) -> bool:
    """Tell whether requests hold memory beside their tokens: windows, recurrent states, or DeepSeek V4's own."""
    return read_shape(model.facts).is_hybrid or _is_named(model, STATEFUL_NAMES) or is_on(model.facts.get(STATES_FACT))


def has_token_price(model: Model) -> bool:
    """Tell whether a request's bytes are nearly in proportion to its length, states beside it aside."""
    return not _is_named(model, SPARSE_NAMES)


def _is_named(model: Model, names: tuple[str, ...]) -> bool:
    words = f"{model.name} {model.facts.get('model_type') or ''}".lower()
    return any(name in words for name in names)


def is_latent_attention(facts: Facts) -> bool | None:
    """Tell whether attention is latent or sparse, so that a prompt's need grows with its length; None is unknown."""
    shape = read_shape(facts)
    if shape.latent_width is not None or shape.index_head_dim is not None:
        return True
    return None if shape.attention_heads is None else False


def _latent_width(config: Facts) -> int | None:
    rank = as_count(config.get("kv_lora_rank"))
    return None if rank is None else rank + (as_count(config.get("qk_rope_head_dim")) or 0)


def _layer_kinds(config: Facts, layers: int | None) -> tuple[int | None, int, int]:
    """Return how many layers are full, windowed and recurrent."""
    if layers is None:
        return None, 0, 0
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str) and kinds:
        return _counted(kinds[:layers])
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return pattern.count("*"), 0, pattern.upper().count("M")
    return _periodic(config, layers)


def _counted(kinds: Sequence[object]) -> tuple[int, int, int]:
    words = [as_word(kind) or "" for kind in kinds]
    window = sum(word in WINDOW_KINDS for word in words)
    recurrent = sum(word in RECURRENT_KINDS for word in words)
    return len(words) - window - recurrent, window, recurrent


def _periodic(config: Facts, layers: int) -> tuple[int, int, int]:
    """Count layers from a period: every nth one is full."""
    period = as_count(first_given(config, "full_attention_interval", "attn_layer_period"))
    if period is not None and period > 1:
        full = max(1, layers // period)
        return full, 0, layers - full
    linear = as_count(config.get("full_attn_layer_count"))
    if linear is not None and linear < layers:
        return linear, 0, layers - linear
    period = as_count(config.get("sliding_window_pattern"))
    if period is not None and period > 1 and is_on(config.get("sliding_window")):
        full = max(1, layers // period)
        return full, layers - full, 0
    return layers, 0, 0


def stated_weight_bytes(facts: Facts) -> float | None:
    """Return the checkpoint's size in bytes where the facts state it (as a safetensors index does)."""
    value = as_number(first_given(facts, "checkpoint_bytes", "total_size", "weight_bytes"))
    return value if value is not None and value > 0 else None


def quantisation_configs(config: Facts) -> Iterator[Mapping[str, object]]:
    """Yield the places where real configs keep their quantisation, one level of nesting included."""
    for name in QUANTISATION_CONFIGS:
        found = config.get(name)
        if isinstance(found, Mapping):
            yield found
            inner = found.get("quantization")
            if isinstance(inner, Mapping):
                yield inner


def keeps_8bit_kv(facts: Facts) -> bool:
    """Tell whether the checkpoint says that its KV cache is 8-bit, which engines take over under ``auto``."""
    config = flat_facts(facts)
    for stated in (config, *quantisation_configs(config)):
        word = as_word(first_given(stated, "kv_cache_quant_algo", "kv_cache_scheme_type")) or ""
        scheme = stated.get("kv_cache_scheme")
        bits = as_number(scheme.get("num_bits")) if isinstance(scheme, Mapping) else None
        if "fp8" in word or bits == 8.0:
            return True
    return False
