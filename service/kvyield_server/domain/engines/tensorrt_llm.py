"""TensorRT-LLM: the pool is a share of what is free after weights and the profiled peak.

Sources: TensorRT-LLM's executor utilities (PyTorch flow) and its KV cache documentation.
"""

from __future__ import annotations

from kvyield_server.domain.engines.spec import EngineSpec

TENSORRT_LLM = EngineSpec(
    title="TensorRT-LLM",
    fraction="free_gpu_memory_fraction",
    default_fraction=0.9,
    context="max_seq_len",
    requests="max_batch_size",
    chunk="max_num_tokens",
    tensor_parallel="tp_size",
    data_parallel=None,
    kv_dtype="kv_cache_dtype",
    half_kv="fp8",
    graph_batch=None,
    graphs_off=None,
    speculation=None,
    pool_cap="max_tokens",
    other_caps=("kv_cache_max_tokens",),
    inert_with=("max_gpu_total_bytes",),
    bytes_flags=("max_gpu_total_bytes",),
    program=("trtllm-serve",),
    model_option=None,
    underscores=True,
    scales_free_memory=True,
    reserves_peak=True,
    key_fields={"batched_tokens": ("max_num_tokens",), "sequences": ("max_batch_size",)},
)
