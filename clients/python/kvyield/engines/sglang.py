"""SGLang 0.4.3 to 0.5.23: what its log says about a start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from kvyield.engines import _sglang_lines as lines
from kvyield.engines._engine import Role, StartReader, Surroundings, source
from kvyield.engines._failures import SPECIFIC, Problem
from kvyield.engines._literals import Fields, Value, call_fields, dict_fields, scalar
from kvyield.engines._prefix import Record
from kvyield.engines._sglang_flags import MEMORY_FLAGS, dtype_flag
from kvyield.engines._sglang_ranks import Rank, Ranks, target_and_draft
from kvyield.engines._sglang_serving import prompt_in_flight
from kvyield.engines._start import Sourced
from kvyield.engines._text import quote

BACKWARDS_SECONDS = 10
LONGEST_LINE = 4000


class SglangReader(StartReader):
    """Reads one start of SGLang."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__("sglang", surroundings)
        self.ranks = Ranks()
        self.pools: list[Sourced] = []  # what the engine calls the pool's tokens, best word first
        self.available: list[Sourced] = []
        self.final_of: dict[str, str] = {}
        self.last_time: dict[str, datetime] = {}
        self.args: Fields | None = None
        self.base: tuple[Sourced, Sourced] | None = None  # T and A as the engine itself printed them together
        self.kv_gib: Sourced | None = None

    def belongs(self, record: Record) -> bool:
        """False for args after the start-up began, for a new load once ready, for another final count, for a clock gone back."""
        text, rank = record.text[:LONGEST_LINE], lines.rank_of(record.text)
        if lines.ARGS.search(text):
            return not self.started and self.args is None and not self.settled
        if self.settled and (
            "Load weight begin." in text or "Init torch distributed begin" in text or lines.BACKEND.search(text)
        ):
            return False
        final = lines.FINAL.search(text)
        if final and self.final_of.get(rank, final[1]) != final[1]:
            return False
        own, last = lines.own_time(text), self.last_time.get(rank)
        went_back = bool(own and last and (last - own).total_seconds() > BACKWARDS_SECONDS)
        return not (went_back and self._pool_known and lines.MINE.search(text))

    @property
    def _pool_known(self) -> bool:
        return bool(self.pools) or any(rank.pool_begun for rank in self.ranks.all)

    def feed(self, record: Record) -> None:
        text, own = record.text[:LONGEST_LINE], lines.own_time(record.text)
        name = lines.rank_of(text)
        if own:
            self.last_time[name] = max(own, self.last_time.get(name, own))
        self.clock.see(record, own, ready=lines.FIRED_UP in text or "max_total_num_tokens=" in text)
        handled = False
        for needle, handle in _HANDLERS:
            if needle in text:
                handled = bool(handle(self, record, self.ranks.of(name), name)) or handled
        if handled:
            self.note(record)
            self.problems.progress()
        elif not self._refusal(record, text) and self.problems.read(
            record.number, text, self.phase, serving=self._serving
        ):
            self._look_back()

    @property
    def _serving(self) -> bool:
        return self.announced or not self.started

    def _read_args(self, record: Record, _rank: Rank, _name: str) -> bool:
        match = lines.ARGS.search(record.text)
        if match is None:
            return False
        opened = match.end()
        fields = dict_fields(record.text, opened - 1) if match[1] == "{" else call_fields(record.text, opened)
        self.args, self.opened = fields, True
        for name, value in fields.values.items():
            if name in MEMORY_FLAGS:
                self.flag(name, scalar(value), f"line {record.number}: server_args, {name}={quote(str(value), 80)}")
        self._read_names(fields.values, f"line {record.number}: server_args")
        return True

    def _read_names(self, values: dict[str, Value], where: str) -> None:
        for field, fact in (
            ("model_path", "model_name"),
            ("served_model_name", "served_model_name"),
            ("revision", "model_revision"),
        ):
            self.fact(fact, scalar(values.get(field)), f"{where}, {field}")
        sizes = [values.get(name) for name in ("tp_size", "pp_size", "dp_size")]
        if all(isinstance(size, int) and 0 < size < 1 << 20 for size in sizes):
            tensor, pipeline, data = (int(str(size)) for size in sizes)
            self.fact(
                "gpu_count",
                tensor * pipeline * (1 if values.get("enable_dp_attention") else data),
                f"{where}, tp_size × pp_size × dp_size",
            )

    def _read_load(self, record: Record, rank: Rank, _name: str) -> bool:
        self.started = True
        if "Load weight begin." in record.text:
            self.ranks.load_begins(rank, record.text, source(record))
            self.phase = "load"
            return True
        self.ranks.load_ends(rank, record.text, source(record))
        self.phase = "graph_capture" if rank.pool_begun else "pool"
        self._read_load_details(record, rank)
        return True

    def _read_load_details(self, record: Record, rank: Rank) -> None:
        model, quantization = lines.MODEL_CLASS.search(record.text), lines.QUANTIZATION.search(record.text)
        if model and len(rank.weights) < 2:
            self.fact("model_class", model[1], source(record))
        if quantization and len(rank.weights) < 2 and "quantization" not in self.start.flags:
            self.flag("quantization", quantization[1], source(record))

    def _read_pool(self, record: Record, rank: Rank, _name: str) -> bool:
        self._read_dtype(record)
        if lines.POOL.search(record.text) is None:
            return "Using KV cache dtype" in record.text
        self.started = True
        if "Post-capture" in record.text:
            rank.pools.clear()
        self.ranks.pool_line(rank, record.text, source(record))
        self.phase = "pool"
        return True

    def _read_dtype(self, record: Record) -> None:
        match = lines.DTYPE.search(record.text)
        known = self.start.flags.get("kv_cache_dtype")
        if match and (known is None or known.value in ("auto", None)):
            self.flag("kv_cache_dtype", dtype_flag(match[1]), source(record))

    def _read_sliding(self, record: Record, rank: Rank, _name: str) -> bool:
        match = lines.SLIDING.search(record.text)
        if match:
            rank.sliding_window = Sourced(float(match[1]), source(record))
            self.pools.append(Sourced(int(match[3]), source(record)))
        return match is not None

    def _read_mamba(self, record: Record, rank: Rank, _name: str) -> bool:
        match = lines.MAMBA.search(record.text)
        if match:
            self.started = rank.pool_begun = True
            self.fact("mamba_slots", int(match[1]), source(record))
            self.fact("mamba_cache_gib", round(float(match[2]) + float(match[3]), 4), source(record))
            if self.args is None:
                self.flag("max_mamba_cache_size", int(match[1]), source(record))
        return match is not None

    def _read_pool_end(self, record: Record, rank: Rank, _name: str) -> bool:
        self.started = True
        self.ranks.pool_ends(rank, record.text, source(record))
        self.phase = "graph_capture"
        return True

    def _read_graph(self, record: Record, rank: Rank, _name: str) -> bool:
        if lines.GRAPH_END.search(record.text):
            self.started = True
            self.ranks.graph_ends(rank, record.text, source(record))
            return True
        begins = lines.GRAPH_BEGIN.search(record.text) is not None
        self.phase = "graph_capture" if begins else self.phase
        return begins

    def _read_profile(self, record: Record, _rank: Rank, _name: str) -> bool:
        match = lines.PROFILE.search(record.text)
        if match:
            self.started = True
            self.base = (Sourced(float(match[2]), source(record)), Sourced(float(match[1]), source(record)))
            if "mem_fraction_static" not in self.start.flags:
                self.flag("mem_fraction_static", float(match[3]), source(record))
        return match is not None

    def _read_sizing(self, record: Record, _rank: Rank, _name: str) -> bool:
        exact, page, state = (
            pattern.search(record.text) for pattern in (lines.EFFECTIVE, lines.SIZING_PAGE, lines.DSV4)
        )
        if exact:
            self.pools.append(Sourced(int(exact[1]), source(record)))
            if exact[2] and "max_total_tokens" not in self.start.flags:
                self.flag("max_total_tokens", int(exact[2]), source(record))
        if page and "page_size" not in self.start.flags:
            self.flag("page_size", int(page[1]), source(record))
        if state:
            self.kv_gib = Sourced(float(state[1]), source(record))
            self.pools.append(Sourced(int(state[2]), source(record)))
        self.started = self.started or bool(exact or page or state)
        return bool(exact or page or state)

    def _read_final(self, record: Record, _rank: Rank, name: str) -> bool:
        match = lines.FINAL.search(record.text)
        if match is None or (record.cut and match.end() == len(record.text) and match[6] is None):
            return self._read_short_final(record)
        self.final_of[name] = match[1]
        self.pools.insert(0, Sourced(int(match[1]), source(record)))
        if match[6] is not None:
            self.available.append(Sourced(float(match[6]), source(record)))
        chunk = None if match[2] == "None" else int(match[2])
        for flag, value in (
            ("chunked_prefill_size", chunk),
            ("max_running_requests", int(match[4])),
            ("context_length", int(match[5])),
        ):
            self.flag(flag, value, source(record))
        self.started = self.announced = True
        self.phase = "serving"
        return True

    def _read_short_final(self, record: Record) -> bool:
        match = lines.SHORT_FINAL.search(record.text)
        if match and not record.cut:
            self.pools.append(Sourced(int(match[1]), source(record)))
        return match is not None

    def _read_fired_up(self, _record: Record, _rank: Rank, _name: str) -> bool:
        self.started = self.announced = self.complete = True
        self.phase = "serving"
        return True

    def _read_served(self, record: Record, _rank: Rank, _name: str) -> bool:
        if lines.SERVED.search(record.text):
            self.problems.progress()
        return False

    def _read_backend(self, record: Record, _rank: Rank, _name: str) -> bool:
        match = lines.BACKEND.search(record.text)
        if match and self.args is None:
            self.flag("attention_backend", match[1], source(record))
        return False

    def _refusal(self, record: Record, text: str) -> bool:
        match, exhausted = lines.REFUSED.search(text), lines.EXHAUSTED.search(text)
        if match and not self.announced:
            problem = Problem("refused", "pool", Sourced(quote(match[0]), source(record)), SPECIFIC, final=True)
            viable, fraction = lines.VIABLE.search(match[0]), lines.REFUSED_FRACTION.search(match[0])
            if viable:
                problem.evidence["minimum_fraction"] = Sourced(float(viable[1]), source(record))
            if fraction and "mem_fraction_static" not in self.start.flags:
                self.flag("mem_fraction_static", float(fraction[1]), source(record))
            self.problems.add(problem)
        elif exhausted:
            self.problems.add(Problem("failed", "serving", Sourced(quote(exhausted[0]), source(record)), SPECIFIC))
        return bool(match or exhausted)

    def _look_back(self) -> None:
        cause, chunk = self.problems.cause, self.start.flags.get("chunked_prefill_size")
        if cause is None or cause.outcome != "oom_runtime" or "prompt_tokens" in cause.evidence:
            return
        size = chunk.value if chunk and isinstance(chunk.value, int) else None
        tokens = prompt_in_flight(self.surroundings.lines_before(), size)
        if tokens is not None:
            cause.evidence["prompt_tokens"] = Sourced(tokens, "the Prefill lines just before")

    def conclude(self) -> None:
        """Sum up the ranks. T and A as the engine printed them together win over single ranks' lines."""
        tokens = self._pool_tokens()
        if tokens:
            self.measure("pool_tokens", int(str(tokens.value)), tokens.source)
        before, after = self.base or (None, None)
        self._measure("free_before_load_gib", before or self.ranks.lowest(lambda rank: rank.before_load))
        self._measure("free_after_load_gib", after or self.ranks.lowest(lambda rank: rank.after_load))
        self._measure("free_at_pool_end_gib", self.ranks.lowest(lambda rank: rank.pool_end))
        self._measure("free_at_ready_gib", self._free_at_ready())
        self._measure("weights_gib", self.ranks.highest_sum(lambda rank: rank.weights, positive=True))
        self._measure("graph_gib", self.ranks.highest_sum(lambda rank: rank.graphs))
        self._conclude_pools(int(str(tokens.value)) if tokens else None)

    def _measure(self, name: str, value: Sourced | None) -> None:
        if value is not None:
            self.measure(name, float(str(value.value)), value.source)

    def _pool_tokens(self) -> Sourced | None:
        finals = [pool for pool in self.pools if "context_len=" in pool.source]
        others = self.pools or self.ranks.first_pools()
        return min(finals or others, key=lambda pool: int(str(pool.value)), default=None)

    def _free_at_ready(self) -> Sourced | None:
        if self.available:
            return min(self.available, key=lambda value: float(str(value.value)))
        captured = any(rank.graphs for rank in self.ranks.all)
        last = self.ranks.lowest(lambda rank: rank.last_available) if self.announced or captured else None
        if last is None:
            return None
        return Sourced(last.value, f"{last.source} (an earlier moment: the final line names no available_gpu_mem)")

    def _conclude_pools(self, tokens: int | None) -> None:
        ways = self.start.flags.get("dcp_size")
        ways_value = ways.value if ways and isinstance(ways.value, int) and ways.value > 0 else 1
        pairs = [target_and_draft(rank, tokens, ways=ways_value) for rank in self.ranks.all]
        targets = [target for target, _ in pairs if target]
        drafts = [draft for _, draft in pairs if draft]
        self._measure("kv_cache_gib", self.kv_gib or min(targets, key=lambda kv: float(str(kv.value)), default=None))
        self._measure("draft_kv_cache_gib", min(drafts, key=lambda kv: float(str(kv.value)), default=None))


Handler = Callable[[SglangReader, Record, Rank, str], bool]
_HANDLERS: tuple[tuple[str, Handler], ...] = (
    ("ERVER_ARGS ", SglangReader._read_args),
    ("server_args=", SglangReader._read_args),
    ("Load weight ", SglangReader._read_load),
    ("KV ", SglangReader._read_pool),
    ("SWAKVPool", SglangReader._read_sliding),
    ("Mamba Cache", SglangReader._read_mamba),
    ("Memory pool end.", SglangReader._read_pool_end),
    ("Capture ", SglangReader._read_graph),
    ("Memory profiling: available_gpu", SglangReader._read_profile),
    ("EFFECTIVE max_total", SglangReader._read_sizing),
    ("KV pool sizing", SglangReader._read_sizing),
    ("memory calculation: ", SglangReader._read_sizing),
    ("max_total_num_tokens=", SglangReader._read_final),
    (lines.FIRED_UP, SglangReader._read_fired_up),
    (" batch", SglangReader._read_served),
    ("Attention backend not", SglangReader._read_backend),
)


class Sglang:
    """SGLang."""

    name = "sglang"
    openers = (b"server_args=", b"Load weight begin", b"max_total_num_tokens")
    ready = (b"fired up",)
    hooks = (
        b"erver_args=", b"SERVER_ARGS ", b"Load weight ", b" Cache ", b"KV cache dtype", b"KV pool sizing", b"SWAKVPool", b"Memory pool end",
        b"Capture ", b"memory calculation", b"Memory profiling", b"max_total_num_tokens", b"fired up", b"backend by default", b"mem-fraction-static",
    )  # fmt: skip

    def role(self, text: str) -> Role | None:
        """``opens`` for the arguments' line, ``belongs`` for lines that only SGLang prints."""
        short = text[:LONGEST_LINE]
        if lines.ARGS.search(short):
            return "opens"
        return "belongs" if lines.MINE.search(short) else None

    def reader(self, surroundings: Surroundings) -> SglangReader:
        """A reader for one start."""
        return SglangReader(surroundings)
