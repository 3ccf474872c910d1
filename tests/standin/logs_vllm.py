"""vLLM's start-up log, as of 0.20 to 0.27."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from standin.config import Config
from standin.logs import Clock
from standin.memory import GIB, Plan

API = "APIServer pid=7"


def vllm_lines(config: Config, plan: Plan, ready_at: datetime) -> Iterator[str]:
    """The lines of one start that ended at ``ready_at``, refused starts included."""
    clock = Clock(config, ready_at - timedelta(seconds=config.startup_seconds))
    worker = "Worker_TP0 pid=9" if config.tp_size > 1 else "EngineCore pid=8"
    yield from _settings(config, clock)
    weights = f"Model loading took {config.weights_gib:.2f} GiB memory and {0.5 * config.startup_seconds:.6f} seconds"
    yield clock.vllm(0.7, weights, worker, "gpu_model_runner.py:4566")
    available = plan.pool_tokens * config.target_bytes_per_token / GIB
    yield clock.vllm(0.75, f"Available KV cache memory: {available:.2f} GiB", worker, "gpu_worker.py:484")
    if plan.pool_tokens < config.context_length:
        yield clock.vllm(0.76, "EngineCore failed to start.").replace(" INFO ", " ERROR ")
        yield _refusal(config, plan, available)
        return
    yield from _ready(config, plan, clock, worker)


def _settings(config: Config, clock: Clock) -> Iterator[str]:
    arguments = {
        "port": config.port,
        "model": config.model,
        "max_model_len": config.context_length,
        "tensor_parallel_size": config.tp_size,
        "gpu_memory_utilization": config.fraction,
        "max_num_seqs": config.max_running_requests,
    }
    chunked = f"Chunked prefill is enabled with max_num_batched_tokens={config.chunk_tokens}."
    yield clock.vllm(0.0, f"vLLM API server version {config.version}", API, "api_server.py:1772")
    yield clock.vllm(0.0, f"non-default args: {arguments}", API, "api_utils.py:273")
    yield clock.vllm(0.05, f"Using max model len {config.context_length}", API, "model.py:1788")
    yield clock.vllm(0.05, chunked, API, "scheduler.py:252")
    yield clock.vllm(
        0.1,
        f"Initializing a V1 LLM engine (v{config.version}) with config: model='{config.model}', "
        f"speculative_config=None, dtype=torch.bfloat16, max_seq_len={config.context_length}, "
        f"tensor_parallel_size={config.tp_size}, pipeline_parallel_size=1, quantization=None, enforce_eager=False, "
        "kv_cache_dtype=auto",
    )


def _refusal(config: Config, plan: Plan, available: float) -> str:
    need = config.context_length * config.target_bytes_per_token / GIB
    return (
        f"ValueError: To serve at least one request with the model's max seq len ({config.context_length}), "
        f"({need:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({available:.2f} GiB). Based on the available memory, the estimated maximum model length is "
        f"{plan.pool_tokens}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
    )


def _ready(config: Config, plan: Plan, clock: Clock, worker: str) -> Iterator[str]:
    share = plan.pool_tokens / config.context_length
    concurrency = f"Maximum concurrency for {config.context_length:,} tokens per request: {share:.2f}x"
    graphs = f"Graph capturing finished in 20 secs, took {plan.graph_gib:.2f} GiB"
    yield clock.vllm(0.76, f"GPU KV cache size: {plan.pool_tokens:,} tokens", source="kv_cache_utils.py:1319")
    yield clock.vllm(0.76, concurrency, source="kv_cache_utils.py:1324")
    yield clock.vllm(0.95, graphs, worker, "gpu_model_runner.py:5660")
    yield clock.vllm(0.96, "init engine (profile, create kv cache, warmup model) took 43.26 s", source="core.py:282")
    yield clock.vllm(1.0, "Application startup complete.", API, "on.py:62")
