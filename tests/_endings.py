# ruff: noqa: E501  # lines of logs are not broken
"""How starts end, as logs: every wording of the client's table in a line as it was printed, and starts to end with it.

Lines are from public reports and from the sources that the table names; figures are GiB.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

Lines = list[str]


@dataclass(frozen=True)
class Ending:
    """Lines that show an end, what is read of them, and the row of the table that they match."""

    row: str
    lines: tuple[str, ...]
    cause: str | None
    figures: dict[str, float] = field(default_factory=dict)
    engines: tuple[str, ...] = ("sglang", "vllm", "tensorrt-llm", "lmdeploy")


def _gpu(row: str, line: str, *engines: str, **figures: float) -> Ending:
    return Ending(row, (line,), "gpu_memory", figures, engines or Ending.engines)


GPU_MEMORY = (
    _gpu(
        "torch-allocator",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB. GPU 0 has a total capacity of 139.80 GiB "
        "of which 232.31 MiB is free. Including non-PyTorch memory, this process has 139.56 GiB memory in use.",
        wanted_gib=0.375, free_gib=232.31 / 1024, device_memory_gib=139.8,
    ),
    _gpu(
        "torch-allocator",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; "
        "20.11 GiB already allocated; 1.21 GiB free; 20.50 GiB reserved in total by PyTorch)",
        wanted_gib=2.0, free_gib=1.21, device_memory_gib=23.69,
    ),
    _gpu("torch-allocator", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 2 has a total capacity of "
         "191.98 GiB of which 1.10 GiB is free.", wanted_gib=1.5, free_gib=1.1, device_memory_gib=191.98),
    _gpu(
        "torch-allocator",
        "RuntimeError: NPU out of memory. Tried to allocate 3.47 GiB (NPU 0; 60.97 GiB total capacity; 58.92 GiB already "
        "allocated; 58.92 GiB current active; 1.66 GiB free; 58.95 GiB reserved in total by PyTorch)", "vllm", "sglang",
        wanted_gib=3.47, free_gib=1.66, device_memory_gib=60.97,
    ),
    _gpu("torch-allocator", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
         "31.89 GiB. Of the allocated memory 30.00 GiB is allocated by PyTorch.", "vllm", "sglang",
         wanted_gib=1.0, device_memory_gib=31.89),
    _gpu("torch-allocator", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try "
         "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", "vllm"),
    _gpu("torch-allocator", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: "
         "2,147,483,648 bytes).", "vllm", wanted_gib=1.0),
    _gpu("allocator-assertion", 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131, '
         "please report a bug to PyTorch."),
    _gpu("accelerator-error", "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", "vllm"),
    _gpu("accelerator-error", "torch.AcceleratorError: CUDA error: out of memory"),
    _gpu("accelerator-error", "RuntimeError: CUDA driver error: out of memory"),
    _gpu("accelerator-error", "RuntimeError: HIP error: out of memory"),
    _gpu("accelerator-error", "RuntimeError: [TM][ERROR] CUDA runtime error: out of memory /src/turbomind/utils/allocator.h:231", "lmdeploy"),
    _gpu("accelerator-error", "[TM][FATAL] [cuda_utils.cc:28] CUDA error: out of memory", "lmdeploy"),
    _gpu("accelerator-error", "E1103 02:59:01 81041 backend_model.cc:553] ERROR: Failed to create instance: unexpected error when creating "
         "modelInstanceState: [TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of memory "
         "(/app/tensorrt_llm/cpp/tensorrt_llm/runtime/tllmBuffers.h:112)", "tensorrt-llm"),
    _gpu("accelerator-error", "[TensorRT-LLM][ERROR] [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)", "tensorrt-llm"),
    _gpu("accelerator-error", "node-0:392:494 [2] enqueue.cc:43 NCCL WARN Cuda failure 'out of memory'"),
    _gpu("accelerator-error", "torch.distributed.DistBackendError: NCCL error: Last error: Cuda failure 2 'out of memory'"),
    _gpu("accelerator-error", "RuntimeError: Triton Error [CUDA]: out of memory"),
    _gpu("accelerator-error", "[torch_memory_saver.cpp] CUresult error: 2 (out of memory)  file=csrc/utils.h func=cu_mem_create line=187", "sglang"),
    _gpu("status-code", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    _gpu("status-code", "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    _gpu("status-code", "RuntimeError: CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
    _gpu("status-code", "rocdevice.cpp:3582: 12 us: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: code: 0x1008"),
    _gpu("status-code", "RuntimeError: Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "vllm", "sglang"),
    _gpu("status-code", "RuntimeError: UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "vllm"),
    _gpu("status-code", "RuntimeError: Allocation is out of device memory on current platform.", "vllm"),
    _gpu("status-code", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 2.00G. That was not possible.", "vllm", "sglang"),
    _gpu("memory-saver-code", "[torch_memory_saver.cpp] CUresult error  result=2 file=csrc/torch_memory_saver.cpp func=cu_mem_create line=103", "sglang"),
    _gpu("nccl-allocation", "node-0:392:494 [2] include/alloc.h:232 NCCL WARN Failed to CUDA calloc async 6291456 bytes", wanted_gib=6291456 / 2**30),
    _gpu("cann", "[Error]: Failed to apply for memory.", "vllm"),
    _gpu("cann", "EL0004: [PID: 316198] 2025-09-28-07:22:29.827.496 Failed to allocate memory.", "vllm", "sglang"),
    _gpu("cann", "Failed to allocate resource[DeviceMemory] with info [size:2147483648]. Reason: Memory resources are exhausted.", "vllm",
         wanted_gib=2.0),
    _gpu("tensorrt-allocator", "[TensorRT-LLM][ERROR] [deserialize.cpp::load::572] Error Code 2: OutOfMemory (Requested size was 69568823808 bytes.)",
         "tensorrt-llm", wanted_gib=69568823808 / 2**30),
    _gpu("executor-creation", "RuntimeError: Executor creation failed due to insufficient GPU memory.", "tensorrt-llm"),
)  # fmt: skip

HOST_MEMORY = (
    Ending("ray-memory-monitor", ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",), "host_memory"),
    Ending("kernel-oom-killer", ("[812.1] Out of memory: Killed process 2340 (sglang::schedul) total-vm:181GB, anon-rss:97GB",), "host_memory"),
    Ending("kernel-oom-killer", ("Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB, anon-rss:1kB",), "host_memory"),
    Ending("supervisor-oom", ("engine.service: A process of this unit has been killed by the OOM killer.",), "host_memory"),
    Ending("host-allocation", ("RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to "
                               "allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",), "host_memory"),
    Ending("host-allocation", ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 10.0 GiB for an array with shape (1, 2)",), "host_memory"),
    Ending("host-cache", ("ValueError: Not enough host memory available. Requesting 200.00 GB but only have 100.00 GB free. Please reduce the "
                          "size of the hierarchical cache.",), "host_memory", engines=("sglang",)),
)  # fmt: skip

KILLED = (
    Ending("subprocess-killed", ("Subprocess scheduler_0 (pid=2340) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
                                 "SIGQUIT received. signum=None, frame=None. It usually means one child failed."), "killed", engines=("sglang",)),
    Ending("subprocess-killed", ("Child process unexpectedly failed with exitcode=9. pid=97721",), "killed", engines=("sglang",)),
    Ending("subprocess-killed", ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
                                 "{'EngineCore_DP0': -9}",), "killed", engines=("vllm",)),
    Ending("system-killed", ("./run.sh: line 3:  1234 Killed                  python3 -m engine",), "killed"),
    Ending("system-killed", ("engine.service: Main process exited, code=killed, status=9/KILL",), "killed"),
)  # fmt: skip

FATAL = (
    Ending("sglang-down", ("[2026-05-30 22:05:00 TP1] Scheduler hit an exception: Traceback (most recent call last):", '  File "x.py", line 1, in f',
                           "RuntimeError: CUDA error: an illegal memory access was encountered"), "error", engines=("sglang",)),
    Ending("sglang-down", ("Subprocess scheduler_0 (pid=7391) crashed with exit code -11. Triggering SIGQUIT for cleanup...",), "error", engines=("sglang",)),
    Ending("sglang-down", ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",), "error", engines=("sglang",)),
    Ending("vllm-down", ("ERROR 11-29 12:05:00 [core.py:702] EngineCore encountered a fatal error.",
                         "ERROR 11-29 12:05:00 [core.py:702] Traceback (most recent call last):",
                         "ERROR 11-29 12:05:00 [core.py:702] RuntimeError: CUDA error: an illegal memory access was encountered"),
           "error", engines=("vllm",)),
    Ending("vllm-died", ("ERROR 11-29 12:05:00 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",),
           "error", engines=("vllm",)),
    Ending("vllm-dead", ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",),
           "error", engines=("vllm",)),
    Ending("lmdeploy-dead", ("lmdeploy - ERROR - PyTorch ZMQ engine process is not alive.",), "error", engines=("lmdeploy",)),
    Ending("tensorrt-llm-down", ("error: creating server: Internal - failed to load all models",), "error", engines=("tensorrt-llm",)),
    Ending("ray-actor", ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",), "error", engines=("vllm",)),
    Ending("process-aborted", ("Fatal Python error: Aborted",), "error"),
    Ending("capture-failed", ("Capture cuda graph failed: an illegal memory access was encountered",), "error", engines=("sglang",)),
    Ending("sglang-gone", ("[2026-05-30 22:05:00] Received sigquit from a child process. It usually means the child failed.",), "error", engines=("sglang",)),
)  # fmt: skip

NOTHING = (
    Ending("allocator-retry", ("[W918 13:20:11 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 2 while trying to "
                               "allocate 2415919104 bytes (free: 1203372032, total: 102014189568)",), None),
    Ending("memory-saver-retry", ("[torch_memory_saver.cpp] cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue e.g. torch allocator will "
                                  "free cache and retry)",), None),
    Ending("pool-exhausted", ("dp0 ID 7: cache out of memory, no request can be admitted; failing head-of-line request",), None),
    Ending("quoted-request", ("Received request cmpl-1: prompt: 'Why do I get CUDA out of memory?', params: SamplingParams(n=1)",), None),
    Ending("quoted-request", ("Receive: obj=GenerateReqInput(text='RuntimeError: CUDA error: out of memory')",), None),
    Ending("hint", ("WARNING: max_running_requests is high, which may lead to CUDA out of memory",), None),
    Ending("stopped", ("SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
                       "Subprocess detokenizer (pid=12) crashed with exit code -15. Triggering SIGQUIT for cleanup...",
                       "SIGQUIT received. signum=None, frame=None. It usually means one child failed."), None, engines=("sglang",)),
    Ending("stopped", ("INFO:     Shutting down", "Killed"), None),
)  # fmt: skip

LIKELY_ENDINGS = (*GPU_MEMORY, *HOST_MEMORY, *KILLED, *FATAL)

_SGLANG = [
    "[2026-05-30 22:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.9, chunked_prefill_size=8192, tp_size=1)",
    "[2026-05-30 22:00:10] Load weight begin. avail mem=90.00 GB",
    "[2026-05-30 22:01:10] Load weight end. elapsed=60 s, type=M, avail mem=20.00 GB, mem usage=70.00 GB.",
    "[2026-05-30 22:01:13] Capture cuda graph begin. This can take up to several minutes. avail mem=8.00 GB",
    "[2026-05-30 22:01:11] KV Cache is allocated. #tokens: 1000, KV size: 10.00 GB",
    "[2026-05-30 22:02:00] max_total_num_tokens=1000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=8, context_len=200000, available_gpu_mem=5.00 GB",
    "[2026-05-30 22:02:30] The server is fired up and ready to roll!",
]
_VLLM = [
    "INFO 11-29 12:00:00 [u.py:1] non-default args: {'model': 'm', 'gpu_memory_utilization': 0.9}",
    "INFO 11-29 12:00:01 [core.py:1] Initializing a V1 LLM engine (v0.30.0) with config: model='m', max_seq_len=4096",
    "INFO 11-29 12:00:09 [m.py:1] Model loading took 15.31 GiB memory and 1.2 seconds",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/51 [00:00<?, ?it/s]",
    "INFO 11-29 12:00:20 [k.py:1] GPU KV cache size: 78,448 tokens",
    "INFO 11-29 12:01:00 [core.py:1] init engine (profile, create kv cache, warmup model) took 3.84 s",
    "INFO:     Application startup complete.",
]
_TENSORRT = [
    "[TensorRT-LLM] TensorRT-LLM version: 1.2.0",
    "[09/01/2026-10:00:02] [TRT-LLM] [I] kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=0.9, max_tokens=None)",
    "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 31.84 GiB, available: 17.83 GiB",
    "[09/01/2026-10:01:12] [TRT-LLM] [I] Run generation-only CUDA graph warmup for batch size=8, draft_len=0",
    "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008).",
    "INFO:     Application startup complete.",
]
_LMDEPLOY = [
    "2024-04-23 10:11:19,967 - lmdeploy - INFO - updated backend_config=TurbomindEngineConfig(tp=1, session_len=8192, "
    "cache_max_entry_count=0.9, cache_block_seq_len=64)",
    "[TM][INFO] Set logger level by INFO",
    "[TM][INFO] [BlockManager] block_size = 8.000 MB",
    "[TM][INFO] [BlockManager] max_block_count = 1830",
    "INFO:     Application startup complete.",
]

STARTS: dict[tuple[str, str], Lines] = {
    ("sglang", "load"): _SGLANG[:2],
    ("sglang", "pool"): _SGLANG[:3],
    ("sglang", "graph_capture"): [*_SGLANG[:3], _SGLANG[4], _SGLANG[3]],
    ("sglang", "serving"): [*_SGLANG[:3], *_SGLANG[4:]],
    ("vllm", "load"): _VLLM[:2],
    ("vllm", "pool"): [*_VLLM[:3], _VLLM[4]],
    ("vllm", "graph_capture"): [*_VLLM[:3], _VLLM[4], _VLLM[3]],
    ("vllm", "serving"): [*_VLLM[:3], *_VLLM[4:]],
    ("tensorrt-llm", "load"): _TENSORRT[:2],
    ("tensorrt-llm", "pool"): [*_TENSORRT[:3], _TENSORRT[4]],
    ("tensorrt-llm", "graph_capture"): [*_TENSORRT[:3], _TENSORRT[4], _TENSORRT[3]],
    ("tensorrt-llm", "serving"): [*_TENSORRT[:3], *_TENSORRT[4:]],
    ("lmdeploy", "load"): _LMDEPLOY[:2],
    ("lmdeploy", "pool"): _LMDEPLOY[:4],
    ("lmdeploy", "serving"): _LMDEPLOY,
}
"""The lines of a start of an engine up to a phase."""


def _journal_json(line: str) -> str:
    return json.dumps(
        {"__REALTIME_TIMESTAMP": "1780178423000000", "_HOSTNAME": "gpu-01", "_PID": "4709", "MESSAGE": line}
    )


def _coloured(line: str) -> str:
    return f"\x1b[36m{line}\x1b[0m"


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda line: line,
    "journald": lambda line: f"May 30 22:00:00 gpu-01 python3[4709]: {line}",
    "journald-json": _journal_json,
    "docker": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-05-30T22:00:00.1Z"}),
    "compose": lambda line: f"engine-1  | {line}",
    "kubernetes": lambda line: f"2026-05-30T22:00:00.123456789Z stderr F {line}",
    "ray": lambda line: f"(RayWorkerWrapper pid=308, ip=192.0.2.7) {line}",
    "colours": _coloured,
}


def log_of(
    engine: str, phase: str, ending: Ending, *, wrapping: str = "plain", filler: Lines | None = None
) -> list[bytes]:
    """A start that came as far as ``phase`` and then ended so, wrapped as a log of that kind."""
    wrap = WRAPPINGS[wrapping]
    return [wrap(line).encode() + b"\n" for line in [*STARTS[engine, phase], *(filler or []), *ending.lines]]
