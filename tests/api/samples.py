"""Bodies that the tests post: the worked case, and a plain start to bend."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

GPU = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
MODEL = "moonshotai/Kimi-K2.6"
FACTS = {
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 262144,
}
NAMES = {"gpu": GPU, "gpu_count": 8, "model": MODEL, "engine": "sglang"}
VERIFICATION = {
    "prompt_tokens": 60010,
    "completion_tokens": 4,
    "elapsed_seconds": 45.9,
    "passed": True,
    "answer_expected": "dog",
    "answer_received": "Dog.",
}


def start(number: int = 2, **changes: Any) -> dict[str, Any]:
    """Return start 1, 2 or 3 of the worked case, with top-level fields changed."""
    fraction, requests, pool, free = {
        1: (0.85, 64, 101134, 10.37),
        2: (0.92, 8, 192406, 6.1),
        3: (0.94, 8, 218484, 4.2),
    }[number]
    body = {
        "id": f"0197b0a0-0000-7000-8000-00000000000{number}",
        "observed_at": f"2026-05-30T2{number}:00:23Z",
        "host": "gpu-01",
        "source": "log",
        "hardware": {
            "gpu": GPU,
            "gpu_count": 8,
            "memory_gib": 95.59,
            "unified_memory": False,
            "driver_memory_gib": 95.97,
        },
        "model": {"name": MODEL, "revision": None, "facts": FACTS},
        "engine": {"name": "sglang", "version": "0.5.12"},
        "flags": {
            "mem_fraction_static": fraction,
            "context_length": 200000,
            "max_running_requests": requests,
            "tp_size": 8,
            "chunked_prefill_size": 8192,
            "speculative_algorithm": "DFLASH",
        },
        "outcome": "ready",
        "measurements": {
            "pool_tokens": pool,
            "free_at_ready_gib": free,
            "free_at_pool_end_gib": 10.37 if number == 1 else None,
            "startup_seconds": 360,
        },
        "failure": None,
        "verifications": [],
        "recommendation_id": None,
        "log_excerpt": None,
    }
    return deepcopy({**body, **changes})


def changed(pointer: str, value: Any, number: int = 2) -> dict[str, Any]:
    """Return a start with one nested field changed, added or, for ``...``, taken away."""
    body = start(number)
    *way, last = pointer.lstrip("/").split("/")
    inner = body
    for part in way:
        inner = inner[part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return body
