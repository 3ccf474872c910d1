"""The stand-in's memory: the pool by the engine's own formula, and free memory that falls while a prompt runs."""

from __future__ import annotations

import math
import mmap
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from standin.config import Config

GIB = 1 << 30


class OutOfMemoryError(Exception):
    """A prompt needed more than was free."""


@dataclass(frozen=True)
class Plan:
    """What the engine allocates at start, in GiB and tokens. ``at_ready_gib`` below zero is an OOM at graph capture."""

    pool_tokens: int
    kv_gib: float
    draft_kv_gib: float
    after_load_gib: float
    at_pool_end_gib: float
    at_ready_gib: float
    graph_gib: float


def plan(config: Config) -> Plan:
    """The pool and free memory of a start by the formulas of SGLang (free before load) or vLLM (GPU total)."""
    after_load = config.free_before_load_gib - config.weights_gib
    if config.engine == "sglang":
        budget = after_load - config.free_before_load_gib * (1 - config.fraction)
        page, bytes_per_token = config.page_tokens, config.budget_bytes_per_token
    else:
        consumed = config.weights_gib + config.activation_peak_gib
        budget = config.gpu_total_gib * config.fraction - consumed
        page, bytes_per_token = 16, config.target_bytes_per_token
    tokens = max(0, math.floor(budget * GIB / bytes_per_token)) // page * page
    if config.max_total_tokens is not None:
        tokens = min(tokens, config.max_total_tokens // page * page)
    return _allocated(config, tokens, after_load)


def _allocated(config: Config, tokens: int, after_load: float) -> Plan:
    kv = tokens * config.target_bytes_per_token / GIB
    draft = tokens * config.draft_bytes_per_token / GIB if config.speculative_algorithm else 0.0
    graphs = config.graph_base_gib + config.graph_gib_per_request * config.max_running_requests
    at_pool_end = after_load - kv - draft
    return Plan(tokens, kv, draft, after_load, at_pool_end, at_pool_end - graphs, graphs)


class FreeMemoryFile:
    """Free GiB of each GPU in a small file that another process may map: what NVML would answer."""

    def __init__(self, path: Path, gpus: int = 0) -> None:
        if gpus:
            path.write_bytes(struct.pack(f"{gpus}d", *[0.0] * gpus))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._gpus = len(self._map) // 8

    def read(self) -> Sequence[float]:
        """Free GiB of each GPU now."""
        return struct.unpack_from(f"{self._gpus}d", self._map)

    def write(self, free_gib: float) -> None:
        """Sets all GPUs; the last one holds a little more than the others."""
        values = [free_gib] * (self._gpus - 1) + [free_gib + 0.05] if self._gpus > 1 else [free_gib]
        struct.pack_into(f"{self._gpus}d", self._map, 0, *values)

    def close(self) -> None:
        """Unmaps the file."""
        self._map.close()
        self._file.close()


class Memory:
    """Free memory of the running stand-in. What a prompt took is kept by the allocator until a flush."""

    def __init__(self, config: Config, at_ready_gib: float, file: FreeMemoryFile) -> None:
        self._config = config
        self._at_ready = at_ready_gib
        self._file = file
        self._held: dict[int, float] = {}
        self._kept = 0.0
        self._lock = threading.Lock()
        file.write(at_ready_gib)

    @contextmanager
    def prompt(self, key: int) -> Iterator[None]:
        """The life of one prompt: what it took is given back at its end, as far as the allocator gives back."""
        try:
            yield
        finally:
            with self._lock:
                self._kept = max(self._kept, self._held.pop(key, 0.0) / 2)
                self._publish()

    def grow(self, key: int, tokens: int) -> None:
        """Lets prompt ``key`` hold what ``tokens`` prefilled tokens need. Raises OutOfMemoryError below zero."""
        with self._lock:
            self._held[key] = self._config.need_base_gib + self._config.need_gib_per_token * tokens
            if self._free() < 0:
                raise OutOfMemoryError(f"{-self._free():.2f} GiB short")
            self._publish()

    def flush(self) -> None:
        """Empties the allocator's cache, as a cache flush does."""
        with self._lock:
            self._kept = 0.0
            self._publish()

    def _free(self) -> float:
        together = sum if self._config.prompts_at_once else max
        return self._at_ready - max(self._kept, together([0.0, *self._held.values()]))

    def _publish(self) -> None:
        self._file.write(self._free())
