"""vLLM's log lines as patterns, V0 to 0.33. Searched, never anchored: deployments wrap and reformat them."""

from __future__ import annotations

import re
from datetime import datetime

from kvyield.engines._prefix import UNKNOWN_YEAR
from kvyield.engines._text import any_of

Match = re.Match[str]

_N = r"(-?\d+(?:\.\d+)?)"
_GIB = rf"{_N} ?Gi?B"
_STAMP = re.compile(
    r"(?:^|[^A-Z])(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.\d{1,6})? "
)

NON_DEFAULT = re.compile(r"non-default args: (\{)")
NAMESPACE = re.compile(r"args: (?:Namespace|argparse\.Namespace)\(")
CONFIG = re.compile(r"Initializing an? (?:V[01] )?LLM engine(?: \(v([^)\s]{1,60})\))? with config: ")
BANNER = "█  version "
SERVER_VERSION = re.compile(rf"(?:vLLM (?:API )?server version |{BANNER})([\w.+\-]{{1,60}})")
"""The version stands in a line of its own, or beside the second line of the name drawn in blocks."""
MODEL_LEN = re.compile(r"Using max model len (\d{1,12})\b")
BATCHED = re.compile(r"Chunked prefill is enabled (?:with |\()max_num_batched_tokens=(\d{1,12})\b")
LOADED = re.compile(rf"(?:Model loading took|Loading model weights took) {_GIB}")
V0_WEIGHTS = re.compile(rf"model weights take:? {_GIB}")
V0_TOTAL = re.compile(rf"total_gpu_memory \({_GIB}\) x gpu_memory_utilization \((\d?\.\d+|\d)\) = {_GIB}")
V0_RESULTS = re.compile(
    rf"Memory profiling results: total_gpu_memory={_GIB} .{{1,200}} gpu_memory_utilization=(\d\.\d\d)(?![\d.])"
)
V0_REST = re.compile(
    rf"(?:the rest of the memory reserved for KV Cache is |^(?:INFO )?KV Cache: |\bkv_cache_size=){_GIB}(?![a-z])"
)
V0_BLOCKS = re.compile(r"# (?:GPU|[Cc][Uu][Dd][Aa]|[a-z]{2,8}) blocks: ([\d,]{1,24})\b")
AVAILABLE = re.compile(rf"Available KV cache memory: {_N} GiB")
NPU_MEMORY = re.compile(r"Available memory: (\d{1,18}), total memory: (\d{6,18})\b")
"""vllm-ascend before 0.14, in bytes: what is left for the KV cache, never below 0, and the device's total."""
SIZE = re.compile(r"\b[A-Z]{2,6}(?: \+ host)? KV cache size: (\d{1,3}(?:,\d{3}){0,6}|\d{1,18}) tokens")
CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]{1,24}) tokens per request: (\d+\.\d+)x")
GRAPHS = re.compile(rf"Graph capturing finished in \d+ secs?, took {_GIB}")
COMPILED = re.compile(r"Compiling a graph for (?:dynamic shape|shape|compile range|general shape)")
COMPILE_CACHE_HIT = re.compile(r"Directly load (?:the compiled graph\(s\) for|AOT compilation from path) ")
GRAPH_POOL = re.compile(rf"CUDA graph pool memory: {_GIB} \(actual\)")
GRAPH_ESTIMATE = re.compile(rf"Estimated CUDA graph memory: {_GIB} total")
EQUIVALENT = re.compile(
    r"(?:current --gpu-memory-utilization=|CUDA graph memory profiling is disabled .{0,400}?utilization from )"
    r"(\d?\.\d+|\d)(?![\w.])"
)
FREE_OF = re.compile(rf"Free memory on device (?:\w+(?::\d+)? )?\({_N}/{_N} GiB\)")
DESIRED = re.compile(rf"[Dd]esired GPU memory utilization (?:is )?\((\d?\.\d+|\d), {_N} GiB\)")
USED_FOR = re.compile(
    rf"{_N} GiB for "
    r"(weights?|consumed memory|peak activation|non-torch memory|(?:CUDAGraph|[A-Z]{2,6} graph) memory)\b"
)
IN_USE = re.compile(rf"Current (?:kv|KV) cache memory(?: in use is|: | is) ?(?:{_N} GiB|(\d{{6,18}})(?: bytes)?\b)")
INITIAL = re.compile(rf"Initial free memory:? {_N} GiB(?:; Requested|, (?:free memory|reserved|requested))")
REQUESTED = re.compile(rf"Requested memory: (\d?\.\d+|\d) \(util\), {_N} GiB")
BYTES_MODE = re.compile(rf"reserved {_N} GiB memory for KV Cache as specified by kv_cache_memory_bytes")
OVERRIDE = re.compile(r"Overriding num_gpu_blocks=(\d{1,18}) with num_gpu_blocks_override=(\d{1,18})\b")
REDUCED = re.compile(rf"KV cache memory reduced to {_N} GiB")
AUTO_LEN = re.compile(
    r"Auto-fit max_model_len: "
    r"(?:reduced from [\d,]{1,24} to ([\d,]{1,24})|full model context length ([\d,]{1,24}) fits)"
)
PLAN = re.compile(r"Applying persisted startup plan .{0,120}?kv_cache_memory_bytes=(\d{1,18})\b")
ENGINE_READY = re.compile(r"init engine \(profile, create kv cache, warmup model\) took \d")
SERVING = re.compile(r"Application startup complete|Starting vLLM (?:API )?server(?: \d+)? on http")
GRAPHS_BEGIN = re.compile(
    r"Capturing (?:CUDA graphs|cudagraphs|the model for CUDA graphs|CUDA graph shapes|ACL graphs)"
)
PORT = re.compile(r"Starting vLLM (?:API )?server(?: \d+)? on https?://[^/\s]{1,260}:(\d{1,5})\b")
HAS_SERVED = re.compile(r"throughput: (?!0\.0 )\d")
SERVED = re.compile(r"Avg prompt throughput: ")

REFUSED_FREE = re.compile(
    rf"Free memory on device (?:\w+(?::\d+)? )?\({_N}/{_N} GiB\) on startup is less than desired GPU memory "
    rf"utilization \((\d?\.\d+|\d), {_N} GiB\).{{0,200}}"
)
REFUSED_LENGTH = re.compile(r"To serve at least one request with the models?'s? ?(?:models?'s)? ?max seq len .{0,900}")
NEEDED = re.compile(rf"{_N} GiB KV cache is needed")
AVAILABLE_FOR = re.compile(rf"available KV cache memory \({_N} GiB\)")
LONGEST = re.compile(r"estimated maximum model length is ([\d,]{1,24}\d|\d)\b")
REFUSED_STORED = re.compile(
    r"The model's max seq len \((\d{1,12})\) is larger than the maximum number of tokens that can be stored in "
    r"KV cache \((\d{1,18})\).{0,300}"
)
REFUSED_PLAIN = re.compile(
    r"No available memory for the cache blocks.{0,300}|Cannot auto-fit max_model_len: .{0,300}"
    r"|Externally held weights on device .{0,60} exceed the desired GPU memory utilization.{0,200}"
    r"|frontend multimodal GPU decoding reserves .{0,300}"
    r"|max_num_seqs \(\d{1,9}\) exceeds available Mamba cache blocks \(\d{1,9}\).{0,200}"
)
PROMPT_LENGTH = re.compile(rb"prompt_token_ids_len=(\d{1,12})\b")

MINE = any_of(
    r"non-default args: \{",
    r"args: (?:argparse\.)?Namespace\(",
    r"LLM engine(?: \(v[^)]{1,60}\))? with config: ",
    rf"vLLM (?:API )?server version|{BANNER}|Starting vLLM|vLLM instance can use",
    r"Model loading took|Loading model weights took|model weights take",
    r"Free memory on device|gpu_memory_utilization|[Dd]esired GPU memory utilization",
    r"reserved for KV Cache|Memory profiling results: total_gpu_memory=|# \w{2,8} blocks: |KV Cache: \d",
    r"Available KV cache memory|KV cache size: [\d,]{1,24} tokens|Maximum concurrency for",
    r"Graph capturing finished|CUDA graph memory profiling|Estimated CUDA graph memory|CUDA graph pool memory",
    r"kv_cache_memory_bytes|num_gpu_blocks_override",
    r"init engine \(profile|EngineCore|WorkerProc|when warming up sampler",
    r"Compiling a graph for |Directly load (?:the compiled graph|AOT compilation)",
    r"To serve at least one request with the model|No available memory for the cache blocks",
    r"No available shared memory broadcast block|Setting attention block size to \d|padding layers, may waste",
    r"Using max model len|max_model_len|Chunked prefill is enabled with max_num",
)
"""Lines that only vLLM prints."""


def own_time(text: str) -> datetime | None:
    """The engine's own stamp, which has no year."""
    match = _STAMP.search(text, 0, 2000)
    if match is None:
        return None
    month, day, hour, minute, second = map(int, match.groups())
    try:
        return datetime(UNKNOWN_YEAR, month, day, hour, minute, second)  # noqa: DTZ001  # the log names no zone
    except ValueError:
        return None
