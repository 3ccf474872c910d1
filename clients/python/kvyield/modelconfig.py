"""A model's own ``config.json``: which of its fields are worth keeping, and finding it on this host."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kvyield._errors import SourceError
from kvyield._secrets import redacted

LONGEST_FILE_BYTES = 4 * 2**20
LONGEST_TEXT = 200
LARGEST_NUMBER = 10**15
LONGEST_LIST = 2000
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
_KNOWN_WORDS = """
    architectures model_type dtype torch_dtype vocab_size tie_word_embeddings hidden_size d_model n_embd
    num_hidden_layers n_layer num_layers num_attention_heads n_head num_heads num_key_value_heads num_kv_heads
    multi_query_group_num head_dim v_head_dim qk_head_dim qk_nope_head_dim qk_rope_head_dim kv_lora_rank q_lora_rank
    o_lora_rank o_groups global_head_dim num_global_key_value_heads num_kv_shared_layers attention_k_eq_v
    index_head_dim index_n_heads index_topk compress_ratios
    intermediate_size moe_intermediate_size shared_expert_intermediate_size moe_layer_freq first_k_dense_replace
    n_routed_experts num_experts num_local_experts n_shared_experts num_experts_per_tok decoder_sparse_step
    num_nextn_predict_layers mtp_num_hidden_layers draft_num_hidden_layers draft_num_key_value_heads draft_head_dim
    block_size target_layer_ids
    layer_types layers_block_type hybrid_override_pattern full_attention_interval full_attn_layer_count
    attn_layer_period attn_layer_offset attn_type_list sliding_window sliding_window_pattern use_sliding_window
    max_window_layers attention_chunk_size no_rope_layers interleaved_sliding_window
    max_position_embeddings model_max_length n_positions max_seq_len seq_length rope_theta rope_scaling
    rope_parameters partial_rotary_factor original_max_position_embeddings
    mamba_expand mamba_n_heads mamba_d_head mamba_d_state mamba_d_conv mamba_n_groups mamba_num_heads mamba_head_dim
    mamba_chunk_size mamba_ssm_dtype ssm_state_size conv_kernel expand n_groups state_size
    linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim
    linear_attn_config
    quantization_config quantization quant_method kv_cache_quant_algo kv_cache_scheme_type
    checkpoint_bytes total_size weight_bytes
"""
_INSIDE_WORDS = """
    quant_method quant_algo kv_cache_quant_algo kv_cache_dtype bits group_size fmt activation_scheme weight_block_size
    scale_fmt weight_dtype load_in_4bit load_in_8bit format modules_to_not_convert desc_act sym zero_point version
    rope_type type factor original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim
    attention_factor low_freq_factor high_freq_factor rope_theta partial_rotary_factor
    kda_layers full_attn_layers num_heads head_dim short_conv_kernel_size
"""
_KNOWN = frozenset(_KNOWN_WORDS.split())
_KNOWN_INSIDE = frozenset(_INSIDE_WORDS.split())


def kept_facts(config: Mapping[str, object]) -> dict[str, object]:
    """The fields that size weights and caches, and no others: a config may hold what is nobody else's business.

    Numbers, short texts and lists of them are kept, one level of nesting for quantisation and rope; the language part
    of a multimodal model comes to the top.
    """
    inner = next((part for name in _INNER if isinstance(part := config.get(name), Mapping)), {})
    flat = {**config, **inner}
    facts = {name: _without_unknown(value) for name, value in flat.items() if name in _KNOWN}
    return {name: value for name, value in facts.items() if isinstance(value, dict) or _is_kept(value)}


def _without_unknown(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: part for name, part in value.items() if name in _KNOWN_INSIDE and _is_kept(part)} or None


def read_model_config(path: Path) -> dict[str, object]:
    """The kept facts of a ``config.json``, or of the one in a folder. Raises `SourceError`."""
    return kept_facts(_parsed(_file_of(path)))


def name_in_config(path: Path) -> str | None:
    """The name that a ``config.json``, or the one in a folder, gives its model. Raises `SourceError`."""
    name = _parsed(_file_of(path)).get("_name_or_path")
    return name if isinstance(name, str) and 0 < len(name) <= LONGEST_TEXT and redacted(name) == name else None


def _file_of(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def _parsed(file: Path) -> Mapping[str, object]:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise SourceError(f"{file} is not a regular file; give the model's config.json, or its folder")
        with file.open("rb") as opened:
            config = msgspec.json.decode(opened.read(LONGEST_FILE_BYTES))
    except OSError as error:
        raise SourceError(f"the model's config.json {file} cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{file} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise SourceError(f"{file} is not a model's config.json: it holds no object")
    return config


def find_model_config(told: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The ``config.json`` of a model path or hub name as the engine was given it, where this host has it."""
    folders = [Path(told)] if told.startswith("/") else _cached(told, environment)
    found = [folder / "config.json" for folder in folders if (folder / "config.json").is_file()]
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def _cached(name: str, environment: Mapping[str, str]) -> list[Path]:
    home = Path(environment.get("HF_HOME") or Path(environment.get("HOME") or "/") / ".cache" / "huggingface")
    hub = Path(environment.get("HF_HUB_CACHE") or home / "hub")
    try:
        return list((hub / f"models--{name.replace('/', '--')}" / "snapshots").iterdir())
    except (OSError, ValueError):
        return []


def _is_kept(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= LONGEST_LIST and all(_is_scalar(item) for item in value)
    return value is not None and _is_scalar(value)


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT and redacted(value) == value
    return value is None or (isinstance(value, int | float) and abs(value) <= LARGEST_NUMBER)
