"""SGLang's flags that matter to memory, under its own names."""

from __future__ import annotations

_NAMES = """
    mem_fraction_static context_length max_running_requests max_total_tokens chunked_prefill_size
    max_prefill_tokens page_size enable_dynamic_chunking dtype kv_cache_dtype quantization load_format tp_size
    pp_size dp_size ep_size dcp_size attn_cp_size moe_dp_size nnodes enable_dp_attention enable_dp_lm_head
    moe_a2a_backend attention_backend prefill_attention_backend decode_attention_backend speculative_algorithm
    speculative_draft_model_path speculative_draft_model_quantization speculative_num_steps
    speculative_eagle_topk speculative_num_draft_tokens speculative_dflash_block_size
    speculative_dspark_block_size speculative_draft_kv_cache_dtype speculative_draft_attention_backend
    speculative_draft_window_size enable_multi_layer_eagle disable_radix_cache disable_overlap_schedule
    disable_cuda_graph disable_cuda_graph_padding disable_piecewise_cuda_graph enable_piecewise_cuda_graph
    disable_prefill_cuda_graph disable_decode_cuda_graph cuda_graph_max_bs cuda_graph_max_bs_decode
    cuda_graph_max_bs_prefill cuda_graph_bs cuda_graph_bs_decode cuda_graph_bs_prefill
    cuda_graph_backend_decode cuda_graph_backend_prefill enable_torch_compile torch_compile_max_bs
    enable_symm_mem enable_memory_saver enable_unified_memory swa_full_tokens_ratio disable_hybrid_swa_memory
    max_mamba_cache_size mamba_full_memory_ratio mamba_ssm_dtype mamba_scheduler_strategy
    mamba_radix_cache_strategy enable_lora max_lora_rank max_loras_per_batch enable_hierarchical_cache
    hicache_ratio hicache_size cpu_offload_gb enable_mixed_chunk enable_two_batch_overlap enable_pdmux
    disaggregation_mode enable_multimodal mm_feature_transport ep_num_redundant_experts
    num_reserved_decode_tokens port model_path
"""
MEMORY_FLAGS = frozenset(_NAMES.split())
"""Fields of ``ServerArgs`` that move the pool or the free memory, or tell two deployments or two servers apart."""

_DTYPES = {
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float4_e2m1fn_x2": "fp4_e2m1",
    "float8_e5m2fnuz": "fp8_e5m2",
}


def dtype_flag(torch_name: str) -> str:
    """The value of ``--kv-cache-dtype`` for a dtype as torch names it."""
    return _DTYPES.get(torch_name, torch_name)
