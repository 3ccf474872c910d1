"""LMDeploy, TurboMind and PyTorch engines: what its log says about a start.

Its default log level prints none of this; with ``--log-level INFO`` it does. The fraction is a share of the memory
that is free after weights."""

from __future__ import annotations

import re

from kvyield.engines._engine import Engine, Role, StartReader, Surroundings, source
from kvyield.engines._failures import SPECIFIC, Problem
from kvyield.engines._literals import call_fields, scalar
from kvyield.engines._prefix import Record, parse_time
from kvyield.engines._start import Sourced
from kvyield.engines._text import any_of, quote

LONGEST_LINE = 4000
MIB_A_GIB = 1024
MEMORY_FLAGS = frozenset(
    (
        *("cache_max_entry_count", "tp", "dp", "ep", "session_len", "max_batch_size", "cache_block_seq_len"),
        *("max_prefill_token_num", "num_tokens_per_iter", "cache_chunk_size", "enable_prefix_caching", "block_size"),
        *("quant_policy", "num_gpu_blocks", "eager_mode", "dtype", "kv_cache_dtype", "model_format", "attn_cp_size"),
    )
)

_STAMP = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.]\d{1,6}\b")
_BLOCK = re.compile(r"\bblock_size = (\d+(?:\.\d+)?) MB")
_COUNT = re.compile(r"\bmax_block_count = (\d{1,18})\b")
_TOKENS = re.compile(r"\bmax cached tokens: (\d{1,18})\b")
_TRUNCATED = re.compile(r"`session_len` truncated to (\d{1,12})\b")
_UNSET = re.compile(r"\[LlamaTritonModel\] `(\w{1,40})` is not set, default to (\d{1,12}(?:\.\d{1,9})?)(?!\d)")
_BUDGET = re.compile(r"Object cache budget: (\d+(?:\.\d+)?) MB from free (\d+(?:\.\d+)?) MB and ratio (\d?\.\d{1,9})\b")
_BEFORE = re.compile(r"Adjusting block_count: free_before (\d+(?:\.\d+)?) MB, linear ")
_LINEAR = re.compile(r"Linear-state memory \((\d+(?:\.\d+)?) MB\) >= cache budget \((\d+(?:\.\d+)?) MB\)")
_PREFILL = re.compile(r"No enough memory\. Update max_prefill_token_num=(\d{1,12})\b")
_PORT = re.compile(r"Uvicorn running on https?://[^/\s]{1,260}:(\d{1,5})\b")
_ADJUSTED = re.compile(r"Adjusted block_count to (\d{1,18})\b")
_CONFIG = re.compile(r"(?:Turbomind|Pytorch)EngineConfig\(")
_CACHE = re.compile(r"\bCacheConfig\(")
_MINIMAL = re.compile(r"minimal free gpu memory: (\d+(?:\.\d+)?) ?mb", re.IGNORECASE)
_REFUSED = re.compile(r"No enough gpu memory for (?:kv cache|state cache|runtime)\..{0,200}")
_CREATING = re.compile(r"\b_?(?:create_model_instance|create_engine)\b")
"""Frames of ``turbomind.py``: the cache is allocated with the instance, later the engine, after the weights."""
_READY = re.compile(r"LlamaBatch<T>::Start\(\)|Application startup complete|Uvicorn running on")
_MODEL = re.compile(r"\bmodel_path='([^']{1,300})'")
_MINE = any_of(
    r"\[TM\]\[",
    r"\[BlockManager\]",
    r"\[SeqMgr\]",
    r"Object cache budget: \d",
    r"(?:Turbomind|Pytorch)EngineConfig\(",
    r"\bCacheConfig\(max_batches=",
    r"lmdeploy[. /-]",
    r"Building CacheEngine with config",
    r"No enough gpu memory for",
)


class LmdeployReader(StartReader):
    """Reads one start of LMDeploy."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__("lmdeploy", surroundings)
        self.block_mib: Sourced | None = None
        self.blocks: list[Sourced] = []

    def belongs(self, record: Record) -> bool:
        """False for an engine config once the start is over."""
        return not (self.settled and _CONFIG.search(record.text, 0, LONGEST_LINE))

    def feed(self, record: Record) -> None:
        """Take in one line."""
        text, stamp = record.text[:LONGEST_LINE], _STAMP.search(record.text, 0, LONGEST_LINE)
        ready = _READY.search(text) is not None
        self.clock.see(record, parse_time(stamp[1]) if stamp else None, ready=ready)
        found = [read(record, text) for read in (self._blocks, self._budget, self._limits, self._config, self._cache)]
        if ready and self.started:
            self.announced, self.phase = True, "serving"
            self.complete = self.complete or "LlamaBatch" not in text
        if not self.announced and _CREATING.search(text):
            self.phase = "pool"
        if any(found) or ready:
            self.note(record)
            self.progressed(record)
        elif not self._refusal(record, text):
            self.read_problem(record, text)

    def _blocks(self, record: Record, text: str) -> bool:
        size, count, tokens, fewer, free = (p.search(text) for p in (_BLOCK, _COUNT, _TOKENS, _ADJUSTED, _MINIMAL))
        if size:
            self.block_mib = Sourced(float(size[1]), source(record))
        if count or fewer:
            self.blocks[:] = self.blocks[-1:]
            self.blocks.append(Sourced(int((count or fewer or "")[1]), source(record)))
        if tokens:
            self.measure("pool_tokens", int(tokens[1]), source(record))
        if free:
            self.measure("free_after_load_gib", float(free[1]) / MIB_A_GIB, source(record))
        found = bool(size or count or tokens or fewer or free)
        self.started = self.started or found
        self.phase = "pool" if found else self.phase
        return found

    def _budget(self, record: Record, text: str) -> bool:
        """0.15 and later keep all caches in one region: its size, and the free memory that it is a share of."""
        budget, before = _BUDGET.search(text), _BEFORE.search(text)
        if budget:
            self.measure("kv_cache_gib", round(float(budget[1]) / MIB_A_GIB, 4), source(record))
            if "cache_max_entry_count" not in self.start.flags:
                self.flag("cache_max_entry_count", float(budget[3]), source(record))
        if budget or before:
            free = float(budget[2]) if budget else float((before or "")[1])
            self.measure("free_after_load_gib", round(free / MIB_A_GIB, 4), source(record))
            self.started, self.phase = True, "pool"
        return bool(budget or before)

    def _limits(self, record: Record, text: str) -> bool:
        """What the engine set by itself: lengths that it cut to the pool, and flags that were not given."""
        session, prefill, unset, port = (p.search(text) for p in (_TRUNCATED, _PREFILL, _UNSET, _PORT))
        if session:
            self.flag("session_len", int(session[1]), source(record))
            self.measure("longest_prompt_tokens", int(session[1]), source(record))
        if prefill:
            self.flag("max_prefill_token_num", int(prefill[1]), source(record))
        if unset and unset[1] in MEMORY_FLAGS and unset[1] not in self.start.flags:
            number = float(unset[2]) if "." in unset[2] else int(unset[2])
            self.flag(unset[1], number, source(record))
        if port and self.started:
            self.flag("port", int(port[1]), source(record))
        return bool(session or prefill or unset)

    def _config(self, record: Record, text: str) -> bool:
        match, model = _CONFIG.search(text), _MODEL.search(text)
        if match is None:
            return False
        self.opened = True
        if model:
            self.fact("model_name", model[1], source(record))
        self._flags(record, match)
        return True

    def _cache(self, record: Record, text: str) -> bool:
        """The PyTorch engine prints its pool as a config: blocks and tokens a block."""
        match = _CACHE.search(text)
        if match is None:
            return False
        self.started, self.phase = True, "pool"
        values = call_fields(record.text, match.end()).values
        blocks, size = values.get("num_gpu_blocks"), values.get("block_size")
        known = "pool_tokens" in self.start.measurements  # a draft's config follows the target's
        if not known and isinstance(blocks, int) and isinstance(size, int) and blocks > 0 and size > 0:
            self.measure("pool_tokens", blocks * size, f"{source(record)} (num_gpu_blocks × block_size)")
        self._flags(record, match)
        return True

    def _flags(self, record: Record, match: re.Match[str]) -> None:
        for name, value in call_fields(record.text, match.end()).values.items():
            if name in MEMORY_FLAGS:
                self.flag(name, scalar(value), f"line {record.number}: {match[0]}{name}={quote(str(value), 80)}")

    def _refusal(self, record: Record, text: str) -> bool:
        linear = _LINEAR.search(text)
        match, where = linear or _REFUSED.search(text), source(record)
        if match:
            problem = Problem("refused", "pool", Sourced(quote(match[0]), where), SPECIFIC, final=True)
            if linear:
                needed, available = (round(float(mib) / MIB_A_GIB, 4) for mib in linear.groups())
                problem.evidence["needed_gib"] = Sourced(needed, where)
                problem.evidence["available_kv_cache_gib"] = Sourced(available, where)
            self.problems.add(problem)
        return match is not None

    def conclude(self) -> None:
        """The pool is the block count times the block's MB, which older versions print without decimals, and times
        the tokens per block (``BlockManager.cc``; 0.12 and later print the product as ``max cached tokens``).
        """
        if not self.blocks:
            return
        count = self.blocks[-1]
        if self.block_mib is not None:
            gib = int(str(count.value)) * float(str(self.block_mib.value)) / MIB_A_GIB
            self.measure("kv_cache_gib", gib, f"{count.source} × {self.block_mib.source}")
        size, ways = (self.start.flags.get(name) for name in ("cache_block_seq_len", "attn_cp_size"))
        if "pool_tokens" not in self.start.measurements and size and isinstance(size.value, int):
            parts = ways.value if ways and isinstance(ways.value, int) and ways.value > 0 else 1
            tokens = int(str(count.value)) * size.value * parts
            self.measure("pool_tokens", tokens, f"{count.source} × cache_block_seq_len {size.value}")


def _role(text: str) -> Role | None:
    return "belongs" if _MINE.search(text, 0, LONGEST_LINE) else None


LMDEPLOY = Engine(
    name="lmdeploy",
    openers=(b"EngineConfig(",),
    ready=(b"startup complete",),
    hooks=(
        b"[TM]",
        b"block_count",
        b"CacheConfig(",
        b"block_size = ",
        b"cached tokens",
        b"free gpu memory",
        b"No enough gpu",
        b"LlamaBatch<T>",
        b"session_len",
        b"max_prefill_token_num=",
        b"Uvicorn running on",
        b"create_model_instance",
        b"create_engine",
    ),
    role=_role,
    reader=LmdeployReader,
)
