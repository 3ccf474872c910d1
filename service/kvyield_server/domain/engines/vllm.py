"""vLLM: the pool is what the fraction of the device leaves beside weights, the profiled peak and the graph estimate.

Sources: vLLM's worker and KV cache planning from 0.9.2 to 0.33.0.
"""

from __future__ import annotations

from math import ceil

from kvyield_server.domain.engines.spec import EngineSpec
from kvyield_server.domain.facts.devices import usable_memory
from kvyield_server.domain.facts.observation import Flags, Hardware
from kvyield_server.domain.facts.scalars import as_count, is_on
from kvyield_server.domain.facts.versions import parse_version

VLLM = EngineSpec(
    title="vLLM",
    fraction="gpu_memory_utilization",
    default_fraction=0.92,  # 0.9 before 0.20
    context="max_model_len",
    requests="max_num_seqs",
    chunk="max_num_batched_tokens",
    tensor_parallel="tensor_parallel_size",
    data_parallel="data_parallel_size",
    kv_dtype="kv_cache_dtype",
    half_kv="fp8",
    graph_batch="max_cudagraph_capture_size",
    graphs_off="enforce_eager",
    speculation="speculative_config",
    pool_cap=None,
    inert_with=("num_gpu_blocks_override", "kv_cache_memory_bytes", "kv_cache_memory"),
    bytes_flags=("kv_cache_memory_bytes", "kv_cache_memory"),
    blocks_flag="num_gpu_blocks_override",
    program=("vllm", "serve"),
    model_option=None,
    image_runs_program=True,
    reserves_peak=True,
    key_fields={
        "batched_tokens": ("max_num_batched_tokens",),
        "sequences": ("max_num_seqs",),
        "eager": ("enforce_eager",),
        "graphs": ("max_cudagraph_capture_size", "cudagraph_capture_sizes", "cuda_graph_sizes", "compilation_config"),
        "graph_estimate": ("vllm_memory_profiler_estimate_cudagraphs", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
        "compile_cache": ("compile_cache",),
        "multimodal": ("limit_mm_per_prompt",),
        "state_dtype": ("mamba_cache_dtype",),
    },
    state_fields={"length": ("max_model_len",)},
)

LARGE_GPU_GIB = 70.0
_WITHOUT_LARGE_DEFAULTS = ("a100", "gb10")


LONGEST_WITHOUT_CHUNKS = 32_768
"""Up to this context V0 (before 0.8) prefills in one piece unless told otherwise; above it, in chunks."""
FEWEST_BATCHED_TOKENS = 2048


def whole_prompt_tokens(version: str | None, flags: Flags) -> int | None:
    """Return max_num_batched_tokens where it is unset and follows from the context: prompts are prefilled in one piece.

    The profile run then takes as much as the longest prompt does, so that a longer context shrinks the pool
    (``SchedulerConfig``; 0.92 GiB less from 20,000 to 29,000 tokens of an 8B model, vllm-project/vllm issue 10517).
    """
    length = as_count(flags.get("max_model_len"))
    if length is None or flags.get("max_num_batched_tokens") is not None:
        return None
    is_chunked, release = flags.get("enable_chunked_prefill"), parse_version(version)
    if is_chunked is None:
        is_chunked = release is None or release >= (0, 8, 0, 0) or length > LONGEST_WITHOUT_CHUNKS
    return None if is_on(is_chunked) else max(length, FEWEST_BATCHED_TOKENS)


LENGTH_DEFINITION = (0, 20, 0, 99)
"""vLLM up to 0.20 counts a hybrid's tokens as blocks of all groups, later ones as concurrency times longest request."""
_BLOCK_SIZES = (16, 32, 64, 128, 256)


def is_counted_in_requests(version: str | None, flags: Flags, pool_tokens: int) -> bool:
    """Tell whether a pool shows that some layers do not keep every token: it is no whole number of blocks.

    Since 0.21 vLLM prints how many requests of the context length fit, times that length, cut to a whole number
    (``get_kv_cache_capacity``): of a model whose layers all keep every token that is whole blocks.
    """
    release, context = parse_version(version), as_count(flags.get("max_model_len"))
    if release is None or release <= LENGTH_DEFINITION or context is None or pool_tokens < context:
        return False
    given = as_count(flags.get("block_size"))
    return not any(_is_whole(pool_tokens, context, block) for block in ((given,) if given else _BLOCK_SIZES))


def _is_whole(pool_tokens: int, context: int, block: int) -> bool:
    """Tell whether a printed pool is whole blocks, less at most the token that was cut."""
    per_block = context / ceil(context / block)
    return ceil(pool_tokens / per_block - 1e-6) * per_block - pool_tokens < 1.0 + 1e-6


def default_sequences(hardware: Hardware) -> int:
    """Return max_num_seqs where it is unset: more on large GPUs (``get_batch_defaults``, 0.9 to 0.33)."""
    memory = usable_memory(hardware)
    is_large = memory is not None and memory.gib >= LARGE_GPU_GIB
    name = hardware.gpu.lower()
    return 1024 if is_large and not any(part in name for part in _WITHOUT_LARGE_DEFAULTS) else 256
