"""SGLang's start-up log, of 0.5.12 or of 0.5.15 and later."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from standin.config import Config
from standin.logs import Clock
from standin.memory import Plan


def sglang_lines(config: Config, plan: Plan, ready_at: datetime) -> Iterator[str]:
    """The lines of one start that ended at ``ready_at``, refused and OOM starts included."""
    began = ready_at - timedelta(seconds=config.startup_seconds)
    clock = Clock(config, began)
    yield clock.main(0.0, f"server_args={_server_args(config)}")
    yield from clock.ranks(0.05, "Init torch distributed begin.")
    yield from clock.ranks(0.06, "Init torch distributed ends. elapsed=3.10 s, mem usage=1.20 GB")
    before, after = config.free_before_load_gib, plan.after_load_gib
    yield from clock.ranks(0.07, f"Load weight begin. avail mem={before:.2f} GB")
    kind = f"type={config.architecture}, avail mem={after:.2f} GB, mem usage={config.weights_gib:.2f} GB."
    yield from clock.ranks(0.70, f"Load weight end. elapsed={0.63 * config.startup_seconds:.2f} s, {kind}")
    if not plan.pool_tokens:
        yield from _refusal(config, clock)
        return
    yield from _pools(config, plan, clock)
    if plan.at_ready_gib < 0:
        yield clock.one(0.85, "Scheduler hit an exception: Traceback (most recent call last):")
        yield (
            "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.02 GiB. GPU 0 has a total "
            f"capacity of {config.gpu_total_gib:.2f} GiB of which 12.06 MiB is free."
        )
        yield "Possible solutions:"
        yield "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
        return
    yield from _ready(config, plan, clock)


def _refusal(config: Config, clock: Clock) -> Iterator[str]:
    yield clock.one(0.71, "Scheduler hit an exception: Traceback (most recent call last):")
    if is_new(config):
        minimum = config.weights_gib / config.free_before_load_gib
        yield (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static="
            f"{config.fraction}. Raise --mem-fraction-static above {minimum:.4f} (minimum viable = 1 - available/pre = "
            f"{minimum:.4f}). If using speculative decoding, draft weights are now counted."
        )
    else:
        yield (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
            f"Current value: mem_fraction_static={config.fraction}"
        )


def _pools(config: Config, plan: Plan, clock: Clock) -> Iterator[str]:
    dtype = " dtype: torch.bfloat16," if is_new(config) else ""
    pool = f"KV Cache is allocated.{dtype} #tokens: {plan.pool_tokens}, "
    free = plan.at_pool_end_gib + plan.draft_kv_gib
    yield from clock.ranks(0.71, f"{pool}KV size: {plan.kv_gib:.2f} GB")
    yield from clock.ranks(0.71, f"Memory pool end. avail mem={free:.2f} GB")
    if config.speculative_algorithm:
        half = plan.draft_kv_gib / 2
        yield from clock.ranks(0.74, f"Load weight begin. avail mem={free:.2f} GB")
        yield from clock.ranks(
            0.75, f"Load weight end. elapsed=1.00 s, type=DFlashDraftModel, avail mem={free:.2f} GB, mem usage=0.00 GB."
        )
        yield from clock.ranks(0.76, f"{pool}K size: {half:.2f} GB, V size: {half:.2f} GB")
        yield from clock.ranks(0.76, f"Memory pool end. avail mem={plan.at_pool_end_gib:.2f} GB")


def _ready(config: Config, plan: Plan, clock: Clock) -> Iterator[str]:
    free, graphs = plan.at_ready_gib, plan.graph_gib
    if is_new(config):
        sizes = f"mem usage={graphs:.2f} GB, avail mem={free:.2f} GB."
        text = f"Capture target verify CUDA graph end. elapsed=54.61 s, {sizes}"
    else:
        text = f"Capture cuda graph end. Time elapsed: 54.61 s. mem usage={graphs:.2f} GB. avail mem={free:.2f} GB."
    yield from clock.ranks(0.95, text)
    yield clock.one(
        0.96,
        f"max_total_num_tokens={plan.pool_tokens}, chunked_prefill_size={config.chunk_tokens}, "
        f"max_prefill_tokens=16384, max_running_requests={config.max_running_requests}, "
        f"context_len={config.context_length}, available_gpu_mem={free:.2f} GB",
    )
    yield clock.main(1.0, "The server is fired up and ready to roll!")


def is_new(config: Config) -> bool:
    """Whether SGLang's lines of 0.5.15 and later are wanted."""
    return tuple(int(part) for part in config.version.split(".")[:3] if part.isdigit()) >= (0, 5, 15)


def server_args(config: Config) -> dict[str, object]:
    """SGLang's resolved arguments, as far as a reader looks at them."""
    return {
        "model_path": config.model,
        "served_model_name": config.model,
        "port": config.port,
        "random_seed": config.random_seed,
        "mem_fraction_static": config.fraction,
        "max_running_requests": config.max_running_requests,
        "max_total_tokens": config.max_total_tokens,
        "context_length": config.context_length,
        "chunked_prefill_size": config.chunk_tokens,
        "page_size": config.page_tokens,
        "kv_cache_dtype": "auto",
        "tp_size": config.tp_size,
        "pp_size": 1,
        "dp_size": 1,
        "base_gpu_id": 0,
        "gpu_id_step": 1,
        "disable_radix_cache": False,
        "disable_cuda_graph": False,
        "enable_cache_report": config.cache_report,
        "speculative_algorithm": config.speculative_algorithm,
        "api_key": config.api_key,
    }


def _server_args(config: Config) -> str:
    arguments = server_args(config)
    if is_new(config) and config.version.startswith("0.5.23"):
        return repr(arguments)
    return f"ServerArgs({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
