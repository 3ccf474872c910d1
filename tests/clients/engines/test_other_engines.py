"""TensorRT-LLM and LMDeploy: pools, totals and limits in the wordings of several versions."""

from __future__ import annotations

import pytest

from kvyield.engines import Start, read_starts

PEAK = (
    "[12/20/2025-04:21:51] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 113.65 GiB, "
    "available KV cache memory when calculating max tokens: 5.95 GiB, fraction is set 0.8999999761581421, {size} "
    "73728. device total memory 119.70 GiB, {rest} 0.56 GiB"
)
CONFIG = "lmdeploy - INFO - updated backend_config=TurbomindEngineConfig(tp=1, session_len=8192, {flags})"


def only(engine: str, lines: list[str]) -> Start:
    (start,) = read_starts(lines, engine=engine)
    return start


def values(start: Start) -> dict[str, object]:
    return {name: item.value for name, item in start.measurements.items()}


def flags(start: Start, *names: str) -> list[object]:
    return [start.flags[name].value for name in names]


@pytest.mark.parametrize("size", ["kv size is", "kv size per token is"])
@pytest.mark.parametrize("rest", [", tmp kv_mem", "temporary kv cache memory during profiling"])
def test_the_peak_line_of_tensorrt_llm_is_read_in_every_wording(size: str, rest: str) -> None:
    """The device's total, the pool's bytes and the fraction are on the line, however the price of a token is called."""
    start = only("tensorrt-llm", [PEAK.format(size=size, rest=rest)])
    assert values(start) == {"kv_cache_gib": 5.95, "device_memory_gib": 119.7}
    assert flags(start, "free_gpu_memory_fraction") == [0.9]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("(to 0.8999999761581421 and 8224, respectively)", {}),
        (
            "(to 0.8999999761581421 and 8224 with free memory 70.25GiB of total memory 79.25GiB, respectively)",
            {"device_memory_gib": 79.25, "free_after_load_gib": 70.25},
        ),
        ("(to 0.8999999761581421 and 8224 with free memory 17.5 of total memory 19.8, respectively)", {}),
    ],
)
def test_a_fraction_beside_max_tokens_is_the_fraction(words: str, found: dict[str, float]) -> None:
    """The engine sets max_tokens by itself, so only the fraction is a flag; memory counts where it names its unit."""
    line = (
        f"[TRT-LLM] [W] Both free_gpu_memory_fraction and max_tokens are set {words}. The smaller value will be used."
    )
    start = only("tensorrt-llm", [line, "[TensorRT-LLM][INFO] Number of tokens per block: 32."])
    assert values(start) == found
    assert flags(start, "free_gpu_memory_fraction") == [0.9]
    assert "max_tokens" not in start.flags


def test_the_pool_that_was_only_for_the_measurement_leaves_nothing() -> None:
    """The first pool, and the length that it allowed, go with the measurement; of ranks the least pool counts."""
    allocated = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in paged KV cache ({})."
    adjusted = "[12/20/2025-04:21:10] [TRT-LLM] [W] Adjusted max_seq_len to {}"
    limits = "[TRT-LLM] [I] max_seq_len={}, max_num_requests=64, max_num_tokens=8192, max_batch_size=48"
    first = [adjusted.format(8224), allocated.format("0.56", 8224), limits.format(8224)]
    peak = PEAK.format(size="kv size is", rest=", tmp kv_mem")
    second = [allocated.format("5.95", 86720), allocated.format("5.90", 86016), limits.format(131072)]
    start = only("tensorrt-llm", [*first, peak, *second])
    assert values(start) == {"pool_tokens": 86016, "kv_cache_gib": 5.9, "device_memory_gib": 119.7}
    assert flags(start, "max_seq_len", "max_num_tokens", "max_batch_size") == [131072, 8192, 48]
    limited = only("tensorrt-llm", [*first, peak, adjusted.format(86720), *second])
    assert values(limited)["longest_prompt_tokens"] == 86720


def test_weights_are_those_measured_else_those_announced() -> None:
    """What was measured inside torch after loading wins over the size of the checkpoint, whichever comes first."""
    announced = "[12/20/2025-04:20:21] [TRT-LLM] [I] Use 63.32 GB for model weights."
    measured = (
        "[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 63.52 GiB"
    )
    assert values(only("tensorrt-llm", [announced])) == {"weights_gib": 63.32}
    assert values(only("tensorrt-llm", [announced, measured])) == {"weights_gib": 63.52}
    assert values(only("tensorrt-llm", [measured, announced])) == {"weights_gib": 63.52}


def test_max_tokens_that_was_given_is_a_flag() -> None:
    """A cap is printed with what it limits the pool to."""
    line = "[TRT-LLM] [I] max_tokens=20000 is provided. It limits max memory to 1.37 GiB."
    assert flags(only("tensorrt-llm", [line]), "max_tokens") == [20000]


@pytest.mark.parametrize(
    ("given", "blocks", "tokens"),
    [
        ("cache_max_entry_count=0.5, cache_block_seq_len=64", 1830, 117_120),
        ("cache_max_entry_count=50, cache_block_seq_len=64", 50, 3_200),
        ("cache_max_entry_count=0.8, cache_block_seq_len=128, attn_cp_size=2", 100, 25_600),
    ],
)
def test_turbominds_pool_is_blocks_times_tokens_per_block(given: str, blocks: int, tokens: int) -> None:
    """The pool in tokens is never printed before 0.12: it is the product; above 1 the flag is a count of blocks."""
    lines = [
        CONFIG.format(flags=given),
        "[TM][INFO] [BlockManager] block_size = 8.000 MB",
        f"[TM][INFO] [BlockManager] max_block_count = {blocks}",
        "[TM][INFO] LlamaBatch<T>::Start()",
    ]
    start = only("lmdeploy", lines)
    assert start.outcome == "ready"
    assert values(start) == {"pool_tokens": tokens, "kv_cache_gib": blocks * 8 / 1024}
    assert str(start.flags["cache_max_entry_count"].value) in given


def test_without_tokens_per_block_there_is_no_pool_in_tokens() -> None:
    """Old logs do not print the block's length, whose default changed: only GiB are known."""
    lines = ["[BlockManager] block_size = 64 MB", "[BlockManager] max_block_count = 159"]
    assert values(only("lmdeploy", lines)) == {"kv_cache_gib": 9.9375}
    told = "[TM][WARNING] [LlamaTritonModel] `cache_block_seq_len` is not set, default to 128."
    assert values(only("lmdeploy", [told, *lines])) == {"kv_cache_gib": 9.9375, "pool_tokens": 159 * 128}


@pytest.mark.parametrize(
    "line",
    [
        "[TM][WARNING] No enough blocks for `session_len` (131072), `session_len` truncated to 111360.",
        "[TM][WARNING] `session_len` truncated to 111360 due to limited KV cache memory",
    ],
)
def test_a_session_that_was_cut_to_the_pool_is_a_limit(line: str) -> None:
    """The engine's own limit is the flag as resolved, and the longest prompt that it takes."""
    start = only("lmdeploy", [CONFIG.format(flags="cache_max_entry_count=0.8"), line])
    assert flags(start, "session_len") == [111_360]
    assert values(start) == {"longest_prompt_tokens": 111_360}


def test_one_region_for_all_caches_is_read() -> None:
    """0.15 and later print the region's size, the free memory and the share of it."""
    line = "[TM][INFO] Object cache budget: 13107.20 MB from free 16384.00 MB and ratio 0.800"
    start = only("lmdeploy", [line, "INFO:     Application startup complete."])
    assert values(start) == {"kv_cache_gib": 12.8, "free_after_load_gib": 16.0}
    assert flags(start, "cache_max_entry_count") == [0.8]
    assert start.outcome == "ready"


def test_states_that_leave_no_cache_are_a_refusal_with_figures() -> None:
    """What the states need and what there was are kept."""
    line = "[TM][ERROR] [SeqMgr] Linear-state memory (5120.00 MB) >= cache budget (4096.00 MB). Reduce max_batch_size."
    start = only("lmdeploy", [CONFIG.format(flags="cache_max_entry_count=0.8"), line])
    assert start.outcome == "refused"
    assert (start.failure["needed_gib"].value, start.failure["available_kv_cache_gib"].value) == (5.0, 4.0)


def test_the_pytorch_engines_draft_does_not_replace_the_pool() -> None:
    """The config of a draft's cache comes after the target's."""
    cache = "CacheConfig(max_batches=128, block_size=64, num_cpu_blocks=0, num_gpu_blocks={}, window_size=-1)"
    start = only("lmdeploy", ["Building CacheEngine with config:", cache.format(1000), cache.format(10)])
    assert values(start) == {"pool_tokens": 64_000}


def test_the_pool_of_tensorrt_llms_older_runtime_is_read() -> None:
    """0.5 to 0.8 tell bytes and tokens in two lines, 0.9 and 0.10 in one; Triton tells the default and readiness."""
    start = only(
        "tensorrt-llm",
        [
            "[TensorRT-LLM][INFO] MPI size: 1, rank: 0",
            "[TensorRT-LLM][INFO] Loaded engine size: 6683 MiB",
            "[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. ",
            "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.",
        ],
    )
    assert start.outcome == "unfinished"
    assert values(start) == {"pool_tokens": 132608, "kv_cache_gib": 64.75, "weights_gib": 6.5264}
    start = only(
        "tensorrt-llm",
        [
            "[TensorRT-LLM][WARNING] kv_cache_free_gpu_mem_fraction is not specified, will use default value of 0.9 or "
            "max_tokens_in_paged_kv_cache",
            "[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 8",
            "[TensorRT-LLM][INFO] Loaded engine size: 8000 MiB",
            "[TensorRT-LLM][INFO] Loaded engine size: 16304 MiB",
            "[TensorRT-LLM][INFO] Max tokens in paged KV cache: 117760. Allocating 54022635520 bytes.",
            "I0510 10:00:05.000000 1 http_server.cc:4637] Started HTTPService at 0.0.0.0:8000",
        ],
    )
    assert start.outcome == "ready"
    assert values(start) == {"pool_tokens": 117760, "kv_cache_gib": 50.3125, "weights_gib": 15.9219}
    assert flags(start, "free_gpu_memory_fraction", "max_batch_size") == [0.9, 8]


def test_tokens_without_bytes_are_a_pool_of_unknown_size() -> None:
    """A log that was cut before the bytes still tells the tokens."""
    start = only("tensorrt-llm", ["[TensorRT-LLM][INFO] Using 10718 tokens in paged KV cache."])
    assert values(start) == {"pool_tokens": 10718}


@pytest.mark.parametrize(
    ("frame", "phase"),
    [
        ("    model_inst = self.tm_model.model_comm.create_model_instance(", "pool"),
        ("    self.model_comm.create_engine(device_id, rank)", "pool"),
        ("    for _ in e.map(self.model_comm.process_weight,", "load"),
    ],
)
def test_a_frame_of_turbomind_tells_whether_the_weights_were_there(frame: str, phase: str) -> None:
    """The cache is allocated with the instance: there a smaller share of the free memory helps, before not."""
    start = only(
        "lmdeploy",
        [
            "2024-01-22 10:00:00,000 - lmdeploy - INFO - input backend=turbomind, "
            "backend_config=TurbomindEngineConfig(tp=1, cache_max_entry_count=0.5)",
            "Traceback (most recent call last):",
            frame,
            "RuntimeError: [TM][ERROR] CUDA runtime error: out of memory /lmdeploy/src/turbomind/utils/allocator.h:231",
        ],
    )
    assert (start.outcome, start.failure["phase"].value) == ("oom_startup", phase)


@pytest.mark.parametrize(
    ("frame", "phase"),
    [
        (
            "3  0x7c tensorrt_llm::batch_manager::kv_cache_manager::WindowBlockManager::allocatePools(bool) + 635",
            "pool",
        ),
        ("6  0x7c tensorrt_llm::batch_manager::TrtGptModelInflightBatching::createKvCacheManager(int) + 525", "pool"),
        ("4  0x7c tensorrt_llm::runtime::TllmRuntime::TllmRuntime(bool) + 112", "load"),
    ],
)
def test_a_frame_of_tensorrt_llm_below_the_error_tells_the_phase(frame: str, phase: str) -> None:
    """The stack stands below the error; what allocates the pool is in it."""
    start = only(
        "tensorrt-llm",
        [
            "[TensorRT-LLM][INFO] Loaded engine size: 2956 MiB",
            "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (/llm/tllmBuffers.h:92)",
            frame,
        ],
    )
    assert (start.outcome, start.failure["phase"].value) == ("oom_startup", phase)


@pytest.mark.parametrize(
    "words",
    [
        "E1128 backend_model.cc:553] ERROR: Failed to create instance: maxTokensInPagedKvCache must be large enough to "
        "process at least 1 sequence to completion (i.e. must be larger than beam_width * tokensPerBlock)",
        "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: maxTokensInPagedKvCache (2304) must be large enough to "
        "process at least 1 sequence to completion",
        "AssertionError: Impossible to fit in any sequence in kvCache",
    ],
)
def test_a_pool_of_tensorrt_llm_that_holds_no_request_is_a_refusal(words: str) -> None:
    """The engine ends for want of a pool, not of free memory: a larger share helps."""
    start = only("tensorrt-llm", ["[TensorRT-LLM][INFO] Using 2304 tokens in paged KV cache.", words])
    assert (start.outcome, start.failure["phase"].value) == ("refused", "pool")
    assert (start.failure["cause"].value, values(start)) == ("gpu_memory", {"pool_tokens": 2304})
