"""vLLM's flags that matter to memory, under its own names."""

from __future__ import annotations

_NAMES = """
    gpu_memory_utilization max_model_len max_num_seqs max_num_batched_tokens tensor_parallel_size
    pipeline_parallel_size data_parallel_size decode_context_parallel_size prefill_context_parallel_size
    enable_expert_parallel kv_cache_dtype dtype block_size enforce_eager quantization num_gpu_blocks_override
    kv_cache_memory_bytes speculative_config speculative_model num_speculative_tokens enable_prefix_caching
    enable_chunked_prefill cpu_offload_gb swap_space max_seq_len_to_capture cudagraph_capture_sizes
    max_cudagraph_capture_size cudagraph_mode enable_lora max_loras max_lora_rank load_format
    limit_mm_per_prompt mm_encoder_tp_mode skip_mm_profiling disable_hybrid_kv_cache_manager mamba_block_size
    mamba_cache_mode async_scheduling attention_backend performance_mode enable_dbo
    distributed_executor_backend port model
"""
MEMORY_FLAGS = frozenset(_NAMES.split())
"""Arguments that move the pool or the free memory, or tell two deployments or two servers apart."""

ALIASES = {"max_seq_len": "max_model_len"}
"""Fields of the engine's config line under another name than the flag's."""

NESTED = {"compilation_config": ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "cudagraph_mode")}
"""Fields of the config line that hold flags inside."""
