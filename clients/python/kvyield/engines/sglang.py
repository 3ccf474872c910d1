"""SGLang 0.4.3 to 0.5.23: what its log says about a start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from kvyield.engines import _sglang_lines as lines
from kvyield.engines._engine import Engine, Role, StartReader, Surroundings, source
from kvyield.engines._failures import SPECIFIC, Problem
from kvyield.engines._literals import Fields, Value, call_fields, dict_fields, scalar
from kvyield.engines._prefix import Record
from kvyield.engines._sglang_flags import MEMORY_FLAGS, dtype_flag
from kvyield.engines._sglang_ranks import MOST_RANKS, Rank, Ranks, add
from kvyield.engines._sglang_serving import prompt_in_flight
from kvyield.engines._sglang_sizing import Sizing
from kvyield.engines._start import Sourced
from kvyield.engines._text import quote

BACKWARDS_SECONDS = 10
SERVED_BYTES = 1 << 18
LONGEST_LINE = 4000


class SglangReader(StartReader):
    """Reads one start of SGLang."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__("sglang", surroundings)
        self.ranks = Ranks()
        self.sizing = Sizing()
        self.final_of: dict[str, int] = {}
        self.last_time: dict[str, datetime] = {}
        self.args: Fields | None = None
        self.args_text = ""
        self.has_graphs = False  # a line of their capture was seen

    def belongs(self, record: Record) -> bool:
        """False for arguments after the start-up began, for a new load once ready, for another final count of one rank,
        and for a rank whose clock went back once the pool is known.
        """
        text, rank = record.text[:LONGEST_LINE], lines.rank_of(record.text)
        if lines.ARGS.search(text):
            return not self.started and not self.settled and (self.args is None or self._is_repeated(record))
        if self.settled and lines.BEGINS.search(text):
            return False
        final = lines.final(text)
        if final and self.final_of.get(rank, final.tokens) != final.tokens:
            return False
        own, last = lines.own_time(text), self.last_time.get(rank)
        went_back = bool(own and last and (last - own).total_seconds() > BACKWARDS_SECONDS)
        return not (went_back and self._pool_known and lines.MINE.search(text))

    def _is_repeated(self, record: Record) -> bool:
        """True for the same arguments once more, as another process of the same server prints them."""
        return self.problems.cause is None and record.text.partition("server_args=")[2] == self.args_text

    @property
    def _pool_known(self) -> bool:
        told = self.sizing.finals or self.sizing.words
        return bool(told) or any(rank.pool_begun or rank.full_counts for rank in self.ranks.all)

    def feed(self, record: Record) -> None:
        """Take in one line."""
        text, own = record.text[:LONGEST_LINE], lines.own_time(record.text)
        name = lines.rank_of(text)
        if own and len(self.last_time) < MOST_RANKS:
            self.last_time[name] = max(own, self.last_time.get(name, own))
        ready = lines.FIRED_UP in text or lines.final(text) is not None
        self.clock.see(record, own, opens=lines.ARGS.search(text) is not None, ready=ready)
        rank = self.ranks.of(name)
        results = [handle(self, record, rank) for needle, handle in _HANDLERS if needle in text]
        if any(results):
            self.note(record)
            self.progressed(record)
        elif not self._refusal(record, text):
            held = self.problems.cause
            if self.read_problem(record, text) and self.problems.cause is not held:
                self._find_prompt(record)

    def _read_args(self, record: Record, _rank: Rank) -> bool:
        match = lines.ARGS.search(record.text)
        if match is None:
            return False
        at = match.end()
        fields = dict_fields(record.text, at - 1) if match[1] == "{" else call_fields(record.text, at)
        self.args, self.opened, self.args_text = fields, True, record.text.partition("server_args=")[2]
        where = f"line {record.number}: server_args"
        for name, value in fields.values.items():
            if name in MEMORY_FLAGS:
                self.flag(name, scalar(value), f"{where}, {name}={quote(str(value), 80)}")
        self._read_names(fields.values, where)
        return True

    def _read_names(self, values: dict[str, Value], where: str) -> None:
        for name, fact in lines.NAMES:
            self.fact(fact, scalar(values.get(name)), f"{where}, {name}")
        sizes = [values.get("tp_size"), *(values.get(name, 1) for name in ("pp_size", "dp_size"))]
        if all(isinstance(size, int) and 0 < size < 1 << 16 for size in sizes):
            tensor, pipeline, data = (int(str(size)) for size in sizes)
            replicas = 1 if values.get("enable_dp_attention") else data
            self.fact("gpu_count", tensor * pipeline * replicas, f"{where}, tp_size × pp_size × dp_size")

    def _read_load(self, record: Record, rank: Rank) -> bool:
        self.started = True
        if "Load weight begin." in record.text:
            self.ranks.load_begins(rank, record.text, source(record))
            self.phase = "load"
            return True
        self.ranks.load_ends(rank, record.text, source(record))
        self.phase = "graph_capture" if rank.pool_begun else "pool"
        model, quantization = lines.MODEL_CLASS.search(record.text), lines.QUANTIZATION.search(record.text)
        if model and len(rank.weights) < 2:
            self.fact("model_class", model[1], source(record))
        if quantization and len(rank.weights) < 2 and "quantization" not in self.start.flags:
            self.flag("quantization", quantization[1], source(record))
        return True

    def _read_pool(self, record: Record, rank: Rank) -> bool:
        dtype, known = lines.DTYPE.search(record.text), self.start.flags.get("kv_cache_dtype")
        if dtype and (known is None or known.value in ("auto", None)):
            self.flag("kv_cache_dtype", dtype_flag(dtype[1]), source(record))
        if lines.POOL.search(record.text) is None:
            return "Using KV cache dtype" in record.text
        self.started, self.phase = True, "pool"
        if "Post-capture" in record.text:
            rank.pools.clear()
            self.flag("post_capture_kv_sizing", True, source(record))
        self.ranks.pool_line(rank, record.text, source(record))
        return True

    def _read_sliding(self, record: Record, rank: Rank) -> bool:
        found = self.sizing.sliding(record, rank)
        self.started = self.started or found
        return found

    def _read_device(self, record: Record, _rank: Rank) -> bool:
        """What a framework sees of a GPU's memory, where nvidia-smi told nothing."""
        match = lines.DEVICE.search(record.text)
        if match:
            self.measure("device_memory_gib", round(int(match[1]) / 1024, 4), source(record))
        return match is not None

    def _read_limit(self, record: Record, _rank: Rank) -> bool:
        match = lines.LIMIT.search(record.text)
        if match:
            add(self.sizing.limits, Sourced(int(match[1]), source(record)))
        return match is not None

    def _read_mamba(self, record: Record, rank: Rank) -> bool:
        match = lines.MAMBA.search(record.text)
        if match:
            self.started = rank.pool_begun = True
            self.fact("mamba_slots", int(match[1]), source(record))
            sizes = lines.MAMBA_SIZE.findall(record.text)
            if sizes:
                self.fact("mamba_cache_gib", round(sum(map(float, sizes)), 4), source(record))
            if self.args is None:
                self.flag("max_mamba_cache_size", int(match[1]), source(record))
        return match is not None

    def _read_pool_end(self, record: Record, rank: Rank) -> bool:
        self.started, self.phase = True, "graph_capture"
        self.ranks.pool_ends(rank, record.text, source(record))
        return True

    def _read_graph(self, record: Record, rank: Rank) -> bool:
        if lines.GRAPH_END.search(record.text):
            self.started = self.has_graphs = True
            self.ranks.graph_ends(rank, record.text, source(record))
            return True
        begins = lines.GRAPH_BEGIN.search(record.text) is not None
        self.has_graphs = self.has_graphs or begins
        self.phase = "graph_capture" if begins else self.phase
        return begins

    def _read_profile(self, record: Record, _rank: Rank) -> bool:
        fraction = self.sizing.profile(record)
        if fraction is not None:
            self.started = True
            self._unless_given("mem_fraction_static", fraction, record)
        return fraction is not None

    def _read_sizing(self, record: Record, rank: Rank) -> bool:
        projected = lines.PROJECTED.search(record.text)
        if projected:
            add(self.sizing.projected, Sourced(int(projected[1]), source(record)))
        self.sizing.is_sharded = self.sizing.is_sharded or "DCP token sizing" in record.text
        exact, page = lines.EFFECTIVE.search(record.text), lines.SIZING_PAGE.search(record.text)
        if exact:
            add(self.sizing.words, Sourced(int(exact[1]), source(record)))
        if exact and exact[2]:
            self._unless_given("max_total_tokens", int(exact[2]), record)
        if page:
            self._unless_given("page_size", int(page[1]), record)
        found = bool(exact or page) or self.sizing.state_model(record, rank)
        self.started = self.started or found
        return found

    def _unless_given(self, name: str, value: float, record: Record) -> None:
        if name not in self.start.flags:
            self.flag(name, value, source(record))

    def _read_final(self, record: Record, _rank: Rank) -> bool:
        final = lines.final(record.text)
        if final is None:
            return self._read_short_final(record)
        name = lines.rank_of(record.text)
        if len(self.final_of) < MOST_RANKS:
            self.final_of[name] = final.tokens
        add(self.sizing.finals, Sourced(final.tokens, source(record)))
        if final.available_gib is not None:
            add(self.sizing.available, Sourced(final.available_gib, source(record)))
        if "context_len" in final.flags:
            self.flag("context_length", final.flags["context_len"], source(record))
        for flag in ("chunked_prefill_size", "max_running_requests"):
            if flag in final.flags:
                self._resolved(flag, final.flags[flag], name, record)
        self.started = self.announced = True
        self.phase = "serving"
        return True

    def _resolved(self, flag: str, value: int | None, rank: str, record: Record) -> None:
        """A value as the engine resolved it is the flag's; with data parallelism a rank's share of it is not."""
        ways = self.start.flags.get("dp_size")
        is_share = "DP" in lines.dimensions(rank) or bool(ways and isinstance(ways.value, int) and ways.value > 1)
        if is_share:
            self.fact(f"{flag}_per_rank", value, source(record))
        else:
            self.flag(flag, value, source(record))

    def _read_short_final(self, record: Record) -> bool:
        match = lines.SHORT_FINAL.search(record.text)
        if match:
            add(self.sizing.words, Sourced(int(match[1]), source(record)))
            self.started = self.announced = True
            self.phase = "serving"
        return match is not None

    def _read_fired_up(self, _record: Record, _rank: Rank) -> bool:
        self.started = self.announced = self.complete = True
        self.phase = "serving"
        return True

    def _read_served(self, record: Record, _rank: Rank) -> bool:
        if lines.SERVED.search(record.text):
            self.progressed(record)
            if lines.DECODED.search(record.text) and self.started and not self.announced:
                self.announced, self.phase = True, "serving"
        return False

    def _read_prefill_graph(self, record: Record, _rank: Rank) -> bool:
        match = lines.NO_PREFILL_GRAPH.search(record.text)
        if match:
            self.flag("disable_prefill_cuda_graph", True, source(record))
        return match is not None

    def _read_backend(self, record: Record, _rank: Rank) -> bool:
        match = lines.BACKEND.search(record.text)
        if match and self.args is None:
            self.flag("attention_backend", match[1], source(record))
        return False

    def _refusal(self, record: Record, text: str) -> bool:
        match, exhausted = lines.REFUSED.search(text), lines.EXHAUSTED.search(text)
        if match and not self.announced:
            problem = Problem("refused", "pool", Sourced(quote(match[0]), source(record)), SPECIFIC, final=True)
            fraction = lines.REFUSED_FRACTION.search(match[0])
            if fraction:
                self._unless_given("mem_fraction_static", float(fraction[1]), record)
            self.problems.add(problem)
        elif exhausted:
            self.problems.add(Problem("failed", "serving", Sourced(quote(exhausted[0]), source(record)), SPECIFIC))
        self._refused_fraction(record, text)
        return bool(match or exhausted)

    def _refused_fraction(self, record: Record, text: str) -> None:
        """The least fraction that the refusal names, on its line or, where somebody broke it, on one after it."""
        cause, viable = self.problems.cause, lines.VIABLE.search(text)
        least = viable or lines.RAISE_ABOVE.search(text)
        if cause is None or cause.outcome != "refused" or least is None:
            return
        if viable or "minimum_fraction" not in cause.evidence:
            cause.evidence["minimum_fraction"] = Sourced(float(least[1]), source(record))

    def _find_prompt(self, record: Record) -> None:
        cause, shared = self.problems.cause, self.start.facts.get("chunked_prefill_size_per_rank")
        if cause is None or cause.outcome != "oom_runtime":
            return
        chunk = shared or self.start.flags.get("chunked_prefill_size")  # a data-parallel rank works on its share
        size = chunk.value if chunk and isinstance(chunk.value, int) else None
        tokens = prompt_in_flight(self.lines_before(record, SERVED_BYTES), size)
        if tokens is not None:
            cause.evidence["prompt_tokens"] = Sourced(tokens, "the Prefill lines just before")

    def conclude(self) -> None:
        """Sum up the ranks. T and A as the engine printed them together win over single ranks' lines."""
        before, after = self.sizing.base or (None, None)
        ways = self.start.flags.get("dcp_size")
        shards = ways.value if ways and isinstance(ways.value, int) and ways.value > 0 else 1
        given = self.start.flags.get("max_total_tokens")
        cap = given.value if given and isinstance(given.value, int) else None
        uncapped = self.sizing.uncapped_tokens(self.ranks, cap)
        kv, draft = self.sizing.kv(self.ranks, ways=shards, is_capped=uncapped is not None)
        self.take("pool_tokens", self.sizing.pool_tokens(self.ranks))
        self.take("uncapped_pool_tokens", uncapped)
        self.take("swa_pool_tokens", self.sizing.window_tokens(self.ranks))
        self.take(
            "longest_prompt_tokens", min(self.sizing.limits, key=lambda limit: int(str(limit.value)), default=None)
        )
        self.take("free_before_load_gib", before or self.ranks.lowest(lambda rank: rank.before_load))
        self.take("free_after_load_gib", after or self.ranks.lowest(lambda rank: rank.after_load))
        self.take("free_at_pool_end_gib", self.ranks.lowest(lambda rank: rank.pool_end))
        if self.announced:
            self.take("free_at_ready_gib", self.sizing.free_at_ready(self.ranks, has_graphs=self.has_graphs))
        self.take("weights_gib", self.ranks.highest_sum(lambda rank: rank.weights, positive=True))
        self.take("draft_weights_gib", self.ranks.highest_sum(lambda rank: rank.weights[1:], positive=True))
        self.take("graph_gib", self.ranks.highest_sum(lambda rank: rank.graphs))
        self.take("kv_cache_gib", kv)
        self.take("draft_kv_cache_gib", draft)
        self.start.contradictions = self.sizing.contradictions(self.ranks, ways=shards)


Handler = Callable[[SglangReader, Record, Rank], bool]
_HANDLERS: tuple[tuple[str, Handler], ...] = (
    ("SERVER_ARGS ", SglangReader._read_args),
    ("server_args=", SglangReader._read_args),
    ("Load weight ", SglangReader._read_load),
    ("KV ", SglangReader._read_pool),
    ("SWA", SglangReader._read_sliding),
    ("swa", SglangReader._read_sliding),
    ("maximum allowed length", SglangReader._read_limit),
    ("mem_get_info", SglangReader._read_device),
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
    ("Disabling ", SglangReader._read_prefill_graph),
)


def _role(text: str) -> Role | None:
    short = text[:LONGEST_LINE]
    if lines.ARGS.search(short):
        return "opens"
    return "belongs" if lines.MINE.search(short) else None


SGLANG = Engine(
    name="sglang",
    openers=(b"server_args=", b"Load weight begin"),
    ready=(b"fired up",),
    late=(b"maximum allowed length",),
    hooks=(
        *(b"server_args=", b"SERVER_ARGS ", b"Load weight ", b"Init torch", b" Cache ", b"KV cache dtype", b"Capture "),
        *(b"KV pool sizing", b"SWA", b"Memory pool end", b"memory calculation", b"Memory profiling", b"swa_"),
        *(b"pool sizes", b"token sizing", b"mem_get_info", b"minimum viable"),
        *(b"max_total_num_tokens", b"fired up", b"backend by default", b"mem-fraction-static", b"prefill CUDA graph"),
    ),
    role=_role,
    reader=SglangReader,
)
