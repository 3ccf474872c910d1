"""What a start failed of, in the engine's own words, and what was not a failure at all."""

from __future__ import annotations

from typing import Any

import pytest

from kvyield.engines import Start, read_starts

ARGS = "[2026-05-30 22:00:00] server_args=ServerArgs(mem_fraction_static=0.9, chunked_prefill_size=8192, tp_size=1)"
BEGIN = "[2026-05-30 22:00:10] Load weight begin. avail mem=90.00 GB"
END = "[2026-05-30 22:01:10] Load weight end. elapsed=60 s, type=M, avail mem=20.00 GB, mem usage=70.00 GB."
POOL = "[2026-05-30 22:01:11] KV Cache is allocated. #tokens: 1000, KV size: 10.00 GB"
POOL_END = "[2026-05-30 22:01:12] Memory pool end. avail mem=9.00 GB"
CAPTURE = "[2026-05-30 22:01:13] Capture cuda graph begin. This can take up to several minutes. avail mem=8.00 GB"
FINAL = (
    "[2026-05-30 22:02:00] max_total_num_tokens=1000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=8, context_len=200000, available_gpu_mem=5.00 GB"
)
READY = "[2026-05-30 22:02:30] The server is fired up and ready to roll!"
STARTED = [ARGS, BEGIN, END, POOL, POOL_END, CAPTURE, FINAL, READY]
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacity of 94.97 "
    "GiB of "
    "which 1.32 GiB is free."
)
TRACEBACK = [
    "[2026-05-30 22:03:00] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "x.py", line 1, in f',
    OOM,
]
UNRELATED = [
    "Traceback (most recent call last):",
    '  File "usage.py", line 1, in report',
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='stats', port=443): Max retries exceeded",
]
VLLM = [
    "(EngineCore pid=1) INFO 11-29 12:00:00 [core.py:1] Initializing a V1 LLM engine (v0.33.0) with config: "
    "model='m', max_seq_len=4096",
    "(EngineCore pid=1) INFO 11-29 12:00:09 [m.py:1] Model loading took 15.31 GiB memory and 1.2 seconds",
    "(EngineCore pid=1) INFO 11-29 12:00:19 [w.py:1] Available KV cache memory: 10.77 GiB",
]
VLLM_SIZE = (
    "INFO 11-29 12:00:20 [k.py:1] GPU KV cache size: 78,448 tokens, Maximum concurrency for 4,096 tokens: 19.15x"
)
VLLM_READY = [
    "INFO 11-29 12:01:00 [core.py:1] init engine (profile, create kv cache, warmup model) took 3.84 s",
    "INFO:     Application startup complete.",
]


def only(lines: list[str], **options: Any) -> Start:
    starts = list(read_starts(lines, **options))
    assert len(starts) == 1
    return starts[0]


def said(start: Start) -> tuple[str, Any]:
    phase = start.failure.get("phase")
    return start.outcome, phase.value if phase else None


@pytest.mark.parametrize(
    ("reached", "phase"),
    [
        ([ARGS, BEGIN], "load"),
        ([ARGS, BEGIN, END], "pool"),
        ([ARGS, BEGIN, END, POOL], "pool"),
        (STARTED[:6], "graph_capture"),
    ],
)
def test_an_out_of_memory_start_names_its_phase(reached, phase):
    """The last line of the start-up that was seen says where the memory ran out; the GPU's total is read too."""
    start = only([*reached, *TRACEBACK])
    assert said(start) == ("oom_startup", phase)
    assert start.failure["message"].value == OOM
    assert start.measurements["device_memory_gib"].value == 94.97
    assert ("pool_tokens" in start.measurements) == (POOL in reached)


def test_a_death_while_serving_is_a_run_time_death_with_its_prompt():
    """The prompt in flight is the sum of its chunks and what was pending, the chunks of earlier prompts not counted."""
    prefill = "[2026-05-30 22:02:50] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, "
    prefill += "#running-req: 0, #queue-req: 0, #pending-token: {pending}, cuda graph: False"
    chunks = [(3000, 0, 0), (8192, 5, 52000), (8192, 0, 43808), (8192, 0, 35616)]
    served = [prefill.format(new=new, cached=cached, pending=pending) for new, cached, pending in chunks]
    start = only([*STARTED, *served, *TRACEBACK])
    assert said(start) == ("oom_runtime", "serving")
    assert start.failure["prompt_tokens"].value == 3 * 8192 + 5 + 35616
    assert start.measurements["pool_tokens"].value == 1000
    assert start.measurements["free_at_ready_gib"].value == 5.0


def test_an_out_of_memory_request_that_the_server_survives_is_no_death():
    """When batches go on after the error, the start stays ready."""
    survived = (
        "[2026-05-30 22:04:00 TP0] Decode batch, #running-req: 7, #token: 900, token usage: 0.44, gen throughput: 9"
    )
    assert said(only([*STARTED, *UNRELATED[:2], OOM, survived])) == ("ready", None)
    assert said(only([*STARTED, *TRACEBACK, survived]))[0] == "oom_runtime"


@pytest.mark.parametrize("at", range(1, 8))
def test_a_traceback_that_does_not_stop_the_start_is_no_failure(at):
    """An unrelated traceback anywhere in the start-up, with later lines of the start-up, leaves it ready."""
    assert said(only([*STARTED[:at], *UNRELATED, *STARTED[at:]])) == ("ready", None)
    assert said(only([*STARTED, *UNRELATED])) == ("ready", None)


def test_an_exception_that_ends_the_log_is_the_failure():
    """A start that ends in an exception before it was ready failed, in the words of the exception."""
    start = only([*STARTED[:3], "Traceback (most recent call last):", "KeyError: 'model.layers.0.weight'"])
    assert said(start) == ("failed", "pool")
    assert start.failure["message"].value == "KeyError: 'model.layers.0.weight'"


def test_a_request_that_is_too_long_fails_nothing():
    """Requests refused for their length, and pools that retract requests, are service, not failure."""
    refused = [
        "[2026-05-30 22:03:00] ValueError: The input (300000 tokens) is longer than the model's context length "
        "(200000 tokens).",
        "ValueError: Input length (2000 tokens) exceeds the maximum allowed length (993 tokens). Use a shorter "
        "input or enable it.",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 5, #new_token_ratio: "
        "0.5 -> 0.9",
    ]
    assert said(only([*STARTED, *refused])) == ("ready", None)
    too_long = "ValueError: This model's maximum context length is 4096 tokens. However, you requested 9000 tokens"
    assert said(only([*VLLM, VLLM_SIZE, *VLLM_READY, too_long])) == ("ready", None)


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_log_that_ends_before_the_final_line_is_unfinished(cut):
    """A start that is not seen to be ready is not ready, however far its start-up went, and has no free memory at
    ready.
    """
    start = only(STARTED[:cut])
    assert said(start) == ("unfinished", None)
    assert "free_at_ready_gib" not in start.measurements
    assert ("pool_tokens" in start.measurements) == (POOL in STARTED[:cut])


@pytest.mark.parametrize("cut", range(2, 5))
def test_a_vllm_log_that_ends_before_the_engine_is_up_is_unfinished(cut):
    """The memory of the pool, and its tokens, are printed before it is allocated: they are not a sign of readiness."""
    assert said(only([*VLLM, VLLM_SIZE][:cut])) == ("unfinished", None)


def test_requests_that_were_served_show_that_the_engine_came_up():
    """A log without the ready line is of a ready engine when it decodes."""
    decoded = "[2026-05-30 22:04:00 TP0] Decode batch, #running-req: 7, #token: 900, token usage: 0.44"
    assert said(only([*STARTED[:5], decoded])) == ("ready", None)
    served = "INFO 11-29 12:05:00 [l.py:1] Engine 000: Avg prompt throughput: 12.5 tokens/s"
    assert said(only([*VLLM, VLLM_SIZE, served])) == ("ready", None)
    assert said(only([*VLLM, VLLM_SIZE, served.replace("12.5", "0.0")])) == ("unfinished", None)


@pytest.mark.parametrize(
    ("line", "fraction", "minimum"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", 0.9, None),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
            "mem_fraction_static=0.8",
            0.9,
            None,
        ),
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.75. Raise "
            "--mem-fraction-static above 0.7724 (minimum viable = 1 - available/pre = 0.7724). If using "
            "speculative decoding, "
            "draft weights are now counted.",
            0.9,
            0.7724,
        ),
    ],
)
def test_refusals_of_sglang_hold_their_evidence(line, fraction, minimum):
    """A refusal is told from a crash, and its "minimum viable" is the zero of the line."""
    start = only([ARGS, BEGIN, END, "[2026-05-30 22:01:11 TP0] Scheduler hit an exception: Traceback", line])
    assert said(start) == ("refused", "pool")
    assert str(start.failure["message"].value).startswith(line[:60])
    assert start.flags["mem_fraction_static"].value == fraction
    assert (start.failure["minimum_fraction"].value if minimum else "minimum_fraction" not in start.failure) == (
        minimum or True
    )
    alone = only([line])
    assert alone.outcome == "refused"
    assert ("mem_fraction_static" in alone.flags) == ("tic=0." in line)


@pytest.mark.parametrize("owner", ["models's", "model's"])
def test_vllm_names_the_memory_it_had_when_it_refused(owner):
    """The refusal for length gives the exact memory, in both spellings of three years."""
    line = (
        f"ValueError: To serve at least one request with the {owner} max seq len (131072), (18.0 GiB KV cache is "
        f"needed, which is "
        "larger than the available KV cache memory (10.77 GiB). Based on the available memory, the estimated "
        "maximum model length "
        "is 78448. Try increasing it."
    )
    start = only([*VLLM, "(EngineCore pid=1) ERROR 11-29 12:00:20 [core.py:1] EngineCore failed to start.", line])
    assert said(start) == ("refused", "pool")
    assert start.failure["available_kv_cache_gib"].value == 10.77


@pytest.mark.parametrize("device", ["", "cuda:0 "])
def test_vllm_that_finds_the_gpu_taken_is_refused_before_the_load(device):
    """The check at start-up gives free and total memory and the fraction that was asked."""
    line = (
        f"ValueError: Free memory on device {device}(61.2/79.15 GiB) on startup is less than desired GPU memory "
        f"utilization "
        "(0.9, 71.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    wrapped = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    start = only([VLLM[0], line, wrapped])
    assert said(start) == ("refused", "load")
    assert str(start.failure["message"].value).startswith("Free memory on device")
    assert start.flags["gpu_memory_utilization"].value == 0.9
    assert start.measurements["device_memory_gib"].value == 79.15
    assert start.measurements["free_before_load_gib"].value == 61.2


@pytest.mark.parametrize(
    ("line", "outcome", "phase"),
    [
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
            "refused",
            "pool",
        ),
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please "
            "try lowering it.",
            "oom_startup",
            "pool",
        ),
        (OOM, "oom_startup", "pool"),
    ],
)
def test_vllm_failures_after_the_weights(line, outcome, phase):
    """Between weights and pool vLLM refuses or runs out of memory while it profiles."""
    assert said(only([*VLLM[:2], line])) == (outcome, phase)


def test_vllm_deaths_after_the_pool():
    """The pool's size is printed before its allocation: a death then is of the pool, later of graph capture, and after
    readiness of service, with the prompt dumped.
    """
    assert said(only([*VLLM, VLLM_SIZE, OOM])) == ("oom_startup", "pool")
    capturing = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  12%|#2        | 6/51 [00:01<00:12,  3.6it/s]"
    assert said(only([*VLLM, VLLM_SIZE, capturing, OOM])) == ("oom_startup", "graph_capture")
    frames = ['  File "gpu_model_runner.py", line 1, in {}', '  File "x.py", line 2, in forward']
    for function, phase in (("capture_model", "graph_capture"), ("kernel_warmup", "pool"), ("load_model", "load")):
        traceback = ["Traceback (most recent call last):", *(frame.format(function) for frame in frames)]
        assert said(only([*VLLM, VLLM_SIZE, *traceback, OOM])) == ("oom_startup", phase)
    dump = (
        "ERROR 11-29 12:05:00 [d.py:1] SchedulerOutput(scheduled_new_reqs=[NewRequestData(prompt_token_ids_len=60010,"
    )
    start = only(
        [
            *VLLM,
            VLLM_SIZE,
            *VLLM_READY,
            "ERROR 11-29 12:05:00 [core.py:1] EngineCore encountered a fatal error.",
            dump,
            OOM,
        ]
    )
    assert said(start) == ("oom_runtime", "serving")
    assert start.failure["prompt_tokens"].value == 60010


def test_lmdeploy_refuses_in_its_own_words():
    """LMDeploy's lack of memory for the cache is a refusal."""
    start = only(
        ["[TM][INFO] [BlockManager] block_size = 64 MB", "RuntimeError: No enough gpu memory for kv cache. Please try."]
    )
    assert said(start) == ("refused", "pool")


def test_a_pool_sized_after_capture_is_told_apart() -> None:
    """The pool that counts is the one sized after capture, and the start says so: it is another line than before."""
    lines = [
        b"[2026-05-30 22:00:23] server_args=ServerArgs(model_path='m', mem_fraction_static=0.8, tp_size=1)\n",
        b"[2026-05-30 22:01:00] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 900, "
        b"K size: 9.00 GB, V size: 9.00 GB\n",
        b"[2026-05-30 22:02:00] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 700, "
        b"KV size: 14.00 GB, avail mem=5.00 GB\n",
        b"[2026-05-30 22:02:01] max_total_num_tokens=700, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        b"max_running_requests=8, context_len=100, available_gpu_mem=5.00 GB\n",
        b"[2026-05-30 22:02:02] The server is fired up and ready to roll!\n",
    ]
    (start,) = read_starts(lines)
    assert start.flags["post_capture_kv_sizing"].value is True
    assert (start.measurements["pool_tokens"].value, start.measurements["kv_cache_gib"].value) == (700, 14.0)
