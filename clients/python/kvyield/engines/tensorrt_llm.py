"""TensorRT-LLM, PyTorch and TensorRT flows: what its log says about a start.

The fraction is a share of what is free after weights (and, in the PyTorch flow, after a measured peak). The pool is
allocated twice there, first for the measurement: the last allocation counts."""

from __future__ import annotations

import re

from kvyield.engines._engine import Engine, Role, StartReader, Surroundings, source
from kvyield.engines._failures import SPECIFIC, Problem
from kvyield.engines._literals import call_fields, scalar
from kvyield.engines._prefix import Record, parse_time
from kvyield.engines._start import Phase, Sourced
from kvyield.engines._text import any_of, quote

LONGEST_LINE = 4000
MOST_ALLOCATIONS = 1024
MEMORY_FLAGS = frozenset(
    (
        *("free_gpu_memory_fraction", "max_tokens", "max_gpu_total_bytes", "tokens_per_block", "max_attention_window"),
        *("enable_block_reuse", "max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width", "backend"),
        *("tensor_parallel_size", "pipeline_parallel_size", "moe_expert_parallel_size", "enable_attention_dp"),
    )
)

_GIB = r"(-?\d+(?:\.\d+)?) GiB"
_STAMP = re.compile(r"\[(\d\d)/(\d\d)/(\d{4})-(\d\d:\d\d:\d\d)\]")
_ALLOCATED = re.compile(rf"Allocated {_GIB} for max tokens in paged KV cache \((\d{{1,18}})\)")
_ALLOCATES = re.compile(r"Max tokens in paged KV cache: (\d{1,18})\. Allocating (\d{1,18}) bytes")
_ALLOCATES_BYTES = re.compile(r"Allocate (\d{1,18}) bytes for k/v cache")
_USES = re.compile(r"Using (\d{1,18}) tokens in paged KV cache")
"""The pool in the C++ runtime of 0.9 and 0.10, and of 0.5 to 0.8: GiB and tokens are two lines there."""
_ENGINE_SIZE = re.compile(r"Loaded engine size: (\d{1,9}) MiB")
_DEFAULT_FRACTION = re.compile(
    r"kv_cache_free_gpu_mem_fraction is not specified, will use default value of (0\.\d{1,6}) or max_tokens"
)
_MODEL_LIMIT = re.compile(r"TRTGptModel max(BatchSize|SequenceLen|NumTokens): (\d{1,12})\b")
_LIMIT_FLAGS = {"BatchSize": "max_batch_size", "SequenceLen": "max_seq_len", "NumTokens": "max_num_tokens"}
_FREE = re.compile(rf"calculating max tokens in paged kv cache: total: {_GIB}, available: {_GIB}")
_PEAK = re.compile(rf"Peak memory during memory usage profiling \(torch \+ non-torch\): {_GIB}")
_AVAILABLE = re.compile(rf"available KV cache memory when calculating max tokens: {_GIB}")
_FRACTION = re.compile(r"\bfraction is set (\d?\.\d{1,20}|\d)(?![\w.])")
_TOKEN_BYTES = re.compile(r"\bkv size (?:per token )?is (\d{1,12})\b")
_DEVICE = re.compile(r"\b(?:device total memory|of total memory) (\d+(?:\.\d+)?) ?GiB")
_ESTIMATED = re.compile(rf"Estimated max memory in KV cache ?: {_GIB}")
_WEIGHTS = re.compile(rf"Memory used after loading model weights \(inside torch\) in memory usage profiling: {_GIB}")
_BLOCK = re.compile(r"(?:Number of tokens per block: |tokens per block=)(\d{1,9})\b")
_BOTH = re.compile(
    r"Both (?:freeGpuMemoryFraction|free_gpu_memory_fraction) .{0,200}?are set "
    r"\(to (\d?\.\d{1,20}|1(?:\.0{1,20})?) and \d"
)
_FREE_OF = re.compile(r"with free memory (\d+(?:\.\d+)?) ?GiB of total memory")
_CAP = re.compile(r"\bmax_tokens=(\d{1,18}) is provided\. It limits max memory to ")
_LIMITS = re.compile(r"(?<!\w)max_seq_len=\d{1,12}\b.{0,80}?\bmax_num_tokens=\d")
_LIMIT = re.compile(r"(?<!\w)(max_seq_len|max_num_tokens|max_batch_size|max_beam_width)=(\d{1,12})\b")
_ADJUSTED = re.compile(r"\bAdjusted max_seq_len to (\d{1,12})\b")
_PRINTED_WEIGHTS = re.compile(r"\bUse (\d+(?:\.\d+)?) GB for model weights\b")
_COMPONENT = re.compile(r"component could not be created: (.{1,120})")
_FRAME = re.compile(r"kv_cache_manager::(?:\w{1,60}::)?allocatePools|::createKvCacheManager\b")
_CREATED = re.compile(r"^\s*[Mm]odel: (\d+\.\d+) / (\d+\.\d+)\s*$")
_CREATION = re.compile(r"\b(Total|Free) GPU memory (?:before component creation attempt )?\(GiB\): (\d+(?:\.\d+)?)")
_REFUSED = re.compile(
    r"maxTokensInPagedKvCache(?: \(\d{1,18}\))? must be large enough to process at least 1 sequence.{0,200}"
    r"|Impossible to fit in any sequence in kvCache"
)
"""0.5 to 0.9, and the later Python runtime: the pool holds no request of the longest length."""
_GRAPHS = re.compile(r"Creating CUDA graph instances|CUDA graph warmup for batch size")
_VERSION = re.compile(r"TensorRT-LLM version: (\d[\w.+\-]{0,60})")
_CONFIG = re.compile(r"KvCacheConfig\(")
_PORT = re.compile(r"Uvicorn running on https?://[^/\s]{1,260}:(\d{1,5})\b")
_READY = re.compile(
    r"Engine loaded and ready to serve|Application startup complete|Uvicorn running on"
    r"|Started (?:HTTPService|GRPCInferenceService) at "  # Triton's own server
)
_MINE = any_of(r"\[TensorRT-LLM\]", r"\[TRT-LLM\]", r"tensorrt_llm[./]", r"paged [Kk][Vv] [Cc]ache \(")


class TensorRtReader(StartReader):
    """Reads one start of TensorRT-LLM."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__("tensorrt-llm", surroundings)
        self.allocated: list[tuple[Sourced, Sourced]] = []
        self.bytes_line: Sourced | None = None

    def belongs(self, record: Record) -> bool:
        """False for a version line once the start is over."""
        return not (self.settled and _VERSION.search(record.text, 0, LONGEST_LINE))

    def feed(self, record: Record) -> None:
        """Take in one line."""
        text, stamp = record.text[:LONGEST_LINE], _STAMP.search(record.text, 0, LONGEST_LINE)
        own = parse_time(f"{stamp[3]}-{stamp[1]}-{stamp[2]} {stamp[4]}") if stamp else None
        ready = _READY.search(text) is not None
        self.clock.see(record, own, ready=ready)
        found = [self._pool(record, text), self._memory(record, text), self._flags(record, text)]
        if self.started and not self.announced and _GRAPHS.search(text):
            self.phase = "graph_capture"
        if ready and self.started:
            self.announced = self.complete = True
            self.phase = "serving"
        if any(found) or ready:
            self.note(record)
            self.progressed(record)
        elif not (self._creation(record, text) or self._refusal(record, text)):
            self.read_problem(record, text)

    def _creation(self, record: Record, text: str) -> bool:
        """The lines below "Executor creation failed": the component, the total, what was free, and around the model."""
        component, figure, created = (pattern.search(text) for pattern in (_COMPONENT, _CREATION, _CREATED))
        cause = self.problems.cause
        if cause is not None and cause.outcome == "oom_startup" and cause.phase == "load" and _FRAME.search(text):
            cause.phase = "pool"
        if cause is None or cause.outcome != "oom_startup" or not (component or figure or created):
            return False
        if component:
            cause.phase = _phase_of(component[1])
        if created:
            self.measure("free_before_load_gib", float(created[1]), source(record))
            if "free_after_load_gib" not in self.start.measurements:
                self.measure("free_after_load_gib", float(created[2]), source(record))
        if figure:
            name = "device_memory_gib" if figure[1] == "Total" else "free_gib"
            cause.evidence.setdefault(name, Sourced(float(figure[2]), source(record)))
        return True

    def _refusal(self, record: Record, text: str) -> bool:
        match = None if self.announced else _REFUSED.search(text)
        if match:
            message = Sourced(quote(match[0]), source(record))
            self.problems.add(Problem("refused", "pool", message, SPECIFIC, final=True, cause="gpu_memory"))
        return match is not None

    def _pool(self, record: Record, text: str) -> bool:
        match = _ALLOCATED.search(text)
        if match:
            self.started, self.phase = True, "pool"
            self.allocated[:] = self.allocated[-MOST_ALLOCATIONS:]
            self.allocated.append((Sourced(int(match[2]), source(record)), Sourced(float(match[1]), source(record))))
        elif self._old_pool(record, text):
            self.started, self.phase = True, "pool"
            return True
        if _AVAILABLE.search(text) or _ESTIMATED.search(text):
            self.allocated.clear()
            self.start.measurements.pop("longest_prompt_tokens", None)  # of the pool that was only for the measurement
        return match is not None

    def _old_pool(self, record: Record, text: str) -> bool:
        """The pool as the C++ runtime of 0.5 to 0.10 told it, in one line or the bytes before the tokens."""
        both, size, uses = (pattern.search(text) for pattern in (_ALLOCATES, _ALLOCATES_BYTES, _USES))
        where = source(record)
        if size:
            self.bytes_line = _gib_of(size[1], where)
        if both or uses:
            gib = _gib_of(both[2], where) if both else self.bytes_line or Sourced(0.0, where)
            self.allocated[:] = self.allocated[-MOST_ALLOCATIONS:]
            self.allocated.append((Sourced(int((both or uses or "")[1]), where), gib))
            self.bytes_line = None
        return bool(both or size or uses)

    def _memory(self, record: Record, text: str) -> bool:
        patterns = (_FREE, _PEAK, _AVAILABLE, _TOKEN_BYTES, _DEVICE, _FREE_OF, _WEIGHTS, _PRINTED_WEIGHTS)
        free, peak, kv, token, device, free_of, weights, printed = (pattern.search(text) for pattern in patterns)
        where = source(record)
        if free:
            self.measure("device_memory_gib", float(free[1]), where)
            self.measure("free_after_load_gib", float(free[2]), where)
        if free_of and "free_after_load_gib" not in self.start.measurements:
            self.measure("free_after_load_gib", float(free_of[1]), where)
        if device:
            self.measure("device_memory_gib", float(device[1]), where)
        if peak:
            self.fact("peak_memory_gib", float(peak[1]), where)
        if kv:
            self.measure("kv_cache_gib", float(kv[1]), where)
        if token and kv:
            self.fact("kv_bytes_per_token", int(token[1]), where)
        if weights or (printed and "weights_gib" not in self.start.measurements):
            self.measure("weights_gib", float((weights or printed or "")[1]), where)
        engine = _ENGINE_SIZE.search(text)
        if engine:
            self._engine_size(int(engine[1]), where)
        found = any((free, peak, kv, free_of, weights, printed, engine))
        self.started = self.started or found
        self.phase = "pool" if free or weights else self.phase
        return found

    def _engine_size(self, mib: int, where: str) -> None:
        """The largest engine of the ranks, each of which prints its own."""
        told, gib = self.start.measurements.get("weights_gib"), round(mib / 1024, 4)
        if told is None or gib > float(str(told.value)):
            self.measure("weights_gib", gib, where)

    def _flags(self, record: Record, text: str) -> bool:
        patterns = (_BLOCK, _LIMITS, _VERSION, _CONFIG, _CAP, _PORT, _ADJUSTED)
        block, limits, version, config, cap, port, adjusted = (pattern.search(text) for pattern in patterns)
        fraction = _FRACTION.search(text) or _BOTH.search(text)
        default, told = _DEFAULT_FRACTION.search(text), _MODEL_LIMIT.search(text)
        if default and "free_gpu_memory_fraction" not in self.start.flags:
            self.flag("free_gpu_memory_fraction", float(default[1]), f"{source(record)} (the engine's default)")
        if told:
            self.flag(_LIMIT_FLAGS[told[1]], int(told[2]), source(record))
        if block:
            self.flag("tokens_per_block", int(block[1]), source(record))
        if fraction and "free_gpu_memory_fraction" not in self.start.flags:
            self.flag("free_gpu_memory_fraction", float(fraction[1]), source(record))
        if limits:
            for name, value in _LIMIT.findall(text):
                self.flag(name, int(value), source(record))
        if adjusted:
            self.measure("longest_prompt_tokens", int(adjusted[1]), source(record))
        if cap:
            self.flag("max_tokens", int(cap[1]), source(record))
        if version:
            self.version(version[1], source(record))
        if config:
            self._config(record, config.end())
        if port and self.started:
            self.flag("port", int(port[1]), source(record))
        self.opened = self.opened or bool(version)
        return any((block, fraction, limits, version, config, cap, adjusted, default, told))

    def _config(self, record: Record, at: int) -> None:
        for name, value in call_fields(record.text, at).values.items():
            if name in MEMORY_FLAGS:
                self.flag(name, scalar(value), f"line {record.number}: KvCacheConfig, {name}={quote(str(value), 80)}")

    def conclude(self) -> None:
        """The pool is the least of what was allocated after the last measurement, of one rank."""
        if self.allocated:
            tokens, gib = min(self.allocated, key=lambda pair: int(str(pair[0].value)))
            self.take("pool_tokens", tokens)
            if float(str(gib.value)) > 0:
                self.take("kv_cache_gib", gib)


def _gib_of(size: str, where: str) -> Sourced:
    return Sourced(round(int(size) / (1 << 30), 4), where)


def _phase_of(component: str) -> Phase:
    """The phase in which TensorRT-LLM creates a component; what is temporary comes before the fraction matters."""
    if "temporary" in component or re.search(r"^(?:Model|Draft model)\b(?! resources)", component):
        return "load"
    return "pool" if "kv cache" in component.lower() else "graph_capture"


def _role(text: str) -> Role | None:
    return "belongs" if _MINE.search(text, 0, LONGEST_LINE) else None


TENSORRT_LLM = Engine(
    name="tensorrt-llm",
    openers=(b"TensorRT-LLM",),
    ready=(b"startup complete",),
    hooks=(
        b"RT-LLM",
        b"GiB",
        b"okens per block",
        b"max_num_tokens=",
        b"freeGpuMemoryFraction",
        b"Uvicorn running on",
        b"KvCacheConfig(",
        b"ready to serve",
        b"CUDA graph",
        b"component could",
        b"odel: ",
        b"GPU memory",
        b"n any sequence in kvCache",
        b"axTokensInPagedKvCache",
        b"allocatePools",
        b"createKvCacheManager",
        b"k/v cache",
        b"paged KV cache",
        b"engine size",
        b"free_gpu_mem_fraction",
        b"TRTGptModel",
        b"Service at ",
    ),
    role=_role,
    reader=TensorRtReader,
)
