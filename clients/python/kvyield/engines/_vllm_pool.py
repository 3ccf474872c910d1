"""What vLLM's processes print about their memory, kept per process; the pool is the least of them."""

from __future__ import annotations

import re

from kvyield.engines import _vllm_lines as lines
from kvyield.engines._engine import source
from kvyield.engines._prefix import Record
from kvyield.engines._start import Sourced

DEFAULT_BLOCK_TOKENS = 16
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
MOST_PROCESSES = 4096
PRINTED_GIB = 0.005
BYTES_A_GIB = 1 << 30


class VllmMemory:
    """GiB figures of one start, the last of each process."""

    def __init__(self) -> None:
        self.tokens: dict[str, Sourced] = {}
        self.blocks: dict[str, Sourced] = {}
        self.kv: dict[str, Sourced] = {}
        self.loaded: dict[str, Sourced] = {}
        self.loaded_short: dict[str, Sourced] = {}
        self.captured: dict[str, Sourced] = {}
        self.free: dict[str, Sourced] = {}
        self.device: Sourced | None = None
        self.estimate: float | None = None
        self.concurrency: tuple[int, float] | None = None

    @property
    def pool_known(self) -> bool:
        """True once the engine told the size of its pool."""
        return bool(self.tokens or self.blocks)

    @property
    def no_blocks(self) -> bool:
        """True when the engine counted no block at all, which it then refuses."""
        return any(blocks.value == 0 for blocks in self.blocks.values()) and not self.tokens

    def shortage(self) -> dict[str, Sourced]:
        """What the engine had for the pool, as evidence of a refusal."""
        least = _least(self.kv)
        return {"available_kv_cache_gib": least} if least else {}

    def weights(self, record: Record, text: str) -> bool:
        """Weights were loaded, told with four decimals or two."""
        match, short = lines.LOADED.search(text), lines.V0_WEIGHTS.search(text)
        if match:
            _put(self.loaded, record, float(match[1]))
        if short:
            _put(self.loaded_short, record, float(short[1]))
        return bool(match or short)

    def pool(self, record: Record, text: str) -> bool:
        """GiB, tokens or blocks of the pool, or how many longest requests fit."""
        found = [self._pool_gib(record, text), self._pool_tokens(record, text), self._pool_blocks(record, text)]
        together = lines.CONCURRENCY.search(text)
        if together:
            self.concurrency = (_count(together[1]), float(together[2]))
        return any(found) or together is not None

    def _pool_gib(self, record: Record, text: str) -> bool:
        for pattern in (lines.AVAILABLE, lines.V0_REST, lines.REDUCED):
            match = pattern.search(text)
            if match:
                _put(self.kv, record, float(match[1]))
                return True
        pinned = lines.BYTES_MODE.search(text)
        if pinned:
            _put(self.free, record, float(pinned[1]))
            _put(self.kv, record, float(pinned[2]))
        return pinned is not None

    def _pool_tokens(self, record: Record, text: str) -> bool:
        match = lines.SIZE.search(text)
        if match:
            _put(self.tokens, record, _count(match[1]))
        return match is not None

    def _pool_blocks(self, record: Record, text: str) -> bool:
        match = lines.V0_BLOCKS.search(text)
        if match:
            _put(self.blocks, record, _count(match[1]))
        return match is not None

    def graphs(self, record: Record, text: str) -> bool:
        """What graphs took, or were estimated to take before the pool was sized."""
        match, pool, estimate = (p.search(text) for p in (lines.GRAPHS, lines.GRAPH_POOL, lines.GRAPH_ESTIMATE))
        if estimate:
            self.estimate = float(estimate[1])
        if match or (pool and record.process not in self.captured):
            _put(self.captured, record, float((match or pool or "")[1]))
        return bool(match or pool or estimate)

    def totals(
        self, record: Record, total: re.Match[str] | None, suggestion: re.Match[str] | None, contradictions: list[str]
    ) -> None:
        """The card's total, free memory at the start, and a check of the line's own arithmetic."""
        if total:
            self.device = Sourced(float(total[1]), source(record))
            return
        assert suggestion is not None
        _put(self.free, record, float(suggestion[1]))
        self.device = Sourced(float(suggestion[2]), source(record))
        self._check(record, suggestion, contradictions)

    def _check(self, record: Record, line: re.Match[str], contradictions: list[str]) -> None:
        """A = R - W - P - X, less the graph estimate where it is no part of P (``_vllm_lines`` has the two regimes)."""
        in_use = lines.IN_USE.search(record.text)
        if in_use is None:
            return
        available = float(in_use[1]) if in_use[1] else int(in_use[2]) / BYTES_A_GIB
        parts = [float(part) for part in (line[5], line[7], line[8] or "0")]
        rest = float(line[4]) - sum(parts)
        printed = 5 * PRINTED_GIB + 1e-6
        if (
            len(contradictions) < MOST_PROCESSES
            and min(abs(available - rest), abs(available - rest + (self.estimate or 0.0))) > printed
        ):
            contradictions.append(
                f"line {record.number}: {available:.2f} GiB of KV cache in use, the line's terms leave {rest:.2f}"
            )

    def conclude(self, block_size: int | None) -> dict[str, Sourced]:
        """The measurements: least pool and free memory, largest weights and graphs."""
        found = {
            "pool_tokens": _least(self.tokens) or self._tokens_of_blocks(block_size),
            "kv_cache_gib": _least(self.kv),
            "weights_gib": _most(self.loaded) or _most(self.loaded_short),
            "graph_gib": _most(self.captured),
            "free_before_load_gib": _least(self.free),
            "device_memory_gib": self.device,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _tokens_of_blocks(self, block_size: int | None) -> Sourced | None:
        blocks = _least(self.blocks)
        if blocks is None:
            return None
        count = int(str(blocks.value))
        size, why = self._block_tokens(count, block_size)
        return Sourced(count * size, f"{blocks.source} × {size} tokens a block ({why})")

    def _block_tokens(self, blocks: int, block_size: int | None) -> tuple[int, str]:
        if block_size:
            return block_size, "block_size"
        if self.concurrency and blocks:
            length, times = self.concurrency
            for size in BLOCK_SIZES:
                if abs(blocks * size / length - times) <= 0.0051 + 1e-9:
                    return size, "as the concurrency line implies"
        return DEFAULT_BLOCK_TOKENS, "default"


def _put(place: dict[str, Sourced], record: Record, value: float) -> None:
    if len(place) < MOST_PROCESSES or record.process in place:
        place[record.process] = Sourced(value, source(record))


def _count(text: str) -> int:
    return int(text.replace(",", "") or "0")


def _least(place: dict[str, Sourced]) -> Sourced | None:
    return min(place.values(), key=lambda value: float(str(value.value)), default=None)


def _most(place: dict[str, Sourced]) -> Sourced | None:
    return max(place.values(), key=lambda value: float(str(value.value)), default=None)
