"""SGLang: the pool is what the fraction leaves of free memory before weights, less the weights.

Sources: SGLang's server arguments and pool configurators from 0.4.3 to 0.5.23.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvyield_server.domain.engines.spec import EngineSpec
from kvyield_server.domain.facts.layout import DATA, DATA_ATTENTION
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation
from kvyield_server.domain.facts.scalars import as_count, first_given, is_on

Floats = NDArray[np.float64]

RESERVED_TOKENS = 7
"""SGLang takes prompts up to min(context length, pool) - 7 tokens."""
POST_CAPTURE = ("post_capture_kv_sizing", "enable_post_capture_kv_sizing", "sglang_enable_post_capture_kv_sizing")

SGLANG = EngineSpec(
    title="SGLang",
    fraction="mem_fraction_static",
    default_fraction=0.88,  # SGLang computes it from the GPU and the flags; this is only where a search begins
    context="context_length",
    requests="max_running_requests",
    chunk="chunked_prefill_size",
    tensor_parallel="tp_size",
    data_parallel="dp_size",
    kv_dtype="kv_cache_dtype",
    half_kv="fp8_e4m3",
    graph_batch="cuda_graph_max_bs",
    graphs_off="disable_cuda_graph",
    speculation="speculative_algorithm",
    pool_cap="max_total_tokens",
    program=("python3", "-m", "sglang.launch_server"),
    model_option="--model-path",
    key_fields={
        "multimodal": ("enable_multimodal",),
        "symmetric_memory": ("enable_symm_mem",),
        "role": ("disaggregation_mode", "role"),
        "window_ratio": ("swa_full_tokens_ratio",),
        "state_ratio": ("mamba_full_memory_ratio",),
        "state_slots": ("max_mamba_cache_size",),
        "post_capture": POST_CAPTURE,
    },
    state_fields={"running_requests": ("max_running_requests",)},
)

GIB = float(2**30)
FEWEST_REQUESTS, MOST_REQUESTS = 2048, 4096
SPECULATIVE_REQUESTS = 48
"""SGLang's default of running requests with a draft; without one it follows the pool."""
PREFILL_GRAPH_FREE_GIB = 4.0
"""With less than this free after the pool SGLang leaves its prefill graphs out ("at least 4.00 GiB is required")."""


def default_requests(pool_tokens: Floats, context_tokens: int) -> Floats:
    """Return the running requests that SGLang chooses for a pool."""
    requests: Floats = np.floor(np.clip(pool_tokens / context_tokens * 512.0, FEWEST_REQUESTS, MOST_REQUESTS))
    return requests


def request_table_gib(requests: Floats, context_tokens: int, ranks: int = 1) -> Floats:
    """Return GiB of the int32 table that maps (requests + 1) rows of (context + 4) tokens to pool slots."""
    rows: Floats = np.maximum(1.0, np.floor(requests / ranks)) + 1.0
    return rows * ((context_tokens + 4) * 4.0 / GIB)


def attention_ranks(flags: Flags) -> int:
    """Return into how many data-parallel groups one model's attention is split."""
    return as_count(first_given(flags, *DATA)) or 1 if is_on(first_given(flags, *DATA_ATTENTION)) else 1


def flags_as_set(start: Observation, model_context_tokens: int | None) -> Flags:
    """Return a start's flags without running requests that SGLang itself chose for its pool.

    Its log states the figure as resolved. Pinned, it would no longer follow the pool. By version it is bounded by half
    the pool's tokens, or is of one data-parallel rank.
    """
    name, pool_tokens = SGLANG.requests, start.measurements.pool_tokens
    requests = as_count(start.flags.get(name))
    context = as_count(start.flags.get(SGLANG.context)) or model_context_tokens
    if start.engine.name is not EngineName.SGLANG or requests is None or pool_tokens is None or context is None:
        return start.flags
    chosen = int(default_requests(np.array([float(pool_tokens)]), context)[0])
    ranks = as_count(first_given(start.flags, *DATA)) or 1
    if requests not in {chosen, min(chosen, pool_tokens // 2), chosen // ranks, min(chosen // ranks, pool_tokens // 2)}:
        return start.flags
    return {key: value for key, value in start.flags.items() if key != name}
