"""How a start ends, in the words of engines, libraries and the operating system: a table, and nothing but data.

The first row whose needle and pattern are in a line decides what the line is. Rows that mean nothing come first, then
host memory, GPU memory, kills, and what only says that the engine goes down. A ``hint`` is cut out of its line,
of which the rest is read on. ``versions`` are those whose source or log was read; empty ``engines`` are all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from kvyield.engines._start import EngineName, Phase

Kind = Literal["harmless", "hint", "host_memory", "gpu_memory", "killed", "fatal", "stopped"]


@dataclass(frozen=True)
class Wording:
    """One way to say it. A line must hold one of ``needles`` before ``pattern`` is searched.

    ``is_last``: nothing that explains the end comes after it. ``servers_only``: an engine without a server prints it
    at its ordinary end too.
    """

    name: str
    kind: Kind
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    source: str
    engines: tuple[EngineName, ...] = ()
    versions: str = "all"
    is_last: bool = False
    servers_only: bool = False


def _row(*, needles: str, pattern: str, **told: Any) -> Wording:
    return Wording(needles=tuple(needles.split("|")), pattern=re.compile(pattern), **told)


_DEVICE = (
    r"(?:CUDA|Cuda|cuda|HIP|hip|ROCm|NPU|XPU|MUSA|MLU|GCU|SYCL|Level.?Zero|NCCL|RCCL|Triton|GPU|CUresult|CANN"
    r"|cuMem|cuModule|cuGraph)(?:[A-Z]\w{0,40}|\w{0,8}_t)?"
)

_ENGINE_PROCESS = r"(?:python|pt_main|sglang|vllm|VLLM|ray|trtllm|triton|lmdeploy|Engine|Worker|mpi)"

WORDINGS: tuple[Wording, ...] = (
    # Nothing: the allocator tries again, the KV pool is full, a request or a hint is quoted.
    _row(
        name="allocator-retry",
        kind="harmless",
        needles="OOM on device",
        pattern=r"memory allocation failed with OOM on device \d+",
        source="pytorch c10/cuda/CUDACachingAllocator.cpp",
        versions="torch 2.9",
    ),
    _row(
        name="memory-saver-retry",
        kind="harmless",
        needles="may not be an issue",
        pattern=r"may not be an issue",
        source="torch_memory_saver csrc/utils.h, issue 99",
        engines=("sglang",),
        versions="0.5",
    ),
    _row(
        name="pool-exhausted",
        kind="harmless",
        needles="Prefill out of memory|Decode out of memory|cache out of memory|out of memory at ",
        pattern=r"(?:Prefill|Decode|\bID \d+: cache) out of memory|^\S{0,60} ?out of memory at \d+/\d+",
        source="sglang managers/schedule_batch.py; lmdeploy src/turbomind/engine/{engine,scheduler}.cc",
        engines=("sglang", "lmdeploy"),
    ),
    _row(
        name="quoted-request",
        kind="harmless",
        needles="Received request|Receive: obj|Finish: obj|Generated response|prompt: ",
        pattern=r"Received request |Receive: obj=|Finish: obj=|Generated response |\bprompt: ['\"]",
        source="vllm entrypoints/logger.py; sglang managers/tokenizer_manager.py",
    ),
    _row(
        name="hint",
        kind="hint",
        needles="out of memory|out-of-memory",
        pattern=(
            r"\b(?:avoid|prevent|may|might|could|can|would|if|in case|when|risk|potential|reduce|against|fix|handle)\b"
            r"[^.:!]{0,60}\bout[ -]of[ -]memory"
        ),
        source="warnings and help texts",
    ),
    # Host memory.
    _row(
        name="ray-memory-monitor",
        kind="host_memory",
        needles="OutOfMemoryError: Task|running low on mem|memory usage thres|pressure (OOM)",
        pattern=(
            r"ray\.exceptions\.OutOfMemoryError|due to the node running low on memory"
            r"|exceeds the memory usage threshold of|killed due to memory pressure \(OOM\)"
        ),
        source="ray python/ray/exceptions.py, src/ray/raylet/node_manager.cc",
        versions="ray 2",
    ),
    _row(
        name="kernel-oom-killer",
        kind="host_memory",
        needles="ut of memory: Kill|oom-kill:",
        pattern=(
            rf"(?:Memory cgroup o|O)ut of memory: Kill(?:ed)? process \d+ \({_ENGINE_PROCESS}"
            rf"|oom-kill:constraint=.{{0,400}}task={_ENGINE_PROCESS}"
        ),
        source="linux mm/oom_kill.c",
        is_last=True,
    ),
    _row(
        name="supervisor-oom",
        kind="host_memory",
        needles="OOM killer|result 'oom-kill'|systemd-oomd|OOMKilled",
        pattern=r"killed by the OOM killer|Failed with result 'oom-kill'|systemd-oomd killed|\bOOMKilled\b",
        source="systemd src/core/unit.c; kubernetes container status",
        is_last=True,
    ),
    _row(
        name="host-allocation",
        kind="host_memory",
        needles=("DefaultCPUAllocator|annot allocate memory|MemoryError|bad_alloc|for an array with shape|HOST_MEMORY"),
        pattern=(
            r"DefaultCPUAllocator: (?:can't|not enough)|[Cc]annot allocate memory"
            r"|(?<![A-Za-z])_?(?:Array)?MemoryError\b"
            r"|std::bad_alloc|Unable to allocate .{1,40} for an array with shape|ERROR_OUT_OF_HOST_MEMORY"
        ),
        source="pytorch c10/core/impl/alloc_cpu.cpp; numpy; libstdc++; level-zero",
    ),
    _row(
        name="host-cache",
        kind="host_memory",
        needles="host memory available|swap space",
        pattern=r"Not enough host memory available|Too large swap space",
        source="sglang mem_cache/memory_pool_host.py; vllm config",
        engines=("sglang", "vllm"),
    ),
    # GPU memory.
    _row(
        name="torch-allocator",
        kind="gpu_memory",
        needles="out of memory|OutOfMemoryError",
        pattern=(
            r"(?<!exceptions\.)\b(?:torch(?:_npu)?\.(?:\w{1,20}\.){0,2})?OutOfMemoryError\b"
            r"|\b(?:CUDA|HIP|NPU|XPU|MUSA|MLU|GCU|PPU|DCU|MACA|GPU) out of memory\b"
        ),
        source="pytorch c10/{cuda,hip,xpu}/*CachingAllocator.cpp; torch_npu NPUCachingAllocator.cpp; cupy",
        versions="torch 1.13-2.11",
    ),
    _row(  # where NVML is not to be had (Jetson, MIG, some containers): asked for figures of an allocation that failed
        name="allocator-assertion",
        kind="gpu_memory",
        needles="INTERNAL ASSERT FAILED",
        pattern=r"\bNVML_SUCCESS == \w{1,20} INTERNAL ASSERT FAILED at .{0,160}CUDACachingAllocator\.cpp",
        source="pytorch c10/cuda/CUDACachingAllocator.cpp, issues 112377 and 185240; vllm issue 9824",
        versions="torch 2.0-2.11",
    ),
    _row(
        name="accelerator-error",
        kind="gpu_memory",
        needles="ut of memory",
        pattern=rf"{_DEVICE}\b[^.]{{0,60}}?(?:[Ee]rror|[Ff]ailure|Runtime|\bfailed\b).{{0,160}}?\b[Oo]ut of memory\b",
        source=(
            "vllm csrc/cumem_allocator.cpp; TensorRT-LLM common/cudaUtils.h; lmdeploy utils/cuda_utils.cc; "
            "nccl src/include/checks.h; triton driver; torch_memory_saver csrc/utils.h; tensorrt defaultAllocator.cpp"
        ),
    ),
    _row(
        name="status-code",
        kind="gpu_memory",
        needles=(
            "ALLOC_FAILED|OUT_OF_|OutOfMemory|MemoryAllocation|memory_error|out of device memory|RESOURCE_EXHAUSTED"
        ),
        pattern=(
            r"\b(?:CU|HIP|MIOPEN|ROC)\w{2,8}_STATUS_ALLOC_FAILED\b|\bCUDA_ERROR_OUT_OF_MEMORY\b"
            r"|\bcudaErrorMemoryAllocation\b|\bhipErrorOutOfMemory\b|\bhipErrorMemoryAllocation\b"
            r"|\bHSA_STATUS_ERROR_OUT_OF_RESOURCES\b|\brocblas_status_memory_error\b"
            r"|\b(?:UR|PI|ZE)_(?:RESULT_)?ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)\b|Allocation is out of device memory"
            r"|RESOURCE_EXHAUSTED: (?:Out of memory|Attempting to (?:allocate|reserve))"
        ),
        source="cublas_api.h, cudnn_graph.h, cuda.h, hip_runtime_api.h, hsa.h, rocblas-types.h, ur_api.h, sycl, xla",
    ),
    _row(
        name="memory-saver-code",
        kind="gpu_memory",
        needles="result=2",
        pattern=r"(?:CUresult|hipError_t|cudaError) error +result=2\b",
        source="torch_memory_saver csrc/torch_memory_saver.cpp, issues 4 and 9",
        engines=("sglang",),
        versions="0.4-0.5",
    ),
    _row(
        name="nccl-allocation",
        kind="gpu_memory",
        needles="Failed to CUDA",
        pattern=r"Failed to CUDA (?:calloc|malloc)(?: async)? \d+ bytes",
        source="nccl src/include/alloc.h",
    ),
    _row(
        name="cann",
        kind="gpu_memory",
        needles="EL0004|[DeviceMemory]|207001|Failed to apply for memory",
        pattern=r"\bEL0004\b|resource\[DeviceMemory\]|(?:code is|result =|ret=) ?207001\b|Failed to apply for memory",
        source="CANN acl/error_codes/rt_error_codes.h; vllm-ascend issues 3141 and 2643",
        versions="CANN 8",
    ),
    _row(
        name="tensorrt-allocator",
        kind="gpu_memory",
        needles="OutOfMemory|Requested amount of GPU memory",
        pattern=r"Error Code \d+: OutOfMemory|Requested amount of GPU memory \(\d+ bytes\) could not be allocated",
        source="tensorrt virtualMemoryBuffer.cpp, defaultAllocator.cpp",
        engines=("tensorrt-llm",),
        versions="0.5-1.3",
    ),
    _row(
        name="executor-creation",
        kind="gpu_memory",
        needles="insufficient GPU memory",
        pattern=r"Executor creation failed due to insufficient GPU memory",
        source="TensorRT-LLM _torch/pyexecutor/py_executor_creator.py",
        engines=("tensorrt-llm",),
        versions="0.20-1.3",
    ),
    # Killed from outside: what for, the words do not tell.
    _row(
        name="subprocess-killed",
        kind="killed",
        needles="exit code -9|exit code 137|exitcode=9|Exit code: -9|proc(s): {",
        pattern=(
            r"(?:Subprocess \S{1,80} \(pid=\d{1,10}\) |Server process \d{1,10} )?"
            r"(?:crashed|exited) with (?:exit )?code (?:-9|137)\b"
            r"|Child process unexpectedly failed with (?:an )?exit ?code[= ]-?9\b"
            r"|^(?:\[[^\]]{1,40}\] )?Exit code: -9\b|Failed core proc\(s\): \{[^}]{0,400}: -9\b"
        ),
        source="sglang utils/watchdog.py, entrypoints/engine.py; vllm v1/engine/utils.py; lmdeploy launch_server.py",
        is_last=True,
    ),
    _row(
        name="system-killed",
        kind="killed",
        needles="status=9/KILL|Killed|with code 137",
        pattern=(
            r"code=killed, status=9/KILL|exited on signal 9 \(Killed\)|exited with code 137\b"
            r"|^(?:\S{1,200}: line \d+: +\d+ )?Killed(?:\s|$)"
        ),
        source="systemd src/core/service.c; mpirun; bash; docker compose",
        is_last=True,
    ),
    # Asked to stop: what goes down after it goes down as it should.
    _row(
        name="stopped",
        kind="stopped",
        needles="SIGTERM|SIGINT|signal 15|KeyboardInterrupt|Shutting down|shutting down gracefully|Stopping ",
        pattern=(
            r"\bSIG(?:TERM|INT)\b|\bsignal 15\b|\bKeyboardInterrupt\b|^INFO: +Shutting down$|shutting down gracefully"
            r"|^Stopping \S{1,120}\.service"
        ),
        source="sglang, vllm and uvicorn signal handlers; systemd",
    ),
    # The engine says that it goes down, not why.
    _row(
        name="sglang-down",
        kind="fatal",
        needles=(
            "hit an exception|crashed with exit code|scheduler is dead|unexpectedly failed|"
            "watchdog timeout|Watchdog timeout"
        ),
        pattern=(
            r"(?:Scheduler|DataParallelController|TokenizerManager|DetokenizerManager) hit an exception"
            r"|Subprocess .{1,80} crashed with exit code -?\d+|Rank \d+ scheduler is dead"
            r"|Child process unexpectedly failed"
            r"|[Ww]atchdog timeout \(self\.watchdog_timeout"
        ),
        source="sglang managers/scheduler.py, srt/utils/watchdog.py, entrypoints/engine.py",
        engines=("sglang",),
        versions="0.4-0.5",
    ),
    _row(
        name="sglang-gone",
        kind="fatal",
        needles="SIGQUIT received|eceived sigquit|kill_process_tree called",
        pattern=r"SIGQUIT received|Received sigquit from a child process|kill_process_tree called",
        source="sglang entrypoints/engine.py",
        engines=("sglang",),
        versions="0.4-0.5",
        is_last=True,
    ),
    _row(
        name="capture-failed",
        kind="fatal",
        needles="Capture ",
        pattern=r"Capture (?:cuda|CUDA|piecewise|draft|target).{0,60} failed",
        source="sglang model_executor/cuda_graph_runner.py",
        engines=("sglang",),
        versions="0.4-0.5",
    ),
    _row(
        name="vllm-down",
        kind="fatal",
        needles="EngineCore |WorkerProc |Engine core initialization failed|Engine loop",
        pattern=(
            r"EngineCore (?:failed to start|encountered a fatal error|hit an exception)"
            r"|WorkerProc (?:hit an exception|failed to start|initialization failed)|Engine core initialization failed"
            r"|Engine (?:background )?loop (?:has died|is not running)"
        ),
        source="vllm v1/engine/core.py, v1/executor/multiproc_executor.py, engine/multiprocessing",
        engines=("vllm",),
        versions="0.6-0.33",
    ),
    _row(
        name="vllm-died",
        kind="fatal",
        needles="died unexpectedly",
        pattern=r"(?:Engine core proc|Worker proc|Engine process) .{0,80}died unexpectedly",
        source="vllm v1/engine/core_client.py, issues 32468 and 31681",
        engines=("vllm",),
        versions="0.8-0.33",
        is_last=True,
        servers_only=True,
    ),
    _row(
        name="vllm-dead",
        kind="fatal",
        needles="EngineDeadError|Background loop",
        pattern=r"EngineDeadError|Background loop (?:has errored already|is stopped)",
        source="vllm v1/engine/exceptions.py, engine/async_llm_engine.py",
        engines=("vllm",),
        versions="0.2-0.33",
        is_last=True,
    ),
    _row(
        name="lmdeploy-dead",
        kind="fatal",
        needles="ZMQ engine process is not alive|custom termination signal|Ray worker exited|Server process ",
        pattern=(
            r"ZMQ engine process is not alive|Received custom termination signal from sub processing"
            r"|Ray worker exited\.|Server process \d+ exited with code -?[1-9]"
        ),
        source="lmdeploy pytorch/engine/mp_engine/zmq_rpc.py, engine/executor/*, serve/openai/launch_server.py",
        engines=("lmdeploy",),
        versions="0.7-0.12",
        is_last=True,
    ),
    _row(
        name="tensorrt-llm-down",
        kind="fatal",
        needles="failed to load all models|Executor worker|MPI_ABORT",
        pattern=r"Internal - failed to load all models|Executor worker (?:died|returned error)|MPI_ABORT was invoked",
        source="triton server; TensorRT-LLM executor/proxy.py",
        engines=("tensorrt-llm",),
        versions="0.5-1.3",
        is_last=True,
    ),
    _row(
        name="ray-actor",
        kind="fatal",
        needles="ActorDiedError|RayActorError|WorkerCrashedError",
        pattern=r"\b(?:ActorDiedError|RayActorError|WorkerCrashedError)\b",
        source="ray python/ray/exceptions.py",
        versions="ray 2",
    ),
    _row(
        name="process-aborted",
        kind="fatal",
        needles="Fatal Python error|terminate called|Segmentation fault|Process received signal",
        pattern=(
            r"Fatal Python error|terminate called (?:after throwing|without an active)|^!*\s?\**\s?Segmentation fault"
            r"|\*\*\* Process received signal"
        ),
        source="CPython faulthandler; libstdc++; open mpi",
    ),
)

UNTELLING: tuple[Kind, ...] = ("harmless", "hint")
"""Kinds of rows that are only read on lines that are looked at anyway."""

WRAPPERS = re.compile(
    r"Engine core initialization failed|Worker failed with error|WorkerProc initialization failed|EngineDeadError"
    r"|See (?:root cause|stack trace)|ActorDiedError|RayActorError|failed to load all models"
)
"""Exceptions that only carry another one on."""


FRAMES: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("load", re.compile(r"in (?:load_model|_?load_weights|process_weights_after_loading|create_weights)\b")),
    (
        "pool",
        re.compile(
            r"in (?:init_memory_pool|_init_pools|_build_\w{0,40}pool|_create_buffers\w{0,20}|initialize_kv_cache"
            r"|_?allocate_kv_cache\w{0,20}|initialize_cache|_init_cache_engine|determine_available_memory|profile_run"
            r"|determine_num_available_blocks|allocate_pools|kernel_warmup|flashinfer_autotune|deep_gemm_warmup)\b"
        ),
    ),
    (
        "graph_capture",
        re.compile(
            r"in (?:capture_model|_?capture_cudagraphs|_warmup_and_capture|capture_one_batch_size|init_cuda_graphs"
            r"|init_device_graphs|_?capture_graph|warmup_cuda_graphs)\b|cuda_graph_runner\.py"
        ),
    ),
)
"""Functions in a traceback that tell the phase: the innermost line that is of one of these decides.
Source: vllm v1/worker/{gpu_worker,gpu_model_runner,kernel_warmup}.py; sglang model_executor, mem_cache."""
