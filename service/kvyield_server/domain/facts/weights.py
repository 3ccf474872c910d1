"""How much memory a model's weights take of one GPU, from the checkpoint's stated size or from its config."""

from __future__ import annotations

from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import flat_facts, read_shape, stated_weight_bytes
from kvyield_server.domain.facts.observation import Facts, Flags, Model
from kvyield_server.domain.facts.scalars import as_count, as_word, first_given, is_on

GIB = float(2**30)
LARGEST_BYTES_PER_GPU = 1e14
_QUANTISED_BYTES = {
    "fp8": 1.0,
    "w8a8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
    "fp4": 0.5625,
    "mxfp4": 0.5313,
    "awq": 0.55,
    "gptq": 0.55,
    "int4": 0.55,
    "w4a16": 0.55,
}


def weights_gib_per_gpu(model: Model, flags: Flags, gpu_count: int) -> float | None:
    """Return GiB of weights on one GPU, split evenly over tensor and pipeline parallel ranks; None when unknown.

    The checkpoint's stated size is used as it is. Else parameters are counted from the config, for dense and
    mixture-of-experts decoders, and multiplied by the bytes of one weight. More than any GPU could hold is unknown.
    """
    layout = parallel_layout(flags, gpu_count)
    stated = stated_weight_bytes(model.facts)
    if stated is None:
        count = parameter_count(model.facts)
        if count is None:
            return None
        stated = count * weight_bytes(model, flags)
    per_gpu = stated / (layout.tensor * layout.pipeline)
    return per_gpu / GIB if 1.0 <= per_gpu <= LARGEST_BYTES_PER_GPU else None


def weight_bytes(model: Model, flags: Flags) -> float:
    """Return bytes of one weight: by the quantisation that flags, facts or the model's name tell, else 2."""
    told = first_given(flags, "quantization") or first_given(model.facts, "quant_method", "quantization")
    words = f"{as_word(told) or ''} {model.name.lower()}"
    return next((size for word, size in _QUANTISED_BYTES.items() if word in words), 2.0)


def parameter_count(facts: Facts) -> float | None:
    """Return the number of weights of a decoder, embeddings included, or None when the config lacks sizes."""
    config = flat_facts(facts)
    shape = read_shape(config)
    vocabulary = as_count(config.get("vocab_size"))
    if shape.layers is None or shape.hidden_size is None or vocabulary is None:
        return None
    attention, mlp = _attention_weights(config), _mlp_weights(config, shape.layers)
    if attention is None or mlp is None:
        return None
    copies = 1 if is_on(config.get("tie_word_embeddings")) else 2
    return copies * vocabulary * shape.hidden_size + shape.layers * attention + mlp


def _attention_weights(config: Facts) -> float | None:
    """Return the attention weights of one layer."""
    shape = read_shape(config)
    heads, hidden = shape.attention_heads, shape.hidden_size
    if heads is None or hidden is None or shape.head_dim is None or shape.kv_heads is None:
        return None
    if shape.latent_width is None:
        return hidden * shape.head_dim * (2.0 * heads + 2.0 * shape.kv_heads)
    rope = as_count(config.get("qk_rope_head_dim")) or 0
    plain = as_count(config.get("qk_nope_head_dim")) or shape.head_dim
    value = as_count(config.get("v_head_dim")) or plain
    query_rank = as_count(config.get("q_lora_rank"))
    query = heads * (plain + rope) * (query_rank or hidden) + hidden * (query_rank or 0)
    latent = hidden * shape.latent_width + (shape.latent_width - rope) * heads * (plain + value)
    return float(query + latent + heads * value * hidden)


def _mlp_weights(config: Facts, layers: int) -> float | None:
    """Return the weights of all feed-forward layers; experts from the first layer that has them."""
    hidden = as_count(config.get("hidden_size"))
    inner = as_count(config.get("intermediate_size"))
    experts = as_count(first_given(config, "n_routed_experts", "num_experts", "num_local_experts"))
    if hidden is None:
        return None
    if experts is None:
        return None if inner is None else 3.0 * hidden * inner * layers
    width = as_count(config.get("moe_intermediate_size")) or inner
    if width is None:
        return None
    dense_layers = min(layers, as_count(config.get("first_k_dense_replace")) or 0)
    shared = as_count(config.get("n_shared_experts")) or 0
    sparse = 3.0 * hidden * width * (experts + shared) * (layers - dense_layers)
    return sparse + 3.0 * hidden * (inner or width) * dense_layers
