"""How much memory a model's weights take of one GPU, from the checkpoint's stated size or from its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.model_config import flat_facts, quantisation_configs, read_shape, stated_weight_bytes
from kvyield_server.domain.facts.observation import Facts, Flags, Model
from kvyield_server.domain.facts.scalars import as_count, as_number, as_word, first_given, is_on

GIB = float(2**30)
LARGEST_BYTES_PER_GPU = 1e14
STATED_SD, COUNTED_SD = 0.05, 0.06
ASSUMED_BYTES, ASSUMED_SD = 1.25, 0.36
"""Where nothing states the bytes of a weight: 4-bit (0.53) to 16-bit (2.0) within the 90 % interval."""
_QUANTISED_BYTES = {
    "fp8": 1.0,
    "w8a8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
    "mxfp4": 0.5313,
    "fp4": 0.5625,
    "awq": 0.55,
    "gptq": 0.55,
    "int4": 0.55,
    "w4a16": 0.55,
}
_DTYPE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "half": 2.0, "bf16": 2.0, "fp16": 2.0, "float32": 4.0}
_SCALE_BITS = 16.0


@dataclass(frozen=True, slots=True)
class WeightsFigure:
    """GiB of weights on one GPU with a relative standard deviation.

    ``is_stated`` is false where the bytes of a weight are assumed; ``by_dtype`` says that only the dtype of the
    computation tells them, as configs without their quantisation do.
    """

    gib: float
    relative_sd: float
    is_stated: bool
    by_dtype: bool = False

    def assumed(self) -> WeightsFigure:
        """Return the figure of weights that are of 4 to 16 bits, where 16 cannot be."""
        return WeightsFigure(self.gib * ASSUMED_BYTES / 2.0, ASSUMED_SD, is_stated=False)


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Weights of a decoder by what quantisation treats alike."""

    embeddings: float
    attention: float
    dense: float
    shared: float
    experts: float

    @property
    def total(self) -> float:
        return self.embeddings + self.attention + self.dense + self.shared + self.experts


def weights_of_gpu(model: Model, flags: Flags, gpu_count: int) -> WeightsFigure | None:
    """Return the weights on one GPU, split evenly over tensor and pipeline parallel ranks; None when unknown.

    The checkpoint's stated size is used as it is. Else parameters are counted from the config, for dense and
    mixture-of-experts decoders, and multiplied by the bytes of one weight. More than any GPU could hold is unknown.
    """
    layout = parallel_layout(flags, gpu_count)
    stated, doubt, is_stated, by_dtype = stated_weight_bytes(model.facts), STATED_SD, True, False
    if stated is None:
        counts = parameter_counts(model.facts)
        if counts is None:
            return None
        found = _quantised(model, flags, counts)
        if found is None:
            found = _sixteen_bit(model, flags, counts)
            by_dtype = found is not None
        is_stated = found is not None
        stated = found if found is not None else counts.total * ASSUMED_BYTES
        doubt = COUNTED_SD if is_stated else ASSUMED_SD
    per_gpu = stated / (layout.tensor * layout.pipeline)
    if not 1.0 <= per_gpu <= LARGEST_BYTES_PER_GPU:
        return None
    return WeightsFigure(per_gpu / GIB, doubt, is_stated, by_dtype)


def _quantised(model: Model, flags: Flags, counts: ParameterCounts) -> float | None:
    """Return the checkpoint's bytes by the quantisation that flags, config or the model's name tell; None unknown."""
    config = flat_facts(model.facts)
    for stated in quantisation_configs(config):
        per_weight = _stated_bytes(stated)
        if per_weight is not None:
            return _mixed(counts, per_weight, stated)
    told = first_given(flags, "quantization") or first_given(config, "quant_method", "quantization")
    words = f"{as_word(told) or ''} {model.name.lower()}"
    named = next((size for word, size in _QUANTISED_BYTES.items() if word in words), None)
    return None if named is None else counts.total * named


def _sixteen_bit(model: Model, flags: Flags, counts: ParameterCounts) -> float | None:
    """Return the checkpoint's bytes by the dtype of the computation, None where nothing tells that either."""
    config = flat_facts(model.facts)
    dtype = as_word(first_given(config, "torch_dtype", "dtype")) or as_word(flags.get("dtype")) or ""
    size = _DTYPE_BYTES.get(dtype.removeprefix("torch."))
    return None if size is None else counts.total * size


def _stated_bytes(stated: Mapping[str, object]) -> float | None:
    """Return the bytes of a quantised weight, scales included."""
    groups = stated.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        bits = as_number(weights.get("num_bits")) if isinstance(weights, Mapping) else None
        if bits is not None and isinstance(weights, Mapping) and 1.0 <= bits <= 32.0:
            size = as_count(weights.get("group_size"))
            return (bits + (_SCALE_BITS / size if size else 0.0)) / 8.0
    bits = as_number(first_given(stated, "bits", "w_bit", "weight_bits", "num_bits"))
    if bits is not None and 1.0 <= bits <= 32.0:
        size = as_count(first_given(stated, "group_size", "q_group_size"))
        return (bits + (_SCALE_BITS / size if size else 0.0)) / 8.0
    if is_on(stated.get("load_in_4bit")):
        return 0.55
    words = " ".join(as_word(stated.get(name)) or "" for name in ("quant_method", "quant_algo", "format", "fmt"))
    return next((size for word, size in _QUANTISED_BYTES.items() if word in words), None)


def _mixed(counts: ParameterCounts, per_weight: float, stated: Mapping[str, object]) -> float:
    """Return bytes where parts that the config leaves out of quantisation, and embeddings, stay 16-bit."""
    left_out = " ".join(
        str(stated.get(name) or "")
        for name in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
    ).lower()
    parts = (
        (counts.embeddings, True),
        (counts.attention, "attn" in left_out or "attention" in left_out),
        (counts.dense, "mlp" in left_out),
        (counts.shared, "shared" in left_out),
        (counts.experts, False),
    )
    return sum(count * (2.0 if is_wide else per_weight) for count, is_wide in parts)


def parameter_counts(facts: Facts) -> ParameterCounts | None:
    """Return the weights of a decoder by part, or None when the config lacks sizes."""
    config = flat_facts(facts)
    shape = read_shape(config)
    vocabulary = as_count(config.get("vocab_size"))
    if shape.layers is None or shape.hidden_size is None or vocabulary is None:
        return None
    attention, mlp = _attention_weights(config), _mlp_weights(config, shape.layers)
    if attention is None or mlp is None:
        return None
    copies = 1 if is_on(config.get("tie_word_embeddings")) else 2
    return ParameterCounts(copies * vocabulary * shape.hidden_size, shape.layers * attention, *mlp)


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


def _mlp_weights(config: Facts, layers: int) -> tuple[float, float, float] | None:
    """Return the weights of all dense feed-forward layers, shared experts and experts."""
    hidden = as_count(config.get("hidden_size"))
    inner = as_count(config.get("intermediate_size"))
    experts = as_count(first_given(config, "n_routed_experts", "num_experts", "num_local_experts"))
    if hidden is None:
        return None
    if experts is None:
        return None if inner is None else (3.0 * hidden * inner * layers, 0.0, 0.0)
    width = as_count(config.get("moe_intermediate_size")) or inner
    if width is None:
        return None
    dense_layers = min(layers, as_count(config.get("first_k_dense_replace")) or 0)
    shared = as_count(config.get("n_shared_experts")) or 0
    each = 3.0 * hidden * width * (layers - dense_layers)
    return 3.0 * hidden * (inner or width) * dense_layers, each * shared, each * experts
