"""SGLang: the pool is what the fraction leaves of free memory before weights, less the weights.

Sources: SGLang's server arguments and pool configurators from 0.4.3 to 0.5.23.
"""

from __future__ import annotations

from kvyield_server.domain.engines.spec import EngineSpec

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
