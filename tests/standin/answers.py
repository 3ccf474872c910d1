"""What the engines' endpoints answer to a GET, in the shapes of their versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from standin.logs_sglang import is_new, server_args
from standin.state import State

Get = Callable[[State], object]


def gets(state: State) -> Mapping[str, Get]:
    """The GET endpoints of the engine; a str is sent as text, anything else as JSON."""
    engine = state.config.engine
    common: dict[str, Get] = {"/v1/models": _models}
    if engine == "sglang":
        info: dict[str, Get] = {
            "/get_server_info": _sglang_info,
            "/get_model_info": _model_info,
            "/model_info": _model_info,
        }
        return {**common, **info, "/server_info": _sglang_info, "/health": _empty, "/metrics": _sglang_metrics}
    if engine == "vllm":
        return {**common, "/version": _version, "/health": _empty, "/metrics": _vllm_metrics}
    return common


def _empty(state: State) -> object:
    return ""


def _models(state: State) -> object:
    config = state.config
    card: dict[str, object] = {"id": config.model, "object": "model", "created": 1_780_000_000, "root": config.model}
    if config.engine != "openai":
        card |= {"owned_by": config.engine, "max_model_len": config.context_length}
    return {"object": "list", "data": [card]}


def _version(state: State) -> object:
    return {"version": state.config.version}


def _model_info(state: State) -> object:
    config = state.config
    return {
        "model_path": config.model,
        "tokenizer_path": config.model,
        "is_generation": True,
        "weight_version": "default",
    }


def _sglang_info(state: State) -> object:
    config = state.config
    top = {
        **server_args(config),
        "status": "ready",
        "max_total_num_tokens": state.plan.pool_tokens,
        "max_req_input_len": state.max_input_tokens,
        "version": config.version,
    }
    inner: dict[str, object] = {
        "last_gen_throughput": 0.0,
        "effective_max_running_requests_per_dp": config.max_running_requests,
        "memory_usage": _memory_usage(state),
    }
    if not is_new(config):
        return {**top, "internal_states": [{**server_args(config), **inner}]}
    newer = {"launch_command": "sglang serve", "startup_time": config.startup_seconds, "frontend": "python"}
    return {**top, **newer, "internal_states": [{**inner, "world_size": config.tp_size}]}


def _memory_usage(state: State) -> object:
    plan = state.plan
    old = {
        "weight": round(state.config.weights_gib, 2),
        "kvcache": round(plan.kv_gib, 2),
        "token_capacity": plan.pool_tokens,
    }
    if not is_new(state.config):
        return {**old, "graph": round(plan.graph_gib, 2)}
    graph = dict.fromkeys(("prefill", "decode", "draft_prefill", "draft_decode", "draft_extend"), 0.0)
    return {
        **old,
        "startup_available": round(plan.at_ready_gib, 3),
        "token_capacity_swa": None,
        "graph": {**graph, "target_verify": round(plan.graph_gib, 3)},
    }


def _sglang_metrics(state: State) -> object:
    labels = f'{{model_name="{state.config.model}",tp_rank="0"}}'
    return (
        f"# TYPE sglang:max_total_num_tokens gauge\nsglang:max_total_num_tokens{labels} {state.plan.pool_tokens}\n"
        f"# TYPE sglang:startup_available_gpu_memory_gb gauge\n"
        f"sglang:startup_available_gpu_memory_gb{labels} {state.plan.at_ready_gib:.2f}\n"
        f"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{labels} {state.running}.0\n"
        f"# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs{labels} 0.0\n"
    )


def _vllm_metrics(state: State) -> object:
    blocks = state.plan.pool_tokens // 16
    labels = (
        f'block_size="16",cache_dtype="auto",engine="0",gpu_memory_utilization="{state.config.fraction}",'
        f'kv_cache_memory_bytes="None",kv_cache_size_tokens="{state.plan.pool_tokens}",num_gpu_blocks="{blocks}",'
        'num_gpu_blocks_override="None"'
    )
    running = f'vllm:num_requests_running{{engine="0",model_name="{state.config.model}"}} {state.running}.0'
    return (
        f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"
        f"# TYPE vllm:num_requests_running gauge\n{running}\n"
    )
