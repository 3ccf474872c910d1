"""What running engines answer, in the shapes of each era, completes and checks what the log told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kvyield.engines import Sourced, Start
from kvyield.engines.endpoints import read_endpoints

Get = Callable[[str], tuple[int, bytes]]
ARGS = {
    "model_path": "org/model",
    "mem_fraction_static": 0.85,
    "tp_size": 8,
    "max_running_requests": None,
    "context_length": None,
    "kv_cache_dtype": "auto",
    "chunked_prefill_size": 8192,
    "api_key": "sk-secret-1",
    "admin_api_key": "sk-secret-2",
    "speculative_algorithm": None,
    "host": "0.0.0.0",
    "cuda_graph_bs": [1, 2],
}
MODELS = {"data": [{"id": "served", "owned_by": "sglang", "root": "served", "max_model_len": 200000}]}
VLLM_LABELS = (
    'block_size="16",cache_dtype="auto",gpu_memory_utilization="0.9",num_gpu_blocks="43078",num_gpu_blocks_override="None",'
    'enable_prefix_caching="True",sliding_window="None",engine="0"'
)


def answering(answers: Mapping[str, Any]) -> Get:
    def get(path: str) -> tuple[int, bytes]:
        answer = answers.get(path)
        if answer is None:
            return 404, b'{"detail":"Not Found"}'
        return 200, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()

    return get


def state(**usage: Any) -> dict[str, Any]:
    return {"last_gen_throughput": 1.0, "memory_usage": usage, **ARGS}


SGLANG_ERAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "0.4.3": (
        {"/get_server_info": ARGS | {"status": "ready", "max_total_num_tokens": 101134, "version": "0.4.3"}},
        {"pool_tokens": 101134},
    ),
    "0.5.1": (
        {
            "/get_server_info": ARGS
            | {"max_total_num_tokens": 101134, "version": "0.5.1"}
            | {"internal_states": [state(weight=72.4, kvcache=6.6, token_capacity=101134, cuda_graph=1.2)]}
        },
        {"pool_tokens": 101134, "weights_gib": 72.4, "kv_cache_gib": 6.6, "graph_gib": 1.2},
    ),
    "0.5.10": (
        {
            "/server_info": ARGS
            | {"max_total_num_tokens": 101134, "version": "0.5.10"}
            | {
                "internal_states": [
                    state(weight=72.4, kvcache=6.6, token_capacity=n, graph=1.2)
                    | {"effective_max_running_requests_per_dp": r}
                    for n, r in ((101134, 64), (101000, 48))
                ]
            }
        },
        {"pool_tokens": 101000, "weights_gib": 72.4, "kv_cache_gib": 6.6, "graph_gib": 1.2, "requests": 48},
    ),
    "0.5.23": (
        {
            "/server_info": ARGS
            | {
                "max_total_num_tokens": 101134,
                "version": "0.5.23",
                "launch_command": "sglang serve --api-key sk-secret-1",
            }
            | {
                "internal_states": [
                    state(
                        weight=72.4,
                        kvcache=6.6,
                        startup_available=4.2,
                        token_capacity=101134,
                        token_capacity_swa=None,
                        graph={"prefill": 0.5, "decode": 0.75, "target_verify": 0.0},
                    )
                ]
            }
        },
        {"pool_tokens": 101134, "weights_gib": 72.4, "kv_cache_gib": 6.6, "graph_gib": 1.25, "free_at_ready_gib": 4.2},
    ),
}


@pytest.mark.parametrize("era", SGLANG_ERAS)
def test_server_info_of_every_era(era):
    """Each era's answer gives its measurements, the resolved flags and the version, the least over ranks."""
    answers, expected = SGLANG_ERAS[era]
    start = read_endpoints(answering(answers | {"/v1/models": MODELS}))
    requests = expected.pop("requests", None) if isinstance(expected, dict) else None
    assert (start.engine, start.outcome) == ("sglang", "ready")
    assert {name: item.value for name, item in start.measurements.items()} == expected
    assert start.facts["engine_version"].value == era
    assert start.flags["mem_fraction_static"].value == 0.85
    assert start.flags["context_length"].value == 200000
    assert start.flags["max_running_requests"].value == requests
    assert start.flags["speculative_algorithm"].value is None
    assert start.flags["cuda_graph_bs"].value == "[1,2]"
    assert "sk-secret" not in repr(start)


def test_sglang_metrics_fill_what_the_log_lacks():
    """Free memory at ready comes from the metrics when neither log nor server info holds it, the least over ranks."""
    metrics = "\n".join(
        ["# HELP x", "# TYPE x gauge"]
        + [
            f'sglang:startup_available_gpu_memory_gb{{tp_rank="{rank}"}} {free}'
            for rank, free in enumerate((4.31, 4.2))
        ]
        + ['sglang:max_total_num_tokens{model_name="a b"} 2.18484e+05', "sglang:broken{ NaN", "sglang:nan NaN"]
        + ['sglang:cache_config_info{page_size="1",num_pages="218484"} 1.0']
    )
    start = read_endpoints(answering({"/metrics": metrics}))
    assert start.engine == "sglang"
    assert start.measurements["free_at_ready_gib"].value == 4.2
    assert start.measurements["pool_tokens"].value == 218484
    assert start.flags["page_size"].value == 1


def test_vllm_metrics_of_old_and_new_versions():
    """The pool is blocks times block size in old versions, the engine's own count in new ones, never both."""
    old = read_endpoints(
        answering({"/metrics": f"vllm:cache_config_info{{{VLLM_LABELS}}} 1.0", "/version": {"version": "0.9.2"}})
    )
    assert (old.engine, old.facts["engine_version"].value) == ("vllm", "0.9.2")
    assert old.measurements["pool_tokens"].value == 43078 * 16
    assert old.flags["gpu_memory_utilization"].value == 0.9
    assert old.flags["num_gpu_blocks_override"].value is None
    assert old.flags["enable_prefix_caching"].value is True
    labels = VLLM_LABELS + ',kv_cache_size_tokens="123433",mamba_block_size="1056",_block_size_resolved="True"'
    new = read_endpoints(answering({"/metrics": f"vllm:cache_config_info{{{labels}}} 1.0"}))
    assert new.measurements["pool_tokens"].value == 123433


@pytest.mark.parametrize("label", ['sliding_window="4096"', 'mamba_block_size="1056"'])
def test_blocks_of_hybrid_models_are_no_token_count(label):
    """With several groups of layers blocks times block size is not the pool, and it stays unknown."""
    labels = VLLM_LABELS.replace('sliding_window="None"', label)
    start = read_endpoints(answering({"/metrics": f"vllm:cache_config_info{{{labels}}} 1.0"}))
    assert "pool_tokens" not in start.measurements


def test_the_log_wins_and_a_contradiction_is_reported():
    """What the log told stays; endpoints fill what is unknown or unsaid, and a difference is said."""
    log = Start(engine="sglang", outcome="ready")
    log.flags = {
        "mem_fraction_static": Sourced(0.94, "line 2: server_args"),
        "kv_cache_dtype": Sourced("auto", "line 2"),
        "max_running_requests": Sourced(8, "line 9"),
    }
    log.measurements = {"pool_tokens": Sourced(218484, "line 9"), "weights_gib": Sourced(72.4, "line 4")}
    answers, _ = SGLANG_ERAS["0.5.23"]
    start = read_endpoints(answering(answers), log)
    assert start.flags["mem_fraction_static"].value == 0.94
    assert start.flags["max_running_requests"].value == 8
    assert start.measurements["pool_tokens"].value == 218484
    assert start.measurements["free_at_ready_gib"].value == 4.2
    assert sorted(text.partition(":")[0] for text in start.contradictions) == ["mem_fraction_static", "pool_tokens"]
    assert log.contradictions == []
    assert "free_at_ready_gib" not in log.measurements


def test_the_other_engines_tell_what_they_have():
    """LMDeploy's config labels give its fraction, TensorRT-LLM's iteration statistics its pool."""
    metrics = 'lmdeploy:backend_config_info{cache_max_entry_count="0.8",tp="2",session_len="None"} 1.0'
    lmdeploy = read_endpoints(answering({"/metrics": metrics}))
    assert lmdeploy.engine == "lmdeploy"
    assert (lmdeploy.flags["cache_max_entry_count"].value, lmdeploy.flags["tp"].value) == (0.8, 2)
    stats = [{"iter": 1}, {"kvCacheStats": {"maxNumBlocks": 8219, "tokensPerBlock": 32, "freeNumBlocks": 1}}]
    start = Start(engine="tensorrt-llm", outcome="ready")
    assert read_endpoints(answering({"/metrics": stats}), start).measurements["pool_tokens"].value == 8219 * 32


@pytest.mark.parametrize(
    "body", ["", "[]", "null", "{", "[[", '{"data": 3}', "\x00\xff", '{"internal_states": [1, null]}', "<html>"]
)
def test_answers_of_something_else_are_passed_over(body):
    """Whatever answers there, nothing is read out of what is not an engine's answer."""
    everywhere = dict.fromkeys(
        ("/server_info", "/get_server_info", "/model_info", "/v1/models", "/metrics", "/version"), body
    )
    start = Start(engine="vllm", outcome="ready")
    merged = read_endpoints(answering(everywhere), start)
    assert (merged.flags, merged.measurements, merged.facts, merged.contradictions) == ({}, {}, {}, [])


def test_nothing_that_answers_like_an_engine_is_an_error():
    """Without a log and without an engine's answer there is no start."""
    with pytest.raises(ValueError, match="nothing at this address"):
        read_endpoints(answering({}))


def test_a_data_parallel_ranks_share_of_requests_is_not_the_flag():
    """Each rank tells how many requests it takes; the flag is what was given for all of them."""
    states = [{"effective_max_running_requests_per_dp": 8, "memory_usage": {"token_capacity": 186368}}] * 8
    info = ARGS | {"max_running_requests": 64, "dp_size": 8, "internal_states": states}
    start = read_endpoints(answering({"/server_info": info}))
    assert start.flags["max_running_requests"].value == 64
