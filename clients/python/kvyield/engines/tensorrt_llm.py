"""TensorRT-LLM, PyTorch and TensorRT flows: what its log says about a start.

The fraction is a share of what is free after weights (and, in the PyTorch flow, after a measured peak). The pool is
allocated twice there, first for the measurement: the last allocation counts."""

from __future__ import annotations

import re

from kvyield.engines._engine import Engine, Role, StartReader, Surroundings, source
from kvyield.engines._literals import call_fields, scalar
from kvyield.engines._prefix import Record, parse_time
from kvyield.engines._start import Sourced
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
_FREE = re.compile(rf"calculating max tokens in paged kv cache: total: {_GIB}, available: {_GIB}")
_PEAK = re.compile(
    rf"Peak memory during memory usage profiling \(torch \+ non-torch\): {_GIB}, "
    rf"available KV cache memory when calculating max tokens: {_GIB}"
    rf"(?:, fraction is set (\d+(?:\.\d+)?))?(?:, kv size per token is (\d{{1,12}}))?"
    rf"(?:\. device total memory {_GIB})?"
)
_ESTIMATED = re.compile(rf"Estimated max memory in KV cache ?: {_GIB}")
_WEIGHTS = re.compile(rf"Memory used after loading model weights \(inside torch\) in memory usage profiling: {_GIB}")
_BLOCK = re.compile(r"(?:Number of tokens per block: |tokens per block=)(\d{1,9})\b")
_BOTH = re.compile(r"Both freeGpuMemoryFraction .{0,200}?are set \(to (0?\.\d{1,9}|1\.0{1,9}) and (\d{1,18})")
_LIMITS = re.compile(r"max_seq_len=(\d{1,12}), max_num_requests=(\d{1,12}), max_num_tokens=(\d{1,12})\b")
_VERSION = re.compile(r"TensorRT-LLM version: (\d[\w.+\-]{0,60})")
_CONFIG = re.compile(r"KvCacheConfig\(")
_READY = re.compile(r"Engine loaded and ready to serve|Application startup complete|Uvicorn running on")
_MINE = any_of(r"\[TensorRT-LLM\]", r"\[TRT-LLM\]", r"tensorrt_llm[./]", r"paged [Kk][Vv] [Cc]ache \(")


class TensorRtReader(StartReader):
    """Reads one start of TensorRT-LLM."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__("tensorrt-llm", surroundings)
        self.allocated: list[tuple[Sourced, Sourced]] = []

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
        if ready and self.started:
            self.announced = self.complete = True
            self.phase = "serving"
        if any(found) or ready:
            self.note(record)
            self.problems.progress()
        else:
            self.read_problem(record, text)

    def _pool(self, record: Record, text: str) -> bool:
        match = _ALLOCATED.search(text)
        if match:
            self.started, self.phase = True, "graph_capture"
            self.allocated[:] = self.allocated[-MOST_ALLOCATIONS:]
            self.allocated.append((Sourced(int(match[2]), source(record)), Sourced(float(match[1]), source(record))))
        if _PEAK.search(text) or _ESTIMATED.search(text):
            self.allocated.clear()
        return match is not None

    def _memory(self, record: Record, text: str) -> bool:
        free, peak, weights = _FREE.search(text), _PEAK.search(text), _WEIGHTS.search(text)
        if free:
            self.measure("device_memory_gib", float(free[1]), source(record))
            self.measure("free_after_load_gib", float(free[2]), source(record))
        if peak:
            self.fact("peak_memory_gib", float(peak[1]), source(record))
            self.measure("kv_cache_gib", float(peak[2]), source(record))
            self.measure("device_memory_gib", float(peak[5]) if peak[5] else None, source(record))
            if peak[3] and "free_gpu_memory_fraction" not in self.start.flags:
                self.flag("free_gpu_memory_fraction", float(peak[3]), source(record))
        if weights:
            self.measure("weights_gib", float(weights[1]), source(record))
        self.started = self.started or bool(free or peak or weights)
        self.phase = "pool" if free or weights else self.phase
        return bool(free or peak or weights)

    def _flags(self, record: Record, text: str) -> bool:
        block, both, limits, version, config = (
            pattern.search(text) for pattern in (_BLOCK, _BOTH, _LIMITS, _VERSION, _CONFIG)
        )
        if block:
            self.flag("tokens_per_block", int(block[1]), source(record))
        if both and "free_gpu_memory_fraction" not in self.start.flags:
            self.flag("free_gpu_memory_fraction", float(both[1]), source(record))
        if limits:
            self.flag("max_seq_len", int(limits[1]), source(record))
            self.flag("max_num_tokens", int(limits[3]), source(record))
        if version:
            self.version(version[1], source(record))
        if config:
            self._config(record, config.end())
        self.opened = self.opened or bool(version)
        return bool(block or both or limits or version or config)

    def _config(self, record: Record, at: int) -> None:
        for name, value in call_fields(record.text, at).values.items():
            if name in MEMORY_FLAGS:
                self.flag(name, scalar(value), f"line {record.number}: KvCacheConfig, {name}={quote(str(value), 80)}")

    def conclude(self) -> None:
        """The pool is the least of what was allocated after the last measurement."""
        if self.allocated:
            tokens = min((tokens for tokens, _ in self.allocated), key=lambda value: int(str(value.value)))
            self.take("pool_tokens", tokens)
            if float(str(self.allocated[-1][1].value)) > 0:
                self.take("kv_cache_gib", self.allocated[-1][1])


def _role(text: str) -> Role | None:
    return "belongs" if _MINE.search(text, 0, LONGEST_LINE) else None


TENSORRT_LLM = Engine(
    name="tensorrt-llm",
    openers=(b"TensorRT-LLM",),
    ready=(b"startup complete",),
    hooks=(
        b"TRT-LLM",
        b"GiB",
        b"okens per block",
        b"max_num_tokens=",
        b"freeGpuMemoryFraction",
        b"KvCacheConfig(",
        b"ready to serve",
    ),
    role=_role,
    reader=TensorRtReader,
)
