"""Figures that vLLM prints in several wordings: the summary of a worker, caps, fitted lengths and refusals."""

from __future__ import annotations

import pytest

from kvyield.engines import Start, read_starts
from kvyield.engines._vllm_pool import rank_of

FREE = "Free memory on device (30.33/31.89 GiB) on startup."
DESIRED = "Desired GPU memory utilization is (0.92, 29.34 GiB)."
VLLM_USAGE = (
    "Actual usage is 5.22 GiB for weight, 2.07 GiB for peak activation, 1.43 GiB for non-torch memory, and 0.4 GiB for "
    "CUDAGraph memory."
)
ASCEND_USAGE = (
    "Actual usage: 5.22 GiB for weights, 2.07 GiB for peak activation, 1.43 GiB for non-torch memory, 0.4 GiB for NPU "
    "graph memory."
)
CONSUMED_USAGE = (
    "Actual usage is 6.65 GiB for consumed memory (weights + non-torch), 2.07 GiB for peak activation, and 0.4 GiB for "
    "CUDAGraph memory."
)
ADVICE = "Replace gpu_memory_utilization config with `--kv-cache-memory=21978402796` to fit into requested memory."


def only(lines: list[str]) -> Start:
    (start,) = read_starts(lines, engine="vllm")
    return start


def values(start: Start) -> dict[str, object]:
    return {name: item.value for name, item in start.measurements.items()}


def refused(start: Start) -> dict[str, object]:
    return {name: item.value for name, item in start.failure.items() if name != "message"}


@pytest.mark.parametrize("in_use", ["in use is 20.62 GiB.", "in use is 22140506931.", "in use is 22140506931 bytes."])
@pytest.mark.parametrize("usage", [VLLM_USAGE, CONSUMED_USAGE])
def test_the_summary_alone_holds_the_memory_of_a_start(usage: str, in_use: str) -> None:
    """Fraction, total, free memory, KV cache and graphs come from the summary, in each era's wording."""
    start = only([" ".join([FREE, DESIRED, usage, ADVICE, f"Current kv cache memory {in_use}"])])
    found = values(start)
    assert found.pop("kv_cache_gib") == pytest.approx(20.62, abs=0.001)
    expected = {"free_before_load_gib": 30.33, "device_memory_gib": 31.89, "graph_gib": 0.4}
    assert found == expected | ({"weights_gib": 5.22} if "weight," in usage else {})
    assert start.flags["gpu_memory_utilization"].value == 0.92
    assert start.contradictions == []


@pytest.mark.parametrize("unit", ["GiB", "Gib"])
def test_the_results_line_of_0_6_4_holds_total_pool_and_fraction(unit: str) -> None:
    """vLLM 0.6.4 told its memory profile in one line; a line cut in its last figure gives no fraction."""
    told = (
        "INFO 12-02 20:21:46 worker.py:241] Memory profiling results: total_gpu_memory=23.58GiB "
        f"initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB memory_usage_post_profile=15.35{unit} "
        "non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.95"
    )
    start = only([told])
    assert values(start) == {"device_memory_gib": 23.58, "kv_cache_gib": 3.81}
    assert start.flags["gpu_memory_utilization"].value == 0.95
    cut = only([told[:-1]])
    assert "gpu_memory_utilization" not in cut.flags
    assert values(cut) == {"kv_cache_gib": 3.81}


def test_vllm_ascend_says_it_in_its_own_words() -> None:
    """The line of vllm-ascend, with its parts in any order and some of them left out, is read by its parts."""
    kv = "Current KV cache memory: 20.62 GiB."
    whole = values(only([" ".join([FREE, DESIRED, ASCEND_USAGE, ADVICE, kv])]))
    assert whole == {
        "free_before_load_gib": 30.33,
        "device_memory_gib": 31.89,
        "weights_gib": 5.22,
        "graph_gib": 0.4,
        "kv_cache_gib": 20.62,
    }
    assert values(only([" ".join([kv, ASCEND_USAGE, FREE])])) == whole
    assert values(only([f"{FREE} {kv}"])) == {
        "free_before_load_gib": 30.33,
        "device_memory_gib": 31.89,
        "kv_cache_gib": 20.62,
    }


def test_a_summary_whose_terms_do_not_add_up_is_reported() -> None:
    """The pool in use must be what was desired less what was used."""
    start = only([" ".join([FREE, DESIRED, VLLM_USAGE, ADVICE, "Current kv cache memory in use is 12.62 GiB."])])
    assert len(start.contradictions) == 1
    assert "12.62" in start.contradictions[0]


def test_weights_and_pool_are_of_the_gpu_that_binds() -> None:
    """Of pipeline stages on uneven GPUs, weights, total and KV cache are those of the stage with the least KV cache."""
    start = only(
        [
            "INFO 02-08 10:00:20 [core.py:96] Initializing a V1 LLM engine (v0.15.2) with config: model='m', "
            "tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=1, enforce_eager=False)",
            *(
                f"(Worker_PP{stage}_TP{rank} pid=9) Model loading took {gib} GiB memory and 1.0 seconds"
                for stage, rank, gib in ((0, 0, 10.09), (0, 1, 10.1), (1, 0, 19.31), (1, 1, 19.3))
            ),
            *(
                f"(Worker_PP{stage}_TP{rank} pid=9) Available KV cache memory: {gib} GiB"
                for stage, rank, gib in ((0, 0, 8.04), (0, 1, 8.03), (1, 0, 3.18), (1, 1, 3.19))
            ),
            "(EngineCore pid=1) ValueError: To serve at least one request with the models's max seq len (262144), "
            "(24.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the "
            "available memory, the estimated maximum model length is 34736.",
        ]
    )
    assert start.outcome == "refused"
    assert values(start) == {"kv_cache_gib": 3.18, "weights_gib": 19.31}
    assert refused(start) == {
        "phase": "pool",
        "cause": "gpu_memory",
        "needed_gib": 24.0,
        "available_kv_cache_gib": 3.18,
        "longest_tokens": 34736,
        "rank": 2,
    }


@pytest.mark.parametrize(
    ("process", "sizes", "rank"),
    [
        ("Worker_TP3 pid=9", (4, 1), 3),
        ("Worker_PP1_TP3_EP3 pid=9", (4, 2), 7),
        ("Worker_PP1 pid=9", (1, 2), 1),
        ("Worker_PP1_TP0 pid=9", (None, None), None),
        ("Worker_DP1_TP0 pid=9", (2, 1), 2),
        ("VllmWorker rank=5 pid=9", (None, None), 5),
        ("EngineCore pid=9", (4, 1), None),
        ("RayWorkerWrapper pid=9", (4, 1), None),
        ("", (4, 1), None),
    ],
)
def test_a_process_name_tells_its_rank(process: str, sizes: tuple[int | None, int | None], rank: int | None) -> None:
    """Ranks are global within the start: stages of the pipeline come after each other."""
    assert rank_of(process, tensor=sizes[0], pipeline=sizes[1]) == rank


def test_a_refusal_that_somebody_broke_into_lines_keeps_its_figures() -> None:
    """A pasted message wraps after any word; the figures of the following lines belong to it."""
    start = only(
        [
            "Available KV cache memory: 4.50 GiB",
            "ValueError: To serve at least one request with the models's max seq len (40,960),",
            "(5.62 GiB KV cache is needed, which is larger than the available KV cache memory (4.50 GiB).",
            "Based on the available memory, the estimated maximum model length is 32,768.",
        ]
    )
    assert refused(start) == {
        "phase": "pool",
        "cause": "gpu_memory",
        "needed_gib": 5.62,
        "available_kv_cache_gib": 4.5,
        "longest_tokens": 32768,
    }


def test_too_little_free_memory_is_a_refusal_with_its_figures() -> None:
    """What was free, what was asked for, the total and the rank are kept."""
    start = only(
        [
            "(Worker_TP1 pid=7) ERROR 11-29 12:00:02 [w.py:1] ValueError: Free memory on device cuda:1 (12.5/79.1 GiB) "
            "on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization "
            "or reduce GPU memory used by other processes."
        ]
    )
    assert start.outcome == "refused"
    assert values(start) == {"free_before_load_gib": 12.5, "device_memory_gib": 79.1}
    assert refused(start) == {"phase": "load", "cause": "gpu_memory", "free_gib": 12.5, "needed_gib": 71.2, "rank": 1}
    assert start.flags["gpu_memory_utilization"].value == 0.9


@pytest.mark.parametrize("asked", ["-1", "'auto'"])
@pytest.mark.parametrize(
    ("words", "fitted"),
    [
        ("reduced from 1048576 to 516096 to fit in available GPU memory (3.81 GiB available for KV cache)", 516096),
        ("full model context length 1048576 fits in available GPU memory", 1048576),
    ],
)
def test_a_fitted_length_is_not_a_length_that_was_asked_for(asked: str, words: str, fitted: int) -> None:
    """What was asked stays the flag, and what the engine fitted is a measurement, whatever other lines say."""
    after = [
        "Initializing a V1 LLM engine (v0.30.0) with config: model='m', max_seq_len=1048576, enforce_eager=False)",
        "Available KV cache memory: 3.81 GiB",
        f"Auto-fit max_model_len: {words}",
        f"GPU KV cache size: 518,311 tokens, Maximum concurrency for {fitted:,} tokens per request: 1.00x",
    ]
    given = only(
        [f"non-default args: {{'model': 'm', 'max_model_len': {asked}}}", "Using max model len 1048576", *after]
    )
    assert given.flags["max_model_len"].value == {"-1": -1, "'auto'": "auto"}[asked]
    assert given.measurements["fitted_max_model_len"].value == fitted
    unseen = only(after)
    assert unseen.flags["max_model_len"].value == -1
    assert unseen.measurements["fitted_max_model_len"].value == fitted


def test_a_capped_pool_keeps_both_numbers() -> None:
    """With num_gpu_blocks_override the blocks that the engine counted are kept beside the pool that was made."""
    start = only(
        [
            "Available KV cache memory: 37.0 GiB",
            "Overriding num_gpu_blocks=77800 with num_gpu_blocks_override=2048",
            "GPU KV cache size: 32,768 tokens",
        ]
    )
    assert values(start) == {"kv_cache_gib": 37.0, "pool_tokens": 32768, "uncapped_pool_tokens": 77800 * 16}
    assert start.flags["num_gpu_blocks_override"].value == 2048


@pytest.mark.parametrize(
    "line",
    [
        "CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.9300 "
        "is equivalent to --gpu-memory-utilization=0.8938 without CUDA graph memory profiling.",
        "CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Without it, CUDA "
        "graph memory is not accounted for during KV cache allocation, which may require lowering "
        "--gpu-memory-utilization to avoid OOM. "
        "Consider re-enabling it and increasing --gpu-memory-utilization from 0.9300 to 0.9683.",
        "Initial free memory: 23.45 GiB; Requested memory: 0.930000 (util), 21.57 GiB",
    ],
)
def test_the_fraction_is_the_one_in_force(line: str) -> None:
    """Of the utilizations that a line prints, the flag is the current one."""
    start = only([line, "Available KV cache memory: 8.24 GiB"])
    assert start.flags["gpu_memory_utilization"].value == 0.93


def test_a_persisted_plan_pins_the_pool() -> None:
    """A start-up plan that is applied sets the bytes of the pool, whatever the fraction."""
    line = (
        "Applying persisted startup plan (fingerprint 0f3a): kv_cache_memory_bytes=40607249408 (37.82 GiB), recorded "
        "free-memory baseline 82.22 GiB"
    )
    start = only([line, "GPU KV cache size: 32,768 tokens"])
    assert start.flags["kv_cache_memory_bytes"].value == 40607249408


@pytest.mark.parametrize(
    "words", ["Starting vLLM server on http://0.0.0.0:8013", "Starting vLLM API server 0 on http://[::]:8013"]
)
def test_a_ready_server_tells_its_port(words: str) -> None:
    """Two servers of one host are told apart by it; a port that was given is the flag as it is."""
    lines = ["GPU KV cache size: 4,096 tokens", "init engine (profile, create kv cache, warmup model) took 7 s", words]
    assert only(lines).flags["port"].value == 8013
    given = only(["non-default args: {'model': 'm', 'port': 9000}", *lines])
    assert given.flags["port"].value == 9000


@pytest.mark.parametrize(
    ("version", "printed", "length", "times", "tokens"),
    [
        ("0.20.1rc1.dev16+g7a1eb8ac2", 67_728, 180_000, "1.06", 189_900),  # Qwen3.6-27B on two RTX 4090
        ("0.19.1", 290_864, 32_768, "33.04", 1_082_490),  # vLLM issue 40691
        ("0.19.1", 67_728, 180_000, "1.00", 180_000),  # it started, so one request fits
        ("0.9.2", 122_880, 4_096, "30.00", 122_880),
        ("0.9.2", 124_000, 4_100, "30.13", 124_000),  # whole blocks per request: no more than decimals
        ("0.21.0", 67_728, 180_000, "1.06", 67_728),  # one of the two lines was damaged
        ("0.20.0", 122_880, 4_096, "3000.00", 122_880),
        ("0.20.0", 2_368, 16_000, "0.15", 2_368),
    ],
)
def test_the_pool_of_a_hybrid_model_is_what_requests_hold(
    version: str, printed: int, length: int, times: str, tokens: int
) -> None:
    """Before 0.21 the size that vLLM printed of a hybrid model was that of one group of its layers."""
    start = only(
        [
            f"Initializing a V1 LLM engine (v{version}) with config: model='m', max_seq_len={length})",
            "Available KV cache memory: 9.74 GiB",
            f"GPU KV cache size: {printed:,} tokens",
            f"Maximum concurrency for {length:,} tokens per request: {times}x",
        ]
    )
    assert values(start)["pool_tokens"] == tokens
    assert f"{printed:,}" in start.measurements["pool_tokens"].source


def test_the_version_stands_in_the_banner() -> None:
    """Newer versions draw their name in blocks and say which they are beside it."""
    banner = [
        "(APIServer pid=1) INFO 04-19 12:18:48 [utils.py:299]        █     █     █▄   ▄█",
        "(APIServer pid=1) INFO 04-19 12:18:48 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.19.1rc1.dev391",
        "(APIServer pid=1) INFO 04-19 12:18:48 [utils.py:299]   █▄█▀ █     █     █     █  model   /models/m",
    ]
    start = only([*banner, "non-default args: {'model': 'm'}", "Available KV cache memory: 3.81 GiB"])
    assert start.facts["engine_version"].value == "0.19.1rc1.dev391"


@pytest.mark.parametrize(("printed", "workers"), [("-2.14", ("-2.14",)), ("-3.1", ("-2.14", "-3.1"))])
def test_a_refusal_without_a_figure_keeps_what_the_worker_had(printed: str, workers: tuple[str, ...]) -> None:
    """What the worst worker printed before, below zero too, is a point of the line."""
    start = only(
        [
            "(EngineCore_0 pid=9) INFO 08-20 18:03:58 [core.py:74] Initializing a V1 LLM engine (v0.10.1.1) with "
            "config: model='m', tensor_parallel_size=2, pipeline_parallel_size=1, enforce_eager=False)",
            "(EngineCore_0 pid=9) INFO 08-20 18:04:10 [gpu_model_runner.py:2007] Model loading took 65.9651 GiB and "
            "12.799889 seconds",
            *(
                f"(VllmWorker TP{rank} pid={rank}) INFO 08-20 18:04:22 [gpu_worker.py:276] Available KV cache memory: "
                f"{gib} GiB"
                for rank, gib in enumerate(workers)
            ),
            "(EngineCore_0 pid=9) ERROR 08-20 18:04:22 [core.py:700] ValueError: No available memory for the cache "
            "blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        ]
    )
    assert start.outcome == "refused"
    assert refused(start)["available_kv_cache_gib"] == float(printed)


def test_the_memory_line_of_older_vllm_ascend_is_read() -> None:
    """Before 0.14 it tells bytes, the least over workers being the pool's."""
    start = only(
        [
            "(EngineCore pid=1) INFO 02-07 18:10:10 [core.py:93] Initializing a V1 LLM engine (v0.13.0) with config: "
            "model='m', tensor_parallel_size=2, pipeline_parallel_size=1, enforce_eager=False)",
            "(Worker_TP0 pid=2) INFO 02-07 18:18:50 [worker_v1.py:256] Available memory: 10283231232, total memory: "
            "65452113920",
            "(Worker_TP1 pid=3) INFO 02-07 18:18:50 [worker_v1.py:256] Available memory: 10283130880, total memory: "
            "65452113920",
            "(EngineCore_DP0 pid=1) INFO 02-07 18:18:58 [kv_cache_utils.py:1286] GPU KV cache size: 282,240 tokens",
        ]
    )
    assert values(start) == {"pool_tokens": 282240, "kv_cache_gib": 9.5769, "device_memory_gib": 60.957}


@pytest.mark.parametrize(("left", "outcome"), [("-0.87", "refused"), ("0.87", "failed")])
def test_an_end_after_less_than_no_memory_for_the_pool_is_a_refusal(left: str, outcome: str) -> None:
    """However the engine words its end: a larger fraction is what it wants."""
    start = only(
        [
            "(EngineCore pid=20) INFO 05-20 10:00:10 [core.py:105] Initializing a V1 LLM engine (v0.18.0) with config: "
            "model='m', tensor_parallel_size=1, pipeline_parallel_size=1, enforce_eager=True)",
            "(EngineCore pid=20) INFO 05-20 10:01:00 [model_runner_v1.py:2600] Loading model weights took 27.5376 GB",
            f"(EngineCore pid=20) INFO 05-20 10:01:20 [worker.py:400] Available KV cache memory: {left} GiB",
            "(EngineCore pid=20) ERROR 05-20 10:01:21 [core.py:866] EngineCore failed to start.",
            "(EngineCore pid=20) ERROR 05-20 10:01:21 [core.py:866] AssertionError: Error in memory profiling.",
        ]
    )
    assert (start.outcome, start.failure["phase"].value) == (outcome, "pool")
    if outcome == "refused":
        assert refused(start)["available_kv_cache_gib"] == -0.87
