"""LMDeploy: the pool is a share of what is free after weights; from 1 up the flag is a count of blocks.

Sources: LMDeploy 0.14's PyTorch engine and TurboMind's block manager.
"""

from __future__ import annotations

from kvyield_server.domain.engines.spec import EngineSpec

LMDEPLOY = EngineSpec(
    title="LMDeploy",
    fraction="cache_max_entry_count",
    default_fraction=0.8,
    context="session_len",
    requests="max_batch_size",
    chunk="max_prefill_token_num",
    tensor_parallel="tp",
    data_parallel="dp",
    kv_dtype="quant_policy",
    half_kv=8,
    graph_batch=None,
    graphs_off=None,
    speculation=None,
    pool_cap=None,
    program=("lmdeploy", "serve", "api_server"),
    model_option=None,
    scales_free_memory=True,
    counts_blocks=64,
    key_fields={"batched_tokens": ("max_prefill_token_num",), "sequences": ("max_batch_size",)},
)
