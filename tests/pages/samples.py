"""Starts that the page tests record: the worked case, its failures, a hostile name, many starts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
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
HOSTILE = '<img src=x onerror="alert(1)">\'"&lt;/script><script>alert(2)</script>\u202egnp.exe'
BEGIN = datetime(2026, 5, 30, 20, 0, 23, tzinfo=UTC)


def start(fraction: float, requests: int, pool: int | None, free: float | None, **changes: Any) -> dict[str, Any]:
    """Return the body of one start of the worked case's deployment."""
    body: dict[str, Any] = {
        "observed_at": BEGIN.isoformat(),
        "host": "gpu-01",
        "source": "log",
        "hardware": {"gpu": GPU, "gpu_count": 8, "memory_gib": 95.59},
        "model": {"name": MODEL, "facts": FACTS},
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
        "measurements": {"pool_tokens": pool, "free_at_ready_gib": free, "startup_seconds": 360},
    }
    return {**body, **changes}


def hour(number: float) -> str:
    """Return a time that many hours after the first start."""
    return (BEGIN + timedelta(hours=number)).isoformat()


def worked_case() -> list[dict[str, Any]]:
    """Return starts 1 to 3 of the worked case, the last one verified with 60,010 tokens."""
    proof = {
        "prompt_tokens": 60010,
        "completion_tokens": 4,
        "elapsed_seconds": 45.9,
        "passed": True,
        "answer_expected": "Dog.",
        "answer_received": "Dog.",
    }
    log = "Load weight end. avail mem=21.75 GB\nKV Cache is allocated. #tokens: 218484\nmax_total_num_tokens=218484"
    return [
        start(0.85, 64, 101134, 10.37, observed_at=hour(0)),
        start(0.92, 8, 192406, 6.1, observed_at=hour(1)),
        start(0.94, 8, 218484, 4.2, observed_at=hour(2), verifications=[proof], log_excerpt=log),
    ]


def failures() -> list[dict[str, Any]]:
    """Return starts of the same deployment that did not stay up, one of each kind."""
    nothing = {"startup_seconds": None}
    oom = {"phase": "serving", "message": "CUDA out of memory. Tried to allocate 2.25 GiB", "prompt_tokens": 180000}
    return [
        start(
            0.76,
            8,
            None,
            None,
            observed_at=hour(-3),
            outcome="refused",
            measurements=nothing,
            failure={"phase": "pool", "message": "Not enough memory. Please try to increase --mem-fraction-static."},
        ),
        start(
            0.985,
            64,
            277100,
            None,
            observed_at=hour(-2),
            outcome="oom_startup",
            failure={"phase": "graph_capture", "message": "Capture CUDA graph failed: CUDA out of memory."},
        ),
        start(0.965, 8, 251081, 1.9, observed_at=hour(-1), outcome="oom_runtime", failure=oom),
        start(0.9, 8, None, None, observed_at=hour(-4), outcome="failed", measurements=nothing, host="gpu-02"),
    ]


def vllm_starts() -> list[dict[str, Any]]:
    """Return starts of a vLLM deployment on one GPU."""
    facts = {
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
        "max_position_embeddings": 40960,
    }
    rows = [(0.8, 88.21, 642_304, 26.9), (0.9, 102.2, 744_160, 12.9)]
    return [
        start(
            fraction,
            64,
            pool,
            free,
            observed_at=hour(10 + index),
            hardware={"gpu": "NVIDIA H200", "gpu_count": 1, "memory_gib": 139.72},
            model={"name": "Qwen/Qwen3-8B", "facts": facts},
            engine={"name": "vllm", "version": "0.11.0"},
            flags={
                "gpu_memory_utilization": fraction,
                "max_model_len": 40960,
                "max_num_seqs": 256,
                "max_num_batched_tokens": 8192,
                "tensor_parallel_size": 1,
            },
            measurements={
                "pool_tokens": pool,
                "kv_cache_gib": kv,
                "free_at_ready_gib": free,
                "device_memory_gib": 139.72,
                "startup_seconds": 74,
            },
        )
        for index, (fraction, kv, pool, free) in enumerate(rows)
    ]


def upgrade() -> list[dict[str, Any]]:
    """Return the vLLM starts again under a newer version, whose pool is smaller and whose graphs take more."""
    newer = {"name": "vllm", "version": "0.12.0"}
    return [
        {
            **body,
            "engine": newer,
            "observed_at": hour(20 + index),
            "measurements": {
                **body["measurements"],
                "pool_tokens": body["measurements"]["pool_tokens"] - 9_008,
                "kv_cache_gib": round(body["measurements"]["kv_cache_gib"] - 1.24, 2),
                "free_at_ready_gib": body["measurements"]["free_at_ready_gib"] - 0.6,
            },
        }
        for index, body in enumerate(vllm_starts())
    ]


def measured_prompt() -> dict[str, Any]:
    """Return a verification with the lowest free memory that was sampled meanwhile."""
    return {
        "prompt_tokens": 120000,
        "completion_tokens": 8,
        "elapsed_seconds": 97.4,
        "time_to_first_token_seconds": 96.1,
        "cached_tokens": 0,
        "passed": False,
        "answer_expected": "heron",
        "answer_received": "<b>crane</b>",
        "lowest_free_gib": 2.7,
        "free_before_gib": 4.15,
        "memory_samples": 4870,
    }


def many(count: int) -> Iterator[dict[str, Any]]:
    """Yield that many starts of one deployment, on the worked case's line, with the odd failure."""
    for number in range(count):
        fraction = round(0.80 + (number * 37 % 170) / 1000, 3)
        pool = int(1_303_889 * (fraction - 0.77244)) + number % 3
        free = round(92.5 - 94.0 * fraction + (number % 7) * 0.02, 2)
        is_bad = number % 97 == 0
        yield start(
            fraction,
            8,
            pool,
            None if is_bad else free,
            observed_at=hour(number / 10),
            outcome="oom_startup" if is_bad else "ready",
            host=f"gpu-{number % 12:02}",
        )
