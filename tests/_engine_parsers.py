"""The engines' parser rules, on the standard parsers that the engines use: what an edited line is checked with."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

import click

from kvyield.engines._start import Scalar

UNKNOWN_VALUES = ("--chat-template", "--served-model-name", "--tool-call-parser")
UNKNOWN_SWITCHES = ("--trust-remote-code", "--log-requests")

SGLANG: dict[str, tuple[str, ...]] = {
    "mem_fraction_static": ("--mem-fraction-static",),
    "context_length": ("--context-length",),
    "max_running_requests": ("--max-running-requests",),
    "max_total_tokens": ("--max-total-tokens",),
    "chunked_prefill_size": ("--chunked-prefill-size",),
    "tp_size": ("--tensor-parallel-size", "--tp-size"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "cuda_graph_max_bs": ("--cuda-graph-max-bs",),
    "cuda_graph_bs": ("--cuda-graph-bs",),
    "disable_cuda_graph": ("--disable-cuda-graph",),
    "disable_cuda_graph_padding": ("--disable-cuda-graph-padding",),
    "model_path": ("--model-path", "--model"),
}
VLLM: dict[str, tuple[str, ...]] = {
    "gpu_memory_utilization": ("--gpu-memory-utilization",),
    "max_model_len": ("--max-model-len",),
    "max_num_seqs": ("--max-num-seqs",),
    "max_num_batched_tokens": ("--max-num-batched-tokens",),
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "quantization": ("--quantization", "-q"),
    "enforce_eager": ("--enforce-eager",),
    "enable_prefix_caching": ("--enable-prefix-caching",),
    "cudagraph_capture_sizes": ("--cudagraph-capture-sizes",),
    "speculative_config": ("--speculative-config", "-sc"),
}
TENSORRT_LLM: dict[str, tuple[str, ...]] = {
    "free_gpu_memory_fraction": ("--free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction"),
    "max_seq_len": ("--max_seq_len",),
    "max_batch_size": ("--max_batch_size",),
    "max_num_tokens": ("--max_num_tokens",),
    "tp_size": ("--tensor_parallel_size", "--tp_size"),
}
LMDEPLOY: dict[str, tuple[str, ...]] = {
    "cache_max_entry_count": ("--cache-max-entry-count",),
    "session_len": ("--session-len",),
    "max_batch_size": ("--max-batch-size",),
    "quant_policy": ("--quant-policy",),
    "tp": ("--tp",),
    "enable_prefix_caching": ("--enable-prefix-caching",),
}
OPTIONS = {"sglang": SGLANG, "vllm": VLLM, "tensorrt-llm": TENSORRT_LLM, "lmdeploy": LMDEPLOY}
PROGRAM = {
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "vllm": ("vllm", "serve"),
    "tensorrt-llm": ("trtllm-serve",),
    "lmdeploy": ("lmdeploy", "serve", "api_server"),
}
LISTS = frozenset({"cuda_graph_bs", "cudagraph_capture_sizes"})


def is_switch(name: str) -> bool:
    """Whether a flag takes no value."""
    return name.startswith(("enable_", "disable_", "enforce_"))


def parsed(engine: str, argv: Sequence[str]) -> dict[str, Any]:
    """What the engine's parser reads of the words after its program; None for what is not given."""
    words = [*argv[len(PROGRAM[engine]) :]]
    if engine == "tensorrt-llm":
        return _click(TENSORRT_LLM, words)
    if engine == "vllm":
        words = [re.sub(r"(?<=^--)[^.=]*", lambda found: found[0].replace("_", "-"), word) for word in words]
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name, spellings in OPTIONS[engine].items():
        _add(parser, engine, name, spellings)
    for spelling in UNKNOWN_VALUES:
        parser.add_argument(spelling)
    for spelling in UNKNOWN_SWITCHES:
        parser.add_argument(spelling, action="store_true")
    if engine != "sglang":
        parser.add_argument("positional", nargs="?")
    return vars(parser.parse_args(words))


def _add(parser: argparse.ArgumentParser, engine: str, name: str, spellings: tuple[str, ...]) -> None:
    if is_switch(name):
        action: Any = argparse.BooleanOptionalAction if engine == "vllm" else "store_true"
        parser.add_argument(*spellings, dest=name, action=action, default=None)
    elif name in LISTS:
        parser.add_argument(*spellings, dest=name, nargs="+", type=int)
    else:
        parser.add_argument(*spellings, dest=name)


def _click(options: dict[str, tuple[str, ...]], words: list[str]) -> dict[str, Any]:
    command = click.Command("serve", params=[click.Argument(["positional"], required=False)])
    command.params += [click.Option([*spellings, name]) for name, spellings in options.items()]
    command.params += [click.Option([spelling]) for spelling in UNKNOWN_VALUES]
    command.params += [click.Option([spelling], is_flag=True, default=None) for spelling in UNKNOWN_SWITCHES]
    return dict(command.make_context("serve", words).params)


def meant(name: str, value: Scalar) -> Any:
    """A flag's value as the parsers above return it."""
    if value is None or (is_switch(name) and value is False):
        return None
    if name in LISTS:
        return [int(one) for one in str(value).split()]
    return value if isinstance(value, bool) else str(value)
