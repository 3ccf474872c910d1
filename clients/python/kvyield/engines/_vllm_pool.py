"""What vLLM's processes print about their memory, kept per process.

The pool is the least of them, and what is told beside it is of the process that has the least: weights and KV cache
of different GPUs are never put together. The summary that a worker prints when it is ready is read by its parts,
whichever of them are there: vLLM changed its wording four times, and vllm-ascend has one of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvyield.engines import _vllm_lines as lines
from kvyield.engines._defaults import parse_version
from kvyield.engines._engine import source
from kvyield.engines._prefix import Record
from kvyield.engines._start import Sourced

DEFAULT_BLOCK_TOKENS = 16
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
MOST_PROCESSES = 4096
PRINTED_GIB = 0.005
SAME_GIB = 0.0101
ALL_GROUPS_VERSION = (0, 21, 0)
MOST_GROUPS, SAME_POOL = 16.0, 1.05
"""What requests hold is this many times the size printed: at most a hybrid's groups; less is whole blocks, decimals."""
PRINTED_TIMES = 0.005
BYTES_A_GIB = 1 << 30
_RANK = re.compile(r"\brank=(\d{1,6})\b")
_PART_OF_RANK = re.compile(r"(DP|PP|TP)(\d{1,6})(?![a-z0-9])")


@dataclass
class Process:
    """GiB, tokens and blocks that one process printed, the last of each; ``summed`` weights have two decimals only.

    ``together`` is how many requests of a length its pool holds at the same time.
    """

    tokens: Sourced | None = None
    together: tuple[int, float, str] | None = None
    blocks: Sourced | None = None
    profiled_blocks: Sourced | None = None
    kv: Sourced | None = None
    weights: Sourced | None = None
    summed_weights: Sourced | None = None
    graphs: Sourced | None = None
    free: Sourced | None = None
    device: Sourced | None = None


class VllmMemory:
    """Figures of one start by process name."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.estimate: float | None = None
        self.fitted: Sourced | None = None

    def of(self, record: Record) -> Process:
        """The process that printed the line; past a bound all share one, so that noise cannot fill the memory."""
        name = record.process
        if name not in self.processes and len(self.processes) >= MOST_PROCESSES:
            name = next(iter(self.processes))
        return self.processes.setdefault(name, Process())

    @property
    def pool_known(self) -> bool:
        """True once the engine told the size of its pool."""
        return any(one.tokens or one.blocks for one in self.processes.values())

    @property
    def no_blocks(self) -> bool:
        """True when the engine counted no block at all, which it then refuses."""
        all_of = self.processes.values()
        return any(one.blocks and one.blocks.value == 0 for one in all_of) and not any(one.tokens for one in all_of)

    @property
    def is_short(self) -> bool:
        """True when less than nothing is left for the pool, which the engine then refuses."""
        return any(one.kv is not None and float(str(one.kv.value)) < 0.0 for one in self.processes.values())

    def shortage(self) -> dict[str, Sourced]:
        """What the engine had for the pool, as evidence of a refusal."""
        least = _least([one.kv for one in self.processes.values()])
        return {"available_kv_cache_gib": least} if least else {}

    def weights(self, record: Record, text: str) -> bool:
        """Weights were loaded, told with four decimals or two."""
        match, short = lines.LOADED.search(text), lines.V0_WEIGHTS.search(text)
        if match:
            self.of(record).weights = Sourced(float(match[1]), source(record))
        if short:
            self.of(record).summed_weights = Sourced(float(short[1]), source(record))
        return bool(match or short)

    def pool(self, record: Record, text: str) -> bool:
        """GiB, tokens or blocks of the pool, or how many longest requests fit."""
        found = [self._pool_gib(record, text), self._pool_tokens(record, text), self._pool_blocks(record, text)]
        together = lines.CONCURRENCY.search(text)
        if together:
            self.of(record).together = count(together[1]), float(together[2]), source(record)
        return any(found) or together is not None

    def _pool_gib(self, record: Record, text: str) -> bool:
        patterns = (lines.AVAILABLE, lines.V0_REST, lines.REDUCED, lines.BYTES_MODE)
        match = next(filter(None, (pattern.search(text) for pattern in patterns)), None)
        if match:
            self.of(record).kv = Sourced(float(match[1]), source(record))
        npu = lines.NPU_MEMORY.search(text)
        if npu:
            kv, device = (round(int(size) / BYTES_A_GIB, 4) for size in npu.groups())
            self.of(record).kv = Sourced(kv, source(record))
            self.of(record).device = Sourced(device, source(record))
        return bool(match or npu)

    def _pool_tokens(self, record: Record, text: str) -> bool:
        match = lines.SIZE.search(text)
        if match:
            self.of(record).tokens = Sourced(count(match[1]), source(record))
        return match is not None

    def _pool_blocks(self, record: Record, text: str) -> bool:
        match, capped = lines.V0_BLOCKS.search(text), lines.OVERRIDE.search(text)
        if match:
            self.of(record).blocks = Sourced(count(match[1]), source(record))
        if capped:
            self.of(record).profiled_blocks = Sourced(int(capped[1]), source(record))
        return bool(match or capped)

    def graphs(self, record: Record, text: str) -> bool:
        """What graphs took, or were estimated to take before the pool was sized."""
        match, pool, estimate = (p.search(text) for p in (lines.GRAPHS, lines.GRAPH_POOL, lines.GRAPH_ESTIMATE))
        if estimate:
            self.estimate = float(estimate[1])
        if match or (pool and self.of(record).graphs is None):
            self.of(record).graphs = Sourced(float((match or pool or "")[1]), source(record))
        return bool(match or pool or estimate)

    def totals(self, record: Record, text: str, contradictions: list[str]) -> bool:
        """The GPU's total and free memory at the start, and what a worker's summary says that took it."""
        of_total, initial = lines.FREE_OF.search(text), lines.INITIAL.search(text)
        total = lines.V0_TOTAL.search(text) or lines.V0_RESULTS.search(text)
        free = of_total or initial
        if total or of_total:
            device = float(total[1]) if total else float((of_total or "")[2])
            self.of(record).device = Sourced(device, source(record))
        if free:
            self.of(record).free = Sourced(float(free[1]), source(record))
        if of_total:
            self._summary(record, text, contradictions)
        return bool(total or free)

    def _summary(self, record: Record, text: str, contradictions: list[str]) -> None:
        one, where = self.of(record), source(record)
        parts = {label.rstrip("s"): float(gib) for gib, label in lines.USED_FOR.findall(text)}
        graphs = next((gib for label, gib in parts.items() if label.endswith("raph memory")), 0.0)
        in_use = lines.IN_USE.search(text)
        if "weight" in parts:
            one.summed_weights = Sourced(parts["weight"], where)
        if graphs > 0 and one.graphs is None:
            one.graphs = Sourced(graphs, where)
        if in_use:
            gib = float(in_use[1]) if in_use[1] else round(int(in_use[2]) / BYTES_A_GIB, 4)
            one.kv = one.kv or Sourced(gib, where)
            self._check(record, gib, parts, contradictions)

    def _check(self, record: Record, in_use: float, parts: dict[str, float], contradictions: list[str]) -> None:
        """The pool is what was desired less all parts but the graphs; older versions leave the estimate of graphs out
        of the peak activation.
        """
        desired = lines.DESIRED.search(record.text)
        if desired is None or "peak activation" not in parts or len(contradictions) >= MOST_PROCESSES:
            return
        rest = float(desired[2]) - sum(gib for label, gib in parts.items() if not label.endswith("raph memory"))
        printed = 5 * PRINTED_GIB + 1e-6
        if min(abs(in_use - rest), abs(in_use - rest + (self.estimate or 0.0))) > printed:
            contradictions.append(
                f"line {record.number}: {in_use:.2f} GiB of KV cache in use, the line's terms leave {rest:.2f}"
            )

    def binding(self) -> str | None:
        """The process with the least KV cache, where several told theirs; None when one process alone did."""
        told = {name: one.kv for name, one in self.processes.items() if one.kv}
        return min(told, key=lambda name: float(str(told[name].value))) if len(told) > 1 else None

    def process_with(self, kv_gib: float) -> str | None:
        """The one process whose KV cache comes nearest, for a refusal that names the figure but not the rank."""
        gaps = {
            name: abs(float(str(one.kv.value)) - kv_gib) for name, one in self.processes.items() if one.kv is not None
        }
        nearest = [name for name, gap in gaps.items() if gap <= SAME_GIB and gap == min(gaps.values())]
        return nearest[0] if len(nearest) == 1 else None

    def conclude(self, block_size: int | None, version: str) -> dict[str, Sourced]:
        """The measurements: least pool and free memory; weights, graphs and total of the process that binds, else the
        largest weights and graphs.
        """
        all_of = list(self.processes.values())
        name = self.binding()
        bound = [self.processes[name]] if name is not None else []
        found = {
            "pool_tokens": self._pool_of_requests(version) or self._tokens_of_blocks(block_size, "blocks"),
            "uncapped_pool_tokens": self._tokens_of_blocks(block_size, "profiled_blocks"),
            "kv_cache_gib": _least([one.kv for one in all_of]),
            "weights_gib": _weights(bound) or _weights(all_of),
            "graph_gib": _most([one.graphs for one in bound]) or _most([one.graphs for one in all_of]),
            "free_before_load_gib": _least([one.free for one in all_of]),
            "device_memory_gib": _least([one.device for one in bound]) or _least([one.device for one in all_of]),
            "fitted_max_model_len": self.fitted,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def concurrency(self) -> tuple[int, float, str] | None:
        """How many requests of a length fit at the same time, of the process where fewest do."""
        return min(filter(None, (one.together for one in self.processes.values())), key=lambda it: it[1], default=None)

    def _pool_of_requests(self, version: str) -> Sourced | None:
        """The pool as vLLM counts it since 0.21: what requests of the context length hold together.

        Before, the size printed for a hybrid model was that of one group of its layers, a fraction of what it holds
        (67,728 tokens where 1.06 requests of 180,000 fit); the line of concurrency was right in all versions.
        """
        size, together, release = _least([one.tokens for one in self.processes.values()]), self.concurrency, None
        if size is None or together is None or (release := parse_version(version)) is None:
            return size
        length, times, where = together
        printed, held = int(str(size.value)), times * length
        if release >= ALL_GROUPS_VERSION or times < 1.0 or not SAME_POOL < held / max(printed, 1) <= MOST_GROUPS:
            return size
        tokens = max(length, int(held - PRINTED_TIMES * length))
        return Sourced(
            tokens, f"{where} ({times} × {length:,}; the size printed, {printed:,}, is of one group of layers)"
        )

    def _tokens_of_blocks(self, block_size: int | None, kind: str) -> Sourced | None:
        blocks = _least([getattr(one, kind) for one in self.processes.values()])
        if blocks is None:
            return None
        number = int(str(blocks.value))
        size, why = self._block_tokens(number, block_size)
        return Sourced(number * size, f"{blocks.source} × {size} tokens per block ({why})")

    def _block_tokens(self, blocks: int, block_size: int | None) -> tuple[int, str]:
        if block_size:
            return block_size, "block_size"
        if self.concurrency and blocks:
            length, times, _ = self.concurrency
            for size in BLOCK_SIZES:
                if abs(blocks * size / length - times) <= 0.0051 + 1e-9:
                    return size, "as the concurrency line implies"
        return DEFAULT_BLOCK_TOKENS, "default"


def rank_of(process: str, *, tensor: int | None, pipeline: int | None) -> int | None:
    """The global rank of a process such as ``Worker_PP1_TP3``; None where its name and the sizes do not tell."""
    if match := _RANK.search(process):
        return int(match[1])
    parts = {kind: int(number) for kind, number in _PART_OF_RANK.findall(process)}
    if not parts:
        return None
    sizes = {"PP": tensor or (1 if "TP" not in parts else None), "DP": (tensor or 1) * (pipeline or 1)}
    if parts.get("PP") and sizes["PP"] is None:
        return None
    return parts.get("TP", 0) + parts.get("PP", 0) * (sizes["PP"] or 1) + parts.get("DP", 0) * (sizes["DP"] or 1)


def count(text: str) -> int:
    """A number with or without thousands separators."""
    return int(text.replace(",", "") or "0")


def _weights(all_of: list[Process]) -> Sourced | None:
    return _most([one.weights for one in all_of]) or _most([one.summed_weights for one in all_of])


def _least(values: list[Sourced | None]) -> Sourced | None:
    return min(filter(None, values), key=lambda value: float(str(value.value)), default=None)


def _most(values: list[Sourced | None]) -> Sourced | None:
    return max(filter(None, values), key=lambda value: float(str(value.value)), default=None)
